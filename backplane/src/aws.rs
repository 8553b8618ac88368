//! Queue and store on AWS: SQS for both queues, one DynamoDB table for the store.
//!
//! With feature `sqs` alone there are the queues, which is what a host's agent needs; feature `aws` adds
//! the table. Emulators' gaps are listed in `docs/emulators.md` and never worked around here.

mod connection;

mod credentials;

mod error;

mod server_clock;

mod queues;

mod receiver;

#[cfg(feature = "aws")]
mod table;

pub use connection::{Aws, ConnectError, Connection, Roots};
pub use credentials::{CredentialsUnavailable, StaticKeys};
pub use queues::{QueueUrls, SqsSender};
pub use receiver::SqsReceiver;
pub use server_clock::ServerClock;
#[cfg(feature = "aws")]
pub use table::{DynamoStore, Removal, Removed};
