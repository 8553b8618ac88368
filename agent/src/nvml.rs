//! NVML as far as inventory needs it: which GPUs there are. The library is loaded late, and anew
//! after it failed, so that an agent survives a driver that is installed, reloaded or removed.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use events::{GpuUuid, PciAddress};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

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
        if session.is_none() {
            let loaded = Nvml::builder().lib_path(self.library.as_os_str()).init();
            *session = Some(loaded.map_err(|source| DriverError {
                what: "loading NVML",
                source,
            })?);
        }
        let Some(nvml) = session.as_ref() else {
            return Ok((String::new(), Vec::new()));
        };
        let read = read(nvml);
        if read.is_err() {
            // A session does not outlive its driver; the next look starts another.
            *session = None;
        }
        read
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
    Ok(Device {
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
