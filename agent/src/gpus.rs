//! The GPUs of one host: which back-end serves each is found by probing that GPU alone (field F01),
//! never by version; effects go to the back-end that the place belongs to.

use std::path::PathBuf;
use std::sync::Arc;

use events::inventory::Backend as Kind;
use events::{Code, GpuUuid, ProfileName};

use crate::attributes::Attributes;
use crate::mdev::Mdev;
use crate::mig::Mig;
use crate::nvml::{Device, Driver};
use crate::operation::place::Place;
use crate::partitioner::{Class, Observation, ObservedGpu, PartitionError, Partitioner, Slot};
use crate::probe::{HostRoot, Offer};

/// One way to cut a GPU. Blocking, as [`Partitioner`].
pub(crate) trait Backend: Send + Sync {
    /// Adds to `observed` what this back-end offers on the GPU and what stands there.
    ///
    /// # Errors
    /// It cannot be read. What cannot be read is not empty: nothing is placed there until it can.
    fn read(&self, device: &Device, observed: &mut ObservedGpu) -> Result<(), String>;

    /// Creates a partition. Not idempotent.
    ///
    /// # Errors
    /// As [`Partitioner::create`].
    fn create(
        &self,
        device: &Device,
        place: &Place,
        profile: &ProfileName,
    ) -> Result<(), PartitionError>;

    /// Removes a partition that is ours and unused.
    ///
    /// # Errors
    /// As [`Partitioner::destroy`].
    fn destroy(&self, device: &Device, place: &Place) -> Result<(), PartitionError>;
}

/// The GPUs of one host.
pub struct Gpus {
    root: HostRoot,
    driver: Arc<Driver>,
    mdev: Mdev,
    mig: Mig,
}

impl Gpus {
    /// A host below `root` with its driver's library; `proc` is where processes are listed.
    #[must_use]
    pub fn new(
        root: PathBuf,
        library: PathBuf,
        proc: PathBuf,
        attributes: Arc<dyn Attributes>,
    ) -> Self {
        let root = HostRoot::new(root);
        let driver = Arc::new(Driver::new(library));
        Self {
            mdev: Mdev::new(root.clone(), proc, attributes),
            mig: Mig::new(Arc::clone(&driver), root.clone()),
            driver,
            root,
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
            mig: device.mig,
            holders: device
                .pids
                .iter()
                .map(|pid| format!("process {pid}"))
                .collect(),
            partitions: Vec::new(),
        };
        let (kind, backends): (_, Vec<&dyn Backend>) = match self.root.probe(device) {
            Offer::Nothing(reason) => {
                observed.unavailable = observed.unavailable.or(Some(reason));
                return observed;
            }
            Offer::Mdev => (Kind::Mdev, vec![&self.mdev]),
            Offer::Mig => (Kind::Mig, vec![&self.mig]),
        };
        observed.backend = Some(kind);
        for backend in backends {
            if let Err(error) = backend.read(device, &mut observed) {
                observed.unavailable = Some(error);
            }
        }
        observed
    }

    fn find(&self, gpu: &GpuUuid) -> Result<Device, PartitionError> {
        let (_, devices) = self.devices()?;
        let found = devices.into_iter().find(|device| device.uuid == *gpu);
        found.ok_or_else(|| PartitionError {
            code: Code::GpuLost,
            class: Class::Refuse,
            message: format!("GPU {gpu} is not on this host any more"),
        })
    }

    fn devices(&self) -> Result<(String, Vec<Device>), PartitionError> {
        self.driver.devices().map_err(|error| PartitionError {
            code: Code::DriverError,
            class: Class::Retry,
            message: error.to_string(),
        })
    }

    /// The back-end that a place belongs to.
    fn backend(&self, slot: &Slot) -> Result<&dyn Backend, PartitionError> {
        match &slot.place {
            Place::Mdev { .. } => Ok(&self.mdev),
            Place::Mig(_) => Ok(&self.mig),
            other => Err(PartitionError {
                code: Code::NotSupported,
                class: Class::Refuse,
                message: format!("GPU {} makes no {other}", slot.gpu),
            }),
        }
    }
}

impl Partitioner for Gpus {
    fn observe(&self) -> Result<Observation, PartitionError> {
        let (driver_version, devices) = self.devices()?;
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
        let backend = self.backend(slot)?;
        let device = self.find(&slot.gpu)?;
        if let Some(reason) = device.fault {
            return Err(PartitionError {
                code: Code::GpuLost,
                class: Class::Refuse,
                message: format!("GPU {}: {reason}", device.pci),
            });
        }
        backend.create(&device, &slot.place, profile)
    }

    fn destroy(&self, slot: &Slot) -> Result<(), PartitionError> {
        let backend = self.backend(slot)?;
        backend.destroy(&self.find(&slot.gpu)?, &slot.place)
    }

    fn set_mig(&self, gpu: &GpuUuid, on: bool) -> Result<(), PartitionError> {
        self.mig.set_mode(&self.find(gpu)?, on)
    }
}
