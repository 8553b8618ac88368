//! The seam to control groups: limits of one partition's users, written and read back.

use events::{Code, Limits};

use crate::partitioner::Class;

/// Applies limits to groups named by us, under a root named by configuration.
pub trait Limiter: Send + Sync {
    /// What this host can do, for `status` and `doctor`: `v1`, `v2`, `hybrid (v1 controllers)`, or why nothing.
    fn describe(&self) -> String;

    /// Whether `limits` can be honoured by this host, before anything is changed.
    ///
    /// # Errors
    /// `LimitRefused` with the host's own numbers.
    fn check(&self, limits: &Limits, numa_node: Option<u16>) -> Result<(), LimitError>;

    /// Makes `group` exist with exactly `limits`, every value read back. Idempotent. A group that
    /// could not be completed is removed again.
    ///
    /// # Errors
    /// Something could not be written or read back differently.
    fn ensure(
        &self,
        group: &GroupName,
        limits: &Limits,
        numa_node: Option<u16>,
    ) -> Result<Enforcement, LimitError>;

    /// Differences between `limits` and what the kernel has for `group` now; empty when they hold.
    ///
    /// # Errors
    /// The kernel's files cannot be read.
    fn drift(
        &self,
        group: &GroupName,
        limits: &Limits,
        numa_node: Option<u16>,
    ) -> Result<Vec<String>, LimitError>;

    /// Removes `group` from every hierarchy; absent is success. Never kills: live processes are an
    /// error that lists them.
    ///
    /// # Errors
    /// `InUse` with the PIDs, or the kernel's refusal.
    fn remove(&self, group: &GroupName) -> Result<(), LimitError>;
}

/// A group's path below our root: `<allocation id>/<ordinal>`. Only ids and numbers ever go in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GroupName {
    /// The allocation.
    pub allocation: events::AllocationId,
    /// The partition's ordinal.
    pub ordinal: u32,
}

/// What `ensure` achieved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// Read back from the kernel; the path is relative to each hierarchy's mount point, with a leading `/`.
    Applied {
        /// Where to attach processes.
        cgroup_path: String,
    },
    /// This host cannot apply limits (not root, read-only, no v1 controllers); nothing was changed.
    NotApplied {
        /// Why, and what would help.
        reason: String,
    },
}

/// Why limits failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LimitError {
    /// `LimitRefused`, `LimitsFailed` or `InUse`.
    pub code: Code,
    /// What the worker does about it.
    pub class: Class,
    /// File, value and errno, for people.
    pub message: String,
}
