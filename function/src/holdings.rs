//! What a host holds, written down and signed, so that the host's operator can rebuild a ledger that
//! was lost.

use backplane::store::HeldAllocation;
use backplane::{Reads, StoreError};
use events::holdings::{HOLDINGS_TYPE, Holding, Holdings};
use events::key::SecretKey;
use events::{HostName, Operation, envelope};

use crate::dispatch::command;

/// Why it cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum HoldingsError {
    /// Nobody knows the host.
    #[error("host {0} is not enrolled")]
    UnknownHost(HostName),
    /// The store does not say.
    #[error("what the host holds cannot be read")]
    Store(#[from] StoreError),
    /// It cannot be put into words.
    #[error("holdings cannot be sealed")]
    Seal(#[from] serde_json::Error),
}

/// The sealed statement, and what it says.
///
/// # Errors
/// See [`HoldingsError`].
pub async fn write(
    reads: &dyn Reads,
    key: &SecretKey,
    host: &HostName,
    now_s: i64,
) -> Result<(String, Holdings), HoldingsError> {
    let known = reads
        .holdings(host)
        .await?
        .ok_or_else(|| HoldingsError::UnknownHost(host.clone()))?;
    let holdings = Holdings {
        v: 1,
        aud: host.clone(),
        iat: now_s,
        sequence: known.sequence,
        allocations: known.allocations.into_iter().filter_map(holding).collect(),
        operations: known
            .running
            .iter()
            .map(|record| command(record, host.clone()))
            .collect(),
    };
    Ok((envelope::seal(&holdings, HOLDINGS_TYPE, key)?, holdings))
}

/// A live allocation always has handles and was made by an allocate.
fn holding(held: HeldAllocation) -> Option<Holding> {
    let allocated = held.record.allocated?;
    let Operation::Allocate(spec) = held.record.spec else {
        return None;
    };
    Some(Holding {
        tenant: held.record.tenant,
        operation: held.operation,
        spec,
        gpu: allocated.gpu,
        profile: allocated.profile,
        expires_at: allocated.expires_at,
        revision: held.revision,
    })
}
