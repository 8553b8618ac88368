//! What every door works with: configuration, store, queue, clock. Built once; shared by reference.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use backplane::store::Digest;
use backplane::{Clock, Reads, Sender, Store, StoreError};

use crate::changes::Changes;
use crate::config::{Caller, Config, Scheme, Source};
use crate::dispatch::Dispatcher;
use crate::signature::WebhookSecret;
use crate::signature::api_key::Comparison;

/// The front door's state.
pub struct App {
    /// What was configured. `callbacks` is empty if the process took them for its sweep; the signing key is
    /// the dispatcher's.
    pub config: Config,
    /// Accepts.
    pub store: Arc<dyn Store>,
    /// Reads.
    pub reads: Arc<dyn Reads>,
    /// Sends commands.
    pub dispatcher: Arc<Dispatcher>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Wakes whoever waits for a final state; the results worker pokes it.
    pub changes: Changes,
    pub(crate) comparison: Comparison,
    pub(crate) decoys: Vec<WebhookSecret>,
    in_flight: Mutex<HashSet<Digest>>,
}

/// Why no front door could be made.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The system has no randomness.
    #[error("no randomness from the system")]
    Randomness,
    /// Nothing could be sent.
    #[error("configuration was loaded without its signing key")]
    NoSigningKey,
    /// A configured host could not be enrolled.
    #[error("configured hosts cannot be enrolled")]
    Enrol(#[source] StoreError),
}

/// What a front door is built on; one object may be all three.
pub struct Backplane {
    /// Accepts.
    pub store: Arc<dyn Store>,
    /// Reads.
    pub reads: Arc<dyn Reads>,
    /// Sends commands.
    pub sender: Arc<dyn Sender>,
}

impl App {
    /// Builds the state.
    ///
    /// # Errors
    /// [`AppError::Randomness`], [`AppError::NoSigningKey`].
    pub fn new(
        mut config: Config,
        backplane: Backplane,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AppError> {
        let random = |_| AppError::Randomness;
        let signing_key = config.signing_key.take().ok_or(AppError::NoSigningKey)?;
        let dispatcher = Dispatcher {
            signing_key,
            sender: backplane.sender,
            store: Arc::clone(&backplane.store),
        };
        Ok(Self {
            config,
            store: backplane.store,
            reads: backplane.reads,
            dispatcher: Arc::new(dispatcher),
            clock,
            changes: Changes::new(),
            comparison: Comparison::new().map_err(random)?,
            decoys: vec![WebhookSecret::decoy().map_err(random)?],
            in_flight: Mutex::default(),
        })
    }

    /// Enrols the configured hosts, or re-enrols them under their present key and pools.
    ///
    /// # Errors
    /// [`AppError::Enrol`].
    pub async fn enrol_hosts(&self) -> Result<(), AppError> {
        for host in &self.config.hosts {
            self.store
                .put_host(host.clone())
                .await
                .map_err(AppError::Enrol)?;
        }
        Ok(())
    }

    /// The Standard Webhooks source of that name.
    pub(crate) fn webhook_source(&self, name: &str) -> Option<(&Caller, &[WebhookSecret], i64)> {
        self.config.sources.iter().find_map(|source| match source {
            Source {
                caller,
                scheme:
                    Scheme::StandardWebhooks {
                        secrets,
                        tolerance_s,
                    },
            } if caller.name.as_str() == name => Some((caller, secrets.as_slice(), *tolerance_s)),
            _ => None,
        })
    }

    /// Whose API key this is. Every key is compared, so that the time taken tells nothing.
    pub(crate) fn api_key_caller(&self, presented: &[u8]) -> Option<&Caller> {
        let mut found = None;
        for source in &self.config.sources {
            let Scheme::ApiKey { keys } = &source.scheme else {
                continue;
            };
            for key in keys {
                if self.comparison.matches(presented, key) {
                    found = Some(&source.caller);
                }
            }
        }
        found
    }

    /// Whose bearer token this is; compared likewise.
    pub(crate) fn token_caller(&self, presented: &[u8]) -> Option<&Caller> {
        let mut found = None;
        for token in &self.config.tokens {
            if self.comparison.matches(presented, &token.key) {
                found = Some(&token.caller);
            }
        }
        found
    }

    /// Marks a delivery as being worked on in this process; `None` if it is already.
    pub(crate) fn begin(self: &Arc<Self>, key: Digest) -> Option<InFlight> {
        let mut in_flight = self
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        in_flight.insert(key).then(|| InFlight {
            app: Arc::clone(self),
            key,
        })
    }
}

/// A delivery being worked on; no longer once dropped.
pub(crate) struct InFlight {
    app: Arc<App>,
    key: Digest,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.app
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.key);
    }
}
