//! Functions about the library, the driver and the way to a device.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_t,
};
use simulator::protocol::Query;

use crate::{
    call::{code, find, host},
    connection,
    pointer::{Out, TextIn, TextOut},
};

/// What each code means, as NVML words it.
const ERRORS: &[(nvmlReturn_t, &std::ffi::CStr)] = &[
    (0, c"Success"),
    (1, c"Uninitialized"),
    (2, c"Invalid Argument"),
    (3, c"Not Supported"),
    (4, c"Insufficient Permissions"),
    (5, c"Already Initialized"),
    (6, c"Not Found"),
    (7, c"Insufficient Size"),
    (8, c"Insufficient External Power"),
    (9, c"Driver Not Loaded"),
    (10, c"Timeout"),
    (11, c"Interrupt Request Issue"),
    (12, c"NVML Shared Library Not Found"),
    (13, c"Function Not Found"),
    (14, c"Corrupted infoROM"),
    (15, c"GPU is lost"),
    (16, c"GPU requires reset"),
    (17, c"GPU access blocked by the operating system"),
    (18, c"Driver/library version mismatch"),
    (19, c"In use by another client"),
    (20, c"Insufficient Memory"),
    (21, c"No data"),
    (
        22,
        c"The requested vgpu operation is not available on target device, because ECC is enabled",
    ),
    (23, c"Insufficient Resources"),
    (24, c"Frequency not supported"),
    (25, c"Argument version mismatch"),
    (26, c"Deprecated"),
    (27, c"Not Ready"),
    (28, c"GPU Not Found"),
    (29, c"Invalid State"),
    (30, c"Reset Type Not Supported"),
];

/// NVML's `nvmlErrorString`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let text = ERRORS
        .iter()
        .find(|(code, _)| *code == result)
        .map_or(c"Unknown Error", |(_, text)| text);
    text.as_ptr()
}

macro_rules! initializers {
    ($($name:ident($($flags:ident: $type:ty)?);)*) => {$(
        #[doc = concat!("NVML's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($flags: $type)?) -> nvmlReturn_t {
            code(connection::open(stringify!($name)))
        }
    )*};
}

initializers! {
    nvmlInit();
    nvmlInit_v2();
    nvmlInitWithFlags(_flags: c_uint);
}

/// NVML's `nvmlShutdown`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    code(connection::close("nvmlShutdown"))
}

/// Functions about the host.
macro_rules! host_calls {
    ($(fn $name:ident($($arg:ident: $type:ty),*) |$facts:ident| $body:expr;)*) => {$(
        #[doc = concat!("NVML's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> nvmlReturn_t {
            host(stringify!($name), |$facts| $body)
        }
    )*};
}

host_calls! {
    fn nvmlSystemGetDriverVersion(version: TextOut, length: c_uint)
        |host| version.set(length, &host.driver_version);
    fn nvmlSystemGetNVMLVersion(version: TextOut, length: c_uint)
        |host| version.set(length, &nvml_version(host.cuda_version, &host.driver_version));
    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) |host| version.set(host.cuda_version);
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) |host| version.set(host.cuda_version);
    fn nvmlDeviceGetCount(count: Out<c_uint>) |host| count.set(host.gpu_count);
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) |host| count.set(host.gpu_count);
    // Any process of the machine, simulated client or not, has its name from the real /proc.
    fn nvmlSystemGetProcessName(pid: c_uint, name: TextOut, length: c_uint) |_host| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
        let program = line.split(|each| *each == 0).next().unwrap_or_default();
        name.set(length, &String::from_utf8_lossy(program))
    };
}

/// The library's version: the CUDA major version before the driver's.
fn nvml_version(cuda_version: c_int, driver_version: &str) -> String {
    format!("{}.{driver_version}", cuda_version / 1000)
}

/// Functions that answer a device handle.
macro_rules! lookups {
    ($(fn $name:ident($key:ident: $type:ty) $query:expr;)*) => {$(
        #[doc = concat!("NVML's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($key: $type, device: Out<nvmlDevice_t>) -> nvmlReturn_t {
            find(stringify!($name), $query, device)
        }
    )*};
}

lookups! {
    fn nvmlDeviceGetHandleByIndex(index: c_uint) by_index(index);
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint) by_index(index);
    fn nvmlDeviceGetHandleByUUID(uuid: TextIn) uuid.get().map(Query::DeviceByUuid);
    fn nvmlDeviceGetHandleBySerial(serial: TextIn) serial.get().map(Query::DeviceBySerial);
    fn nvmlDeviceGetHandleByPciBusId(address: TextIn) address.get().map(Query::DeviceByPci);
    fn nvmlDeviceGetHandleByPciBusId_v2(address: TextIn) address.get().map(Query::DeviceByPci);
}

fn by_index(index: c_uint) -> Result<Query, nvmlReturn_t> {
    // Beyond every host there is no handle to make.
    if index < 0x1000 {
        Ok(Query::Device(index))
    } else {
        Err(INVALID_ARGUMENT)
    }
}
