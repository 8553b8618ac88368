//! What a host has and holds, as its agent last saw it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gpu::{GpuUuid, PciAddress};
use crate::id::{AllocationId, PartitionId};
use crate::name::{HostName, ProfileName, TenantName};
use crate::operation::Mode;

/// One observation of a host; taken whole, never patched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostInventory {
    /// The host.
    pub host: HostName,
    /// When it was taken, Unix milliseconds by the host's clock.
    pub taken_at_ms: i64,
    /// Boot id, driver load and VF generation; another value means that runtime state was lost.
    pub epoch: String,
    /// Driver version, empty when no driver answers.
    pub driver_version: String,
    /// Its GPUs, by index.
    pub gpus: Vec<GpuInventory>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuInventory {
    /// UUID.
    pub uuid: GpuUuid,
    /// PCI address.
    pub pci: PciAddress,
    /// NVML index.
    pub index: u8,
    /// Product name.
    pub name: String,
    /// Frame buffer in MiB; absent when the driver cannot tell (field F53).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// The back-end that serves it; absent when none can, with the reason in `unavailable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Why nothing can be placed on it now: `stuck`, `quarantined`, `lost`, no back-end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// NUMA node, when the host has more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u16>,
    /// Profiles the back-end offers.
    pub profiles: Vec<ProfileInventory>,
    /// Partitions that exist, ours and foreign.
    pub partitions: Vec<PartitionInventory>,
}

/// How partitions of a GPU are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Mediated devices.
    Mdev,
    /// Vendor-specific VFIO on virtual functions.
    Vfio,
    /// Multi-Instance GPU.
    Mig,
    /// CUDA MPS.
    Mps,
    /// CUDA time slicing.
    Timeslice,
    /// The whole GPU.
    Whole,
}

/// One profile on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileInventory {
    /// The vendor's last token, such as `T4-4Q`.
    pub profile: ProfileName,
    /// Frame buffer of one partition in MiB.
    pub memory_mib: u64,
    /// How many fit on an empty GPU, as the driver publishes it.
    pub max_instances: u32,
    /// How many more fit now, as the driver says.
    pub available: u32,
    /// The mode that it belongs to.
    #[serde(default = "vgpu", skip_serializing_if = "is_vgpu")]
    pub mode: Mode,
    /// Where one may lie among the GPU's memory slices, for MIG: partitions of other sizes stand
    /// beside each other, and whether one fits is a question of place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placements: Option<Placements>,
}

impl ProfileInventory {
    /// A vGPU type.
    #[must_use]
    pub fn vgpu(profile: ProfileName, memory_mib: u64, max_instances: u32, available: u32) -> Self {
        Self {
            profile,
            memory_mib,
            max_instances,
            available,
            mode: Mode::Vgpu,
            placements: None,
        }
    }
}

/// Every inventory before there were other modes was of vGPUs.
fn vgpu() -> Mode {
    Mode::Vgpu
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_vgpu(mode: &Mode) -> bool {
    *mode == Mode::Vgpu
}

/// Where a MIG profile may lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placements {
    /// First slices.
    pub starts: Vec<u8>,
    /// Slices that one takes.
    pub size: u8,
}

/// Where a MIG partition lies: `size` memory slices from `start` on.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Slices {
    /// The first.
    pub start: u8,
    /// How many.
    pub size: u8,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartitionInventory {
    /// Its id; for mediated devices also their UUID.
    pub id: PartitionId,
    /// Its profile.
    pub profile: ProfileName,
    /// Where it lies, for MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<Slices>,
    /// Made by `partition` for whoever comes, and nobody's now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
    /// Whose it has been since when, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
    /// End of its lease, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// Whose it is; absent for foreign ones, which are counted and never touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<PartitionOwner>,
    /// Whether something holds it open.
    pub in_use: bool,
}

impl PartitionInventory {
    /// A partition that is nobody's and not in use.
    #[must_use]
    pub fn foreign(id: PartitionId, profile: ProfileName) -> Self {
        Self {
            id,
            profile,
            slices: None,
            spare: false,
            since: None,
            until: None,
            owner: None,
            in_use: false,
        }
    }
}

/// The owner of a partition that this agent created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartitionOwner {
    /// The tenant.
    pub tenant: TenantName,
    /// The allocation.
    pub allocation: AllocationId,
}

/// Capacity promised to an accepted operation whose result has not come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reservation {
    /// For which allocation.
    pub allocation: AllocationId,
    /// On which GPU.
    pub gpu: GpuUuid,
    /// Which profile.
    pub profile: ProfileName,
    /// How many.
    pub count: u32,
}
