//! What goes wrong inside the file, before it is told to the traits' callers in their words.

use crate::document::DocumentError;
use crate::lifecycle::Contract;
use crate::queue::{ReceiveError, SendError};
use crate::store::StoreError;

/// A failed read or transaction.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// SQLite refused or failed.
    #[error("SQLite failed")]
    Sqlite(#[from] rusqlite::Error),
    /// A stored value is not what its column should hold.
    #[error("stored {what} cannot be read")]
    Stored {
        /// Which value.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A stored document is not what it should be.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The transaction around the request did not commit; it may or may not be durable.
    #[error("transaction was not confirmed: {0}")]
    Unconfirmed(String),
    /// The caller broke the contract of the method.
    #[error(transparent)]
    Contract(#[from] Contract),
    /// The writer thread or a reading task is gone.
    #[error("backplane has stopped")]
    Stopped,
}

impl Fault {
    /// A stored value that cannot be read.
    pub(super) fn stored(
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Stored {
            what,
            source: source.into(),
        }
    }

    /// This fault as the store's callers see it.
    pub(super) fn store(self, context: &str) -> StoreError {
        StoreError {
            context: context.to_owned(),
            source: Some(Box::new(self)),
        }
    }

    /// The whole chain in one line; the queue's errors carry text only.
    pub(super) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(source) = next {
            text = format!("{text}: {source}");
            next = source.source();
        }
        text
    }
}

impl From<Fault> for SendError {
    /// A failed commit may still have reached the disk, and sending again is safe: never `Rejected`.
    fn from(fault: Fault) -> Self {
        Self::Ambiguous(fault.chain())
    }
}

impl From<Fault> for ReceiveError {
    fn from(fault: Fault) -> Self {
        Self::Unavailable(fault.chain())
    }
}
