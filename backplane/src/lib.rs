//! Queue and store behind small traits, so that one function and one agent run on SQS and DynamoDB
//! as well as on one SQLite file.
//!
//! The traits are transactions, not CRUD, and split so that their types mirror permissions: an
//! agent holds a [`Receiver`] of its own queue and a [`Sender`] of the results queue, nothing else.

pub mod clock;

pub mod queue;

pub mod store;

mod lifecycle;

mod document;

#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(feature = "sqs")]
pub mod aws;

pub use clock::{Clock, SystemClock};
pub use queue::{Message, Outgoing, QueueName, ReceiveError, Receiver, SendError, Sender};
pub use store::{Reads, Store, StoreError};
