//! Reaching a target step by step: intent, effect, observation, done.

use std::collections::BTreeSet;
use std::time::Duration;

use events::outcome::Failure;
use events::{Code, GpuUuid};

use super::{Shared, WorkError};
use crate::ledger::Owner;
use crate::operation::place::Place;
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
        owner: &Owner,
        gpu: &GpuUuid,
        target: &Target,
    ) -> Result<Result<ObservedGpu, Failure>, WorkError> {
        for _ in 0..MOST_STEPS {
            let observed = self.partitioner.observe_gpu(gpu)?;
            let step = match plan(&observed, target) {
                Plan::Next(step) => step,
                Plan::Converged => return Ok(Ok(observed)),
                Plan::Wait { place, holders } => {
                    let text = format!(
                        "{place} is held by {}; stop it, then ask again",
                        holders.join(", ")
                    );
                    return Ok(Err(Failure::new(Code::InUse, text)));
                }
                Plan::Impossible(code, text) => return Ok(Err(Failure::new(code, text))),
            };
            if let Err(error) = self.perform(owner, gpu, &observed, &step)? {
                let observed = self.partitioner.observe_gpu(gpu)?;
                let reached = matches!(&step, Step::Destroy(place) if observed.at(place).is_none());
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
        owner: &Owner,
        gpu: &GpuUuid,
        observed: &ObservedGpu,
        step: &Step,
    ) -> Result<Result<(), PartitionError>, WorkError> {
        let (place, want) = match step {
            Step::Create(place, profile) => (place.clone(), Some(profile.clone())),
            Step::Destroy(place) => (place.clone(), None),
        };
        let before = observed.at(&place).map(|seen| seen.profile.clone());
        let epoch = self.partitioner.observe()?.epoch;
        let intent = self.ledger.intend(
            owner,
            gpu,
            &Intent {
                place: place.clone(),
                epoch,
                before,
                want,
            },
        )?;
        let slot = Slot {
            gpu: gpu.clone(),
            place,
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
                    tracing::warn!(gpu.uuid = gpu.as_str(), partition.place = %slot.place, error = error.message, "effect failed; trying again");
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

    /// Places that the recorded steps of `owner` filled, judged by what is seen now, or what cannot be
    /// judged. This is what makes a partition ours before its allocation is.
    pub(super) fn made_by_us(
        &self,
        owner: &Owner,
        observed: &ObservedGpu,
        epoch: &str,
    ) -> Result<Result<Vec<Place>, String>, WorkError> {
        let mut ours = BTreeSet::new();
        for (n, open, intent) in self.ledger.intents(owner)? {
            if open {
                match recover(&intent, observed, epoch) {
                    Recovery::Done => self.ledger.done(n)?,
                    Recovery::Half => {}
                    Recovery::Redo => continue,
                    Recovery::Residue(text) => return Ok(Err(text)),
                }
            }
            if intent.want.is_none() {
                ours.remove(&intent.place);
            } else if intent.before.is_none() && intent.still_stands(epoch) {
                ours.insert(intent.place);
            }
        }
        ours.retain(|place| observed.at(place).is_some());
        Ok(Ok(ours.into_iter().collect()))
    }
}
