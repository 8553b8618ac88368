//! What a host has and holds, as its agent last saw it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gpu::{GpuUuid, PciAddress};
use crate::id::{AllocationId, PartitionId};
use crate::name::{HostName, ProfileName, TenantName};

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
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartitionInventory {
    /// Its id: the mdev UUID.
    pub id: PartitionId,
    /// Its profile.
    pub profile: ProfileName,
    /// Whose it is; absent for foreign ones, which are counted and never touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<PartitionOwner>,
    /// Whether something holds it open.
    pub in_use: bool,
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
