//! `allocate`: partitions, then limits, then the result; or nothing at all.

use events::operation::{Allocate, Target as Asked};
use events::outcome::{Failure, Outcome};
use events::result::EventKind;
use events::{AllocationId, Code, Command, GpuSelector};

use super::{Shared, WorkError, handles};
use crate::ledger::{Change, Owner};
use crate::limiter::Enforcement;
use crate::operation::allocation::{Allocation, Phase};
use crate::operation::place::Place;
use crate::operation::plan::Target;
use crate::operation::recover::Intent;
use crate::partitioner::{ObservedGpu, ObservedPartition};

impl Shared {
    pub(super) fn allocate(&self, command: &Command, spec: &Allocate) -> Result<(), WorkError> {
        let refused = |failure| {
            self.end(
                command,
                Err(failure),
                EventKind::OperationRefused,
                Change::None,
            )
        };
        let observation = self.partitioner.observe()?;
        let id = AllocationId::of(&command.tenant, &spec.key);
        let known = self.ledger.allocation(id)?;
        let Some(mut wanted) = self.wanted(command, spec, known.as_ref()) else {
            let text = "the command names no GPU or no profile: placement was not decided";
            return refused(Failure::new(Code::Internal, text));
        };
        let Some(observed) = observation.gpus.iter().find(|gpu| gpu.uuid == wanted.gpu) else {
            let failure = Failure::new(Code::UnknownGpu, "this host has no such GPU");
            return self.end_unfinished(command, &wanted, failure);
        };
        let owner = Owner::Allocation(id);
        // A known allocation is desired already: its partitions are never rolled back, whatever its
        // earlier steps left behind.
        let made = match &known {
            Some(_) => Ok(Vec::new()),
            None => self.made_by_us(&owner, observed, &observation.epoch)?,
        };
        let ours = match made {
            Ok(ours) => ours,
            Err(residue) => {
                return self.give_up(command, &wanted, Failure::new(Code::Internal, residue));
            }
        };
        let judged = match known {
            Some(_) => None,
            None => self.settle_on_places(&mut wanted, observed, &ours)?,
        };
        // What a stuck GPU shows is not yet what an earlier life of this operation made of it.
        let may_follow = observed.is_stuck() && self.has_begun(id)?;
        match judged {
            Some(failure) if ours.is_empty() && !may_follow => return refused(failure),
            Some(failure) => return self.give_up(command, &wanted, failure),
            None => {}
        }
        let target = Target {
            present: wanted
                .places()
                .into_iter()
                .map(|place| (place, wanted.profile.clone()))
                .collect(),
            absent: Vec::new(),
        };
        let observed = match self.converge(&owner, &wanted.gpu, &target)? {
            Ok(observed) => observed,
            Err(failure) if known.is_some() => {
                return self.end(
                    command,
                    Err(failure),
                    EventKind::OperationFailed,
                    Change::None,
                );
            }
            Err(failure) => return self.give_up(command, &wanted, failure),
        };
        match self.limit(&wanted, &observed) {
            Ok(enforced) => {
                let outcome = Outcome::Allocated(handles::allocated(&wanted, &observed, &enforced));
                self.end(
                    command,
                    Ok(outcome),
                    EventKind::OperationSucceeded,
                    Change::Put(Box::new(wanted)),
                )
            }
            Err(failure) if known.is_some() => self.end(
                command,
                Err(failure),
                EventKind::OperationFailed,
                Change::None,
            ),
            Err(failure) => self.give_up(command, &wanted, failure),
        }
    }

    /// Whether a step of this allocation is recorded as begun and not as done.
    fn has_begun(&self, id: AllocationId) -> Result<bool, WorkError> {
        let steps = self.ledger.intents(&Owner::Allocation(id))?;
        Ok(steps.iter().any(|(_, open, _)| *open))
    }

