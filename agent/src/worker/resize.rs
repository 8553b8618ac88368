//! `resize`: other limits at once, another profile by removing and making anew under the same ids. When
//! the new cannot be made, the allocation has what it had.

use std::collections::BTreeMap;

use events::operation::{IfBusy, Resize};
use events::outcome::{Failure, Outcome};
use events::{AllocationId, Code, Command};

use super::{Ended, Shared, WorkError, handles};
use crate::ledger::{Change, Owner};
use crate::operation::allocation::{Allocation, Phase};
use crate::operation::plan::Target;
use crate::partitioner::ObservedGpu;

/// How long `drain` waits when the command does not say.
const DRAIN_S: u32 = 3600;

impl Shared {
    pub(super) fn resize(&self, command: &Command, asked: &Resize) -> Result<Ended, WorkError> {
        let id = AllocationId::of(&command.tenant, &asked.key);
        let known = self.ledger.allocation(id)?;
        let known =
            known.filter(|known| known.tenant == command.tenant && known.phase != Phase::Releasing);
        let Some(known) = known else {
            let text = "there is no such allocation on this host, or it is being released";
            return self.refuse(command, Failure::new(Code::UnknownAllocation, text));
        };
        let mut wanted = known.clone();
        if let Some(profile) = &asked.profile {
            wanted.profile = profile.clone();
            wanted.spec.profile = Some(profile.clone());
        }
        if let Some(limits) = &asked.limits {
            wanted.spec.limits = Some(limits.clone());
        }
        let observed = self.partitioner.observe_gpu(&known.gpu)?;
        if let Some(limits) = wanted.limits()
            && let Err(error) = self.limiter.check(limits, observed.numa_node)
        {
            return self.refuse(command, Failure::new(error.code, error.message));
        }
        // A second life of this operation may find the new profile in place already.
        if wanted.profile == known.profile {
            return self.limit_anew(command, &known, wanted, &observed);
        }
        if let Some(text) = held(&known, &observed) {
            let waits = asked.if_busy == IfBusy::Drain
                && self.clock.now_s()
                    < command.iat + i64::from(asked.deadline_s.unwrap_or(DRAIN_S));
            if waits {
                return Ok(Ended::NotYet);
            }
            let text = format!("{text}; stop it, or ask with if_busy drain");
            return self.refuse(command, Failure::new(Code::InUse, text));
        }
        // What it has is free for what it is to have.
        let mut without = observed.clone();
        without
            .partitions
            .retain(|seen| !known.places().contains(&seen.place));
        if let Some(free) = &mut without.free_vfs {
            free.extend(
                known
                    .places()
                    .iter()
                    .filter_map(crate::operation::place::Place::function),
            );
            free.sort();
        }
        wanted.places = None;
        if let Some(failure) = self.settle_beside(&mut wanted, &without)? {
            return self.refuse(command, failure);
        }
        self.change_profile(command, &known, wanted)
    }

    fn change_profile(
        &self,
        command: &Command,
        known: &Allocation,
        wanted: Allocation,
    ) -> Result<Ended, WorkError> {
        let owner = Owner::Allocation(known.id);
        let gone = Target {
            absent: self.places_to_free(known)?,
            ..Target::default()
        };
        let reached = match self.converge(&owner, &known.gpu, &gone)? {
            Ok(_) => self.converge(&owner, &known.gpu, &present(&wanted))?,
            Err(failure) => Err(failure),
        };
        match reached {
            Ok(observed) => self.limit_anew(command, known, wanted, &observed),
            Err(failure) => self.back_to(command, known, &wanted, failure),
        }
    }

    /// Limits of what stands there now, and the end.
    fn limit_anew(
        &self,
        command: &Command,
        known: &Allocation,
        wanted: Allocation,
        observed: &ObservedGpu,
    ) -> Result<Ended, WorkError> {
        match self.limit(&wanted, observed) {
            Ok(enforced) => {
                let outcome = Outcome::Resized(handles::allocated(&wanted, observed, &enforced));
                self.succeed(command, outcome, Change::Put(Box::new(wanted)))
            }
            Err(failure) => self.back_to(command, known, &wanted, failure),
        }
    }

    /// Gives the allocation back what it had.
    fn back_to(
        &self,
        command: &Command,
        known: &Allocation,
        wanted: &Allocation,
        mut failure: Failure,
    ) -> Result<Ended, WorkError> {
        let owner = Owner::Allocation(known.id);
        if wanted.profile != known.profile {
            let clear = Target {
                absent: self.places_to_free(wanted)?,
                ..Target::default()
            };
            let cleared = self.converge(&owner, &known.gpu, &clear)?;
            let restored = match cleared {
                Ok(_) => self.converge(&owner, &known.gpu, &present(known))?,
                Err(undo) => Err(undo),
            };
            if let Err(undo) = restored {
                // It is desired still: the reconciler goes on trying.
                failure
                    .residue
                    .push(format!("not restored yet: {}", undo.message));
            }
        }
        let observed = self.partitioner.observe_gpu(&known.gpu)?;
        if let Err(lost) = self.limit(known, &observed) {
            failure
                .residue
                .push(format!("limits are incomplete: {}", lost.message));
        }
        self.end(
            command,
            Err(failure),
            events::result::EventKind::OperationFailed,
            Change::Put(Box::new(known.clone())),
        )?;
        Ok(Ended::Yes)
    }
}

fn present(allocation: &Allocation) -> Target {
    let profile = &allocation.profile;
    let places = allocation.places().into_iter();
    Target {
        present: places
            .map(|place| (place, profile.clone()))
            .collect::<BTreeMap<_, _>>(),
        absent: Vec::new(),
    }
}

/// Who holds one of the allocation's partitions.
fn held(allocation: &Allocation, observed: &ObservedGpu) -> Option<String> {
    let places = allocation.places();
    let mut seen = places.iter().filter_map(|place| observed.at(place));
    seen.find(|seen| !seen.holders.is_empty())
        .map(|seen| format!("{} is held by {}", seen.place, seen.holders.join(", ")))
}
