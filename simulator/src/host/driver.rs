//! The driver's side of NVML: sessions, and what it tells about GPUs, vGPU types and active vGPUs. Struct layouts,
//! versions and buffers are the library's business.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Caller, Host, Inner};
use crate::{
    board::VgpuType,
    code::{GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, UNINITIALIZED},
    facts::{DeviceFacts, HostFacts, ProcessFacts, VgpuFacts, VgpuInstanceFacts, VgpuTypeFacts},
    machine::{Condition, Gpu, Mdev},
    protocol::{NvmlAnswer, NvmlCall, NvmlValue, Query},
};

pub(super) const MIB: u64 = 1 << 20;

/// Clocks of an idle Turing board in MHz (nvidia-smi of an idle T4: 300 and 405).
const IDLE_CLOCKS_MHZ: (u32, u32) = (300, 405);

impl Host {
    pub(super) fn nvml(&self, caller: Caller, call: &NvmlCall) -> NvmlAnswer {
        let mut inner = self.lock();
        inner.nvml_calls += 1;
        let faults = inner.faults.on_nvml(&call.function);
        if faults.delay_ms > 0 {
            let deadline = Instant::now() + Duration::from_millis(faults.delay_ms);
            inner = self.wait(inner, Some(deadline), |_| false);
        }
        let result = match faults.code {
            Some(0) | None => inner.nvml(caller, &call.query),
            Some(code) => Err(code),
        };
        if matches!(call.query, Query::Init | Query::Shutdown | Query::Cut(_)) {
            self.notify(&mut inner);
        }
        match result {
            Ok(value) => NvmlAnswer { code: 0, value },
            Err(code) => NvmlAnswer { code, value: None },
        }
    }
}

impl Inner {
    fn nvml(&mut self, caller: Caller, query: &Query) -> Result<Option<NvmlValue>, u32> {
        if *query == Query::Init {
            self.sessions.insert(caller.connection, caller.pid);
            return Ok(None);
        }
        // A reboot has ended the sessions of before: their processes cannot exist any more.
        if !self.sessions.contains_key(&caller.connection) {
            return Err(UNINITIALIZED);
        }
        Ok(Some(match query {
            Query::Init | Query::Nothing => return Ok(None),
            Query::Shutdown => {
                self.sessions.remove(&caller.connection);
                return Ok(None);
            }
            Query::Host => NvmlValue::Host(self.host_facts()),
            Query::Device(index) => {
                let gpu = self
                    .machine
                    .gpus
                    .get(*index as usize)
                    .ok_or(INVALID_ARGUMENT)?;
                if gpu.condition == Condition::Lost {
                    return Err(GPU_IS_LOST);
                }
                NvmlValue::Device(Box::new(self.device_facts(gpu)))
            }
            Query::MigDevice(handle) => {
                NvmlValue::Device(Box::new(self.mig_device_facts(*handle)?))
            }
            Query::GpuInstance(handle) => {
                NvmlValue::GpuInstance(Box::new(self.gpu_instance_facts(*handle)?))
            }
            Query::Cut(cut) => return self.cut(caller, cut),
            Query::DeviceByUuid(uuid) if uuid.starts_with("MIG-") => {
                NvmlValue::MigDevice(self.mig_device_by_uuid(uuid)?)
            }
            Query::DeviceByUuid(uuid) => NvmlValue::Index(self.index_of(|gpu| gpu.uuid == *uuid)?),
            Query::DeviceBySerial(serial) => {
                NvmlValue::Index(self.index_of(|gpu| gpu.serial == *serial)?)
            }
            Query::DeviceByPci(text) => {
                let pci = text.parse().map_err(|_| INVALID_ARGUMENT)?;
                NvmlValue::Index(self.index_of(|gpu| gpu.pci == pci)?)
            }
            Query::VgpuType(id) => NvmlValue::VgpuType(self.vgpu_type_facts(*id)?),
            Query::VgpuInstance(instance) => {
                NvmlValue::VgpuInstance(self.vgpu_instance_facts(*instance)?)
            }
        }))
    }

    fn index_of(&self, wanted: impl Fn(&Gpu) -> bool) -> Result<u32, u32> {
        let gpu = self
            .machine
            .gpus
            .iter()
            .find(|gpu| wanted(gpu))
            .ok_or(NOT_FOUND)?;
        if gpu.condition == Condition::Lost {
            Err(GPU_IS_LOST)
        } else {
            Ok(gpu.index as u32)
        }
    }

    fn host_facts(&self) -> HostFacts {
        let description = &self.machine.description;
        let (major, minor) = description
            .cuda_version
            .split_once('.')
            .unwrap_or((&description.cuda_version, "0"));
        let number = |text: &str| text.parse::<i32>().unwrap_or(0);
        HostFacts {
            driver_version: description.driver_version.clone(),
            cuda_version: number(major) * 1000 + number(minor) * 10,
            gpu_count: self.machine.gpus.len() as u32,
        }
    }

