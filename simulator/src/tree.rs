//! The host's `/sys`, `/proc` and `/dev` as plain files under `root`. Reads are `std::fs` under it; a reader never sees a
//! half-made device or a half-written attribute, because both are made in `staging` and renamed. Renders what `Machine`
//! says and decides nothing.

mod attribute;
mod capabilities;
mod static_files;

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

pub(crate) use self::attribute::Attribute;
use crate::{
    machine::{Gpu, Machine, Mdev},
    pci::PciAddress,
};

/// A file of the simulated host cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {path}")]
pub struct TreeError {
    verb: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The rendered files.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Canonical, so that a resolved path can be compared with it.
    root: PathBuf,
    staging: PathBuf,
}

/// Path of a GPU's PCI device below `sys`, where sysfs really keeps it; everything else links to it.
fn below_sys(pci: PciAddress) -> String {
    format!("devices/pci{:04x}:{:02x}/{pci}", pci.domain, pci.bus)
}

/// The same, below the root.
fn device(pci: PciAddress) -> String {
    format!("sys/{}", below_sys(pci))
}

impl Tree {
    /// Renders the whole host under `root`; `staging` must be on the same file system. Both are made anew.
    pub(crate) fn render(
        root: &Path,
        staging: &Path,
        machine: &Machine,
        boot_id: &str,
    ) -> Result<Self, TreeError> {
        for path in [root, staging] {
            match fs::remove_dir_all(path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("clear", path, source));
                }
                _ => fs::create_dir_all(path).map_err(|source| failed("create", path, source))?,
            }
        }
        let root = root
            .canonicalize()
            .map_err(|source| failed("resolve", root, source))?;
        let tree = Self {
            root,
            staging: staging.to_owned(),
        };
        tree.render_host(machine, boot_id)?;
        tree.render_capabilities(machine)?;
        for gpu in &machine.gpus {
            tree.render_gpu(machine, gpu)?;
            tree.update_available(machine, gpu)?;
            tree.update_capabilities(gpu)?;
        }
        Ok(tree)
    }

    /// The attribute at `path` (absolute in the host, symlinks honoured) if it can be opened for writing.
    pub(crate) fn open_attribute(&self, path: &str) -> Result<Attribute, rustix::io::Errno> {
        attribute::open(&self.root, path)
    }

    /// A new device: at once, complete, and the bus link last.
    pub(crate) fn add_mdev(&self, machine: &Machine, mdev: &Mdev) -> Result<(), TreeError> {
        let gpu = &machine.gpus[mdev.gpu];
        let (uuid, group) = (mdev.uuid, mdev.iommu_group);
        let parent = device(gpu.pci);
        let staged = Self {
            root: self.staging.join(uuid.to_string()),
            staging: self.staging.clone(),
        };
        staged.file("remove", 0o200, "")?;
        staged.file("nvidia/vgpu_params", 0o644, &mdev.params)?;
        staged.file("nvidia/vm_name", 0o444, "\n")?;
        staged.file("uevent", 0o644, "DRIVER=nvidia-vgpu-vfio\n")?;
        staged.file("power/control", 0o644, "auto\n")?;
        staged.link("mdev_type", &mdev_type(mdev))?;
        staged.link("driver", "../../../../bus/mdev/drivers/nvidia-vgpu-vfio")?;
        staged.link("subsystem", "../../../../bus/mdev")?;
        staged.link(
            "iommu_group",
            &format!("../../../../kernel/iommu_groups/{group}"),
        )?;

        self.link(
            &format!("sys/kernel/iommu_groups/{group}/devices/{uuid}"),
            &format!("../../../../{}/{uuid}", below_sys(gpu.pci)),
        )?;
        self.file(&format!("dev/vfio/{group}"), 0o600, "")?;
        let target = self.root.join(&parent).join(uuid.to_string());
        fs::rename(&staged.root, &target).map_err(|source| failed("create", &target, source))?;
        self.update_available(machine, gpu)?;
        self.name_mdev(gpu, mdev)
    }

    /// What the kernel takes away before it waits for the VM: every name of the device and its `remove`, not its directory.
    pub(crate) fn hide_mdev(&self, gpu: &Gpu, mdev: &Mdev) -> Result<(), TreeError> {
        let (parent, uuid) = (device(gpu.pci), mdev.uuid);
        self.remove(&format!("{parent}/{uuid}/remove"))?;
        self.remove(&format!(
            "{parent}/mdev_supported_types/nvidia-{}/devices/{uuid}",
            mdev.type_id
        ))?;
        self.remove(&format!("{parent}/{uuid}/mdev_type"))?;
        self.remove(&format!("sys/bus/mdev/devices/{uuid}"))
    }

    /// Gives back what [`Self::hide_mdev`] took: the removal was given up.
    pub(crate) fn show_mdev(&self, gpu: &Gpu, mdev: &Mdev) -> Result<(), TreeError> {
        self.hide_mdev(gpu, mdev)?;
        self.name_mdev(gpu, mdev)?;
        self.file(
            &format!("{}/{}/remove", device(gpu.pci), mdev.uuid),
            0o200,
            "",
        )?;
        self.link(
            &format!("{}/{}/mdev_type", device(gpu.pci), mdev.uuid),
            &mdev_type(mdev),
        )
    }

    /// The links by which a device is found.
    fn name_mdev(&self, gpu: &Gpu, mdev: &Mdev) -> Result<(), TreeError> {
        let (parent, uuid) = (device(gpu.pci), mdev.uuid);
        self.link(
            &format!(
                "{parent}/mdev_supported_types/nvidia-{}/devices/{uuid}",
                mdev.type_id
            ),
            &format!("../../../{uuid}"),
        )?;
        self.link(
            &format!("sys/bus/mdev/devices/{uuid}"),
            &format!("../../../{}/{uuid}", below_sys(gpu.pci)),
        )
    }

    /// The device is gone, in the order opposite to its making. `machine` no longer has it.
    pub(crate) fn remove_mdev(&self, machine: &Machine, mdev: &Mdev) -> Result<(), TreeError> {
        let gpu = &machine.gpus[mdev.gpu];
        self.hide_mdev(gpu, mdev)?;
        let path = self.root.join(device(gpu.pci)).join(mdev.uuid.to_string());
        let gone = self.staging.join(format!("{}.gone", mdev.uuid));
        fs::rename(&path, &gone).map_err(|source| failed("remove", &path, source))?;
        fs::remove_dir_all(&gone).map_err(|source| failed("remove", &gone, source))?;
        let group = self
            .root
            .join(format!("sys/kernel/iommu_groups/{}", mdev.iommu_group));
        fs::remove_dir_all(&group).map_err(|source| failed("remove", &group, source))?;
        self.remove(&format!("dev/vfio/{}", mdev.iommu_group))?;
        self.update_available(machine, gpu)
    }

    /// `available_instances` of every type of a GPU: they share one counter.
    pub(crate) fn update_available(&self, machine: &Machine, gpu: &Gpu) -> Result<(), TreeError> {
        if !machine.has_vgpu() {
            return Ok(());
        }
        for vgpu_type in &gpu.board.vgpu_types {
            let path = format!(
                "{}/mdev_supported_types/{}/available_instances",
                device(gpu.pci),
                vgpu_type.directory()
            );
            let text = format!("{}\n", machine.available(gpu.index, vgpu_type));
            // Making a file can cost half a millisecond; most counters stay what they are.
            if fs::read_to_string(self.root.join(&path)).ok().as_ref() != Some(&text) {
                self.file(&path, 0o444, &text)?;
            }
        }
        Ok(())
    }

    /// `vm_name` and `vgpu_params` of a device.
    pub(crate) fn update_mdev(&self, gpu: &Gpu, mdev: &Mdev) -> Result<(), TreeError> {
        let path = format!("{}/{}/nvidia", device(gpu.pci), mdev.uuid);
        self.file(&format!("{path}/vgpu_params"), 0o644, &mdev.params)?;
        let vm_name = mdev.vm.as_ref().map_or("", |vm| vm.name.as_str());
        self.file(&format!("{path}/vm_name"), 0o444, &format!("{vm_name}\n"))
    }

    pub(crate) fn update_boot_id(&self, boot_id: &str) -> Result<(), TreeError> {
        self.file(
            "proc/sys/kernel/random/boot_id",
            0o444,
            &format!("{boot_id}\n"),
        )
    }

    /// A file with its directories; replaces an older one at once.
    fn file(&self, path: &str, mode: u32, text: &str) -> Result<(), TreeError> {
        let path = self.root.join(path);
        self.directory_of(&path)?;
        let staged = self.staging.join("attribute");
        let make = || -> io::Result<()> {
            fs::write(&staged, text)?;
            fs::set_permissions(&staged, fs::Permissions::from_mode(mode))?;
            replace(&staged, &path)
        };
        make().map_err(|source| failed("write", &path, source))
    }

    fn link(&self, path: &str, target: &str) -> Result<(), TreeError> {
        let path = self.root.join(path);
        self.directory_of(&path)?;
        symlink(target, &path).map_err(|source| failed("link", &path, source))
    }

    fn directory(&self, path: &str) -> Result<(), TreeError> {
        let path = self.root.join(path);
        fs::create_dir_all(&path).map_err(|source| failed("create", &path, source))
    }

    fn directory_of(&self, path: &Path) -> Result<(), TreeError> {
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(|source| failed("create", parent, source))
    }

    /// Removes a file or link; its absence is what was wanted.
    fn remove(&self, path: &str) -> Result<(), TreeError> {
        let path = self.root.join(path);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &path, source))
            }
            _ => Ok(()),
        }
    }
}

/// Puts `staged` at `path` at once. An exchange, where there is something to replace: ext4 takes a rename onto a file as a
/// wish for durability and flushes it, which doubled the time of a create.
fn replace(staged: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, staged, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => fs::remove_file(staged),
        // Nothing there yet, or a file system without exchange.
        Err(_) => fs::rename(staged, path),
    }
}

/// Target of a device's link to its type.
fn mdev_type(mdev: &Mdev) -> String {
    format!("../mdev_supported_types/nvidia-{}", mdev.type_id)
}

fn failed(verb: &'static str, path: &Path, source: io::Error) -> TreeError {
    TreeError {
        verb,
        path: path.to_owned(),
        source,
    }
}
