//! NVML as far as inventory needs it: which GPUs there are. The library is loaded late, and anew
//! after it failed, so that an agent survives a driver that is installed, reloaded or removed.

pub mod code;

pub mod raw;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use events::{GpuUuid, PciAddress};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode;
use nvml_wrapper::error::NvmlError;

use code::CallError;

/// The driver's library.
pub struct Driver {
    library: PathBuf,
    session: Mutex<Option<Nvml>>,
}

/// One GPU as the driver names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// NVML's index.
    pub index: u8,
    /// UUID.
    pub uuid: GpuUuid,
    /// PCI address, normalised from the driver's eight-digit form.
    pub pci: PciAddress,
    /// Product name.
    pub name: String,
    /// Frame buffer in MiB; `None` when the driver cannot tell or says 0 (field F53).
    pub memory_mib: Option<u64>,
    /// Why it cannot be used, when it cannot: it fell off the bus, say.
    pub fault: Option<String>,
    /// Its number among the device nodes, `/dev/nvidia0` and so on.
    pub minor: Option<u32>,
    /// Whether the driver is a vGPU host's: it makes vGPUs, and serves no containers.
    pub hosts_vgpu: bool,
    /// Processes that compute on it as a whole.
    pub pids: Vec<u32>,
    /// MIG mode, where the board has MIG.
    pub mig: Option<MigMode>,
}

/// MIG mode: what it is, and what it will be after a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigMode {
    /// On now.
    pub current: bool,
    /// On once what was asked for has taken effect.
    pub pending: bool,
}

/// Why the driver does not answer.
#[derive(Debug, thiserror::Error)]
#[error("{what} failed: {source}")]
pub struct DriverError {
    /// The call.
    pub what: &'static str,
    /// NVML's error.
    #[source]
    pub source: NvmlError,
}

impl Driver {
    /// A driver whose library will be loaded from `library` at first use.
    #[must_use]
    pub fn new(library: PathBuf) -> Self {
        Self {
            library,
            session: Mutex::new(None),
        }
    }

    /// Driver version and GPUs, read afresh.
    ///
    /// # Errors
    /// The library cannot be loaded or initialised, or cannot enumerate. One sick GPU is an entry with `fault`.
    pub fn devices(&self) -> Result<(String, Vec<Device>), DriverError> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let nvml = self.open(&mut session).map_err(|source| DriverError {
            what: "loading NVML",
            source,
        })?;
        let read = read(nvml);
        if read.is_err() {
            // A session does not outlive its driver; the next look starts another.
            *session = None;
        }
        read
    }

    fn open<'session>(
        &self,
        session: &'session mut Option<Nvml>,
    ) -> Result<&'session Nvml, NvmlError> {
        match session {
            Some(nvml) => Ok(nvml),
            none => {
                let loaded = Nvml::builder().lib_path(self.library.as_os_str()).init()?;
                Ok(none.insert(loaded))
            }
        }
    }

    /// Runs `job` on one GPU in the session that everything of ours shares.
    ///
    /// # Errors
    /// There is no session, or no such GPU; the job's own.
    pub fn on<T>(
        &self,
        gpu: &GpuUuid,
        job: impl FnOnce(&nvml_wrapper::Device<'_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let nvml = self
            .open(&mut session)
            .map_err(|error| CallError::of("nvmlInit_v2", &error))?;
        let device = nvml
            .device_by_uuid(gpu.as_str())
            .map_err(|error| CallError::of("nvmlDeviceGetHandleByUUID", &error))?;
        job(&device)
    }

    /// Runs `job` while nothing of ours has a session or gets one: NVML is process-wide, and a session
    /// is a client that a reset or a change of mode waits for (gpu facts §7, row 1).
    pub fn closed<T>(&self, job: impl FnOnce() -> T) -> T {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        *session = None;
        job()
    }

    /// Runs a disruptive `job` on one GPU in a session of its own, while nothing else of ours has one.
    /// Handles of before are invalid afterwards.
    ///
    /// # Errors
    /// As [`Self::on`].
    pub fn alone<T>(
        &self,
        gpu: &GpuUuid,
        job: impl FnOnce(&mut nvml_wrapper::Device<'_>) -> Result<T, NvmlError>,
    ) -> Result<T, CallError> {
        self.closed(|| {
            let failed = |call| move |error: NvmlError| CallError::of(call, &error);
            let nvml = Nvml::builder().lib_path(self.library.as_os_str()).init();
            let nvml = nvml.map_err(failed("nvmlInit_v2"))?;
            let mut device = nvml
                .device_by_uuid(gpu.as_str())
                .map_err(failed("nvmlDeviceGetHandleByUUID"))?;
            job(&mut device).map_err(failed("nvmlDeviceSetMigMode"))
        })
    }
}

fn read(nvml: &Nvml) -> Result<(String, Vec<Device>), DriverError> {
    let failed = |what| move |source| DriverError { what, source };
    let version = nvml
        .sys_driver_version()
        .map_err(failed("reading the driver version"))?;
    let count = nvml.device_count().map_err(failed("counting GPUs"))?;
    let mut devices = Vec::new();
    for index in 0..count {
        // A GPU that is lost keeps its index and answers nothing: it has no name to be listed under.
        match device(nvml, index) {
            Ok(device) => devices.push(device),
            Err(error @ (NvmlError::GpuLost | NvmlError::NoPermission | NvmlError::IrqIssue)) => {
                tracing::warn!(gpu.index = index, error = %error, "a GPU does not answer and is left out");
            }
            Err(source) => {
                return Err(DriverError {
                    what: "reading a GPU",
                    source,
                });
            }
        }
    }
    Ok((version, devices))
}

fn device(nvml: &Nvml, index: u32) -> Result<Device, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let unreadable = |_| NvmlError::UnexpectedVariant(999);
    // Not supported on unified-memory parts, and missing in old drivers: absence is not an error.
    let memory_mib = device
        .memory_info()
        .ok()
        .map(|memory| memory.total / (1024 * 1024))
        .filter(|mib| *mib > 0);
    let fault = device
        .temperature(nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu)
        .err();
    let mig = device.mig_mode().ok().map(|mode| MigMode {
        current: mode.current == 1,
        pending: mode.pending == 1,
    });
    let processes = device.running_compute_processes().unwrap_or_default();
    Ok(Device {
        pids: processes.iter().map(|process| process.pid).collect(),
        minor: device.minor_number().ok(),
        hosts_vgpu: device
            .virtualization_mode()
            .is_ok_and(|mode| mode == GpuVirtualizationMode::HostVgpu),
        mig,
        index: u8::try_from(index).unwrap_or(u8::MAX),
        uuid: device.uuid()?.parse().map_err(unreadable)?,
        pci: device.pci_info()?.bus_id.parse().map_err(unreadable)?,
        name: device.name()?,
        memory_mib,
        fault: fault
            .filter(|error| matches!(error, NvmlError::GpuLost))
            .map(|_| "lost: it has fallen off the bus".to_owned()),
    })
}
