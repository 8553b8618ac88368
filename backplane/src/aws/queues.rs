//! Queues by their URLs, and sending to them.

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Builder;

use super::connection::Aws;
use super::error::{Certainty, Failed};
use super::server_clock::Listener;
use crate::queue::{Outgoing, QueueName, SendError, Sender, check};

/// Where each queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueUrls {
    /// Of one installation: every queue is `base` followed by the installation's prefix and its own name.
    Installation {
        /// `https://sqs.REGION.amazonaws.com/ACCOUNT/`.
        base: String,
        /// As deployed.
        prefix: String,
    },
    /// Of one host, which knows no other queue than its own and the one for results.
    Host {
        /// Its commands.
        commands: String,
        /// Results of all hosts.
        results: String,
    },
}

impl QueueUrls {
    /// The URL of a queue.
    #[must_use]
    pub fn of(&self, queue: &QueueName) -> String {
        match (self, queue) {
            (Self::Installation { base, prefix }, QueueName::Commands(host)) => {
                format!("{base}{prefix}-cmd-{host}.fifo")
            }
            (Self::Installation { base, prefix }, QueueName::Results) => {
                format!("{base}{prefix}-results")
            }
            (Self::Host { commands, .. }, QueueName::Commands(_)) => commands.clone(),
            (Self::Host { results, .. }, QueueName::Results) => results.clone(),
        }
    }
}

/// Sends to SQS. Groups and deduplication ids are for FIFO queues; a standard queue takes neither.
#[derive(Debug, Clone)]
pub struct SqsSender {
    client: Client,
    urls: QueueUrls,
}

impl SqsSender {
    /// A sender; nothing is sent yet.
    #[must_use]
    pub fn new(aws: &Aws, urls: QueueUrls) -> Self {
        Self {
            client: client(aws),
            urls,
        }
    }

    /// Connects, so that the first send finds a connection. What SQS answers does not matter: a function
    /// may send and nothing else, and is told so.
    pub async fn warm(&self) {
        let url = self.urls.of(&QueueName::Results);
        let name = url.rsplit('/').next().unwrap_or_default();
        let asked = self.client.get_queue_url().queue_name(name).send().await;
        if let Err(error) = asked
            && error.as_service_error().is_none()
        {
            let error = Failed::of(&error).text;
            tracing::warn!(error, "SQS does not answer yet");
        }
    }

    /// Sends a text to a standard queue that only functions know.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn wake(&self, url: &str, body: &str) -> Result<(), SendError> {
        let sent = self
            .client
            .send_message()
            .queue_url(url)
            .message_body(body)
            .send();
        sent.await
            .map(drop)
            .map_err(|error| failure(&Failed::of(&error)))
    }
}

/// A client that listens to what responses say about clock and credentials.
pub(super) fn client(aws: &Aws) -> Client {
    let listener = Listener {
        clock: aws.clock.clone(),
        credentials: aws.credentials.clone(),
    };
    Client::from_conf(Builder::from(&aws.config).interceptor(listener).build())
}

/// Whether a queue is FIFO: SQS has it in the name.
pub(super) fn is_fifo(url: &str) -> bool {
    url.ends_with(".fifo")
}

fn failure(failed: &Failed) -> SendError {
    match failed.certainty {
        Certainty::Refused => SendError::Rejected(failed.text.clone()),
        Certainty::Unknown => SendError::Ambiguous(failed.text.clone()),
    }
}

#[async_trait]
impl Sender for SqsSender {
    async fn send(&self, queue: &QueueName, message: Outgoing) -> Result<(), SendError> {
        check(&message)?;
        let url = self.urls.of(queue);
        let fifo = is_fifo(&url);
        let send = self
            .client
            .send_message()
            .queue_url(url)
            .message_body(message.body);
        let send = if fifo {
            send.message_group_id(message.group)
                .message_deduplication_id(message.dedup)
        } else {
            send
        };
        send.send()
            .await
            .map(drop)
            .map_err(|error| failure(&Failed::of(&error)))
    }
}
