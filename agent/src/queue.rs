//! Where commands come from and results go: a file of this machine, or SQS.

use std::path::PathBuf;
use std::sync::Arc;

use backplane::sqlite::{OpenError, SqliteBackplane};
use backplane::{Clock, QueueName, Receiver, Sender};
use events::HostName;
use events::outcome::HealthCheck;
use serde::Deserialize;

/// Which it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Queue {
    /// The backplane's file on this machine.
    Embedded {
        /// The file.
        backplane: PathBuf,
    },
    /// SQS.
    Sqs(Sqs),
}

/// This host's queues on SQS, and how to reach them. Credentials are looked for as every AWS tool does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sqs {
    /// URL of this host's command queue.
    pub commands_url: String,
    /// URL of the results queue.
    pub results_url: String,
    /// Region; else the environment's or the profile's.
    #[serde(default)]
    pub region: Option<String>,
    /// Profile of the shared configuration files.
    #[serde(default)]
    pub profile: Option<String>,
    /// Endpoint instead of AWS's own, for emulators.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Whether long-lived access keys may be used.
    #[serde(default)]
    pub allow_static_keys: bool,
}

/// Why there is no queue.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The file cannot be used.
    #[error("queue file cannot be opened")]
    Open(#[from] OpenError),
    /// AWS cannot be reached with what is configured.
    #[cfg(feature = "sqs")]
    #[error("SQS cannot be used")]
    Connect(#[from] backplane::aws::ConnectError),
    /// Nobody gave credentials.
    #[cfg(feature = "sqs")]
    #[error("SQS cannot be used")]
    Credentials(#[from] backplane::aws::CredentialsUnavailable),
    /// This program has no SQS in it.
    #[cfg(not(feature = "sqs"))]
    #[error("this gpuhook-agent was built without SQS: build it with --features sqs")]
    NotBuilt,
}

/// Both ends.
pub struct Opened {
    /// This host's commands.
    pub receiver: Arc<dyn Receiver>,
    /// Everybody's results.
    pub sender: Arc<dyn Sender>,
}

impl Queue {
    /// Opens both ends. With SQS a host that starts for the first time looks for credentials at once, so that
    /// without any it says within seconds which providers were tried (field F70). Later it starts without:
    /// what it holds has to be looked after while the cloud is away, and polls tell what they lack.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub async fn open(
        &self,
        host: &HostName,
        clock: Arc<dyn Clock>,
        is_first: bool,
    ) -> Result<Opened, QueueError> {
        match self {
            Self::Embedded { backplane } => {
                let opened = SqliteBackplane::open(backplane, clock)?;
                Ok(Opened {
                    receiver: Arc::new(opened.receiver(&QueueName::Commands(host.clone()))),
                    sender: Arc::new(opened),
                })
            }
            Self::Sqs(sqs) => sqs.open(is_first).await,
        }
    }

    /// Whether it could be opened, without taking anything from it.
    #[must_use]
    pub fn check(&self) -> HealthCheck {
        let (passed, detail) = match self {
            Self::Embedded { backplane } if backplane.exists() => {
                (true, backplane.display().to_string())
            }
            Self::Embedded { backplane } => {
                let remedy = "does not exist; start `gpuhook up` once, or correct queue.backplane";
                (false, format!("{}: {remedy}", backplane.display()))
            }
            Self::Sqs(sqs) => sqs.check(),
        };
        HealthCheck {
            name: "queue".to_owned(),
            passed,
            detail,
        }
    }
}

impl Sqs {
    /// What is wrong with it, each beginning with its key.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (key, url) in [
            ("commands_url", &self.commands_url),
            ("results_url", &self.results_url),
        ] {
            let is_plain = self.endpoint.is_some() && url.starts_with("http://");
            if !url.starts_with("https://") && !is_plain {
                faults.push(format!("{key}: must be an https URL"));
            }
        }
        if !self.commands_url.ends_with(".fifo") {
            let text = "commands_url: commands come from a FIFO queue, whose URL ends in .fifo";
            faults.push(text.to_owned());
        }
        faults
    }
}

#[cfg(feature = "sqs")]
mod sqs {
    use std::sync::Arc;

    use backplane::aws::{Aws, Connection, QueueUrls, Roots, SqsReceiver, SqsSender, StaticKeys};

    use super::{Opened, QueueError, Sqs};

    impl Sqs {
        fn connection(&self) -> Connection {
            Connection {
                region: self.region.clone(),
                profile: self.profile.clone(),
                endpoint: self.endpoint.clone(),
                roots: Roots::Native,
                static_keys: if self.allow_static_keys {
                    StaticKeys::Allowed
                } else {
                    StaticKeys::Refused
                },
                emulator_keys: None,
            }
        }

        pub(super) async fn open(&self, be_ready: bool) -> Result<Opened, QueueError> {
            let aws = Aws::connect(&self.connection()).await?;
            if be_ready {
                aws.ready().await?;
            }
            let urls = QueueUrls::Host {
                commands: self.commands_url.clone(),
                results: self.results_url.clone(),
            };
            Ok(Opened {
                receiver: Arc::new(SqsReceiver::new(&aws, &self.commands_url)),
                sender: Arc::new(SqsSender::new(&aws, urls)),
            })
        }

        pub(super) fn check(&self) -> (bool, String) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let opened = match runtime {
                Ok(runtime) => runtime.block_on(self.open(true)),
                Err(error) => return (false, error.to_string()),
            };
            match opened {
                Ok(_) => (
                    true,
                    format!("{}: there are credentials for it", self.commands_url),
                ),
                Err(error) => (false, crate::chain(&error)),
            }
        }
    }
}

#[cfg(not(feature = "sqs"))]
impl Sqs {
    async fn open(&self, _: bool) -> Result<Opened, QueueError> {
        Err(QueueError::NotBuilt)
    }

    fn check(&self) -> (bool, String) {
        (false, QueueError::NotBuilt.to_string())
    }
}
