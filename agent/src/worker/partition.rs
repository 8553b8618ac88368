//! `partition`: the whole layout of one GPU. Everything is planned first; then what must go goes, the
//! mode changes if it has to, and what is missing is made. When that fails the GPU gets back what it had.

use events::operation::{IfBusy, Mode, Partition};
use events::outcome::{Failure, LayoutPart, Outcome, Partitioned};
use events::result::EventKind;
use events::{Code, Command, GpuSelector, GpuUuid, PartitionId, ProfileName};
use uuid::Uuid;

use super::{Ended, Shared, WorkError};
use crate::ledger::{Change, GpuRecord, Owner, Planned};
use crate::operation::layout::{Holdings, LayoutPlan, Obstacle, plan_layout};
use crate::operation::place::Place;
use crate::operation::plan::Target;
use crate::operation::recover::Intent;
use crate::partitioner::ObservedGpu;

/// How long `drain` waits when the command does not say.
const DRAIN_S: u32 = 3600;

impl Shared {
    pub(super) fn partition(
        &self,
        command: &Command,
        asked: &Partition,
    ) -> Result<Ended, WorkError> {
        let Some(GpuSelector::Uuid(gpu)) = &asked.target.gpu else {
            let failure = Failure::new(Code::Internal, "the command names no GPU by UUID");
            return self.refuse(command, failure);
        };
        let observed = self.partitioner.observe_gpu(gpu)?;
        if let Some(failure) = self.cannot_be_cut(&observed)? {
            return self.refuse(command, failure);
        }
        let owner = Owner::Gpu(gpu.clone());
        let epoch = self.partitioner.observe()?.epoch;
        let made = match self.made_by_us(&owner, &observed, &epoch)? {
            Ok(made) => made,
            Err(residue) => return self.fail(command, Failure::new(Code::Internal, residue)),
        };
        let record = self.ledger.gpu(gpu)?;
        let holdings = self.holdings(&observed, &record, made)?;
        match self.plan_partition(command, asked, &observed, &holdings) {
            Ok(plan) if asked.dry_run => {
                let outcome = told(asked, &observed, &plan);
                self.succeed(command, outcome, Change::None)
            }
            Ok(plan) => self.carry_out(command, asked, &observed, record, &plan),
            Err(Obstacle::Busy(_, text))
                if asked.if_busy == IfBusy::Drain
                    && !asked.dry_run
                    && !self.is_over(command, asked) =>
            {
                tracing::info!(operation.id = %command.op_id, gpu.uuid = gpu.as_str(), reason = text, "draining");
                Ok(Ended::NotYet)
            }
            Err(Obstacle::Busy(_, text)) => {
                let text = format!("{text}; release them, or ask with if_busy drain or force");
                self.refuse(command, Failure::new(Code::InUse, text))
            }
            Err(Obstacle::Refused(code, text)) => self.refuse(command, Failure::new(code, text)),
        }
    }

    /// The plan; of a GPU whose mode has to change first, only as far as it can be told before.
    fn plan_partition(
        &self,
        command: &Command,
        asked: &Partition,
        observed: &ObservedGpu,
        holdings: &Holdings,
    ) -> Result<LayoutPlan, Obstacle> {
        let name = |index: usize| Place::mdev(PartitionId(own_name(command, index)));
        if needs_mode(asked, observed).is_none() {
            return plan_layout(observed, asked, holdings, name);
        }
        // Everything goes: a change of mode leaves nothing standing.
        let nothing = Partition {
            layout: Vec::new(),
            ..asked.clone()
        };
        let mut plan = plan_layout(observed, &nothing, holdings, name)?;
        let others: Vec<_> = self
            .ledger
            .allocations()
            .unwrap_or_default()
            .into_iter()
            .filter(|allocation| allocation.gpu == observed.uuid)
            .map(|allocation| allocation.id)
            .collect();
        if !others.is_empty() && asked.if_busy != IfBusy::Force {
            let text = format!("GPU {} is allocated", observed.pci);
            return Err(Obstacle::Busy(others.into_iter().collect(), text));
        }
        plan.lost.extend(others);
        if let Some(holder) = observed.holders.first() {
            let text = format!(
                "GPU {} is held by {holder}; a change of MIG mode needs it idle",
                observed.pci
            );
            return Err(Obstacle::Refused(Code::InUse, text));
        }
        Ok(plan)
    }

    fn carry_out(
        &self,
        command: &Command,
        asked: &Partition,
        before: &ObservedGpu,
        record: GpuRecord,
        plan: &LayoutPlan,
    ) -> Result<Ended, WorkError> {
        let gpu = &before.uuid;
        // What to go back to: as this operation found it, in whichever life it began.
        let base = record.base.clone().unwrap_or_else(|| record.layout.clone());
        let begun = GpuRecord {
            base: Some(base.clone()),
            ..record.clone()
        };
        self.ledger.put_gpu(gpu, &begun)?;
        match self.reach(command, asked, before, plan)? {
            Ok((after, done)) => {
                let layout = self.layout_of(&after, &done)?;
                let outcome = told(asked, &after, &done);
                for id in &plan.lost {
                    self.lose(*id, command)?;
                }
                let record = GpuRecord {
                    layout,
                    base: None,
                    mig: needs_mig(asked).or(record.mig),
                };
                self.succeed(command, outcome, Change::Gpu(gpu.clone(), Box::new(record)))
            }
            Err(failure) => self.go_back(command, before, record, base, failure),
        }
    }

