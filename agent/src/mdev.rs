//! Partitions as mediated devices (gpu facts §1): types and instances in sysfs, made by writing a
//! UUID to `create`, removed by writing to `remove`.

mod errno;

mod holders;

mod sysfs;

use std::path::PathBuf;
use std::sync::Arc;

use events::inventory::Backend;
use events::{Code, GpuUuid, PartitionId, PciAddress, ProfileName};

use crate::attributes::{Attributes, WriteError};
use crate::nvml::{Device, Driver};
use crate::operation::place::Place;
use crate::partitioner::{
    Class, Observation, ObservedGpu, PartitionError, Partitioner, STUCK, Slot,
};
use crate::probe::{HostRoot, Offer};

/// Drives the mediated devices of one host.
pub struct MdevPartitioner {
    root: HostRoot,
    proc: PathBuf,
    driver: Driver,
    attributes: Arc<dyn Attributes>,
}

fn fail(code: Code, class: Class, message: String) -> PartitionError {
    PartitionError {
        code,
        class,
        message,
    }
}

impl MdevPartitioner {
    /// A host below `root` with its driver's library; `proc` is where processes are listed.
    #[must_use]
    pub fn new(
        root: PathBuf,
        library: PathBuf,
        proc: PathBuf,
        attributes: Arc<dyn Attributes>,
    ) -> Self {
        Self {
            root: HostRoot::new(root),
            proc,
            driver: Driver::new(library),
            attributes,
        }
    }

    fn observe_device(&self, device: &Device) -> ObservedGpu {
        let mut observed = ObservedGpu {
            uuid: device.uuid.clone(),
            pci: device.pci,
            index: device.index,
            name: device.name.clone(),
            memory_mib: device.memory_mib,
            backend: None,
            unavailable: device.fault.clone(),
            numa_node: self.root.numa_node(device.pci),
            profiles: Vec::new(),
            free_vfs: None,
            partitions: Vec::new(),
        };
        match self.root.probe(device.pci) {
            Offer::Nothing(reason) => observed.unavailable = observed.unavailable.or(Some(reason)),
            Offer::Mdev => {
                observed.backend = Some(Backend::Mdev);
                match sysfs::read(&self.root, &self.proc, device.pci) {
                    Ok(tree) => {
                        (observed.profiles, observed.partitions) = (tree.profiles, tree.partitions);
                        let leaving = tree.leaving.first().map(|id| {
                            format!(
                                "{STUCK}the removal of {id} has not come back; stop what holds it"
                            )
                        });
                        let stuck = leaving.or_else(|| self.abandoned(device.pci));
                        observed.unavailable = observed.unavailable.or(stuck);
                    }
                    // What cannot be read is not empty: nothing is placed here until it can.
                    Err(error) => observed.unavailable = Some(error),
                }
            }
        }
        observed
    }

    fn find(&self, gpu: &GpuUuid) -> Result<Device, PartitionError> {
        let (_, devices) = self
            .driver
            .devices()
            .map_err(|error| fail(Code::DriverError, Class::Retry, error.to_string()))?;
        let found = devices.into_iter().find(|device| device.uuid == *gpu);
        found.ok_or_else(|| {
            fail(
                Code::GpuLost,
                Class::Refuse,
                format!("GPU {gpu} is not on this host any more"),
            )
        })
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
fn uuid_of(slot: &Slot) -> Result<PartitionId, PartitionError> {
    match &slot.place {
        Place::Mdev { uuid, parent: None } => Ok(*uuid),
        other => {
            let text = format!("GPU {} makes no {other}", slot.gpu);
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

impl Partitioner for MdevPartitioner {
    fn observe(&self) -> Result<Observation, PartitionError> {
        let (driver_version, devices) = self
            .driver
            .devices()
            .map_err(|error| fail(Code::DriverError, Class::Retry, error.to_string()))?;
        let gpus = devices
            .iter()
            .map(|device| self.observe_device(device))
            .collect();
        Ok(Observation {
            epoch: self.root.epoch(),
            driver_version,
            gpus,
        })
    }

    fn observe_gpu(&self, gpu: &GpuUuid) -> Result<ObservedGpu, PartitionError> {
        self.find(gpu).map(|device| self.observe_device(&device))
    }

    fn create(&self, slot: &Slot, profile: &ProfileName) -> Result<(), PartitionError> {
        let device = self.find(&slot.gpu)?;
        if let Some(reason) = device.fault {
            return Err(fail(
                Code::GpuLost,
                Class::Refuse,
                format!("GPU {}: {reason}", device.pci),
            ));
        }
        let kind = sysfs::type_of(&self.root, device.pci, profile)?;
        let path = format!("{}/create", kind.path);
        let uuid = uuid_of(slot)?;
        let written = self.attributes.write(&path, uuid.to_string().as_bytes());
        let now = self.observe_device(&device);
        let there = now.at(&slot.place);
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

    fn destroy(&self, slot: &Slot) -> Result<(), PartitionError> {
        let device = self.find(&slot.gpu)?;
        let now = self.observe_device(&device);
        // Below the GPU's own directory: it stays there until the removal is over, and a write that
        // does not come back names its GPU.
        let folder = format!("{}/{}", HostRoot::device(device.pci), uuid_of(slot)?);
        let is_there = || self.root.at(&folder).exists();
        let Some(seen) = now.at(&slot.place) else {
            let text = format!("an earlier removal of {folder} has not come back");
            let leaving = is_there().then(|| fail(Code::GpuStuck, Class::Stuck, text));
            return leaving.map_or(Ok(()), Err);
        };
        if !seen.holders.is_empty() {
            let text = format!("{} is held by {}", slot.place, seen.holders.join(", "));
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
