//! When leases end. The wall clock says it once, when a lease is first seen; from then on what counts
//! is the time that passes, so that a clock set back lengthens no lease and a clock set forward rips
//! nothing out (field F65). A restart has to believe the wall clock again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use backplane::Clock;
use events::AllocationId;

use crate::operation::allocation::Allocation;

/// The leases of this process, each with its end by elapsed time, in milliseconds.
#[derive(Debug, Default)]
pub struct Leases(Mutex<BTreeMap<AllocationId, Lease>>);

#[derive(Debug, Clone, Copy)]
struct Lease {
    /// As the ledger has it, Unix seconds; another value is another lease.
    expires_at: i64,
    ends_at_ms: i64,
}

impl Leases {
    /// Whether the lease of an allocation has ended; one without end never has.
    pub fn is_over(&self, allocation: &Allocation, clock: &dyn Clock) -> bool {
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(expires_at) = allocation.expires_at else {
            leases.remove(&allocation.id);
            return false;
        };
        let elapsed_ms = clock.elapsed_ms();
        let known = leases.get(&allocation.id).copied();
        let lease = known
            .filter(|lease| lease.expires_at == expires_at)
            .unwrap_or_else(|| Lease {
                expires_at,
                ends_at_ms: elapsed_ms + (expires_at * 1000 - clock.now_ms()),
            });
        leases.insert(allocation.id, lease);
        lease.ends_at_ms <= elapsed_ms
    }

    /// Forgets all but the leases of `known`.
    pub fn keep(&self, known: &[Allocation]) {
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        leases.retain(|id, _| known.iter().any(|allocation| allocation.id == *id));
    }
}
