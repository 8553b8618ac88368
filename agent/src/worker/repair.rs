//! Drift: what the ledger wants and the host lacks is made again, under the same ids. After a
//! reboot everything has drifted; there is no other path for it.

use events::{AllocationId, Code, GpuUuid};

use super::{Shared, WorkError};
use crate::ledger::{LedgerError, Owner};
use crate::operation::allocation::{Allocation, Phase};
use crate::operation::plan::Target;
use crate::partitioner::{Observation, ObservedGpu};

/// What the reconciler has to queue.
#[derive(Debug, Clone, Default)]
pub struct Overdue {
    /// GPUs with allocations that differ from what they should be.
    pub drifted: Vec<GpuUuid>,
    /// Allocations whose lease has ended, with their GPU.
    pub ended: Vec<(GpuUuid, AllocationId)>,
}

impl Shared {
    /// Repairs every allocation of one GPU.
    pub(super) fn repair(&self, gpu: &GpuUuid) -> Result<(), WorkError> {
        if self.ledger.quarantined(gpu)?.is_some() {
            return Ok(());
        }
        for allocation in self.ledger.allocations()? {
            if allocation.gpu != *gpu {
                continue;
            }
            match allocation.phase {
                Phase::Releasing => self.finish(&allocation)?,
                Phase::Live | Phase::ExpiringHeld => self.repair_one(&allocation)?,
            }
        }
        Ok(())
    }

    fn repair_one(&self, allocation: &Allocation) -> Result<(), WorkError> {
        let observed = self.partitioner.observe_gpu(&allocation.gpu)?;
        let found = self.drift_of(allocation, &observed);
        if found.is_empty() {
            return Ok(());
        }
        tracing::warn!(allocation.id = %allocation.id, gpu.uuid = allocation.gpu.as_str(), drift = found.join("; "), "the host has drifted from what it should be; repairing");
        let target = Target {
            present: allocation
                .places()
                .into_iter()
                .map(|place| (place, allocation.profile.clone()))
                .collect(),
            absent: Vec::new(),
        };
        let repaired =
            match self.converge(&Owner::Allocation(allocation.id), &allocation.gpu, &target)? {
                Ok(observed) => self.limit(allocation, &observed).map(|_| ()),
                Err(failure) => Err(failure),
            };
        if let Err(failure) = repaired {
            tracing::error!(allocation.id = %allocation.id, failure.code = %failure.code, reason = failure.message, "drift could not be repaired; it is tried again");
        }
        Ok(())
    }

    fn drift_of(&self, allocation: &Allocation, observed: &ObservedGpu) -> Vec<String> {
        let mut found: Vec<String> = allocation
            .places()
            .iter()
            .filter_map(|place| match observed.at(place) {
                None => Some(format!("{place} is missing")),
                Some(seen) if seen.profile != allocation.profile => {
                    Some(format!("{place} has profile {}", seen.profile))
                }
                Some(_) => None,
            })
            .collect();
        let Some(limits) = allocation.limits() else {
            return found;
        };
        for group in allocation.groups() {
            match self.limiter.drift(&group, limits, observed.numa_node) {
                Ok(drift) => found.extend(drift),
                Err(error) if error.code == Code::NotSupported => {}
                Err(error) => found.push(error.message),
            }
        }
        found
    }

    /// Differences of the whole host, for `inspect` and `status`.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn drift(&self, observation: &Observation) -> Result<Vec<String>, LedgerError> {
        let mut found = Vec::new();
        for allocation in self.ledger.allocations()? {
            match observation
                .gpus
                .iter()
                .find(|gpu| gpu.uuid == allocation.gpu)
            {
                Some(_) if allocation.phase == Phase::Releasing => found.push(format!(
                    "allocation {} is still being released",
                    allocation.id
                )),
                Some(gpu) => found.extend(self.drift_of(&allocation, gpu)),
                None => found.push(format!(
                    "GPU {} of allocation {} is missing",
                    allocation.gpu, allocation.id
                )),
            }
        }
        Ok(found)
    }

    /// GPUs with allocations that differ from what they should be, and allocations whose lease ended.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn overdue(&self, observation: &Observation) -> Result<Overdue, LedgerError> {
        let Overdue {
            mut drifted,
            mut ended,
        } = Overdue::default();
        let allocations = self.ledger.allocations()?;
        self.leases.keep(&allocations);
        for allocation in allocations {
            if self.leases.is_over(&allocation, &*self.clock) {
                ended.push((allocation.gpu.clone(), allocation.id));
                continue;
            }
            let gpu = observation
                .gpus
                .iter()
                .find(|gpu| gpu.uuid == allocation.gpu);
            let differs = gpu.is_some_and(|gpu| match allocation.phase {
                Phase::Releasing => Self::can_finish(&allocation, gpu),
                Phase::Live | Phase::ExpiringHeld => !self.drift_of(&allocation, gpu).is_empty(),
            });
            if differs && !drifted.contains(&allocation.gpu) {
                drifted.push(allocation.gpu.clone());
            }
        }
        Ok(Overdue { drifted, ended })
    }
}
