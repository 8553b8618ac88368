//! Receiving from SQS: one message per call, since with ten the slow one holds nine others' visibility.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Config;
use aws_sdk_sqs::types::{Message as SqsMessage, MessageSystemAttributeName as Attribute};
use uuid::Uuid;

use super::connection::{Aws, CONNECT};
use super::error::Failed;
use super::queues::{client, is_fifo};
use super::server_clock::ServerClock;
use crate::queue::{MAX_WAIT, Message, ReceiveError, Receiver, Settled};

/// What a poll may take beyond its wait; past it, it counts as hung and is given up (field F14).
const MARGIN: Duration = Duration::from_secs(5);
/// How long a receive may be asked again under its id; SQS forgets it after five minutes.
const REMEMBERED: Duration = Duration::from_secs(240);
/// SQS's longest visibility timeout; longer delays are cut to it.
const LONGEST_DELAY_S: u64 = 12 * 3600;
/// What SQS says of a receipt that no longer holds, or of a message that is gone. An expired receipt of
/// a FIFO queue is an invalid parameter (field F10).
const LOST: [&str; 4] = [
    "ReceiptHandleIsInvalid",
    "MessageNotInflight",
    "InvalidParameterValue",
    "InvalidIdFormat",
];

/// Takes messages from one SQS queue.
#[derive(Debug, Clone)]
pub struct SqsReceiver {
    client: Client,
    url: String,
    clock: ServerClock,
    unanswered: Arc<Mutex<Option<Attempt>>>,
}

/// A receive to which no answer came. The queue may have given a message, which is invisible now and blocks
/// its group: asked again under the same id, it gives the same one.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    id: Uuid,
    begun: Instant,
}

impl SqsReceiver {
    /// The receiving end of the queue at `url`.
    #[must_use]
    pub fn new(aws: &Aws, url: impl Into<String>) -> Self {
        Self {
            client: client(aws),
            url: url.into(),
            clock: aws.clock.clone(),
            unanswered: Arc::default(),
        }
    }

    fn attempt(&self) -> Attempt {
        let unanswered = self.unanswered().take();
        unanswered
            .filter(|attempt| attempt.begun.elapsed() < REMEMBERED)
            .unwrap_or_else(|| Attempt {
                id: Uuid::now_v7(),
                begun: Instant::now(),
            })
    }

    fn unanswered(&self) -> std::sync::MutexGuard<'_, Option<Attempt>> {
        self.unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn message(&self, message: SqsMessage) -> Result<Message, ReceiveError> {
        let attribute = |name| {
            let attributes = message.attributes.as_ref()?;
            attributes.get(&name).cloned()
        };
        let group = attribute(Attribute::MessageGroupId).unwrap_or_default();
        let receives = attribute(Attribute::ApproximateReceiveCount);
        let sender = attribute(Attribute::SenderId);
        let (Some(id), Some(receipt)) = (message.message_id, message.receipt_handle) else {
            let text = "the queue sent a message without id or receipt".to_owned();
            return Err(ReceiveError::Unavailable(text));
        };
        Ok(Message {
            id,
            receipt,
            group,
            body: message.body.unwrap_or_default(),
            receive_count: receives.and_then(|count| count.parse().ok()).unwrap_or(1),
            server_time_ms: self.clock.now_ms(),
            sender,
        })
    }
}

#[async_trait]
impl Receiver for SqsReceiver {
    async fn receive(&self, wait: Duration) -> Result<Option<Message>, ReceiveError> {
        let wait = wait.min(MAX_WAIT);
        let seconds = i32::try_from(wait.as_secs()).expect("at most 20");
        let deadline = TimeoutConfig::builder()
            .connect_timeout(CONNECT)
            .operation_attempt_timeout(wait + MARGIN)
            .operation_timeout(wait + MARGIN);
        // Not tried again here: the caller counts, pauses and polls again.
        let patience = Config::builder()
            .timeout_config(deadline.build())
            .retry_config(RetryConfig::disabled());
        let receive = self
            .client
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(1)
            .wait_time_seconds(seconds)
            .message_system_attribute_names(Attribute::ApproximateReceiveCount)
            .message_system_attribute_names(Attribute::MessageGroupId)
            .message_system_attribute_names(Attribute::SenderId);
        let attempt = self.attempt();
        let receive = if is_fifo(&self.url) {
            receive.receive_request_attempt_id(attempt.id.to_string())
        } else {
            receive
        };
        let received = receive.customize().config_override(patience).send().await;
        let received = received.map_err(|error| {
            if error.as_service_error().is_none() {
                *self.unanswered() = Some(attempt);
            }
            ReceiveError::Unavailable(Failed::of(&error).text)
        })?;
        let first = received.messages.unwrap_or_default().into_iter().next();
        first.map(|message| self.message(message)).transpose()
    }

    async fn ack(&self, receipt: &str) -> Result<Settled, ReceiveError> {
        let delete = self.client.delete_message().queue_url(&self.url);
        let deleted = delete.receipt_handle(receipt).send().await;
        settled(deleted.map_err(|error| Failed::of(&error)))
    }

    async fn nack(&self, receipt: &str, after: Duration) -> Result<Settled, ReceiveError> {
        let seconds = after.as_millis().div_ceil(1000);
        let seconds = u64::try_from(seconds)
            .unwrap_or(LONGEST_DELAY_S)
            .min(LONGEST_DELAY_S);
        let change = self.client.change_message_visibility().queue_url(&self.url);
        let change = change
            .receipt_handle(receipt)
            .visibility_timeout(i32::try_from(seconds).expect("at most 12 hours"));
        settled(change.send().await.map_err(|error| Failed::of(&error)))
    }

    fn clock_ahead_ms(&self) -> Option<i64> {
        self.clock.ahead_ms()
    }
}

fn settled<T>(answer: Result<T, Failed>) -> Result<Settled, ReceiveError> {
    match answer {
        Ok(_) => Ok(Settled::Done),
        Err(failed) if failed.is_one_of(&LOST) => Ok(Settled::Lost),
        Err(failed) => Err(ReceiveError::Unavailable(failed.text)),
    }
}
