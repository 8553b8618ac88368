//! Credentials: the usual chain of providers, asked one after the other, each with its reason when it
//! has none. Shortly before what was found expires they are asked again, in the background: it is used until
//! its end, whatever they answer meanwhile. What AWS calls expired is dropped at once, so that rotated files
//! and processes are picked up without a restart (field F70).

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_config::Region;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use tokio::sync::watch;

use super::connection::Connection;

/// Longest wait for the metadata service: near and quick where it exists, a black hole elsewhere.
const METADATA: Duration = Duration::from_secs(1);
/// Longest wait for any one provider; a `credential_process` signs in over the network.
const PROVIDER: Duration = Duration::from_secs(15);
/// Asked for again this long before they expire.
const MARGIN: Duration = Duration::from_secs(300);
/// Credentials that name no end are asked for again after this long: their file may have changed.
const ENDLESS: Duration = Duration::from_secs(60);
/// Pause after an answer that is no better than what is kept.
const PAUSE: Duration = Duration::from_secs(10);

/// What to do with access keys that have no session token: they do not expire, and who copies them keeps
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StaticKeys {
    /// They are refused.
    #[default]
    Refused,
    /// They are taken.
    Allowed,
}

/// No provider has credentials that may be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no AWS credentials: {}", tried.join("; "))]
pub struct CredentialsUnavailable {
    /// Each provider that was asked, with its answer, in order.
    pub tried: Vec<String>,
}

/// Credentials that renew themselves; clones share them.
#[derive(Clone)]
pub(super) struct Renewing {
    inner: Arc<Inner>,
}

struct Inner {
    emulator: Option<Credentials>,
    profile: Option<String>,
    static_keys: StaticKeys,
    http: SharedHttpClient,
    region: Region,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Option<Kept>,
    /// While providers are being asked. They are asked once for all who wait: a call's deadline may be
    /// shorter than a process takes, and must neither cut it off nor start another one.
    asking: Option<watch::Receiver<Option<Answer>>>,
}

type Answer = Result<Credentials, CredentialsUnavailable>;

struct Kept {
    credentials: Credentials,
    /// When to ask again.
    until: SystemTime,
}

impl Kept {
    fn is_valid(&self, now: SystemTime) -> bool {
        self.credentials.expiry().is_none_or(|end| now < end)
    }
}

impl Renewing {
    pub(super) fn new(connection: &Connection, http: SharedHttpClient, region: Region) -> Self {
        Self {
            inner: Arc::new(Inner {
                emulator: connection.emulator_keys.as_ref().map(|[id, secret]| {
                    Credentials::new(id.clone(), secret.clone(), None, None, "emulator")
                }),
                profile: connection.profile.clone(),
                static_keys: connection.static_keys,
                http,
                region,
                state: Mutex::default(),
            }),
        }
    }

    /// Forgets what is kept: AWS said that it has expired, or does not know it.
    pub(super) fn forget(&self) {
        self.state().kept = None;
    }

    pub(super) async fn credentials(&self) -> Answer {
        if let Some(emulator) = &self.inner.emulator {
            return Ok(emulator.clone());
        }
        let mut answer = {
            let mut state = self.state();
            let now = SystemTime::now();
            let asking = |state: &mut State| match &state.asking {
                // Whoever asks may have gone with its runtime.
                Some(asking) if asking.has_changed().is_ok() => asking.clone(),
                _ => self.begin(state),
            };
            match &state.kept {
                Some(kept) if now < kept.until => return Ok(kept.credentials.clone()),
                Some(kept) if kept.is_valid(now) => {
                    let credentials = kept.credentials.clone();
                    asking(&mut state);
                    return Ok(credentials);
                }
                _ => asking(&mut state),
            }
        };
        let answered = answer.wait_for(Option::is_some).await;
        let answer = answered.ok().and_then(|answer| answer.clone());
        answer.unwrap_or_else(|| {
            let tried = vec!["asking ended early".to_owned()];
            Err(CredentialsUnavailable { tried })
        })
    }

