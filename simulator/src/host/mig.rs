//! The driver's side of MIG: what NVML is told of GPU and compute instances, and the changes that it asks for.

use super::{Caller, Inner, driver::MIB};
use crate::{
    code::{NO_PERMISSION, NOT_FOUND},
    facts::{
        ComputeInstanceFacts, ComputeProfileFacts, DeviceFacts, GpuInstanceFacts, MigDeviceFacts,
        MigFacts,
    },
    machine::{ComputeInstance, Gpu, GpuInstance, GpuProcess},
    protocol::{Cut, NvmlValue},
};

impl Inner {
    /// Carries a change out, and shows it in the files.
    pub(super) fn cut(&mut self, caller: Caller, cut: &Cut) -> Result<Option<NvmlValue>, u32> {
        if !caller.is_root {
            return Err(NO_PERMISSION);
        }
        let machine = &mut self.machine;
        let value = match cut {
            Cut::Mode { gpu, on } => {
                let others = self.sessions.keys().any(|each| *each != caller.connection);
                let activation = machine.set_mig_mode(*gpu as usize, *on, others)?;
                Some(NvmlValue::Activation(activation))
            }
            Cut::CreateInstance {
                gpu,
                profile,
                placement,
            } => {
                let made = machine.create_gpu_instance(*gpu as usize, *profile, *placement)?;
                Some(NvmlValue::Handle(made))
            }
            Cut::CreateCompute {
                instance,
                profile,
                start,
            } => {
                let made = machine.create_compute_instance(*instance, *profile, *start)?;
                Some(NvmlValue::Handle(made))
            }
            Cut::DestroyInstance(handle) => {
                machine.destroy_gpu_instance(*handle)?;
                None
            }
            Cut::DestroyCompute(handle) => {
                machine.destroy_compute_instance(*handle)?;
                None
            }
        };
        for gpu in &self.machine.gpus {
            if let Err(error) = self.tree.update_capabilities(gpu) {
                eprintln!("simulator: {error}");
            }
        }
        Ok(value)
    }

    pub(super) fn mig_facts(&self, gpu: &Gpu) -> Option<MigFacts> {
        let board = gpu.board.mig.as_ref()?;
        let mig = &gpu.mig;
        let remaining = |id| self.machine.mig_remaining(gpu.index, id).unwrap_or(0);
        Some(MigFacts {
            current: mig.current,
            pending: mig.pending,
            max_devices: board.profiles.iter().map(|each| each.instances).max()?,
            remaining: board
                .profiles
                .iter()
                .map(|each| remaining(each.id))
                .collect(),
            profiles: board.profiles.clone(),
            instances: mig.instances.iter().map(|each| facts(gpu, each)).collect(),
        })
    }

    pub(super) fn gpu_instance_facts(&self, handle: u64) -> Result<GpuInstanceFacts, u32> {
        let (gpu, instance) = self.machine.gpu_instance(handle)?;
        Ok(facts(&self.machine.gpus[gpu], instance))
    }

    pub(super) fn mig_device_by_uuid(&self, uuid: &str) -> Result<u64, u32> {
        let mut all = self.machine.compute_instances();
        let found = all.find(|(_, _, compute)| compute.uuid == uuid);
        found.map(|(_, _, compute)| compute.handle).ok_or(NOT_FOUND)
    }

    /// A MIG device: its GPU, but for what is its own.
    pub(super) fn mig_device_facts(&self, handle: u64) -> Result<DeviceFacts, u32> {
        let (index, instance, compute) = self.machine.compute_instance(handle)?;
        let gpu = &self.machine.gpus[index];
        let whole = self.device_facts(gpu);
        let ids = Some((instance.id, compute.id));
        let on_instance = |each: &&crate::facts::ProcessFacts| {
            each.instance.is_some_and(|(id, _)| id == instance.id)
        };
        // Memory is the GPU instance's: its compute instances share it.
        let used = whole.processes.iter().filter(on_instance);
        let name = if compute.slices == instance.profile.slices {
            instance.profile.name.clone()
        } else {
            format!("{}c.{}", compute.slices, instance.profile.name)
        };
        Ok(DeviceFacts {
            name: format!("{} MIG {name}", whole.name),
            uuid: compute.uuid.clone(),
            memory_total_bytes: instance.profile.memory_mib * MIB,
            memory_reserved_bytes: 0,
            memory_used_bytes: used.map(|each| each.memory_bytes).sum(),
            processes: whole
                .processes
                .iter()
                .filter(|each| each.instance == ids)
                .cloned()
                .collect(),
            mig: None,
            mig_device: Some(MigDeviceFacts {
                instance: facts(gpu, instance),
                compute: compute_facts(gpu, instance, compute),
            }),
            ..whole
        })
    }

    /// Ids of the instances that a process is on.
    pub(super) fn instance_ids(&self, process: &GpuProcess) -> Option<(u32, u32)> {
        let (_, instance, compute) = self.machine.compute_instance(process.compute?).ok()?;
        Some((instance.id, compute.id))
    }
}

fn facts(gpu: &Gpu, instance: &GpuInstance) -> GpuInstanceFacts {
    let profiles = instance.compute_profiles().into_iter();
    let free = |start: u32, slices: u32| {
        let mut compute = instance.compute.iter();
        !compute.any(|each| each.start < start + slices && start < each.start + each.slices)
    };
    GpuInstanceFacts {
        handle: instance.handle,
        gpu: gpu.index as u32,
        id: instance.id,
        profile: instance.profile.clone(),
        start: instance.start,
        compute_profiles: profiles
            .map(|each| ComputeProfileFacts {
                id: each.id,
                slices: each.slices,
                instances: each.instances,
                multiprocessors: multiprocessors(gpu, instance, each.slices),
                starts: each.starts().collect(),
                remaining: each
                    .starts()
                    .filter(|start| free(*start, each.slices))
                    .count() as u32,
            })
            .collect(),
        compute: instance
            .compute
            .iter()
            .map(|each| compute_facts(gpu, instance, each))
            .collect(),
    }
}

fn compute_facts(
    gpu: &Gpu,
    instance: &GpuInstance,
    compute: &ComputeInstance,
) -> ComputeInstanceFacts {
    ComputeInstanceFacts {
        handle: compute.handle,
        id: compute.id,
        profile_id: compute.profile_id,
        start: compute.start,
        slices: compute.slices,
        multiprocessors: multiprocessors(gpu, instance, compute.slices),
        slot: compute.slot,
        uuid: compute.uuid.clone(),
    }
}

/// Multiprocessors of a compute instance: all of its GPU instance's, or as many as that many single slices have.
fn multiprocessors(gpu: &Gpu, instance: &GpuInstance, slices: u32) -> u32 {
    let all = instance.profile.multiprocessors;
    if slices == instance.profile.slices {
        return all;
    }
    let profiles = gpu.board.mig.iter().flat_map(|board| &board.profiles);
    let single = profiles
        .filter(|each| each.slices == 1)
        .map(|each| each.multiprocessors);
    (single.min().unwrap_or(0) * slices).min(all)
}
