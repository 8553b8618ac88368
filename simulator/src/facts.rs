//! What the driver tells NVML about the host, a GPU, a vGPU type and an active vGPU: plain data on the wire.

use serde::{Deserialize, Serialize};

use crate::{board::MigProfile, pci::PciAddress};

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
    /// `None` where the board cannot be cut into GPU instances, and for a MIG device.
    pub mig: Option<MigFacts>,
    /// For a MIG device, what it is; then the rest is its GPU's, but for UUID, name, memory and processes.
    pub mig_device: Option<MigDeviceFacts>,
}

/// MIG on one GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "fields are named as NVML names what they answer, with their unit"
)]
pub struct MigFacts {
    pub current: bool,
    pub pending: bool,
    pub max_devices: u32,
    pub profiles: Vec<MigProfile>,
    /// How many more of each profile fit, in the order of `profiles`.
    pub remaining: Vec<u32>,
    pub instances: Vec<GpuInstanceFacts>,
}

/// A GPU instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "fields are named as NVML names what they answer, with their unit"
)]
pub struct GpuInstanceFacts {
    pub handle: u64,
    /// Index of the GPU.
    pub gpu: u32,
    pub id: u32,
    pub profile: MigProfile,
    pub start: u32,
    pub compute_profiles: Vec<ComputeProfileFacts>,
    pub compute: Vec<ComputeInstanceFacts>,
}

/// A profile of compute instances in one GPU instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "fields are named as NVML names what they answer, with their unit"
)]
pub struct ComputeProfileFacts {
    pub id: u32,
    pub slices: u32,
    pub instances: u32,
    pub multiprocessors: u32,
    pub starts: Vec<u32>,
    pub remaining: u32,
}

/// A compute instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "fields are named as NVML names what they answer, with their unit"
)]
pub struct ComputeInstanceFacts {
    pub handle: u64,
    pub id: u32,
    pub profile_id: u32,
    pub start: u32,
    pub slices: u32,
    pub multiprocessors: u32,
    /// Index among the GPU's MIG devices.
    pub slot: u32,
    pub uuid: String,
}

/// What a MIG device is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the two instances that make it")]
pub struct MigDeviceFacts {
    pub instance: GpuInstanceFacts,
    pub compute: ComputeInstanceFacts,
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
    /// Ids of the GPU instance and compute instance that it is on.
    pub instance: Option<(u32, u32)>,
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
