//! Sends an accepted operation's command to its host: signed, queued, marked. Used by the door, by a
//! sender's retry and by the sweep alike; doing it twice is harmless, since queue and ledger know
//! the operation's id.

use std::sync::Arc;

use async_trait::async_trait;
use backplane::store::OperationRecord;
use backplane::{Outgoing, QueueName, SendError, Sender, Store, StoreError};
use events::command::COMMAND_TYPE;
use events::envelope;
use events::key::SecretKey;
use events::{Command, HostName};

use crate::sweep::{Dispatch, DispatchFailed};

/// Why a command is not certainly queued and marked.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// It goes nowhere: it was settled at once.
    #[error("operation has no host")]
    NoHost,
    /// It cannot be put into words.
    #[error("command cannot be sealed")]
    Seal(#[source] serde_json::Error),
    /// The queue.
    #[error("command cannot be queued")]
    Send(#[source] SendError),
    /// Queued, and the store does not know yet; sending again is harmless.
    #[error("command is queued and could not be marked")]
    Mark(#[source] StoreError),
}

/// What it takes to send commands.
pub struct Dispatcher {
    /// Signs them.
    pub signing_key: SecretKey,
    /// Has each host's queue.
    pub sender: Arc<dyn Sender>,
    /// Knows what was sent.
    pub store: Arc<dyn Store>,
}

impl Dispatcher {
    /// Sends one operation's command and marks it as sent.
    ///
    /// # Errors
    /// See [`DispatchError`].
    pub async fn send(&self, operation: &OperationRecord) -> Result<(), DispatchError> {
        let host = operation.host.clone().ok_or(DispatchError::NoHost)?;
        let command = command(operation, host.clone());
        let body = envelope::seal(&command, COMMAND_TYPE, &self.signing_key)
            .map_err(DispatchError::Seal)?;
        let message = Outgoing {
            group: operation.group.clone(),
            dedup: operation.id.to_string(),
            body,
        };
        self.sender
            .send(&QueueName::Commands(host.clone()), message)
            .await
            .map_err(DispatchError::Send)?;
        self.store
            .mark_sent(operation.id)
            .await
            .map_err(DispatchError::Mark)?;
        tracing::info!(
            operation.id = %operation.id, operation.op = operation.operation.name(), operation.revision = operation.revision,
            host.name = %host, "command queued"
        );
        Ok(())
    }
}

/// The command of an operation: the same bytes whenever it is written.
pub(crate) fn command(operation: &OperationRecord, host: HostName) -> Command {
    Command {
        v: 1,
        op_id: operation.id,
        delivery_id: operation.delivery,
        tenant: operation.tenant.clone(),
        source: operation.source.clone(),
        aud: host,
        revision: operation.revision,
        iat: operation.accepted_at_ms.div_euclid(1000),
        exp: operation.expires_at_s,
        operation: operation.operation.clone(),
        traceparent: operation.traceparent.clone(),
    }
}

#[async_trait]
impl Dispatch for Dispatcher {
    async fn dispatch(&self, operation: &OperationRecord) -> Result<(), DispatchFailed> {
        Ok(self.send(operation).await?)
    }
}
