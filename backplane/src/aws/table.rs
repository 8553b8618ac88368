//! The store as one DynamoDB table.
//!
//! Access patterns. Every item has `pk`, `sk` and `ver`; an item is only ever replaced under the `ver`
//! that was read, so that what was decided on it still held when it was written.
//!
//! | item | pk | sk | found by |
//! |---|---|---|---|
//! | idempotency key | `KEY#id#…`, `KEY#content#…` | `-` | its hash; counts until `forget_at_ms`, whatever TTL has deleted |
//! | delivery | `DELIVERY#id` | `-` | id |
//! | operation | `OPERATION#id` | `-` | id; `by_tenant` newest first; `by_host` and `due` while it is not final |
//! | allocation | `ALLOCATION#id` | `-` | id; `by_tenant` while it is held; `by_host` while it is live |
//! | revision of a group | `GROUP#group` | `-` | group |
//! | host: head, inventory, last word | `HOST#name` | `-`, `INVENTORY`, `HEARD` | name |
//! | host in the list | `HOSTS` | name | all of them |
//! | callback | `CALLBACK#endpoint#id` | `-` | endpoint and webhook id; `due` while it is pending |
//!
//! The host's head holds version and reservations in one item, since a query may see half of a
//! transaction. `due` holds a row's next hour; claiming moves it to the end of the lease. `by_tenant`,
//! `by_host` and `due` may lag by moments: lists may, and what is claimed is checked on the item itself.
//! Accepting and settling are one `TransactWriteItems` each, of at most 100 items.

mod fault;

mod key;

mod item;

mod unit;

mod rows;

mod host;

mod accept;

mod settle;

mod due;

mod lists;

mod removal;

mod store;

pub use removal::{Removal, Removed};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;

use super::connection::Aws;
use super::server_clock::Listener;

/// The table behind a connection; clones share it.
#[derive(Debug, Clone)]
pub struct DynamoStore {
    client: Client,
    table: String,
}

impl DynamoStore {
    /// The store in a table; nothing is read yet.
    #[must_use]
    pub fn new(aws: &Aws, table: impl Into<String>) -> Self {
        let listener = Listener {
            clock: aws.clock.clone(),
            credentials: aws.credentials.clone(),
        };
        let config = Builder::from(&aws.config).interceptor(listener).build();
        Self {
            client: Client::from_conf(config),
            table: table.into(),
        }
    }

    /// Connects, so that the first request finds a connection. What the table answers does not matter.
    pub async fn warm(&self) {
        if let Err(fault) = self.host_names().await {
            tracing::warn!(error = %fault, "the table does not answer yet");
        }
    }
}
