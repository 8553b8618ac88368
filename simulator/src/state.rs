//! The simulator's truth as tests read it: the oracle that no ledger and no rendered file can be.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::pci::PciAddress;

/// The truth of a simulated host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Grows with every change of anything below.
    pub generation: u64,
    /// Host name.
    pub host: String,
    /// Boot id as `/proc/sys/kernel/random/boot_id` has it.
    pub boot_id: String,
    /// Number of boots, from 1.
    pub boot: u64,
    /// GPUs in index order.
    pub gpus: Vec<GpuState>,
    /// Mediated devices in UUID order.
    pub mdevs: Vec<MdevState>,
    /// Clients with the driver open.
    pub holders: Vec<HolderState>,
    /// Writes that have not returned.
    pub waiting: Vec<WaitingWrite>,
    /// Attribute writes since the simulator started.
    pub writes: WriteCounters,
    /// The last of them, oldest first, 1024 at most.
    pub recent_writes: Vec<FinishedWrite>,
    /// NVML calls since the simulator started, `nvmlInit` included.
    pub nvml_calls: u64,
}

/// One GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GpuState {
    /// NVML index.
    pub index: u32,
    /// `GPU-<uuid>`.
    pub uuid: String,
    /// PCI address.
    pub pci: PciAddress,
    /// Board name.
    pub board: String,
    /// Fallen off the bus.
    pub lost: bool,
    /// Frame buffer in use, MiB.
    pub used_mib: u64,
    /// MIG, where the board has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigState>,
}

/// MIG on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigState {
    /// The mode.
    pub current: bool,
    /// The mode after a reset.
    pub pending: bool,
    /// GPU instances by id.
    pub instances: Vec<GpuInstanceState>,
}

/// One GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstanceState {
    /// Its id.
    pub id: u32,
    /// Profile name without `MIG `.
    pub profile: String,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// UUIDs of its compute instances' MIG devices.
    pub devices: Vec<String>,
}

/// One mediated device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdevState {
    /// Its UUID.
    pub uuid: Uuid,
    /// `nvidia-232`.
    pub mdev_type: String,
    /// Type id, 232.
    pub type_id: u32,
    /// Type name without brand, `T4-4Q`.
    pub type_name: String,
    /// The GPU's PCI address.
    pub parent: PciAddress,
    /// IOMMU group, the `N` of `/dev/vfio/N`.
    pub iommu_group: u32,
    /// What `vgpu_params` reads.
    pub vgpu_params: String,
    /// The VM that has it open.
    pub vm_name: Option<String>,
    /// A remover is at work.
    pub being_removed: bool,
}

/// A client with the driver open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderState {
    /// Its process.
    pub pid: u32,
    /// What it holds.
    pub kind: HolderKind,
}

/// What a client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderKind {
    /// An NVML session: all GPUs.
    Nvml,
    /// A compute context on the GPU with this index.
    Compute(u32),
}

/// A write that has not returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingWrite {
    /// Path as the writer gave it.
    pub path: String,
    /// The writer.
    pub pid: u32,
    /// What it waits for.
    pub cause: WaitCause,
}

/// What a write waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitCause {
    /// A VM has the device open.
    Vm,
    /// A fault holds it before its effect.
    HeldBefore,
    /// A fault holds it after its effect.
    HeldAfter,
    /// A fault delays it.
    Delayed,
}

/// Attribute writes since the simulator started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteCounters {
    /// All of them.
    pub all: u64,
    /// Mediated devices that have come into being.
    pub created: u64,
    /// Mediated devices that have been removed, reboots aside.
    pub removed: u64,
    /// Writes that were refused, by the rules or by a fault.
    pub refused: u64,
}

/// A write that has returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedWrite {
    /// Path as the writer gave it.
    pub path: String,
    /// What was written, unprintable bytes replaced.
    pub text: String,
    /// The writer.
    pub pid: u32,
    /// How it ended: 0 or errno.
    pub errno: i32,
}

impl State {
    /// The mdev with this UUID.
    #[must_use]
    pub fn mdev(&self, uuid: Uuid) -> Option<&MdevState> {
        self.mdevs.iter().find(|each| each.uuid == uuid)
    }
}