    /// Brings the GPU to the layout. `Ok(Err(_))` is why it could not.
    fn reach(
        &self,
        command: &Command,
        asked: &Partition,
        before: &ObservedGpu,
        plan: &LayoutPlan,
    ) -> Result<Result<(ObservedGpu, LayoutPlan), Failure>, WorkError> {
        let (gpu, owner) = (&before.uuid, Owner::Gpu(before.uuid.clone()));
        let absent = |plan: &LayoutPlan| {
            plan.removed
                .iter()
                .map(|(place, _)| place.clone())
                .collect()
        };
        let mut done = plan.clone();
        if let Some(on) = needs_mode(asked, before) {
            let clear = Target {
                absent: absent(plan),
                ..Target::default()
            };
            if let Err(failure) = self.converge(&owner, gpu, &clear)? {
                return Ok(Err(failure));
            }
            if let Err(failure) = self.set_mig(gpu, on)? {
                return Ok(Err(failure));
            }
            let now = self.partitioner.observe_gpu(gpu)?;
            let name = |index: usize| Place::mdev(PartitionId(own_name(command, index)));
            done = match plan_layout(&now, asked, &Holdings::default(), name) {
                Ok(plan) => plan,
                Err(Obstacle::Refused(code, text)) => return Ok(Err(Failure::new(code, text))),
                Err(Obstacle::Busy(_, text)) => return Ok(Err(Failure::new(Code::InUse, text))),
            };
            done.removed.clone_from(&plan.removed);
        }
        let target = Target {
            present: done.kept.iter().chain(&done.created).cloned().collect(),
            absent: absent(&done),
        };
        let reached = self.converge(&owner, gpu, &target)?;
        Ok(reached.map(|observed| (observed, done)))
    }

    /// Changes the MIG mode, with its record before and after.
    pub(super) fn set_mig(
        &self,
        gpu: &GpuUuid,
        on: bool,
    ) -> Result<Result<(), Failure>, WorkError> {
        let observed = self.partitioner.observe_gpu(gpu)?;
        if observed
            .mig
            .is_some_and(|mode| mode.current == on && mode.pending == on)
        {
            return Ok(Ok(()));
        }
        let name = |on: bool| -> ProfileName {
            let text = if on { "on" } else { "off" };
            text.parse().expect("letters make a profile name")
        };
        let intent = Intent {
            place: Place::MigMode,
            epoch: self.partitioner.observe()?.epoch,
            before: None,
            want: Some(name(on)),
        };
        let step = self.ledger.intend(&Owner::Gpu(gpu.clone()), gpu, &intent)?;
        let done = self.partitioner.set_mig(gpu, on);
        if done.is_ok() {
            self.ledger.done(step)?;
        }
        Ok(done.map_err(|error| Failure::new(error.code, error.message)))
    }

    /// Gives the GPU back what it had, and ends the operation as failed with what could not be.
    fn go_back(
        &self,
        command: &Command,
        before: &ObservedGpu,
        record: GpuRecord,
        base: Vec<Planned>,
        mut failure: Failure,
    ) -> Result<Ended, WorkError> {
        let (gpu, owner) = (&before.uuid, Owner::Gpu(before.uuid.clone()));
        let undone = self.restore(gpu, &owner, before, &base)?;
        if let Err(undo) = undone {
            failure
                .residue
                .push(format!("GPU {}: {}", before.pci, undo.message));
            if undo.code != Code::GpuStuck {
                let reason = format!("roll-back failed: {}", undo.message);
                self.ledger.quarantine(gpu, &reason)?;
                tracing::error!(gpu.uuid = gpu.as_str(), operation.id = %command.op_id, reason, "the GPU takes no more work");
            }
        }
        let record = GpuRecord {
            layout: base,
            base: None,
            ..record
        };
        self.end(
            command,
            Err(failure),
            EventKind::OperationFailed,
            Change::Gpu(gpu.clone(), Box::new(record)),
        )?;
        Ok(Ended::Yes)
    }

