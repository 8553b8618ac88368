//! The seam to GPUs: what can be observed, and the two effects. Implementations live in folders of
//! their own (`mdev`); the worker knows only this trait, and plans from observation alone.

use std::collections::BTreeMap;

use events::inventory::{Backend, ProfileInventory};
use events::{Code, GpuUuid, PciAddress, ProfileName};

use crate::nvml::MigMode;
use crate::operation::place::Place;

/// Observes and changes the partitions of this host's GPUs. Blocking: called from GPU threads only.
pub trait Partitioner: Send + Sync {
    /// Everything, read afresh from driver and kernel.
    ///
    /// # Errors
    /// The driver or the kernel cannot be read at all; one sick GPU is reported in its own entry.
    fn observe(&self) -> Result<Observation, PartitionError>;

    /// One GPU, read afresh.
    ///
    /// # Errors
    /// As [`Self::observe`], or the GPU is not on this host.
    fn observe_gpu(&self, gpu: &GpuUuid) -> Result<ObservedGpu, PartitionError>;

    /// Creates the partition `slot` with `profile`. Not idempotent: the planner looks first.
    ///
    /// # Errors
    /// With the code and class that the errno table gives (gpu facts §1.3).
    fn create(&self, slot: &Slot, profile: &ProfileName) -> Result<(), PartitionError>;

    /// Removes the partition `slot`, which the caller knows to be ours and unused.
    ///
    /// # Errors
    /// With the code and class that the errno table gives (gpu facts §1.5).
    fn destroy(&self, slot: &Slot) -> Result<(), PartitionError>;

    /// Turns a GPU's MIG mode on or off. Nothing may be on the GPU, and nobody hold it.
    ///
    /// # Errors
    /// With the code and class of the driver's answer; a change that has not taken effect is one.
    fn set_mig(&self, gpu: &GpuUuid, on: bool) -> Result<(), PartitionError>;
}

/// What is created, named before the effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The physical GPU.
    pub gpu: GpuUuid,
    /// The place on it.
    pub place: Place,
}

/// How [`ObservedGpu::unavailable`] begins where a kernel write has not come back.
pub const STUCK: &str = "stuck: ";

/// One look at the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Boot id, driver load and VF generation in one text; another value means that runtime state was lost.
    pub epoch: String,
    /// Driver version; empty when no driver answers.
    pub driver_version: String,
    /// GPUs by index.
    pub gpus: Vec<ObservedGpu>,
}

/// One GPU as seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedGpu {
    /// UUID.
    pub uuid: GpuUuid,
    /// PCI address.
    pub pci: PciAddress,
    /// NVML index.
    pub index: u8,
    /// Product name.
    pub name: String,
    /// Frame buffer in MiB, where the driver tells.
    pub memory_mib: Option<u64>,
    /// What serves it, chosen by probing this GPU alone (field F01).
    pub backend: Option<Backend>,
    /// Who holds the GPU as a whole (processes), as far as can be told.
    pub holders: Vec<String>,
    /// MIG mode, where the board has it.
    pub mig: Option<MigMode>,
    /// Why nothing can be placed on it now.
    pub unavailable: Option<String>,
    /// NUMA node; `None` when sysfs says -1.
    pub numa_node: Option<u16>,
    /// Profiles offered, with what fits now.
    pub profiles: Vec<ProfileInventory>,
    /// Virtual functions that hold nothing; absent where partitions are not made on virtual functions.
    pub free_vfs: Option<Vec<PciAddress>>,
    /// Partitions that exist, whoever made them.
    pub partitions: Vec<ObservedPartition>,
}

impl ObservedGpu {
    /// What is at `place`.
    #[must_use]
    pub fn at(&self, place: &Place) -> Option<&ObservedPartition> {
        self.partitions.iter().find(|seen| seen.place == *place)
    }

    /// Whether a kernel write to it has not come back: nothing can be done here until it does.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.unavailable
            .as_ref()
            .is_some_and(|reason| reason.starts_with(STUCK))
    }

    /// What an operation says that this GPU cannot take now.
    #[must_use]
    pub fn unavailable_code(&self) -> Code {
        if self.is_stuck() {
            Code::GpuStuck
        } else {
            Code::DriverError
        }
    }
}

/// One partition as seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPartition {
    /// Where it is.
    pub place: Place,
    /// Its profile.
    pub profile: ProfileName,
    /// Whether it is all there: a GPU instance whose compute instance could not be made is not.
    pub is_complete: bool,
    /// Who holds it (VM name, process), as far as can be told; empty means unused.
    pub holders: Vec<String>,
    /// How it is used.
    pub access: Access,
}

/// How a partition is used, beyond what its place says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Its directory in sysfs, as on hardware (without any root prefix); empty where it has none.
    pub sysfs_path: String,
    /// UUID of the MIG device.
    pub mig_uuid: Option<String>,
    /// Device nodes that its user has to open.
    pub device_nodes: Vec<String>,
    /// Environment of its processes.
    pub environment: BTreeMap<String, String>,
}

/// Why an observation or effect failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PartitionError {
    /// Stable code for results.
    pub code: Code,
    /// What the worker does about it.
    pub class: Class,
    /// Verb, object, path and errno, for people.
    pub message: String,
}

/// What an error means for the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Trying again shortly may work.
    Retry,
    /// It will not work; roll back and say so.
    Refuse,
    /// The kernel does not come back: the GPU takes no more operations until it does.
    Stuck,
    /// Our own fault.
    Bug,
}
