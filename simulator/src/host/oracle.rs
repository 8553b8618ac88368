//! The truth as `state` answers it.

use std::time::{Duration, Instant};

use super::{Host, Inner, LONGEST_STATE_WAIT};
use crate::{
    machine::{Condition, Removal},
    state::{
        GpuInstanceState, GpuState, HolderKind, HolderState, MdevState, MigState, State,
        WaitingWrite,
    },
};

impl Host {
    /// The truth; with `after`, once it is newer or `timeout` has passed.
    pub(super) fn state(&self, after: Option<u64>, timeout: Duration) -> State {
        let deadline = Instant::now() + timeout.min(LONGEST_STATE_WAIT);
        let inner = self.lock();
        self.wait(inner, Some(deadline), |inner| {
            after.is_none_or(|seen| inner.generation > seen)
        })
        .state()
    }
}

impl Inner {
    fn state(&self) -> State {
        State {
            generation: self.generation,
            host: self.machine.description.name.clone(),
            boot_id: self.boot_id.clone(),
            boot: self.machine.boot,
            gpus: self.gpus(),
            mdevs: self.mdevs(),
            holders: self.holders(),
            waiting: self
                .waiting
                .values()
                .map(|(path, pid, cause)| WaitingWrite {
                    path: path.clone(),
                    pid: *pid,
                    cause: *cause,
                })
                .collect(),
            writes: self.writes,
            recent_writes: self.recent_writes.iter().cloned().collect(),
            nvml_calls: self.nvml_calls,
        }
    }

    fn gpus(&self) -> Vec<GpuState> {
        let state = |gpu: &crate::machine::Gpu| GpuState {
            index: gpu.index as u32,
            uuid: gpu.uuid.clone(),
            pci: gpu.pci,
            board: gpu.board.name.clone(),
            lost: gpu.condition == Condition::Lost,
            used_mib: self.machine.used_mib(gpu.index),
            mig: gpu.board.mig.as_ref().map(|_| mig(gpu)),
        };
        self.machine.gpus.iter().map(state).collect()
    }

    fn mdevs(&self) -> Vec<MdevState> {
        let state = |mdev: &crate::machine::Mdev| {
            let gpu = &self.machine.gpus[mdev.gpu];
            MdevState {
                uuid: mdev.uuid,
                mdev_type: format!("nvidia-{}", mdev.type_id),
                type_id: mdev.type_id,
                type_name: gpu
                    .board
                    .vgpu_type(mdev.type_id)
                    .map(|each| each.name.clone())
                    .unwrap_or_default(),
                parent: gpu.pci,
                iommu_group: mdev.iommu_group,
                vgpu_params: mdev.params.clone(),
                vm_name: mdev.vm.as_ref().map(|vm| vm.name.clone()),
                being_removed: mdev.removal == Removal::UnderWay,
            }
        };
        self.machine.mdevs.values().map(state).collect()
    }

    fn holders(&self) -> Vec<HolderState> {
        let sessions = self.sessions.values().map(|pid| HolderState {
            pid: *pid,
            kind: HolderKind::Nvml,
        });
        let processes = self.machine.gpus.iter().flat_map(|gpu| {
            gpu.processes.iter().map(|each| HolderState {
                pid: each.pid,
                kind: HolderKind::Compute(gpu.index as u32),
            })
        });
        sessions.chain(processes).collect()
    }
}

fn mig(gpu: &crate::machine::Gpu) -> MigState {
    let instances = gpu.mig.instances.iter().map(|each| GpuInstanceState {
        id: each.id,
        profile: each.profile.name.clone(),
        start: each.start,
        size: each.profile.size,
        devices: each
            .compute
            .iter()
            .map(|compute| compute.uuid.clone())
            .collect(),
    });
    MigState {
        current: gpu.mig.current,
        pending: gpu.mig.pending,
        instances: instances.collect(),
    }
}
