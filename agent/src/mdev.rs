//! Partitions as mediated devices (gpu facts §1): types and instances in sysfs, made by writing a
//! UUID to `create`, removed by writing to `remove`.

mod errno;

mod holders;

mod sysfs;

use std::path::PathBuf;
use std::sync::Arc;

use events::{Code, PartitionId, PciAddress, ProfileName};

use crate::attributes::{Attributes, WriteError};
use crate::gpus::Backend;
use crate::nvml::Device;
use crate::operation::place::Place;
use crate::partitioner::{Class, ObservedGpu, PartitionError, STUCK};
use crate::probe::HostRoot;
use sysfs::Tree;

/// Drives the mediated devices of one host.
pub(crate) struct Mdev {
    root: HostRoot,
    proc: PathBuf,
    attributes: Arc<dyn Attributes>,
}

fn fail(code: Code, class: Class, message: String) -> PartitionError {
    PartitionError {
        code,
        class,
        message,
    }
}

impl Mdev {
    /// A host below `root`; `proc` is where processes are listed.
    pub(crate) fn new(root: HostRoot, proc: PathBuf, attributes: Arc<dyn Attributes>) -> Self {
        Self {
            root,
            proc,
            attributes,
        }
    }

    fn tree(&self, device: &Device) -> Result<Tree, PartitionError> {
        sysfs::read(&self.root, &self.proc, device.pci)
            .map_err(|text| fail(Code::DriverError, Class::Retry, text))
    }

    /// What a write that was given up and has not come back means for the GPU at `pci`.
    fn abandoned(&self, pci: PciAddress) -> Option<String> {
        let below = format!("{}/", HostRoot::device(pci));
        let paths = self.attributes.abandoned();
        let path = paths.into_iter().find(|path| path.starts_with(&below))?;
        Some(format!("{STUCK}the write to {path} has not come back"))
    }
}

/// The UUID of a mediated device on the GPU itself.
fn uuid_of(device: &Device, place: &Place) -> Result<PartitionId, PartitionError> {
    match place {
        Place::Mdev { uuid, parent: None } => Ok(*uuid),
        other => {
            let text = format!("GPU {} makes no {other}", device.pci);
            Err(fail(Code::Internal, Class::Bug, text))
        }
    }
}

/// A write without the kernel's answer. What it came to must be looked at.
fn unanswered(error: &WriteError, path: &str) -> PartitionError {
    let (code, class) = match error {
        WriteError::Stuck { .. } => (Code::GpuStuck, Class::Stuck),
        WriteError::NoAnswer { .. } | WriteError::Refused(_) => (Code::DriverError, Class::Retry),
    };
    fail(code, class, format!("write to {path}: {error}"))
}

impl Backend for Mdev {
    fn read(&self, device: &Device, observed: &mut ObservedGpu) -> Result<(), String> {
        let tree = sysfs::read(&self.root, &self.proc, device.pci)?;
        (observed.profiles, observed.partitions) = (tree.profiles, tree.partitions);
        let leaving = tree
            .leaving
            .first()
            .map(|id| format!("{STUCK}the removal of {id} has not come back; stop what holds it"));
        let stuck = leaving.or_else(|| self.abandoned(device.pci));
        observed.unavailable = observed.unavailable.take().or(stuck);
        Ok(())
    }

    fn create(
        &self,
        device: &Device,
        place: &Place,
        profile: &ProfileName,
    ) -> Result<(), PartitionError> {
        let kind = sysfs::type_of(&self.root, device.pci, profile)?;
        let path = format!("{}/create", kind.path);
        let uuid = uuid_of(device, place)?;
        let written = self.attributes.write(&path, uuid.to_string().as_bytes());
        let now = self.tree(device)?;
        let there = now.partitions.iter().find(|seen| seen.place == *place);
        match (written, there) {
            (Ok(()) | Err(WriteError::NoAnswer { .. }), Some(seen)) if seen.profile == *profile => {
                Ok(())
            }
            (Ok(()), _) => {
                let text = format!(
                    "the kernel took {uuid} for {path}, but no such device of type {profile} is there"
                );
                Err(fail(Code::DriverError, Class::Refuse, text))
            }
            (Err(WriteError::Refused(error)), _) => Err(errno::create(&error, &path, &kind, &now)),
            (Err(error), _) => Err(unanswered(&error, &path)),
        }
    }

    fn destroy(&self, device: &Device, place: &Place) -> Result<(), PartitionError> {
        let now = self.tree(device)?;
        // Below the GPU's own directory: it stays there until the removal is over, and a write that
        // does not come back names its GPU.
        let folder = format!(
            "{}/{}",
            HostRoot::device(device.pci),
            uuid_of(device, place)?
        );
        let is_there = || self.root.at(&folder).exists();
        let Some(seen) = now.partitions.iter().find(|seen| seen.place == *place) else {
            let text = format!("an earlier removal of {folder} has not come back");
            let leaving = is_there().then(|| fail(Code::GpuStuck, Class::Stuck, text));
            return leaving.map_or(Ok(()), Err);
        };
        if !seen.holders.is_empty() {
            let text = format!("{place} is held by {}", seen.holders.join(", "));
            return Err(fail(Code::InUse, Class::Refuse, text));
        }
        let path = format!("{folder}/remove");
        let written = self.attributes.write(&path, b"1");
        match (written, is_there()) {
            (Ok(()) | Err(WriteError::NoAnswer { .. }), false) => Ok(()),
            (Ok(()), true) => {
                let text =
                    format!("the kernel took the removal of {folder}, but it is still there");
                Err(fail(Code::DriverError, Class::Retry, text))
            }
            // Somebody else's removal has won: what was wanted is so.
            (Err(WriteError::Refused(error)), false)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) =>
            {
                Ok(())
            }
            (Err(WriteError::Refused(error)), _) => Err(errno::remove(&error, &path)),
            (Err(error), _) => Err(unanswered(&error, &path)),
        }
    }
}
