//! Partitions as mediated devices (gpu facts §1): types and instances in sysfs, made by writing a
//! UUID to `create`, removed by writing to `remove`.

mod errno;

mod holders;

mod sysfs;

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use events::inventory::Backend;
use events::{Code, GpuUuid, PartitionId, ProfileName};

use crate::attributes::Attributes;
use crate::nvml::{Device, Driver};
use crate::partitioner::{Class, Observation, ObservedGpu, PartitionError, Partitioner, Slot};
use crate::probe::{HostRoot, Offer};

/// How long the kernel may take for one write. A VM's start can hold a device for 25 s.
const DEADLINE: Duration = Duration::from_secs(30);

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
                                "stuck: the removal of {id} has not come back; stop what holds it"
                            )
                        });
                        observed.unavailable = observed.unavailable.or(leaving);
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

    /// Writes within the deadline. The writing thread of one that does not come back is left behind:
    /// nothing can end a write that the kernel blocks.
    fn bounded_write(
        &self,
        path: &str,
        bytes: &[u8],
    ) -> Result<std::io::Result<()>, PartitionError> {
        let (attributes, to, what) = (
            Arc::clone(&self.attributes),
            path.to_owned(),
            bytes.to_vec(),
        );
        let (sender, written) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("attribute".to_owned())
            .spawn(move || {
                let _ = sender.send(attributes.write(&to, &what));
            });
        thread.map_err(|error| {
            fail(
                Code::Internal,
                Class::Retry,
                format!("start a thread to write {path}: {error}"),
            )
        })?;
        written.recv_timeout(DEADLINE).map_err(|_| {
            let text = format!("the kernel has not come back from a write to {path} within {} s; something still holds the device", DEADLINE.as_secs());
            fail(Code::GpuStuck, Class::Stuck, text)
        })
    }
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
        let written = self.bounded_write(&path, slot.id.to_string().as_bytes())?;
        let now = self.observe_device(&device);
        let there = now.partitions.iter().find(|seen| seen.id == slot.id);
        match (written, there) {
            (Ok(()), Some(seen)) if seen.profile == *profile => Ok(()),
            (Ok(()), _) => {
                let text = format!(
                    "the kernel took {} for {path}, but no such device of type {profile} is there",
                    slot.id
                );
                Err(fail(Code::DriverError, Class::Refuse, text))
            }
            (Err(error), _) => Err(errno::create(&error, &path, &kind, &now)),
        }
    }

    fn destroy(&self, slot: &Slot) -> Result<(), PartitionError> {
        let device = self.find(&slot.gpu)?;
        let now = self.observe_device(&device);
        let Some(seen) = now.partitions.iter().find(|seen| seen.id == slot.id) else {
            return Ok(());
        };
        if !seen.holders.is_empty() {
            let text = format!("{} is held by {}", seen.sysfs_path, seen.holders.join(", "));
            return Err(fail(Code::InUse, Class::Refuse, text));
        }
        let path = format!("{}/remove", seen.sysfs_path);
        let written = self.bounded_write(&path, b"1")?;
        let gone = !self.is_there(slot.id);
        match written {
            Ok(()) if gone => Ok(()),
            Ok(()) => Err(fail(
                Code::DriverError,
                Class::Retry,
                format!(
                    "the kernel took the removal of {}, but it is still there",
                    seen.sysfs_path
                ),
            )),
            // Somebody else's removal has won: what was wanted is so.
            Err(error)
                if gone && matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) =>
            {
                Ok(())
            }
            Err(error) => Err(errno::remove(&error, &path)),
        }
    }
}

impl MdevPartitioner {
    fn is_there(&self, id: PartitionId) -> bool {
        self.root.at(&sysfs::device(id)).symlink_metadata().is_ok()
    }
}
