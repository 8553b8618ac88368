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
            return Ok(None);
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

    /// Whether an older operation on the same allocation has not ended yet.
    pub(super) fn has_to_wait(&self, command: &Command) -> Result<bool, LedgerError> {
        let Some(id) = command.operation.allocation(&command.tenant) else {
            return Ok(false);
        };
        let open = self.ledger.open_operations()?;
        let mut older = open.iter().take_while(|other| other.op_id != command.op_id);
        Ok(older.any(|other| is_about(other, id)))
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
