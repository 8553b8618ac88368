//! CPUs and memory nodes of a group.

use events::limits::CpuList;

/// CPUs and memory nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cpus {
    pub(super) cpus: CpuList,
    pub(super) mems: CpuList,
}