    /// Limits of every partition's group, each read back.
    pub(super) fn limit(
        &self,
        allocation: &Allocation,
        observed: &ObservedGpu,
    ) -> Result<Vec<Enforcement>, Failure> {
        let Some(limits) = allocation.limits() else {
            return Ok(Vec::new());
        };
        let ensure = |group| self.limiter.ensure(&group, limits, observed.numa_node);
        allocation
            .groups()
            .map(ensure)
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::new(error.code, error.message))
    }

    /// Rolls back what this allocation made, and ends the operation as failed with what remains.
    fn give_up(
        &self,
        command: &Command,
        wanted: &Allocation,
        mut failure: Failure,
    ) -> Result<(), WorkError> {
        let owner = Owner::Allocation(wanted.id);
        for group in wanted.groups() {
            if let Err(error) = self.limiter.remove(&group) {
                failure.residue.push(error.message);
            }
        }
        let observation = self.partitioner.observe()?;
        let observed = observation.gpus.iter().find(|gpu| gpu.uuid == wanted.gpu);
        let ours = match observed
            .map(|observed| self.made_by_us(&owner, observed, &observation.epoch))
            .transpose()?
        {
            Some(Ok(ours)) => ours,
            Some(Err(residue)) => {
                failure.residue.push(residue);
                Vec::new()
            }
            None => Vec::new(),
        };
        let target = Target {
            absent: ours.clone(),
            ..Target::default()
        };
        let Err(undo) = self.converge(&owner, &wanted.gpu, &target)? else {
            return self.end_unfinished(command, wanted, failure);
        };
        let left = self.partitioner.observe_gpu(&wanted.gpu)?;
        for place in ours.iter().filter(|place| left.at(place).is_some()) {
            failure
                .residue
                .push(format!("{place} on GPU {}: {}", left.pci, undo.message));
        }
        // A GPU whose kernel has not come back says so itself, and for as long as it is so.
        if undo.code != Code::GpuStuck {
            let reason = format!("roll-back failed: {}", undo.message);
            self.ledger.quarantine(&wanted.gpu, &reason)?;
            tracing::error!(gpu.uuid = wanted.gpu.as_str(), operation.id = %command.op_id, reason, "the GPU takes no more work");
        }
        self.end_unfinished(command, wanted, failure)
    }

    /// An operation whose budget is spent while its host cannot be seen.
    pub(super) fn give_up_unseen(&self, command: &Command, reason: &str) -> Result<(), WorkError> {
        let failure = Failure::new(
            Code::DriverError,
            format!("given up after many tries: {reason}"),
        );
        if let events::Operation::Allocate(spec) = &command.operation {
            let id = AllocationId::of(&command.tenant, &spec.key);
            let known = self.ledger.allocation(id)?;
            if let (None, Some(wanted)) = (&known, self.wanted(command, spec, None)) {
                return self.end_unfinished(command, &wanted, failure);
            }
        }
        self.end(
            command,
            Err(failure),
            EventKind::OperationFailed,
            Change::None,
        )
    }

    /// Ends an allocate as failed. What its steps may have left is kept as an allocation that is being
    /// released: counted, its own, and removed as soon as that can be done.
    fn end_unfinished(
        &self,
        command: &Command,
        wanted: &Allocation,
        failure: Failure,
    ) -> Result<(), WorkError> {
        let steps = self.ledger.intents(&Owner::Allocation(wanted.id))?;
        let is_new = self.ledger.allocation(wanted.id)?.is_none();
        let is_left = !failure.residue.is_empty();
        let keep = is_new && self.may_be_left(wanted, &steps, is_left);
        let (kind, change) = match (steps.is_empty(), keep) {
            (true, _) => (EventKind::OperationRefused, Change::None),
            (false, false) => (EventKind::OperationFailed, Change::None),
            (false, true) => (
                EventKind::OperationFailed,
                Change::Put(Box::new(left_by(wanted, steps))),
            ),
        };
        self.end(command, Err(failure), kind, change)
    }

    /// Whether anything that these steps made may still be there; `is_left` when something is known to
    /// be. A slot that holds what no step made is somebody else's, and nothing there is claimed.
    fn may_be_left(
        &self,
        wanted: &Allocation,
        steps: &[(i64, bool, Intent)],
        is_left: bool,
    ) -> bool {
        let Ok(seen) = self.partitioner.observe_gpu(&wanted.gpu) else {
            return true;
        };
        let is_ours = |seen: &ObservedPartition| {
            steps.iter().any(|(_, _, step)| {
                step.place == seen.place
                    && step.before.is_none()
                    && step.want.as_ref() == Some(&seen.profile)
            })
        };
        let there: Vec<_> = seen
            .partitions
            .iter()
            .filter(|seen| steps.iter().any(|(_, _, step)| step.place == seen.place))
            .collect();
        (is_left || seen.is_stuck() || !there.is_empty()) && there.into_iter().all(is_ours)
    }

    /// The allocation that an allocate asks for, or the one that is there, under its terms.
    fn wanted(
        &self,
        command: &Command,
        spec: &Allocate,
        known: Option<&Allocation>,
    ) -> Option<Allocation> {
        let Some(Asked::Host(target)) = &spec.target else {
            return None;
        };
        let gpu = match (known, &target.gpu) {
            (Some(known), _) => known.gpu.clone(),
            (None, Some(GpuSelector::Uuid(uuid))) => uuid.clone(),
            (None, _) => return None,
        };
        let lease = |ttl_s| self.clock.now_s() + i64::try_from(ttl_s).unwrap_or(i64::MAX / 2);
        Some(Allocation {
            id: AllocationId::of(&command.tenant, &spec.key),
            operation: known.map_or(command.op_id, |known| known.operation),
            tenant: command.tenant.clone(),
            gpu,
            spec: spec.clone(),
            profile: spec.profile.clone()?,
            expires_at: match (spec.ttl_s, known) {
                (Some(ttl_s), _) => Some(lease(ttl_s)),
                (None, Some(known)) => known.expires_at,
                (None, None) => None,
            },
            phase: Phase::Live,
            places: known.and_then(|known| known.places.clone()),
            since: known.map_or_else(|| Some(self.clock.now_s()), |known| known.since),
        })
    }
}

/// What is left of an allocation that came to nothing: where its steps were.
fn left_by(wanted: &Allocation, steps: Vec<(i64, bool, Intent)>) -> Allocation {
    let mut places: Vec<_> = steps.into_iter().map(|(_, _, step)| step.place).collect();
    places.sort();
    places.dedup();
    let mut left = wanted.clone();
    left.phase = Phase::Releasing;
    let is_plain = |place: &Place| matches!(place, Place::Mdev { parent: None, .. });
    if !places.iter().all(is_plain) {
        left.places = Some(places);
    }
    left
}
