//! What the driver tells NVML about the host, a GPU, a vGPU type and an active vGPU: plain data on the wire.

use serde::{Deserialize, Serialize};

use crate::pci::PciAddress;

/// The driver and the number of GPUs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostFacts {
    /// Driver version.
    pub driver_version: String,
    /// CUDA version as NVML codes it: 1000 x major + 10 x minor.
    pub cuda_version: i32,
    /// Number of GPUs, lost ones included.
    pub gpu_count: u32,
}

/// One GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "fields are named as NVML names what they answer, with their unit"
)]
pub struct DeviceFacts {
    pub index: u32,
    pub name: String,
    pub uuid: String,
    pub serial: String,
    pub vbios: String,
    pub pci: PciAddress,
    /// `pciDeviceId`: device in the upper, vendor in the lower half.
    pub pci_device_id: u32,
    pub pci_subsystem_id: u32,
    pub architecture: u32,
    pub compute_capability: [i32; 2],
    pub numa_node: u32,
    pub memory_total_bytes: u64,
    pub memory_reserved_bytes: u64,
    /// Without the reserved part.
    pub memory_used_bytes: u64,
    pub bar1_bytes: u64,
    pub utilization_percent: u32,
    pub temperature_c: u32,
    pub power_mw: u32,
    pub power_limit_mw: u32,
    pub power_limit_min_mw: u32,
    pub sm_clock_mhz: u32,
    pub memory_clock_mhz: u32,
    pub max_sm_clock_mhz: u32,
    pub max_memory_clock_mhz: u32,
    pub processes: Vec<ProcessFacts>,
    /// `None` where the driver has no vGPU support.
    pub vgpu: Option<VgpuFacts>,
}

/// What a vGPU host driver knows of one GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VgpuFacts {
    /// Ids of every type of the board, each with the number that fits on one GPU.
    pub supported: Vec<(u32, u32)>,
    /// Ids of the types of which one more fits now.
    pub creatable: Vec<u32>,
    /// Instances of running VMs; an mdev that no VM has open is not among them.
    pub active: Vec<u32>,
}

/// A process with a context on a GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process id on the host.
    pub pid: u32,
    /// Frame buffer in bytes.
    pub memory_bytes: u64,
}

/// A vGPU type.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "fields are named as NVML names what they answer, with their unit"
)]
pub struct VgpuTypeFacts {
    pub name: String,
    pub class: String,
    pub license: String,
    /// Device in the upper, vendor in the lower half.
    pub device_id: u64,
    pub subsystem_id: u64,
    pub framebuffer_bytes: u64,
    pub heads: u32,
    pub frame_rate_limit: u32,
    pub max_resolution: [u32; 2],
}

/// An active vGPU: a device that a VM has open.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "fields are named as NVML names what they answer, with their unit"
)]
pub struct VgpuInstanceFacts {
    pub uuid: String,
    pub mdev_uuid: String,
    pub vm_id: String,
    pub type_id: u32,
    pub framebuffer_bytes: u64,
    pub frame_rate_limit: u32,
}
