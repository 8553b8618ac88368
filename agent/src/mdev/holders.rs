//! Who holds a mediated device: the VM it names, and processes with its VFIO group open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::probe::HostRoot;

/// VFIO groups that processes have open: one walk over all processes serves every device.
pub(super) struct OpenGroups(BTreeMap<PathBuf, Vec<u32>>);

impl OpenGroups {
    /// Walks `proc`. A process that vanishes while it is looked at holds nothing.
    pub(super) fn read(root: &HostRoot, proc: &Path) -> Self {
        let nodes = root.at("/dev/vfio");
        let mut open = BTreeMap::<_, Vec<u32>>::new();
        let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
        for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            let descriptors = std::fs::read_dir(proc.join(pid.to_string()).join("fd"));
            for descriptor in descriptors.into_iter().flatten().flatten() {
                match std::fs::read_link(descriptor.path()) {
                    Ok(node) if node.starts_with(&nodes) => open.entry(node).or_default().push(pid),
                    _ => {}
                }
            }
        }
        Self(open)
    }
}

/// Holders of the device whose directory is `device`, for people; empty means unused.
pub(super) fn of(root: &HostRoot, open: &OpenGroups, device: &str) -> Vec<String> {
    let vm = root
        .read(&format!("{device}/nvidia/vm_name"))
        .unwrap_or_default();
    let mut holders: Vec<_> = (!vm.is_empty())
        .then(|| format!("VM {vm}"))
        .into_iter()
        .collect();
    let group = std::fs::read_link(root.at(&format!("{device}/iommu_group"))).ok();
    let node = group
        .as_deref()
        .and_then(Path::file_name)
        .map(|name| root.at("/dev/vfio").join(name));
    let processes = node.and_then(|node| open.0.get(&node));
    holders.extend(
        processes
            .into_iter()
            .flatten()
            .map(|pid| format!("process {pid}")),
    );
    holders
}
