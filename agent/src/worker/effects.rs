//! Reaching a target step by step: intent, effect, observation, done.

use std::time::Duration;

use events::outcome::Failure;
use events::{AllocationId, Code, GpuUuid, PartitionId};

use super::{Shared, WorkError};
use crate::operation::plan::{Plan, Step, Target, plan};
use crate::operation::recover::{Intent, Recovery, recover};
use crate::partitioner::{Class, ObservedGpu, PartitionError, Slot};

/// Attempts at one effect whose error says that trying again may help.
const ATTEMPTS: u32 = 5;
/// Pause before the second attempt; doubles.
const PAUSE: Duration = Duration::from_millis(200);
/// More steps than any GPU has slots: a plan that does not converge within them is a bug.
const MOST_STEPS: usize = 512;

impl Shared {
    /// Brings one GPU to `target`. On failure what was done so far stays; the caller rolls back.
    pub(super) fn converge(
        &self,
        allocation: AllocationId,
        gpu: &GpuUuid,
        target: &Target,
    ) -> Result<Result<ObservedGpu, Failure>, WorkError> {
        for _ in 0..MOST_STEPS {
            let observed = self.partitioner.observe_gpu(gpu)?;
            let step = match plan(&observed, target) {
                Plan::Next(step) => step,
                Plan::Converged => return Ok(Ok(observed)),
                Plan::Wait { partition, holders } => {
                    let text = format!(
                        "partition {partition} is held by {}; stop it, then ask again",
                        holders.join(", ")
                    );
                    return Ok(Err(Failure::new(Code::InUse, text)));
                }
                Plan::Impossible(code, text) => return Ok(Err(Failure::new(code, text))),
            };
            if let Err(error) = self.perform(allocation, gpu, &observed, &step)? {
                let observed = self.partitioner.observe_gpu(gpu)?;
                let reached = matches!(&step, Step::Destroy(id) if !observed.partitions.iter().any(|seen| seen.id == *id));
                if !reached {
                    return Ok(Err(Failure::new(error.code, error.message)));
                }
            }
        }
        Ok(Err(Failure::new(
            Code::Internal,
            format!("GPU {gpu} did not converge within {MOST_STEPS} steps"),
        )))
    }

    /// One step with its records. `Ok(Err(_))` is the effect's own error.
    fn perform(
        &self,
        allocation: AllocationId,
        gpu: &GpuUuid,
        observed: &ObservedGpu,
        step: &Step,
    ) -> Result<Result<(), PartitionError>, WorkError> {
        let (partition, want) = match step {
            Step::Create(id, profile) => (*id, Some(profile.clone())),
            Step::Destroy(id) => (*id, None),
        };
        let before = observed
            .partitions
            .iter()
            .find(|seen| seen.id == partition)
            .map(|seen| seen.profile.clone());
        let epoch = self.partitioner.observe()?.epoch;
        let intent = self.ledger.intend(
            allocation,
            gpu,
            &Intent {
                partition,
                epoch,
                before,
                want,
            },
        )?;
        let slot = Slot {
            gpu: gpu.clone(),
            id: partition,
        };
        let mut pause = PAUSE;
        let mut attempt = 1;
        let done = loop {
            let done = match step {
                Step::Create(_, profile) => self.partitioner.create(&slot, profile),
                Step::Destroy(_) => self.partitioner.destroy(&slot),
            };
            match done {
                Err(error) if error.class == Class::Retry && attempt < ATTEMPTS => {
                    tracing::warn!(gpu.uuid = gpu.as_str(), partition.id = %partition, error = error.message, "effect failed; trying again");
                    // On this GPU's own thread: nothing else waits for it.
                    std::thread::sleep(pause);
                    pause *= 2;
                    attempt += 1;
                }
                done => break done,
            }
        };
        // An effect that failed but took place all the same stays open, so that it can be undone.
        if done.is_ok() {
            self.ledger.done(intent)?;
        }
        Ok(done)
    }

    /// Partitions that this allocation's recorded steps created, judged by what is seen now, or what
    /// cannot be judged. This is what makes a partition ours before its allocation is.
    pub(super) fn made_by_us(
        &self,
        allocation: AllocationId,
        observed: &ObservedGpu,
        epoch: &str,
    ) -> Result<Result<Vec<PartitionId>, String>, WorkError> {
        let mut ours = Vec::new();
        for (n, open, intent) in self.ledger.intents(allocation)? {
            if open {
                match recover(&intent, observed, epoch) {
                    Recovery::Done => self.ledger.done(n)?,
                    Recovery::Redo => {}
                    Recovery::Residue(text) => return Ok(Err(text)),
                }
            }
            if intent.before.is_none()
                && observed
                    .partitions
                    .iter()
                    .any(|seen| seen.id == intent.partition)
            {
                ours.push(intent.partition);
            }
        }
        Ok(Ok(ours))
    }
}
