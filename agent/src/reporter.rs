//! The reporter: outbox to results queue, in order, until the queue has each.

use std::sync::Arc;
use std::time::Duration;

use backplane::{Outgoing, QueueName, SendError, Sender};
use events::HostName;
use events::envelope;
use events::key::SecretKey;
use events::result::RESULT_TYPE;
use tokio::sync::{Notify, watch};

use crate::intake::jittered;
use crate::ledger::{Ledger, LedgerError};

/// Events read at once.
const BATCH: u32 = 32;
/// Pause after a failure; the first doubles up to the last.
const BACKOFF: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(30)];

/// Sends results.
pub struct Reporter {
    /// The outbox is in it.
    pub ledger: Arc<Ledger>,
    /// The results queue.
    pub sender: Arc<dyn Sender>,
    /// Signs results.
    pub key: SecretKey,
    /// This host.
    pub host: HostName,
    /// Woken when there is something to send.
    pub poke: Arc<Notify>,
}

/// Why the outbox could not be emptied.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error("outbox cannot be read")]
    Ledger(#[from] LedgerError),
    #[error("result cannot be sealed")]
    Seal(#[from] serde_json::Error),
    #[error("results queue does not take it")]
    Send(#[from] SendError),
}

impl Reporter {
    /// Sends until told to stop.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut pause = BACKOFF[0];
        loop {
            let wait = match self.empty().await {
                Ok(()) => {
                    pause = BACKOFF[0];
                    BACKOFF[1]
                }
                Err(error) => {
                    tracing::warn!(
                        error = crate::chain(&error),
                        pause_ms = pause.as_millis(),
                        "results cannot be sent now; they are kept"
                    );
                    pause = (pause * 2).min(BACKOFF[1]);
                    jittered(pause)
                }
            };
            let stopped = tokio::select! {
                () = self.poke.notified() => false,
                () = tokio::time::sleep(wait) => false,
                _ = stop.wait_for(|stop| *stop) => true,
            };
            if stopped {
                // What has happened is told if the queue is there; otherwise at the next start.
                let _ = self.empty().await;
                return;
            }
        }
    }

    async fn empty(self: &Arc<Self>) -> Result<(), ReportError> {
        loop {
            let ledger = Arc::clone(&self.ledger);
            let events = blocking(move || ledger.unsent(BATCH)).await?;
            if events.is_empty() {
                return Ok(());
            }
            for outgoing in events {
                let body = envelope::seal(&outgoing.event, RESULT_TYPE, &self.key)?;
                let message = Outgoing {
                    group: self.host.to_string(),
                    dedup: outgoing.event.id.clone(),
                    body,
                };
                self.sender.send(&QueueName::Results, message).await?;
                let ledger = Arc::clone(&self.ledger);
                blocking(move || ledger.mark_sent(outgoing.sequence)).await?;
            }
        }
    }
}

async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, LedgerError> {
    tokio::task::spawn_blocking(job)
        .await
        .expect("the ledger does not panic")
}
