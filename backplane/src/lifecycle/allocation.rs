//! Allocations: what each key of a tenant stands for, as far as the store knows.
//!
//! An event moves one only if it comes from its host and is newer than the last that did, so that
//! events may arrive in any order, and late ones of a key's earlier life move nothing.

use events::inventory::Reservation;
use events::operation::{Allocate, Target};
use events::outcome::{Allocated, Outcome};
use events::result::{EventKind, ResultEvent};
use events::{
    AllocationId, GpuSelector, GpuUuid, HostName, Operation, OperationId, OperationState,
};

use super::{Contract, Observation};
use crate::store::{AllocationRecord, AllocationState, OperationRecord};

/// Older than every event; hosts count from 0 or 1.
const NEVER: i64 = -1;

/// An allocation with what decides whether an event moves it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Allocation {
    /// As callers see it.
    pub(crate) record: AllocationRecord,
    /// The allocate that made it pending or live.
    pub(crate) operation: OperationId,
    /// The last event of its host that moved it.
    pub(crate) sequence: i64,
}

impl Allocation {
    /// The pending allocation of an accepted `allocate`, after an `earlier` life of its key.
    pub(crate) fn begin(
        operation: &OperationRecord,
        host: &HostName,
        reservation: Option<&Reservation>,
        earlier: Option<&Self>,
    ) -> Result<Self, Contract> {
        let Operation::Allocate(spec) = &operation.operation else {
            return Err(Contract("only an allocate begins an allocation"));
        };
        let gpu = gpu(spec, &operation.group, reservation);
        let record = AllocationRecord {
            id: AllocationId::of(&operation.tenant, &spec.key),
            key: spec.key.clone(),
            tenant: operation.tenant.clone(),
            host: host.clone(),
            gpu: gpu.ok_or(Contract(
                "an allocate names no GPU: placement is decided before",
            ))?,
            state: AllocationState::Pending,
            spec: operation.operation.clone(),
            allocated: None,
            changed_at_ms: operation.accepted_at_ms,
        };
        // What that host said about the key's earlier life stays older than what it says from now on.
        let earlier = earlier.filter(|earlier| earlier.record.host == *host);
        Ok(Self {
            record,
            operation: operation.id,
            sequence: earlier.map_or(NEVER, |earlier| earlier.sequence),
        })
    }

    /// Whether its capacity is taken or promised.
    pub(crate) fn is_held(&self) -> bool {
        self.record.state != AllocationState::Ended
    }

    /// Whether it waits for this very operation.
    pub(crate) fn is_pending_by(&self, operation: OperationId) -> bool {
        self.record.state == AllocationState::Pending && self.operation == operation
    }

    /// What an operation's end means for it. `operation` is the record after the event. Whether it moved.
    pub(crate) fn conclude(&mut self, operation: &OperationRecord, seen: &Observation<'_>) -> bool {
        if !self.is_older_than(seen) {
            return false;
        }
        let succeeded = operation.state == OperationState::Succeeded;
        // Only the allocate that made it pending takes it down with itself.
        let fell = !succeeded && self.is_pending_by(operation.id);
        let record = &mut self.record;
        match (&operation.operation, &operation.outcome) {
            (Operation::Allocate(_), Some(Outcome::Allocated(allocated))) if succeeded => {
                record.spec = operation.operation.clone();
                self.operation = operation.id;
                self.set_live(allocated);
            }
            (Operation::Allocate(_), _) if fell => record.state = AllocationState::Ended,
            (Operation::Release(_), _) if succeeded => record.state = AllocationState::Ended,
            (Operation::Renew(_), Some(Outcome::Renewed(renewed))) if succeeded => {
                let Some(allocated) = &mut record.allocated else {
                    return false;
                };
                allocated.expires_at = Some(renewed.expires_at);
            }
            _ => return false,
        }
        self.note(seen);
        true
    }

    /// What an event that no operation asked for means for it. Whether it moved.
    pub(crate) fn observe(&mut self, event: &ResultEvent, seen: &Observation<'_>) -> bool {
        // What a key's earlier life left ends late (a removal that had failed, say) while another
        // allocate of the key is on its way: that one's allocation does not end with it.
        let is_of_earlier_life = self.record.state == AllocationState::Pending
            && event.data.op_id.is_some_and(|id| !self.is_pending_by(id));
        if is_of_earlier_life || !self.is_older_than(seen) || !self.is_held() {
            return false;
        }
        match (event.kind, &event.data.outcome) {
            (EventKind::AllocationChanged, Some(Outcome::Allocated(allocated))) => {
                self.set_live(allocated);
            }
            // A change that does not say to what.
            (EventKind::AllocationChanged, _) => return false,
            _ => self.record.state = AllocationState::Ended,
        }
        self.note(seen);
        true
    }

    /// Ends it because its host is gone for good. Whether it moved.
    #[cfg(feature = "aws")]
    pub(crate) fn lose(&mut self, now_ms: i64) -> bool {
        let moved = self.is_held();
        if moved {
            self.record.state = AllocationState::Ended;
            self.record.changed_at_ms = now_ms;
        }
        moved
    }

    fn is_older_than(&self, seen: &Observation<'_>) -> bool {
        self.record.host == *seen.host && self.sequence < seen.sequence
    }

    fn set_live(&mut self, allocated: &Allocated) {
        self.record.state = AllocationState::Live;
        self.record.gpu = allocated.gpu.clone();
        self.record.allocated = Some(allocated.clone());
    }

    fn note(&mut self, seen: &Observation<'_>) {
        self.sequence = seen.sequence;
        self.record.changed_at_ms = seen.now_ms;
    }
}

/// The GPU that placement decided on.
fn gpu(spec: &Allocate, group: &str, reservation: Option<&Reservation>) -> Option<GpuUuid> {
    if let Some(reservation) = reservation {
        return Some(reservation.gpu.clone());
    }
    if let Some(Target::Host(target)) = &spec.target
        && let Some(GpuSelector::Uuid(uuid)) = &target.gpu
    {
        return Some(uuid.clone());
    }
    group.parse().ok()
}
