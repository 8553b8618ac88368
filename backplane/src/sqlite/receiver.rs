//! Receiving from one queue: look, claim, or wait for a wake or the next message's hour.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, timeout_at};

use super::{SqliteBackplane, queue};
use crate::queue::{MAX_WAIT, Message, QueueName, ReceiveError, Receiver, Settled};

/// SQS's longest visibility timeout; longer delays are cut to it.
const LONGEST_DELAY: Duration = Duration::from_secs(12 * 3600);

/// Takes messages from one queue of a [`SqliteBackplane`].
#[derive(Clone)]
pub struct SqliteReceiver {
    backplane: SqliteBackplane,
    queue: String,
}

impl SqliteReceiver {
    pub(super) fn new(backplane: SqliteBackplane, queue: &QueueName) -> Self {
        Self {
            backplane,
            queue: queue.to_string(),
        }
    }

    async fn claim(&self) -> Result<Option<Message>, ReceiveError> {
        let (queue, now_ms) = (self.queue.clone(), self.backplane.now_ms());
        Ok(self
            .backplane
            .write(move |scope| queue::claim(scope, &queue, now_ms))
            .await?)
    }

    /// Time until the next message is deliverable; zero if one is, `None` if none is in sight.
    async fn due_in(&self) -> Result<Option<Duration>, ReceiveError> {
        let queue = self.queue.clone();
        let next_at_ms = self
            .backplane
            .read(move |conn| queue::next_at_ms(conn, &queue))
            .await?;
        let now_ms = self.backplane.now_ms();
        Ok(next_at_ms.map(|at_ms| {
            Duration::from_millis(u64::try_from(at_ms.saturating_sub(now_ms)).unwrap_or(0))
        }))
    }
}

#[async_trait]
impl Receiver for SqliteReceiver {
    async fn receive(&self, wait: Duration) -> Result<Option<Message>, ReceiveError> {
        let deadline = Instant::now() + wait.min(MAX_WAIT);
        let mut wakes = self.backplane.wakes();
        loop {
            // Marked before looking: a wake between looking and waiting ends the wait at once.
            wakes.mark_unchanged();
            let due_in = self.due_in().await?;
            if due_in == Some(Duration::ZERO) {
                // Looking reads and takes no lock; only what is there is claimed. Another receiver
                // may have been faster, then this one looks again.
                match self.claim().await? {
                    None if Instant::now() < deadline => continue,
                    claimed => return Ok(claimed),
                }
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let until = due_in.map_or(deadline, |due_in| deadline.min(Instant::now() + due_in));
            if let Ok(Err(_)) = timeout_at(until, wakes.changed()).await {
                return Err(ReceiveError::Unavailable(
                    "backplane has stopped".to_owned(),
                ));
            }
        }
    }

    async fn ack(&self, receipt: &str) -> Result<Settled, ReceiveError> {
        let (queue, receipt, now_ms) = (
            self.queue.clone(),
            receipt.to_owned(),
            self.backplane.now_ms(),
        );
        Ok(self
            .backplane
            .write(move |scope| queue::ack(scope, &queue, &receipt, now_ms))
            .await?)
    }

    async fn nack(&self, receipt: &str, after: Duration) -> Result<Settled, ReceiveError> {
        let (queue, receipt, now_ms) = (
            self.queue.clone(),
            receipt.to_owned(),
            self.backplane.now_ms(),
        );
        let visible_at_ms = now_ms.saturating_add(queue::millis(after.min(LONGEST_DELAY)));
        Ok(self
            .backplane
            .write(move |scope| queue::nack(scope, &queue, &receipt, visible_at_ms, now_ms))
            .await?)
    }
}