    /// Begins to ask, apart from whoever waits for the answer.
    fn begin(&self, state: &mut State) -> watch::Receiver<Option<Answer>> {
        let (told, asking) = watch::channel(None);
        state.asking = Some(asking.clone());
        let renewing = self.clone();
        tokio::spawn(async move {
            let answer = renewing.ask().await;
            let mut state = renewing.state();
            state.keep(&answer);
            state.asking = None;
            told.send_replace(Some(answer));
        });
        asking
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks each provider in the order of every AWS tool. They are made anew each time, since they keep
    /// what they have once read.
    async fn ask(&self) -> Result<Credentials, CredentialsUnavailable> {
        let mut asked = Asked {
            static_keys: self.inner.static_keys,
            tried: Vec::new(),
        };
        let config = ProviderConfig::without_region()
            .with_region(Some(self.inner.region.clone()))
            .with_http_client(self.inner.http.clone());
        let environment = aws_config::environment::EnvironmentVariableCredentialsProvider::new();
        if let Some(found) = asked
            .of("environment", environment.provide_credentials())
            .await
        {
            return Ok(found);
        }
        let mut profile = aws_config::profile::credentials::Builder::default().configure(&config);
        let mut name = "profile".to_owned();
        if let Some(chosen) = &self.inner.profile {
            profile = profile.profile_name(chosen);
            name = format!("profile {chosen}");
        }
        if let Some(found) = asked.of(&name, profile.build().provide_credentials()).await {
            return Ok(found);
        }
        let token = aws_config::web_identity_token::Builder::default()
            .configure(&config)
            .build();
        if let Some(found) = asked
            .of("web identity token", token.provide_credentials())
            .await
        {
            return Ok(found);
        }
        let container = aws_config::ecs::Builder::default()
            .configure(&config)
            .connect_timeout(METADATA)
            .build();
        if let Some(found) = asked.of("container", container.provide_credentials()).await {
            return Ok(found);
        }
        let metadata = aws_config::imds::Client::builder()
            .configure(&config)
            .connect_timeout(METADATA)
            .operation_timeout(2 * METADATA)
            .max_attempts(1)
            .build();
        let instance = aws_config::imds::credentials::ImdsCredentialsProvider::builder()
            .configure(&config)
            .imds_client(metadata)
            .build();
        if let Some(found) = asked
            .of("instance metadata", instance.provide_credentials())
            .await
        {
            return Ok(found);
        }
        Err(CredentialsUnavailable { tried: asked.tried })
    }
}

impl State {
    fn keep(&mut self, answer: &Answer) {
        let now = SystemTime::now();
        match answer {
            Ok(credentials) => {
                let until = match credentials.expiry() {
                    // Near their end, or past it by this clock: AWS is the judge, and is asked again soon.
                    Some(end) => (end - MARGIN).max(now + Duration::from_secs(1)),
                    None => now + ENDLESS,
                };
                self.kept = Some(Kept {
                    credentials: credentials.clone(),
                    until,
                });
            }
            Err(error) => {
                if let Some(kept) = &mut self.kept {
                    tracing::warn!(%error, "no new AWS credentials; the present ones are used to their end");
                    let end = kept.credentials.expiry();
                    kept.until = end.map_or(now + PAUSE, |end| end.min(now + PAUSE));
                }
            }
        }
    }
}

/// The answers so far.
struct Asked {
    static_keys: StaticKeys,
    tried: Vec<String>,
}

impl Asked {
    /// A provider's credentials, if it has any that may be used; else its answer is noted.
    async fn of(
        &mut self,
        name: &str,
        answer: impl Future<Output = Result<Credentials, CredentialsError>>,
    ) -> Option<Credentials> {
        let reason = match tokio::time::timeout(PROVIDER, answer).await {
            Err(_) => format!("no answer within {} s", PROVIDER.as_secs()),
            Ok(Err(error)) => super::error::chain(&error),
            Ok(Ok(found))
                if found.session_token().is_none() && self.static_keys == StaticKeys::Refused =>
            {
                "has long-lived access keys, which are refused unless static keys are allowed"
                    .to_owned()
            }
            Ok(Ok(found)) => return Some(found),
        };
        self.tried.push(format!("{name}: {reason}"));
        None
    }
}

impl ProvideCredentials for Renewing {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            self.credentials()
                .await
                .map_err(CredentialsError::not_loaded)
        })
    }
}

impl fmt::Debug for Renewing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewing").finish_non_exhaustive()
    }
}
