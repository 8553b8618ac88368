//! Where this host's things are, and which back-end serves each GPU: probed per GPU, never guessed
//! from versions (field F01).

use std::path::{Path, PathBuf};

use events::PciAddress;

use crate::nvml::{Device, MigMode};

/// A root under which `/sys`, `/proc` and `/dev` of the GPUs lie.
#[derive(Debug, Clone)]
pub struct HostRoot {
    root: PathBuf,
}

/// What a GPU offers for partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    /// Mediated device types on the PCI function itself.
    Mdev,
    /// GPU instances, of a GPU whose MIG is on or can be turned on.
    Mig,
    /// Nothing that this version drives, with the reason and what would help.
    Nothing(String),
}

impl HostRoot {
    /// A root, `/` on hardware.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The place of an absolute path.
    #[must_use]
    pub fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A small attribute's text, trimmed.
    ///
    /// # Errors
    /// As reading the file.
    pub fn read(&self, path: &str) -> std::io::Result<String> {
        std::fs::read_to_string(self.at(path)).map(|text| text.trim().to_owned())
    }

    /// The PCI function's directory in sysfs.
    #[must_use]
    pub fn device(pci: PciAddress) -> String {
        format!("/sys/bus/pci/devices/{pci}")
    }

    /// What a GPU offers.
    #[must_use]
    pub fn probe(&self, gpu: &Device) -> Offer {
        let device = self.at(&Self::device(gpu.pci));
        let types = device.join("mdev_supported_types");
        if types.is_dir() && has_entries(&types) {
            return Offer::Mdev;
        }
        if types.is_dir() {
            return Offer::Nothing("it lists no vGPU types: is nvidia-vgpud running?".to_owned());
        }
        if !gpu.hosts_vgpu {
            return without_vgpu(gpu.mig);
        }
        let virtual_functions = |file: &str| {
            std::fs::read_to_string(device.join(file))
                .ok()
                .and_then(|text| text.trim().parse::<u32>().ok())
        };
        match (
            virtual_functions("sriov_totalvfs"),
            virtual_functions("sriov_numvfs"),
        ) {
            (Some(total), Some(0)) if total > 0 => Offer::Nothing(
                "its virtual functions are not enabled: run `sriov-manage -e` for it".to_owned(),
            ),
            (Some(total), Some(_)) if total > 0 => Offer::Nothing(
                "its vGPUs are vendor-specific VFIO, which this version does not drive yet"
                    .to_owned(),
            ),
            _ => Offer::Nothing(
                "it offers no vGPU types: a data-centre driver, or a board without vGPU".to_owned(),
            ),
        }
    }

    /// Boot id, driver version and module load in one text: another value means that runtime state was lost.
    #[must_use]
    pub fn epoch(&self) -> String {
        let boot = self
            .read("/proc/sys/kernel/random/boot_id")
            .unwrap_or_else(|_| "unknown-boot".to_owned());
        let driver = self
            .read("/sys/module/nvidia/version")
            .unwrap_or_else(|_| "no-driver".to_owned());
        let loaded = std::fs::metadata(self.at("/sys/module/nvidia"))
            .and_then(|module| module.created().or_else(|_| module.modified()));
        let loaded = loaded
            .ok()
            .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok())
            .map_or(0, |since| since.as_secs());
        format!("{boot}/{driver}/{loaded}")
    }

    /// A GPU's NUMA node; `None` where sysfs says -1 or nothing.
    #[must_use]
    pub fn numa_node(&self, pci: PciAddress) -> Option<u16> {
        self.read(&format!("{}/numa_node", Self::device(pci)))
            .ok()?
            .parse()
            .ok()
    }

    /// The root itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }
}

/// What a GPU offers under a driver that makes no vGPUs.
fn without_vgpu(mig: Option<MigMode>) -> Offer {
    match mig {
        Some(mode) if mode.current != mode.pending => Offer::Nothing(format!(
            "MIG is {} until the GPU is reset, and {} then",
            on_or_off(mode.current),
            on_or_off(mode.pending)
        )),
        Some(_) => Offer::Mig,
        None => Offer::Nothing(
            "it offers no vGPU types: a data-centre driver, or a board without vGPU".to_owned(),
        ),
    }
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn has_entries(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}