    pub(super) fn device_facts(&self, gpu: &Gpu) -> DeviceFacts {
        let board = &gpu.board;
        let id = |device: u16, vendor: u16| u32::from(device) << 16 | u32::from(vendor);
        let (sm_clock_mhz, memory_clock_mhz) = IDLE_CLOCKS_MHZ;
        DeviceFacts {
            index: gpu.index as u32,
            name: board.product.clone(),
            uuid: gpu.uuid.clone(),
            serial: gpu.serial.clone(),
            vbios: board.vbios.clone(),
            pci: gpu.pci,
            pci_device_id: id(board.pci_device, board.pci_vendor),
            pci_subsystem_id: id(board.pci_subsystem_device, board.pci_subsystem_vendor),
            architecture: board.architecture,
            compute_capability: board.compute_capability,
            numa_node: gpu.numa_node,
            memory_total_bytes: board.memory_mib * MIB,
            memory_reserved_bytes: board.reserved_mib * MIB,
            memory_used_bytes: self.machine.used_mib(gpu.index) * MIB,
            bar1_bytes: board.bar1_mib * MIB,
            utilization_percent: 0,
            temperature_c: board.idle_temperature_c,
            power_mw: board.idle_power_mw,
            power_limit_mw: board.power_limit_mw,
            power_limit_min_mw: board.power_limit_min_mw,
            sm_clock_mhz,
            memory_clock_mhz,
            max_sm_clock_mhz: board.max_sm_clock_mhz,
            max_memory_clock_mhz: board.max_memory_clock_mhz,
            processes: gpu
                .processes
                .iter()
                .map(|each| ProcessFacts {
                    pid: each.pid,
                    memory_bytes: each.memory_mib * MIB,
                    instance: self.instance_ids(each),
                })
                .collect(),
            vgpu: self.machine.has_vgpu().then(|| self.vgpu_facts(gpu)),
            mig: self.mig_facts(gpu),
            mig_device: None,
        }
    }

    fn vgpu_facts(&self, gpu: &Gpu) -> VgpuFacts {
        let types = &gpu.board.vgpu_types;
        let active = self
            .machine
            .mdevs
            .values()
            .filter(|mdev| mdev.gpu == gpu.index)
            .filter_map(|mdev| mdev.vm.as_ref());
        VgpuFacts {
            supported: types
                .iter()
                .map(|each| (each.id, each.max_instances))
                .collect(),
            creatable: types
                .iter()
                .filter(|each| self.machine.available(gpu.index, each) > 0)
                .map(|each| each.id)
                .collect(),
            active: active.map(|vm| vm.instance).collect(),
        }
    }

    fn vgpu_type(&self, id: u32) -> Option<(&Gpu, &VgpuType)> {
        self.machine
            .gpus
            .iter()
            .find_map(|gpu| gpu.board.vgpu_type(id).map(|each| (gpu, each)))
    }

    fn vgpu_type_facts(&self, id: u32) -> Result<VgpuTypeFacts, u32> {
        if !self.machine.has_vgpu() {
            return Err(NOT_SUPPORTED);
        }
        let (gpu, found) = self.vgpu_type(id).ok_or(INVALID_ARGUMENT)?;
        let id = |device: u16| u64::from(device) << 16 | u64::from(gpu.board.pci_vendor);
        Ok(VgpuTypeFacts {
            name: self.machine.description.type_name(&found.name),
            class: found.class.clone(),
            license: found.license.clone(),
            device_id: id(gpu.board.pci_device),
            subsystem_id: id(found.subsystem_id),
            framebuffer_bytes: found.framebuffer_mib * MIB,
            heads: found.heads,
            frame_rate_limit: found.frame_rate_limit,
            max_resolution: found.max_resolution,
        })
    }

    fn vgpu_instance_facts(&self, instance: u32) -> Result<VgpuInstanceFacts, u32> {
        let holds = |mdev: &&Mdev| mdev.vm.as_ref().is_some_and(|vm| vm.instance == instance);
        let mdev = self.machine.mdevs.values().find(holds).ok_or(NOT_FOUND)?;
        let (_, vgpu_type) = self.vgpu_type(mdev.type_id).ok_or(INVALID_ARGUMENT)?;
        // On KVM the vGPU's UUID is the mdev's, and the VM's id is QEMU's `-uuid`: here one that its name always has.
        let vm_id = mdev
            .vm
            .as_ref()
            .map(|vm| Uuid::new_v5(&mdev.uuid, vm.name.as_bytes()));
        Ok(VgpuInstanceFacts {
            uuid: mdev.uuid.to_string(),
            mdev_uuid: mdev.uuid.to_string(),
            vm_id: vm_id.unwrap_or_default().to_string(),
            type_id: mdev.type_id,
            framebuffer_bytes: mdev.framebuffer_mib * MIB,
            frame_rate_limit: vgpu_type.frame_rate_limit,
        })
    }
}
