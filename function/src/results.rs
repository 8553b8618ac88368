//! Settles what hosts report: verifies each event under its host's key, applies it to the store, and
//! queues the callbacks it owes, in one transaction.
//!
//! The same logic serves both ways a queue hands out messages: pushed in batches
//! ([`ResultsWorker::handle`]) or received in a loop ([`ResultsWorker::run`]). What can never be
//! settled is put away loudly and never blocks what comes after it; what cannot be settled *now*
//! stays in the queue.

mod verification;

mod notice;

pub mod disclosure;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use backplane::queue::{MAX_WAIT, Message};
use backplane::store::{NewCallback, OperationRecord, Settlement};
use backplane::{Clock, Reads, ReceiveError, Receiver, Store, StoreError};
use events::result::HostEvent;
use tokio::sync::watch;

use crate::causes::chain;
use crate::shutdown::requested;
use verification::{Unverified, verify};

/// Pause after the queue did not answer.
const RECEIVE_PAUSE: Duration = Duration::from_secs(1);
/// Longest delay of a message whose settlement failed. With the queue's five deliveries the store
/// may be away for about ten minutes before a result becomes a dead letter.
const LONGEST_DELAY_S: u64 = 600;

/// Settles results. One per process is enough; more do no harm, since the store decides.
pub struct ResultsWorker {
    store: Arc<dyn Store>,
    reads: Arc<dyn Reads>,
    clock: Arc<dyn Clock>,
    on_change: Arc<dyn Fn() + Send + Sync>,
    poisoned: AtomicU64,
}

/// What became of one message.
enum Handled {
    /// It moved something.
    Applied,
    /// It is done with, and nothing moved.
    Ignored,
    /// It is to come again.
    Failed,
}

/// What is owed to the caller of an operation that was settled when it was accepted.
#[must_use]
pub fn owed_at_once(record: &OperationRecord) -> Vec<NewCallback> {
    // The body is made of strings and ids; that it does not serialise cannot be, and must not
    // refuse the webhook.
    notice::at_once(record).unwrap_or_default()
}

impl ResultsWorker {
    /// `on_change` is called after each settlement that moved something: it wakes whoever waits for
    /// a final state, and the sweep that posts callbacks.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        reads: Arc<dyn Reads>,
        clock: Arc<dyn Clock>,
        on_change: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            store,
            reads,
            clock,
            on_change,
            poisoned: AtomicU64::new(0),
        }
    }

    /// Messages put away because they can never be settled, since the start.
    #[must_use]
    pub fn poisoned(&self) -> u64 {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Settles a batch and returns the ids of the messages that are to be delivered again. After a
    /// failure the rest of its group counts as failed too, or its order would break.
    pub async fn handle(&self, messages: Vec<Message>) -> Vec<String> {
        self.handle_within(messages, Duration::MAX).await
    }

    /// Likewise, and begins with none once `budget` has passed: those count as failed.
    pub async fn handle_within(&self, messages: Vec<Message>, budget: Duration) -> Vec<String> {
        let begun = Instant::now();
        let mut failed = Vec::new();
        let mut blocked = BTreeSet::new();
        for message in messages {
            if blocked.contains(&message.group) || begun.elapsed() >= budget {
                failed.push(message.id);
                continue;
            }
            match self.handle_one(&message).await {
                Handled::Applied => (self.on_change)(),
                Handled::Ignored => {}
                Handled::Failed => {
                    failed.push(message.id);
                    blocked.insert(message.group);
                }
            }
        }
        failed
    }

    /// Receives and settles until `shutdown` becomes true or its sender is gone.
    pub async fn run(&self, receiver: &dyn Receiver, mut shutdown: watch::Receiver<bool>) {
        loop {
            let turn = self.turn(receiver);
            let pause = tokio::select! {
                biased;
                () = requested(&mut shutdown) => return,
                turn = turn => turn,
            };
            if let Err(error) = pause {
                tracing::warn!(error = chain(&error), "results cannot be received");
                tokio::select! {
                    () = requested(&mut shutdown) => return,
                    () = tokio::time::sleep(RECEIVE_PAUSE) => {}
                }
            }
        }
    }

    /// One message. May be dropped at any await: what was not acknowledged comes again, and settling
    /// twice is stale.
    async fn turn(&self, receiver: &dyn Receiver) -> Result<(), ReceiveError> {
        let Some(message) = receiver.receive(MAX_WAIT).await? else {
            return Ok(());
        };
        let (receipt, count) = (message.receipt.clone(), message.receive_count);
        if self.handle(vec![message]).await.is_empty() {
            receiver.ack(&receipt).await?;
        } else {
            receiver.nack(&receipt, delay(count)).await?;
        }
        Ok(())
    }

    async fn handle_one(&self, message: &Message) -> Handled {
        let verified = verify(&message.body, &*self.reads).await;
        let event = match verified {
            Ok(event) => event,
            Err(Unverified::Later(error)) => return self.failed(message, &error),
            Err(Unverified::Never(reason)) => {
                self.poisoned.fetch_add(1, Ordering::Relaxed);
                tracing::error!(message.id = %message.id, message.sender = message.sender, %reason, "result put away: it can never be settled");
                return Handled::Ignored;
            }
        };
        match self.settle(event).await {
            Ok(handled) => handled,
            Err(error) => self.failed(message, &error),
        }
    }

    async fn settle(&self, event: HostEvent) -> Result<Handled, StoreError> {
        let callbacks = notice::callbacks(&event, &*self.reads).await?;
        let (host, kind) = (event.host.clone(), event.event.kind);
        let subject = event.event.subject.clone();
        let count = callbacks.len();
        let now_ms = self.clock.now_ms();
        let settlement = self.store.settle(event, callbacks, now_ms).await?;
        match settlement {
            Settlement::Applied(operation) => {
                let state = operation.as_ref().map(|operation| operation.state.as_str());
                tracing::info!(host = %host, event.kind = ?kind, event.subject = %subject, operation.state = state, callbacks = count, "result settled");
                Ok(Handled::Applied)
            }
            Settlement::Stale => {
                tracing::debug!(host = %host, event.kind = ?kind, event.subject = %subject, "result is older than what is known");
                Ok(Handled::Ignored)
            }
            Settlement::Unknown => {
                tracing::warn!(host = %host, event.kind = ?kind, event.subject = %subject, "result is about nothing that was accepted for this host");
                Ok(Handled::Ignored)
            }
        }
    }

    fn failed(&self, message: &Message, error: &StoreError) -> Handled {
        tracing::warn!(message.id = %message.id, message.group = %message.group, error = chain(error), "result cannot be settled now");
        Handled::Failed
    }
}

/// 1, 8, 64, 512 s after the first, second, … failed delivery.
fn delay(receive_count: u32) -> Duration {
    let seconds = 8_u64.saturating_pow(receive_count.saturating_sub(1));
    Duration::from_secs(seconds.min(LONGEST_DELAY_S))
}
