//! `release` and the end of a lease: groups first, then partitions, and only what nobody holds.

use events::outcome::{Failure, Outcome, Released};
use events::result::{EventData, EventKind};
use events::{AllocationId, Code, Command};

use super::{Shared, WorkError};
use crate::ledger::{Change, NewEvent, Owner};
use crate::operation::allocation::{Allocation, Phase};
use crate::operation::place::Place;
use crate::operation::plan::Target;
use crate::partitioner::ObservedGpu;

impl Shared {
    pub(super) fn release(&self, command: &Command) -> Result<(), WorkError> {
        let id = command.operation.allocation(&command.tenant);
        let known = id
            .map(|id| self.ledger.allocation(id))
            .transpose()?
            .flatten();
        let known = known.filter(|allocation| allocation.tenant == command.tenant);
        let (Some(allocation), Some(id)) = (known, id) else {
            return self.release_unknown(command, id);
        };
        match self.remove(&allocation)? {
            Ok(()) => {
                let outcome = Outcome::Released(Released {
                    allocation: id,
                    existed: true,
                });
                self.end(
                    command,
                    Ok(outcome),
                    EventKind::OperationSucceeded,
                    Change::Remove(id),
                )
            }
            Err(failure) => self.end(
                command,
                Err(failure),
                EventKind::OperationFailed,
                Change::None,
            ),
        }
    }

    /// A key that has never been here leaves a tombstone: the release may have overtaken its allocate.
    fn release_unknown(
        &self,
        command: &Command,
        id: Option<AllocationId>,
    ) -> Result<(), WorkError> {
        let Some(id) = id else {
            let failure = Failure::new(Code::UnknownAllocation, "the command names no allocation");
            return self.end(
                command,
                Err(failure),
                EventKind::OperationRefused,
                Change::None,
            );
        };
        let outcome = Outcome::Released(Released {
            allocation: id,
            existed: false,
        });
        // A revision above 1 shows that the key was used before: an ordinary release of what is gone.
        let change = if command.revision <= 1 {
            Change::Tombstone(id)
        } else {
            Change::None
        };
        self.end(command, Ok(outcome), EventKind::OperationSucceeded, change)
    }

    /// Removes an allocation from kernel and hardware. On failure it says what remains, and the
    /// ledger keeps the allocation as one that is being released: the reconciler has it finished
    /// once that is possible, and another release may be first.
    fn remove(&self, allocation: &Allocation) -> Result<Result<(), Failure>, WorkError> {
        let observed = self.partitioner.observe_gpu(&allocation.gpu)?;
        let places = allocation.places();
        let mut seen = places.iter().filter_map(|place| observed.at(place));
        let held = seen.find(|seen| !seen.holders.is_empty());
        if let Some(held) = held {
            let text = format!(
                "{} is held by {}; stop it, then release again",
                held.place,
                held.holders.join(", ")
            );
            return Ok(Err(Failure::new(Code::InUse, text)));
        }
        for group in allocation.groups() {
            if let Err(error) = self.limiter.remove(&group) {
                let mut failure = Failure::new(error.code, error.message);
                // Groups that went before this one come back, or a tenant would run without limits;
                // where nobody is to run any more they stay gone.
                if allocation.phase != Phase::Releasing {
                    let restored = self.limit(allocation, &observed);
                    failure.residue.extend(
                        restored
                            .err()
                            .map(|lost| format!("limits are incomplete: {}", lost.message)),
                    );
                }
                return Ok(Err(failure));
            }
        }
        let target = Target {
            absent: self.places_to_free(allocation)?,
            ..Target::default()
        };
        match self.converge(&Owner::Allocation(allocation.id), &allocation.gpu, &target)? {
            Ok(_) => Ok(Ok(())),
            Err(mut failure) => {
                if allocation.phase != Phase::Releasing {
                    self.ledger.put(&Allocation {
                        phase: Phase::Releasing,
                        ..allocation.clone()
                    })?;
                }
                let left = self.partitioner.observe_gpu(&allocation.gpu)?;
                let ours = target
                    .absent
                    .iter()
                    .filter(|place| left.at(place).is_some());
                failure.residue.extend(ours.map(ToString::to_string));
                Ok(Err(failure))
            }
        }
    }

    /// A lease has ended. What is held stays, is counted and said; nothing is ripped out.
    pub(super) fn expire(&self, id: AllocationId) -> Result<(), WorkError> {
        let allocation = self.ledger.allocation(id)?;
        let Some(allocation) =
            allocation.filter(|allocation| self.leases.is_over(allocation, &*self.clock))
        else {
            return Ok(());
        };
        if let Err(failure) = self.remove(&allocation)? {
            if failure.code == Code::InUse && allocation.phase == Phase::Live {
                self.ledger.put(&Allocation {
                    phase: Phase::ExpiringHeld,
                    ..allocation.clone()
                })?;
                tracing::warn!(allocation.id = %id, reason = failure.message, "lease ended while the allocation is held; it is kept until it is free");
            }
            return Ok(());
        }
        tracing::info!(allocation.id = %id, "lease ended, allocation removed");
        self.say_removed(&allocation)
    }

    /// Goes on with a removal that could not be completed when it was asked for.
    pub(super) fn finish(&self, allocation: &Allocation) -> Result<(), WorkError> {
        match self.remove(allocation)? {
            Ok(()) => {
                tracing::info!(allocation.id = %allocation.id, "a removal that had begun is finished");
                self.say_removed(allocation)
            }
            Err(failure) => {
                tracing::warn!(allocation.id = %allocation.id, failure.code = %failure.code, reason = failure.message, "a removal that had begun cannot be finished yet; it is tried again");
                Ok(())
            }
        }
    }

    /// Whether a removal that could not be completed can go on: its GPU takes work, nobody holds it.
    pub(super) fn can_finish(allocation: &Allocation, observed: &ObservedGpu) -> bool {
        let is_held = |place: &Place| {
            let seen = observed.at(place);
            seen.is_some_and(|seen| !seen.holders.is_empty())
        };
        allocation.phase == Phase::Releasing
            && observed.unavailable.is_none()
            && !allocation.places().iter().any(is_held)
    }

    /// An allocation is gone, and no operation of now ends with it: the news goes where those of its
    /// allocate went.
    fn say_removed(&self, allocation: &Allocation) -> Result<(), WorkError> {
        let observation = self.partitioner.observe()?;
        let change = Change::Remove(allocation.id);
        let data = EventData {
            op_id: Some(allocation.operation),
            allocation: Some(allocation.id),
            outcome: Some(Outcome::Released(Released {
                allocation: allocation.id,
                existed: true,
            })),
            inventory: Some(self.inventory_after(&observation, &change)?),
            ..EventData::default()
        };
        self.ledger.conclude(
            None,
            change,
            NewEvent {
                kind: EventKind::AllocationExpired,
                subject: allocation.id.to_string(),
                tenant: Some(allocation.tenant.clone()),
                data,
                now_ms: self.clock.now_ms(),
            },
        )?;
        (self.on_event)();
        Ok(())
    }
}
