//! `allocate`: partitions, then limits, then the result; or nothing at all.

use events::operation::{Allocate, Target as Place};
use events::outcome::{Failure, Outcome};
use events::result::EventKind;
use events::{AllocationId, Code, Command, GpuSelector, GpuUuid};

use super::{Shared, WorkError, handles};
use crate::ledger::Change;
use crate::limiter::Enforcement;
use crate::operation::allocation::{Allocation, Phase};
use crate::operation::plan::{Target, refuse_before_start};
use crate::partitioner::ObservedGpu;

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
        let Some(observed) = find(spec, &observation.gpus) else {
            return refused(Failure::new(Code::UnknownGpu, "this host has no such GPU"));
        };
        let Some(profile) = spec.profile.clone() else {
            return refused(Failure::new(
                Code::Internal,
                "the command names no profile: placement was not decided",
            ));
        };
        let id = AllocationId::of(&command.tenant, &spec.key);
        let known = self.ledger.allocation(id)?;
        let expires_at = spec
            .ttl_s
            .map(|ttl_s| self.clock.now_s() + i64::try_from(ttl_s).unwrap_or(i64::MAX / 2));
        let expires_at = if known.is_some() && spec.ttl_s.is_none() {
            known.as_ref().and_then(|known| known.expires_at)
        } else {
            expires_at
        };
        let gpu = known
            .as_ref()
            .map_or_else(|| observed.uuid.clone(), |known| known.gpu.clone());
        let wanted = Allocation {
            id,
            operation: known
                .as_ref()
                .map_or(command.op_id, |known| known.operation),
            tenant: command.tenant.clone(),
            gpu: gpu.clone(),
            spec: spec.clone(),
            profile: profile.clone(),
            expires_at,
            phase: Phase::Live,
        };
        // A known allocation is desired already: its partitions are never rolled back, whatever its
        // earlier steps left behind.
        let made = match &known {
            Some(_) => Ok(Vec::new()),
            None => self.made_by_us(id, observed, &observation.epoch)?,
        };
        let ours = match made {
            Ok(ours) => ours,
            Err(residue) => {
                return self.give_up(command, &wanted, Failure::new(Code::Internal, residue));
            }
        };
        let judged = if known.is_none() {
            self.refuse_before_start(&wanted, observed, &ours)?
        } else {
            None
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
                .partitions()
                .map(|id| (id, profile.clone()))
                .collect(),
            absent: Vec::new(),
        };
        let observed = match self.converge(id, &gpu, &target)? {
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
        let steps = self.ledger.intents(id)?;
        Ok(steps.iter().any(|(_, open, _)| *open))
    }

    /// Everything that can be judged before the first effect.
    fn refuse_before_start(
        &self,
        wanted: &Allocation,
        observed: &ObservedGpu,
        ours: &[events::PartitionId],
    ) -> Result<Option<Failure>, WorkError> {
        if let Some(reason) = self.ledger.quarantined(&observed.uuid)? {
            return Ok(Some(Failure::new(
                Code::GpuQuarantined,
                format!("GPU {} is quarantined: {reason}", observed.pci),
            )));
        }
        if let Some(taken) = observed
            .partitions
            .iter()
            .find(|seen| wanted.partitions().any(|id| id == seen.id) && !ours.contains(&seen.id))
        {
            return Ok(Some(Failure::new(
                Code::DriverError,
                format!("{} exists and was not made by this agent", taken.sysfs_path),
            )));
        }
        let missing = wanted.spec.count
            - u32::try_from(ours.len())
                .unwrap_or(0)
                .min(wanted.spec.count);
        if let Some((code, text)) =
            refuse_before_start(observed, &wanted.profile, missing).filter(|_| missing > 0)
        {
            return Ok(Some(Failure::new(code, text)));
        }
        let limits = wanted
            .limits()
            .map(|limits| self.limiter.check(limits, observed.numa_node));
        Ok(limits
            .and_then(Result::err)
            .map(|error| Failure::new(error.code, error.message)))
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
        for group in wanted.groups() {
            if let Err(error) = self.limiter.remove(&group) {
                failure.residue.push(error.message);
            }
        }
        let observation = self.partitioner.observe()?;
        let observed = observation.gpus.iter().find(|gpu| gpu.uuid == wanted.gpu);
        let ours = match observed
            .map(|observed| self.made_by_us(wanted.id, observed, &observation.epoch))
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
        let mut stuck = None;
        if let Err(undo) = self.converge(wanted.id, &wanted.gpu, &target)? {
            let left = self.partitioner.observe_gpu(&wanted.gpu)?;
            for id in ours
                .iter()
                .filter(|id| left.partitions.iter().any(|seen| seen.id == **id))
            {
                failure.residue.push(format!(
                    "partition {id} on GPU {}: {}",
                    left.pci, undo.message
                ));
            }
            stuck = Some(undo.message);
        }
        if let Some(reason) = stuck {
            self.ledger
                .quarantine(&wanted.gpu, &format!("roll-back failed: {reason}"))?;
            tracing::error!(gpu.uuid = wanted.gpu.as_str(), operation.id = %command.op_id, reason, "roll-back failed: the GPU takes no more work");
        }
        self.end(
            command,
            Err(failure),
            EventKind::OperationFailed,
            Change::None,
        )
    }
}

/// The GPU that an allocate was placed on.
fn find<'a>(spec: &Allocate, gpus: &'a [ObservedGpu]) -> Option<&'a ObservedGpu> {
    let Some(Place::Host(target)) = &spec.target else {
        return None;
    };
    let matches = |gpu: &&ObservedGpu| match target.gpu.as_ref() {
        Some(GpuSelector::Uuid(uuid)) => gpu.uuid == *uuid,
        Some(GpuSelector::Pci(pci)) => gpu.pci == *pci,
        Some(GpuSelector::Index(index)) => gpu.index == *index,
        None => false,
    };
    gpus.iter().find(matches)
}

/// The GPU whose worker does an operation, where it is about one.
pub(crate) fn gpu_of(command: &Command, known: Option<&Allocation>) -> Option<GpuUuid> {
    match &command.operation {
        events::Operation::Allocate(Allocate {
            target: Some(Place::Host(target)),
            ..
        }) => match &target.gpu {
            Some(GpuSelector::Uuid(uuid)) => {
                Some(known.map_or_else(|| uuid.clone(), |known| known.gpu.clone()))
            }
            _ => None,
        },
        _ => known.map(|known| known.gpu.clone()),
    }
}
