//! What came of an operation: the allocation as it stands, or a failure that says what is left.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gpu::{GpuUuid, PciAddress};
use crate::id::{AllocationId, PartitionId};
use crate::inventory::{Backend, HostInventory, Slices};
use crate::name::{AllocationKey, ProfileName};
use crate::operation::Mode;
use crate::tuning::Settings;

/// Success of one operation, tagged by `kind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// The allocation exists, read back from the hardware.
    Allocated(Allocated),
    /// Its lease ends at another time.
    Renewed(Renewed),
    /// It is gone, or never was.
    Released(Released),
    /// The host was looked at; the report is in `inventory` and `checks`.
    Inspected(Inspected),
    /// What `resize` left: the allocation as it stands now.
    Resized(Allocated),
    /// What `partition` did, or would do.
    Partitioned(Partitioned),
    /// What `tune` left.
    Tuned(Tuned),
    /// What was reset.
    Reset(ResetGpu),
}

/// An allocation as it stands on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Allocated {
    /// Its id.
    pub allocation: AllocationId,
    /// The caller's key.
    pub key: AllocationKey,
    /// The GPU it is on.
    pub gpu: GpuUuid,
    /// That GPU's PCI address.
    pub pci: PciAddress,
    /// How it was made.
    pub backend: Backend,
    /// Its profile.
    pub profile: ProfileName,
    /// What the separation between tenants is worth.
    pub isolation: Isolation,
    /// What that means here, where it is less than it may seem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation_note: Option<String>,
    /// Whether the limits asked for hold.
    pub limits_state: LimitsState,
    /// Why not, when they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_reason: Option<String>,
    /// End of the lease, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// Its partitions, by ordinal.
    pub partitions: Vec<PartitionHandle>,
}

/// How one partition is reached and used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartitionHandle {
    /// Its id; for mediated devices also the device's UUID.
    pub id: PartitionId,
    /// Position within the allocation, from 0.
    pub ordinal: u32,
    /// The device's directory in sysfs; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sysfs_path: String,
    /// The virtual function, for vGPUs that are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<PciAddress>,
    /// UUID of the MIG device. It changes when the GPU is rebuilt after a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_uuid: Option<String>,
    /// Where it lies on the GPU, for MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<Slices>,
    /// Device nodes that its user has to open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<String>,
    /// libvirt `<hostdev>` element, for virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libvirt_xml: Option<String>,
    /// QEMU arguments, for virtual machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub qemu_args: Vec<String>,
    /// Environment for processes and containers.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub environment: std::collections::BTreeMap<String, String>,
    /// Control group to put the user into, relative to each hierarchy's mount point; absent when no
    /// limits could be applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_path: Option<String>,
}

/// What separates tenants on this GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// The hardware or the driver enforces it.
    Hardware,
    /// Limits bind only willing clients.
    Advisory,
    /// None.
    None,
}

/// Whether the limits asked for hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitsState {
    /// Read back from the kernel.
    Applied,
    /// Prepared; they bind once a process is attached by its own manager.
    PendingAttach,
    /// They do not hold; `limits_reason` says why.
    NotApplied,
    /// None were asked for.
    NotRequested,
}

/// A renewed lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Renewed {
    /// The allocation.
    pub allocation: AllocationId,
    /// End of the lease, Unix seconds.
    pub expires_at: i64,
}

/// An ended allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Released {
    /// The allocation.
    pub allocation: AllocationId,
    /// Whether there was one; releasing the unknown succeeds and says so.
    pub existed: bool,
}

/// A host that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Inspected {
    /// The host's inventory, taken now.
    pub inventory: HostInventory,
    /// Health checks, the same as `gpuhook-agent doctor --json`.
    pub checks: Vec<HealthCheck>,
    /// Differences between what should be and what is, for people.
    pub drift: Vec<String>,
}

/// A GPU's layout: what `partition` made of it, or would make of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Partitioned {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its PCI address.
    pub pci: PciAddress,
    /// Its mode.
    pub mode: Mode,
    /// Nothing was changed: this is the plan.
    pub dry_run: bool,
    /// What was there and stays.
    pub kept: Vec<LayoutPart>,
    /// What is new.
    pub created: Vec<LayoutPart>,
    /// What goes.
    pub removed: Vec<LayoutPart>,
}

/// One partition of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LayoutPart {
    /// Its profile.
    pub profile: ProfileName,
    /// Where it lies, as text: slices, a virtual function, a UUID.
    pub place: String,
    /// Who holds it: processes, virtual machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<String>,
}

/// Settings that `tune` made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tuned {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its PCI address.
    pub pci: PciAddress,
    /// Its settings, read back.
    pub settings: Settings,
    /// What takes effect later, and when; for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<String>,
}

/// A GPU that was reset and answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResetGpu {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its PCI address.
    pub pci: PciAddress,
}

/// One health check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthCheck {
    /// Stable name, such as `nvml`, `cgroup`, `ledger`.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// What was seen, and what to do when it failed.
    pub detail: String,
}

/// Why an operation did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Stable code, for programs.
    pub code: Code,
    /// Whether asking again, unchanged, may succeed.
    pub retryable: bool,
    /// One sentence for a person.
    pub message: String,
    /// What of it remains on the host; empty when nothing does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residue: Vec<String>,
}

impl Failure {
    /// A failure that leaves nothing behind; whether it may be retried follows from its code.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            retryable: code.is_retryable(),
            message: message.into(),
            residue: Vec::new(),
        }
    }
}

/// Stable failure codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// This version does not execute the operation, mode or limit.
    NotSupported,
    /// The host's allow-list does not permit it.
    NotPermitted,
    /// A higher revision has been seen.
    Superseded,
    /// It waited past its expiry and was not started.
    Expired,
    /// The allocation exists with another spec.
    UseResize,
    /// The allocation is not known here.
    UnknownAllocation,
    /// The key was released before it was allocated.
    ReleasedBeforeAllocate,
    /// The GPU is not on this host.
    UnknownGpu,
    /// The profile is not offered by this GPU.
    UnknownProfile,
    /// No room now.
    NoCapacity,
    /// The GPU holds partitions of another size.
    SizeMismatch,
    /// Something holds the partition.
    InUse,
    /// The kernel did not come back from an earlier operation on this GPU.
    GpuStuck,
    /// The GPU needs an operator.
    GpuQuarantined,
    /// The GPU has fallen off the bus.
    GpuLost,
    /// A limit cannot be met by this host.
    LimitRefused,
    /// The limits could not be written or did not read back.
    LimitsFailed,
    /// The driver or the kernel refused or failed.
    DriverError,
    /// The host went away and its own evidence says that it never ran.
    HostSilent,
    /// A fault in gpuhook itself.
    Internal,
}

impl Code {
    /// Whether asking again, unchanged, may succeed.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::NoCapacity
                | Self::InUse
                | Self::GpuStuck
                | Self::Expired
                | Self::DriverError
                | Self::HostSilent
                | Self::LimitsFailed
        )
    }

    /// The code as it is spelt on the wire.
    #[must_use]
    pub fn as_str(self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.as_str())
    }
}
