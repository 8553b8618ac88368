//! An allocation as this host's ledger has it: what is desired, not what is.

use events::operation::Allocate;
use events::{
    AllocationId, AllocationKey, GpuUuid, Limits, OperationId, PartitionId, ProfileName, TenantName,
};
use serde::{Deserialize, Serialize};

use super::place::Place;
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
    /// Where it is: a place for each partition, or one that all of them share, or none at all. Absent
    /// where every partition is a mediated device on the GPU itself, whose place is its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Vec<Place>>,
    /// Since when it is there, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
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

    /// Its places, in the order of its partitions.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        self.places
            .clone()
            .unwrap_or_else(|| self.partitions().map(Place::mdev).collect())
    }

    /// Its partitions with their places; without one where it takes none.
    pub fn partitions_placed(&self) -> impl Iterator<Item = (PartitionId, Option<Place>)> + '_ {
        let places = self.places();
        let is_shared = places.len() != usize::try_from(self.spec.count).unwrap_or(usize::MAX);
        self.partitions().enumerate().map(move |(ordinal, id)| {
            let place = places.get(if is_shared { 0 } else { ordinal });
            (id, place.cloned())
        })
    }

    /// Gives it its places; each named after one of its partitions is that partition's.
    pub fn place(&mut self, places: Vec<Place>) {
        let ids: Vec<_> = self.partitions().collect();
        let places = if places.len() == ids.len() {
            let named = |id: &PartitionId| {
                let mut own = places.iter();
                own.find(|place| place.uuid() == Some(*id)).cloned()
            };
            let is_own = |place: &Place| place.uuid().is_some_and(|uuid| ids.contains(&uuid));
            let mut others: Vec<_> = places.iter().filter(|place| !is_own(place)).collect();
            others.sort();
            let mut others = others.into_iter().cloned();
            ids.iter()
                .filter_map(|id| named(id).or_else(|| others.next()))
                .collect()
        } else {
            places
        };
        self.places = None;
        self.places = (places != self.places()).then_some(places);
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
