//! The queue: FIFO by group with fenced visibility, as SQS FIFO has it.
//!
//! Semantics that every implementation holds (SQS developer guide, FIFO queues): messages of one
//! group are delivered in order and one at a time until acknowledged; a receipt is worthless once
//! the visibility timeout has run out; the same deduplication id within five minutes is swallowed
//! with success, also after the first was acknowledged; after `max_receives` deliveries a message
//! moves to the dead-letter queue and its group goes on.

use std::time::Duration;

use async_trait::async_trait;
use events::HostName;

/// Longest wait of one receive, as SQS has it.
pub const MAX_WAIT: Duration = Duration::from_secs(20);
/// How long a message stays invisible to others once received.
pub const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);
/// Window in which a deduplication id is remembered.
pub const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(300);
/// Deliveries before a message is dead.
pub const MAX_RECEIVES: u32 = 5;
/// Largest body in bytes; bodies are ASCII.
pub const MAX_BODY: usize = 256 * 1024;

/// A queue by its role.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum QueueName {
    /// Commands for one host.
    Commands(HostName),
    /// Results of all hosts.
    Results,
}

impl std::fmt::Display for QueueName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Commands(host) => write!(f, "commands-{host}"),
            Self::Results => f.write_str("results"),
        }
    }
}

/// A message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Message group: 1 to 128 of printable ASCII (field F58).
    pub group: String,
    /// Deduplication id: same rule.
    pub dedup: String,
    /// ASCII, at most [`MAX_BODY`] bytes.
    pub body: String,
}

/// Why a send did not certainly succeed.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The message was not queued and never will be by this call.
    #[error("queue refused the message: {0}")]
    Rejected(String),
    /// It may or may not be queued; sending again with the same deduplication id is safe.
    #[error("queue did not confirm the message: {0}")]
    Ambiguous(String),
}

/// A message received, invisible to others until its receipt runs out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Stable over redeliveries.
    pub id: String,
    /// Valid for this delivery only.
    pub receipt: String,
    /// Its group.
    pub group: String,
    /// Its body.
    pub body: String,
    /// Deliveries so far, this one included.
    pub receive_count: u32,
    /// The queue's own clock at delivery, Unix milliseconds; 0 where it is not told.
    pub server_time_ms: i64,
    /// Who sent it, as the queue knows them: for logs, never for decisions.
    pub sender: Option<String>,
}

/// Why nothing could be received or settled.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The queue does not answer.
    #[error("queue is unavailable: {0}")]
    Unavailable(String),
}

/// What became of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Done.
    Done,
    /// The receipt had run out; harmless, since the ledger owns the work (field F10).
    Lost,
}

/// Puts messages on a queue.
#[async_trait]
pub trait Sender: Send + Sync {
    /// Returns once the message is durable, or was a duplicate within the window.
    async fn send(&self, queue: &QueueName, message: Outgoing) -> Result<(), SendError>;
}

/// Takes messages from one queue.
#[async_trait]
pub trait Receiver: Send + Sync {
    /// The next message of any free group, waiting up to `wait` ([`MAX_WAIT`] at most) for one.
    async fn receive(&self, wait: Duration) -> Result<Option<Message>, ReceiveError>;
    /// Deletes a message.
    async fn ack(&self, receipt: &str) -> Result<Settled, ReceiveError>;
    /// Makes a message visible again after a delay; the group stays in order.
    async fn nack(&self, receipt: &str, after: Duration) -> Result<Settled, ReceiveError>;
    /// By how much the queue's clock is ahead of this machine's, as its last answer had it; `None` where
    /// they are one clock or it has not answered yet.
    fn clock_ahead_ms(&self) -> Option<i64> {
        None
    }
}

/// Refuses what SQS would refuse, or silently change (field F58).
pub(crate) fn check(message: &Outgoing) -> Result<(), SendError> {
    let is_label =
        |text: &str| (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    let is_text = |b: u8| matches!(b, b'\t' | b'\n' | b'\r' | b' '..=b'~');
    let fault = if !is_label(&message.group) {
        "the message group must be 1 to 128 printable ASCII characters"
    } else if !is_label(&message.dedup) {
        "the deduplication id must be 1 to 128 printable ASCII characters"
    } else if message.body.is_empty() || message.body.len() > MAX_BODY {
        "the body must have 1 to 262144 bytes"
    } else if !message.body.bytes().all(is_text) {
        "the body must be ASCII text"
    } else {
        return Ok(());
    };
    Err(SendError::Rejected(fault.to_owned()))
}
