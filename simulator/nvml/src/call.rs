//! One exported function: ask the simulator, pick what the caller wants. The macros keep each family a table.

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
    nvmlReturn_t,
};
use simulator::{
    VgpuFacts,
    protocol::{
        Cut, DeviceFacts, GpuInstanceFacts, HostFacts, NvmlValue, Query, VgpuInstanceFacts,
        VgpuTypeFacts,
    },
};

use crate::{
    connection,
    pointer::{Out, Outcome},
};

/// Device handles are opaque: this plus the index, never followed. Away from small numbers, so that an index given as a
/// handle is noticed.
const HANDLES: usize = 0x6770_0000;

/// The same for MIG devices, GPU instances and compute instances, plus the driver's handle.
const MIG_DEVICES: usize = 0x6771_0000_0000;
const GPU_INSTANCES: usize = 0x6772_0000_0000;
const COMPUTE_INSTANCES: usize = 0x6773_0000_0000;

/// More instances than a host can have made.
const MAX_INSTANCES: usize = 0x1_0000_0000;

/// More devices than a host can have.
const MAX_DEVICES: usize = 0x1000;

pub(crate) fn code(outcome: Outcome) -> nvmlReturn_t {
    outcome.err().unwrap_or(SUCCESS)
}

pub(crate) fn handle(index: u32) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(HANDLES + index as usize)
}

pub(crate) fn index(handle: nvmlDevice_t) -> Result<u32, nvmlReturn_t> {
    match handle.addr().checked_sub(HANDLES) {
        Some(index) if index < MAX_DEVICES => Ok(index as u32),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// What a device handle asks about: a GPU or a MIG device.
fn device_query(handle: nvmlDevice_t) -> Result<Query, nvmlReturn_t> {
    match below(MIG_DEVICES, handle.addr()) {
        Ok(compute) => Ok(Query::MigDevice(compute)),
        Err(_) => index(handle).map(Query::Device),
    }
}

fn below(base: usize, address: usize) -> Result<u64, nvmlReturn_t> {
    match address.checked_sub(base) {
        Some(handle) if handle < MAX_INSTANCES => Ok(handle as u64),
        _ => Err(INVALID_ARGUMENT),
    }
}

pub(crate) fn mig_device(compute: u64) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(MIG_DEVICES + compute as usize)
}

pub(crate) fn gpu_instance(handle: u64) -> nvmlGpuInstance_t {
    std::ptr::without_provenance_mut(GPU_INSTANCES + handle as usize)
}

pub(crate) fn compute_instance(handle: u64) -> nvmlComputeInstance_t {
    std::ptr::without_provenance_mut(COMPUTE_INSTANCES + handle as usize)
}

pub(crate) fn instance_handle(instance: nvmlGpuInstance_t) -> Result<u64, nvmlReturn_t> {
    below(GPU_INSTANCES, instance.addr())
}

pub(crate) fn compute_handle(instance: nvmlComputeInstance_t) -> Result<u64, nvmlReturn_t> {
    below(COMPUTE_INSTANCES, instance.addr())
}

pub(crate) fn instance(
    function: &str,
    handle: nvmlGpuInstance_t,
    pick: impl FnOnce(GpuInstanceFacts) -> Outcome,
) -> nvmlReturn_t {
    let value = instance_handle(handle)
        .and_then(|handle| connection::ask(function, Query::GpuInstance(handle)));
    code(value.and_then(|value| match value {
        Some(NvmlValue::GpuInstance(facts)) => pick(*facts),
        _ => Err(UNKNOWN),
    }))
}

/// The MIG device of a compute instance.
pub(crate) fn compute(
    function: &str,
    handle: nvmlComputeInstance_t,
    pick: impl FnOnce(DeviceFacts) -> Outcome,
) -> nvmlReturn_t {
    let value = compute_handle(handle)
        .and_then(|handle| connection::ask(function, Query::MigDevice(handle)));
    code(value.and_then(|value| match value {
        Some(NvmlValue::Device(facts)) => pick(*facts),
        _ => Err(UNKNOWN),
    }))
}

/// Asks for a change.
pub(crate) fn cut(
    function: &str,
    cut: Result<Cut, nvmlReturn_t>,
    pick: impl FnOnce(Option<NvmlValue>) -> Outcome,
) -> nvmlReturn_t {
    let value = cut.and_then(|cut| connection::ask(function, Query::Cut(cut)));
    code(value.and_then(pick))
}

pub(crate) fn host(function: &str, pick: impl FnOnce(HostFacts) -> Outcome) -> nvmlReturn_t {
    code(
        connection::ask(function, Query::Host).and_then(|value| match value {
            Some(NvmlValue::Host(facts)) => pick(facts),
            _ => Err(UNKNOWN),
        }),
    )
}

/// Resolves a query to a device handle.
pub(crate) fn find(
    function: &str,
    query: Result<Query, nvmlReturn_t>,
    device: Out<nvmlDevice_t>,
) -> nvmlReturn_t {
    let value = query.and_then(|query| connection::ask(function, query));
    code(value.and_then(|value| match value {
        Some(NvmlValue::Index(index)) => device.set(handle(index)),
        Some(NvmlValue::Device(facts)) => device.set(handle(facts.index)),
        Some(NvmlValue::MigDevice(compute)) => device.set(mig_device(compute)),
        _ => Err(UNKNOWN),
    }))
}

pub(crate) fn device(
    function: &str,
    device: nvmlDevice_t,
    pick: impl FnOnce(DeviceFacts) -> Outcome,
) -> nvmlReturn_t {
    let value = device_query(device).and_then(|query| connection::ask(function, query));
    code(value.and_then(|value| match value {
        Some(NvmlValue::Device(facts)) => pick(*facts),
        _ => Err(UNKNOWN),
    }))
}

/// What the vGPU host driver knows of a device; NOT_SUPPORTED under another driver.
pub(crate) fn vgpu(
    function: &str,
    handle: nvmlDevice_t,
    pick: impl FnOnce(VgpuFacts) -> Outcome,
) -> nvmlReturn_t {
    device(function, handle, |facts| {
        pick(facts.vgpu.ok_or(NOT_SUPPORTED)?)
    })
}

pub(crate) fn vgpu_type(
    function: &str,
    id: u32,
    pick: impl FnOnce(VgpuTypeFacts) -> Outcome,
) -> nvmlReturn_t {
    code(
        connection::ask(function, Query::VgpuType(id)).and_then(|value| match value {
            Some(NvmlValue::VgpuType(facts)) => pick(facts),
            _ => Err(UNKNOWN),
        }),
    )
}

pub(crate) fn vgpu_instance(
    function: &str,
    id: u32,
    pick: impl FnOnce(VgpuInstanceFacts) -> Outcome,
) -> nvmlReturn_t {
    code(
        connection::ask(function, Query::VgpuInstance(id)).and_then(|value| match value {
            Some(NvmlValue::VgpuInstance(facts)) => pick(facts),
            _ => Err(UNKNOWN),
        }),
    )
}

/// A family of exported functions with the same first argument: `via` is the function above that asks.
macro_rules! exports {
    (via $via:ident($first:ident: $first_type:ty); $(fn $name:ident($($arg:ident: $type:ty),*) |$facts:ident| $body:expr;)*) => {$(
        #[doc = concat!("NVML's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($first: $first_type, $($arg: $type),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            crate::call::$via(stringify!($name), $first, |$facts| $body)
        }
    )*};
}
pub(crate) use exports;
