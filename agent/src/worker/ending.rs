//! How work ends: result, desired state and outbox in one transaction, with the inventory as it then is.

use events::inventory::HostInventory;
use events::outcome::{Failure, Outcome};
use events::result::{EventData, EventKind};
use events::{AllocationId, Code, Command};

use super::{Ended, Shared, WorkError, report};
use crate::ledger::{Change, LedgerError, NewEvent};
use crate::partitioner::Observation;

impl Shared {
    /// Ends an operation before anything was touched.
    pub(super) fn refuse(&self, command: &Command, failure: Failure) -> Result<Ended, WorkError> {
        self.end(
            command,
            Err(failure),
            EventKind::OperationRefused,
            Change::None,
        )?;
        Ok(Ended::Yes)
    }

    /// Ends an operation that came to nothing and changed nothing that is desired.
    pub(super) fn fail(&self, command: &Command, failure: Failure) -> Result<Ended, WorkError> {
        self.end(
            command,
            Err(failure),
            EventKind::OperationFailed,
            Change::None,
        )?;
        Ok(Ended::Yes)
    }

    /// Ends an operation that did what it was to do.
    pub(super) fn succeed(
        &self,
        command: &Command,
        outcome: Outcome,
        change: Change,
    ) -> Result<Ended, WorkError> {
        self.end(command, Ok(outcome), EventKind::OperationSucceeded, change)?;
        Ok(Ended::Yes)
    }

    /// Says that an allocation was taken away by `command`, and forgets it.
    pub(super) fn lose(&self, id: AllocationId, command: &Command) -> Result<(), WorkError> {
        let Some(allocation) = self.ledger.allocation(id)? else {
            return Ok(());
        };
        for group in allocation.groups() {
            if let Err(error) = self.limiter.remove(&group) {
                tracing::warn!(allocation.id = %id, error = error.message, "a control group of an allocation that was taken away stays");
            }
        }
        let observation = self.partitioner.observe()?;
        let change = Change::Remove(id);
        let text = format!(
            "{} {} took its place on GPU {}",
            command.operation.name(),
            command.op_id,
            allocation.gpu
        );
        let data = EventData {
            op_id: Some(allocation.operation),
            allocation: Some(id),
            failure: Some(Failure::new(Code::Superseded, text)),
            inventory: Some(self.inventory_after(&observation, &change)?),
            ..EventData::default()
        };
        let event = NewEvent {
            kind: EventKind::AllocationLost,
            subject: id.to_string(),
            tenant: Some(allocation.tenant.clone()),
            data,
            now_ms: self.clock.now_ms(),
        };
        self.ledger.conclude(None, change, event)?;
        (self.on_event)();
        Ok(())
    }

    /// Ends an operation: result, desired state and outbox in one transaction, with the inventory
    /// taken after it.
    pub(super) fn end(
        &self,
        command: &Command,
        result: Result<Outcome, Failure>,
        kind: EventKind,
        change: Change,
    ) -> Result<(), WorkError> {
        let observation = self.partitioner.observe();
        let inventory = match observation {
            Ok(observation) => Some(self.inventory_after(&observation, &change)?),
            // The result stands without it; the sampler reports the inventory when it can be read.
            Err(_) => None,
        };
        let (outcome, failure) = result.map_or_else(
            |failure| (None, Some(failure)),
            |outcome| (Some(outcome), None),
        );
        let data = EventData {
            op_id: Some(command.op_id),
            allocation: command.operation.allocation(&command.tenant),
            revision: Some(command.revision),
            outcome,
            failure,
            inventory,
        };
        let code = data.failure.as_ref().map(|failure| failure.code.as_str());
        self.ledger.conclude(
            Some(command.op_id),
            change,
            NewEvent {
                kind,
                subject: command.op_id.to_string(),
                tenant: Some(command.tenant.clone()),
                data,
                now_ms: self.clock.now_ms(),
            },
        )?;
        tracing::info!(operation.id = %command.op_id, operation.name = command.operation.name(), event.kind = ?kind, failure.code = code, "operation ended");
        (self.on_event)();
        Ok(())
    }

    /// The inventory as callers see it: what was observed, with whose it is.
    pub(crate) fn inventory(
        &self,
        observation: &Observation,
    ) -> Result<HostInventory, LedgerError> {
        self.inventory_after(observation, &Change::None)
    }

    pub(super) fn inventory_after(
        &self,
        observation: &Observation,
        change: &Change,
    ) -> Result<HostInventory, LedgerError> {
        let mut allocations = self.ledger.allocations()?;
        match change {
            Change::Put(allocation) => {
                allocations.retain(|other| other.id != allocation.id);
                allocations.push((**allocation).clone());
            }
            Change::Remove(id) => allocations.retain(|other| other.id != *id),
            Change::None | Change::Tombstone(_) | Change::Gpu(..) => {}
        }
        report::inventory(
            &self.host,
            &self.ledger,
            observation,
            &allocations,
            self.clock.now_ms(),
        )
    }
}
