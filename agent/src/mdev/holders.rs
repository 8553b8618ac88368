//! Who holds a mediated device: the VM it names, and processes with its VFIO group open.

use std::path::Path;

use crate::probe::HostRoot;

/// Holders of the device whose directory is `device`, for people; empty means unused.
pub(super) fn of(root: &HostRoot, proc: &Path, device: &str) -> Vec<String> {
    let vm = root
        .read(&format!("{device}/nvidia/vm_name"))
        .unwrap_or_default();
    let mut holders: Vec<_> = (!vm.is_empty())
        .then(|| format!("VM {vm}"))
        .into_iter()
        .collect();
    let group = std::fs::read_link(root.at(&format!("{device}/iommu_group"))).ok();
    let group = group
        .as_deref()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str().map(str::to_owned));
    if let Some(group) = group {
        let node = root.at(&format!("/dev/vfio/{group}"));
        holders.extend(
            processes(proc, &node)
                .into_iter()
                .map(|pid| format!("process {pid}")),
        );
    }
    holders
}

/// Processes with `node` open. A process that vanishes while it is looked at holds nothing.
fn processes(proc: &Path, node: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(proc) else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let descriptors = std::fs::read_dir(proc.join(pid.to_string()).join("fd"));
        descriptors.is_ok_and(|mut fds| {
            fds.any(|fd| {
                fd.is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == node))
            })
        })
    };
    pids.filter(holds).collect()
}
