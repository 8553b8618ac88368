//! Device nodes of a MIG device: the capability files say which (MIG user guide, "Device Nodes and
//! Capabilities"). A container needs the GPU's own node too, and that of GPU and compute instance both.

use crate::probe::HostRoot;

/// Nodes that a user of compute instance `compute` of GPU instance `instance` has to open. A capability
/// that is not there yet (the driver makes them late) is left out.
pub(super) fn of(root: &HostRoot, minor: Option<u32>, instance: u32, compute: u32) -> Vec<String> {
    let Some(minor) = minor else {
        return Vec::new();
    };
    let mut nodes: Vec<_> = ["/dev/nvidiactl".to_owned(), "/dev/nvidia-uvm".to_owned()].into();
    nodes.push(format!("/dev/nvidia{minor}"));
    let below = format!("/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{instance}");
    let accesses = [
        format!("{below}/access"),
        format!("{below}/ci{compute}/access"),
    ];
    nodes.extend(accesses.iter().filter_map(|path| {
        let text = root.read(path).ok()?;
        let number = text
            .lines()
            .find_map(|line| line.strip_prefix("DeviceFileMinor:"))?;
        Some(format!("/dev/nvidia-caps/nvidia-cap{}", number.trim()))
    }));
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_that_the_capabilities_name() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder
            .path()
            .join("proc/driver/nvidia/capabilities/gpu0/mig/gi1");
        std::fs::create_dir_all(below.join("ci0")).unwrap();
        let text =
            |minor| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        std::fs::write(below.join("access"), text(12)).unwrap();
        let root = HostRoot::new(folder.path().to_owned());
        assert_eq!(
            of(&root, Some(0), 1, 0).len(),
            4,
            "the compute instance's is not there yet"
        );
        std::fs::write(below.join("ci0/access"), text(13)).unwrap();
        assert_eq!(
            of(&root, Some(0), 1, 0)[3..],
            [
                "/dev/nvidia-caps/nvidia-cap12",
                "/dev/nvidia-caps/nvidia-cap13"
            ]
        );
        assert!(of(&root, None, 1, 0).is_empty());
    }
}
