//! Which worker does an operation, and when: those of one allocation run in the order in which they
//! were taken, whatever holds one of them up. A release that ran before the allocate ahead of it would
//! find nothing, say so, and leave what comes after it to nobody.

use events::operation::{Allocate, Target};
use events::{AllocationId, Command, GpuSelector, GpuUuid, Operation};

use super::Shared;
use crate::ledger::LedgerError;

impl Shared {
    /// The GPU whose worker does an operation, where it is about one: the allocation's, or the one that
    /// an allocate ahead of it is about to put it on.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn gpu_of(&self, command: &Command) -> Result<Option<GpuUuid>, LedgerError> {
        let Some(id) = command.operation.allocation(&command.tenant) else {
            return Ok(whole(command).cloned());
        };
        if let Some(known) = self.ledger.allocation(id)? {
            return Ok(Some(known.gpu));
        }
        if let Some(gpu) = target(command) {
            return Ok(Some(gpu.clone()));
        }
        let open = self.ledger.open_operations()?;
        Ok(open
            .iter()
            .filter(|other| is_about(other, id))
            .find_map(target)
            .cloned())
    }

    /// Whether an older operation has to end first: one on the same allocation, and one on the whole GPU
    /// for whatever would change what is on it. Releases and renewals never wait for the latter: a GPU
    /// that is draining waits for them.
    pub(super) fn has_to_wait(&self, command: &Command) -> Result<bool, LedgerError> {
        let open = self.ledger.open_operations()?;
        let mut older = open.iter().take_while(|other| other.op_id != command.op_id);
        let id = command.operation.allocation(&command.tenant);
        let gpu = changes(command);
        Ok(older.any(|other| {
            let same_allocation = id.is_some_and(|id| is_about(other, id));
            let is_whole = whole(command).is_some() || whole(other).is_some();
            let same_gpu = gpu.is_some() && changes(other) == gpu;
            same_allocation || (is_whole && same_gpu)
        }))
    }
}

/// The GPU whose partitions an operation may add to or lay out anew.
fn changes(command: &Command) -> Option<&GpuUuid> {
    whole(command).or_else(|| target(command))
}

/// The GPU that an operation is about as a whole.
fn whole(command: &Command) -> Option<&GpuUuid> {
    match command.operation.gpu() {
        Some(GpuSelector::Uuid(uuid)) => Some(uuid),
        _ => None,
    }
}

fn is_about(command: &Command, id: AllocationId) -> bool {
    command.operation.allocation(&command.tenant) == Some(id)
}

fn target(command: &Command) -> Option<&GpuUuid> {
    let Operation::Allocate(Allocate {
        target: Some(Target::Host(target)),
        ..
    }) = &command.operation
    else {
        return None;
    };
    match &target.gpu {
        Some(GpuSelector::Uuid(uuid)) => Some(uuid),
        _ => None,
    }
}