    fn restore(
        &self,
        gpu: &GpuUuid,
        owner: &Owner,
        before: &ObservedGpu,
        base: &[Planned],
    ) -> Result<Result<(), Failure>, WorkError> {
        let now = self.partitioner.observe_gpu(gpu)?;
        let epoch = self.partitioner.observe()?.epoch;
        let made = match self.made_by_us(owner, &now, &epoch)? {
            Ok(made) => made,
            Err(residue) => return Ok(Err(Failure::new(Code::Internal, residue))),
        };
        let allocations = self.ledger.allocations()?.into_iter();
        let allocated = allocations
            .filter(|allocation| allocation.gpu == *gpu)
            .flat_map(|allocation| {
                let profile = allocation.profile.clone();
                allocation
                    .places()
                    .into_iter()
                    .map(move |place| (place, profile.clone()))
            });
        let present: std::collections::BTreeMap<_, _> = base
            .iter()
            .map(|planned| (planned.place.clone(), planned.profile.clone()))
            .chain(allocated)
            .collect();
        let absent = made
            .into_iter()
            .filter(|place| !present.contains_key(place))
            .collect();
        let clear = Target {
            absent,
            ..Target::default()
        };
        if let Err(failure) = self.converge(owner, gpu, &clear)? {
            return Ok(Err(failure));
        }
        if let Some(mode) = before.mig
            && let Err(failure) = self.set_mig(gpu, mode.current)?
        {
            return Ok(Err(failure));
        }
        let target = Target {
            present,
            ..Target::default()
        };
        Ok(self.converge(owner, gpu, &target)?.map(|_| ()))
    }

    fn cannot_be_cut(&self, observed: &ObservedGpu) -> Result<Option<Failure>, WorkError> {
        if let Some(reason) = self.ledger.quarantined(&observed.uuid)? {
            let text = format!("GPU {} is quarantined: {reason}", observed.pci);
            return Ok(Some(Failure::new(Code::GpuQuarantined, text)));
        }
        Ok(observed.unavailable.as_ref().map(|reason| {
            let text = format!("GPU {} takes no partitions: {reason}", observed.pci);
            Failure::new(observed.unavailable_code(), text)
        }))
    }

    fn holdings(
        &self,
        observed: &ObservedGpu,
        record: &GpuRecord,
        made: Vec<Place>,
    ) -> Result<Holdings, WorkError> {
        let allocations = self.ledger.allocations()?.into_iter();
        let allocated = allocations.filter(|allocation| allocation.gpu == observed.uuid);
        let planned = record.layout.iter().chain(record.base.iter().flatten());
        Ok(Holdings {
            allocated: allocated
                .flat_map(|allocation| {
                    let id = allocation.id;
                    allocation
                        .places()
                        .into_iter()
                        .map(move |place| (place, id))
                })
                .collect(),
            own: planned
                .map(|planned| planned.place.clone())
                .chain(made)
                .collect(),
        })
    }

    /// What of the layout is the GPU's own: an allocation's instance that is part of it stays when the
    /// allocation goes.
    fn layout_of(&self, after: &ObservedGpu, plan: &LayoutPlan) -> Result<Vec<Planned>, WorkError> {
        let parts = plan.kept.iter().chain(&plan.created);
        let there = parts.filter(|(place, _)| after.at(place).is_some());
        Ok(there
            .map(|(place, profile)| Planned {
                place: place.clone(),
                profile: profile.clone(),
            })
            .collect())
    }

    fn is_over(&self, command: &Command, asked: &Partition) -> bool {
        let patience = i64::from(asked.deadline_s.unwrap_or(DRAIN_S));
        self.clock.now_s() >= command.iat + patience
    }
}

/// The mode that has to be set first.
fn needs_mode(asked: &Partition, observed: &ObservedGpu) -> Option<bool> {
    let wanted = needs_mig(asked)?;
    let is_so = |mode: crate::nvml::MigMode| mode.current == wanted && mode.pending == wanted;
    (!observed.mig.map_or(!wanted, is_so)).then_some(wanted)
}

/// Whether a layout is one of MIG: a vGPU host may have either.
fn needs_mig(asked: &Partition) -> Option<bool> {
    match asked.mode {
        Mode::Mig => Some(true),
        Mode::Whole => Some(false),
        _ => None,
    }
}

/// A partition of a layout that has a name of its own is named after the operation, so that a second
/// life of it makes the same.
fn own_name(command: &Command, index: usize) -> Uuid {
    Uuid::new_v5(&command.op_id.0, &index.to_be_bytes())
}

fn told(asked: &Partition, observed: &ObservedGpu, plan: &LayoutPlan) -> Outcome {
    let parts = |parts: &[(Place, ProfileName)]| {
        let part = |(place, profile): &(Place, ProfileName)| LayoutPart {
            profile: profile.clone(),
            place: place.to_string(),
            holders: observed
                .at(place)
                .map(|seen| seen.holders.clone())
                .unwrap_or_default(),
        };
        parts.iter().map(part).collect::<Vec<_>>()
    };
    let mut created = parts(&plan.created);
    if asked.dry_run && needs_mode(asked, observed).is_some() {
        // Where they will lie is known only once the GPU is in its mode.
        for entry in &asked.layout {
            created.extend((0..entry.count).map(|_| LayoutPart {
                profile: entry.profile.clone(),
                place: "chosen once MIG is on".to_owned(),
                holders: Vec::new(),
            }));
        }
    }
    Outcome::Partitioned(Partitioned {
        gpu: observed.uuid.clone(),
        pci: observed.pci,
        mode: asked.mode,
        dry_run: asked.dry_run,
        kept: parts(&plan.kept),
        created,
        removed: parts(&plan.removed),
    })
}
