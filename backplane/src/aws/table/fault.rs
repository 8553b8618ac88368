//! What goes wrong at the table, before it is told to the traits' callers in their words.

use std::error::Error;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;

use crate::aws::error::Failed;
use crate::document::DocumentError;
use crate::lifecycle::Contract;
use crate::store::StoreError;

/// A failed read or write.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// DynamoDB refused or did not answer.
    #[error("DynamoDB failed: {0}")]
    Call(String),
    /// Others kept changing the same items.
    #[error("the same items kept changing through {0} attempts")]
    Contended(u32),
    /// An attribute is not what it should be.
    #[error("stored {what} cannot be read: attribute {attribute} is missing or malformed")]
    Stored {
        /// Which item.
        what: &'static str,
        /// Which attribute.
        attribute: &'static str,
    },
    /// A stored document is not what it should be.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The caller broke the contract of the method.
    #[error(transparent)]
    Contract(#[from] Contract),
}

impl Fault {
    /// A failed call.
    pub(super) fn call<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: Error + ProvideErrorMetadata + Send + Sync + 'static,
    {
        Self::Call(Failed::of(error).text)
    }

    /// This fault as the store's callers see it.
    pub(super) fn store(self, context: &str) -> StoreError {
        StoreError {
            context: context.to_owned(),
            source: Some(Box::new(self)),
        }
    }
}
