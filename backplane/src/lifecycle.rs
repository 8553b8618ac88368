//! What the store's rows go through, whatever holds them: pure, no IO, no clock. SQLite and DynamoDB
//! read rows, ask here what becomes of them, and write the answer in one transaction.

mod operation;

mod allocation;

mod evidence;

use events::HostName;

pub(crate) use allocation::Allocation;
pub(crate) use evidence::{changes_capacity, expire, is_overdue};
#[cfg(feature = "aws")]
pub(crate) use evidence::{lose, overdue_from_ms};
pub(crate) use operation::{advance, capacity_moved, is_for, overtaken, record};

/// How long a release that overtook its allocate wins.
pub(crate) const TOMBSTONE_MS: i64 = 24 * 3600 * 1000;
/// The door sends right after accepting; before this much has passed it is still at it.
pub(crate) const SENDING_MS: i64 = 5000;

/// The caller broke the contract of a method.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Contract(pub(crate) &'static str);

/// Who says something, and when.
pub(crate) struct Observation<'a> {
    /// The host.
    pub(crate) host: &'a HostName,
    /// The event's sequence number.
    pub(crate) sequence: i64,
    /// Unix milliseconds now.
    pub(crate) now_ms: i64,
}
