//! The configuration's files from Secrets Manager: each secret is a JSON object of paths and texts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use aws_sdk_secretsmanager::Client;
use backplane::aws::Aws;
use function::Config;
use function::config::{Bundle, ConfigError, Wanted};
use tokio::task::JoinSet;
use zeroize::Zeroizing;

/// How long a configuration is used before it is looked at again.
const REFRESH: Duration = Duration::from_secs(300);

/// The configuration's file, as everywhere.
const CONFIG: &str = "gpuhook.toml";

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// A secret cannot be read.
    #[error("secret {id} cannot be read")]
    Unreadable {
        /// Which.
        id: String,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A secret is not what `gpuhook config push` writes.
    #[error(
        "secret {id} is not a JSON object of file paths and texts; write it with `gpuhook config push`"
    )]
    Malformed {
        /// Which.
        id: String,
    },
    /// Nothing was pushed yet.
    #[error("there is no gpuhook.toml in the secrets; write it with `gpuhook config push`")]
    Empty,
    /// What was pushed is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Secrets that hold a configuration, looked at again every five minutes. What cannot be read or loaded
/// then leaves what is in use as it is, loudly.
pub struct Watched {
    secrets: Secrets,
    versions: Vec<String>,
    looked: Instant,
}

impl Watched {
    /// Reads the secrets for the first time.
    ///
    /// # Errors
    /// See [`SecretsError`].
    pub async fn start(aws: &Aws, ids: &[String]) -> Result<(Self, Files), SecretsError> {
        let secrets = Secrets {
            client: Client::new(aws.sdk_config()),
            ids: ids.to_vec(),
        };
        let files = secrets.read().await?;
        let watched = Self {
            secrets,
            versions: files.versions.clone(),
            looked: Instant::now(),
        };
        Ok((watched, files))
    }

    /// What `build` makes of the secrets, if it is time to look and they have changed.
    pub async fn refresh<T>(
        &mut self,
        build: impl FnOnce(&Files) -> anyhow::Result<T>,
    ) -> Option<T> {
        if self.looked.elapsed() < REFRESH {
            return None;
        }
        self.looked = Instant::now();
        match self.build(build).await {
            Ok(None) => None,
            Ok(built) => {
                tracing::info!("configuration changed");
                built
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    alert = "configuration",
                    error,
                    "the configuration in use is kept"
                );
                None
            }
        }
    }

    async fn build<T>(
        &mut self,
        build: impl FnOnce(&Files) -> anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        let files = self.secrets.read().await?;
        if files.versions == self.versions {
            return Ok(None);
        }
        let built = build(&files)?;
        self.versions = files.versions;
        Ok(Some(built))
    }
}

#[derive(Debug, Clone)]
struct Secrets {
    client: Client,
    ids: Vec<String>,
}

/// What was read: the files, and which version of each secret they were.
pub struct Files {
    bundle: Bundle,
    versions: Vec<String>,
}

impl Secrets {
    /// Reads all of them at once.
    async fn read(&self) -> Result<Files, SecretsError> {
        let mut reading = JoinSet::new();
        for (place, id) in self.ids.iter().cloned().enumerate() {
            let client = self.client.clone();
            reading.spawn(async move { (place, read_one(&client, id).await) });
        }
        let mut found = BTreeMap::new();
        while let Some(read) = reading.join_next().await {
            let (place, read) = read.expect("reading a secret does not panic");
            found.insert(place, read?);
        }
        let mut files = Files {
            bundle: Bundle::default(),
            versions: Vec::new(),
        };
        for (version, texts) in found.into_values() {
            files.versions.push(version);
            for (path, text) in texts {
                files.bundle.insert(path, text);
            }
        }
        Ok(files)
    }
}

type Texts = BTreeMap<String, Zeroizing<String>>;

async fn read_one(client: &Client, id: String) -> Result<(String, Texts), SecretsError> {
    let got = client.get_secret_value().secret_id(&id).send().await;
    let got = got.map_err(|error| SecretsError::Unreadable {
        id: id.clone(),
        source: error.into(),
    })?;
    let text = Zeroizing::new(got.secret_string.unwrap_or_default());
    // The reason could repeat a part of the secret.
    let texts = serde_json::from_str(&text).map_err(|_| SecretsError::Malformed { id })?;
    Ok((got.version_id.unwrap_or_default(), texts))
}

impl Files {
    /// The parts of the configuration that a function wants.
    ///
    /// # Errors
    /// Every fault.
    pub fn config(&self, wanted: Wanted) -> Result<Config, SecretsError> {
        if !self.bundle.contains(CONFIG) {
            return Err(SecretsError::Empty);
        }
        let environment = |name: &str| std::env::var(name).ok();
        Ok(Config::load_parts(
            Path::new(CONFIG),
            &self.bundle,
            wanted,
            &environment,
        )?)
    }
}
