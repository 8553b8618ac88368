//! An allocation as this host's ledger has it: what is desired, not what is.

use events::operation::Allocate;
use events::{
    AllocationId, AllocationKey, GpuUuid, Limits, OperationId, PartitionId, ProfileName, TenantName,
};
use serde::{Deserialize, Serialize};

use crate::limiter::GroupName;

/// One allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Its id.
    pub id: AllocationId,
    /// The allocate that made it: later events name it, so that they reach the same callbacks.
    pub operation: OperationId,
    /// Whose.
    pub tenant: TenantName,
    /// The GPU it is on.
    pub gpu: GpuUuid,
    /// As asked for, placement decided.
    pub spec: Allocate,
    /// Its profile.
    pub profile: ProfileName,
    /// End of the lease, Unix seconds.
    pub expires_at: Option<i64>,
    /// What is being done with it.
    pub phase: Phase,
}

/// What is being done with an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It should exist.
    Live,
    /// Its lease ended while something holds it: counted and reported, not ripped out.
    ExpiringHeld,
    /// Its removal began and could not be completed; it is finished once that is possible.
    Releasing,
}

impl Allocation {
    /// The caller's key.
    #[must_use]
    pub fn key(&self) -> &AllocationKey {
        &self.spec.key
    }

    /// Its partitions' ids, by ordinal.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionId> + '_ {
        (0..self.spec.count).map(|ordinal| self.id.partition(ordinal))
    }

    /// Its control groups, by ordinal.
    pub fn groups(&self) -> impl Iterator<Item = GroupName> + '_ {
        (0..self.spec.count).map(|ordinal| GroupName {
            allocation: self.id,
            ordinal,
        })
    }

    /// Its limits, if it asked for any.
    #[must_use]
    pub fn limits(&self) -> Option<&Limits> {
        self.spec
            .limits
            .as_ref()
            .filter(|limits| **limits != Limits::default())
    }
}
