//! Functions about what a vGPU host driver makes of a device.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuVirtualizationMode_t,
    nvmlHostVgpuMode_enum_NVML_HOST_VGPU_MODE_NON_SRIOV as NON_SRIOV, nvmlHostVgpuMode_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlVgpuInstance_t,
    nvmlVgpuTypeId_t,
};

use crate::{call::exports, pointer::Out};

/// Virtualization modes: a bare GPU, and one that hosts vGPUs.
const MODE_NONE: nvmlGpuVirtualizationMode_t = 0;
const MODE_HOST_VGPU: nvmlGpuVirtualizationMode_t = 3;

exports! { via device(device: nvmlDevice_t);
    fn nvmlDeviceGetVirtualizationMode(mode: Out<nvmlGpuVirtualizationMode_t>) |gpu| {
        mode.set(if gpu.vgpu.is_some() { MODE_HOST_VGPU } else { MODE_NONE })
    };
}

exports! { via vgpu(device: nvmlDevice_t);
    fn nvmlDeviceGetHostVgpuMode(mode: Out<nvmlHostVgpuMode_t>) |_vgpu| mode.set(NON_SRIOV);
    fn nvmlDeviceGetSupportedVgpus(count: Out<c_uint>, ids: Out<nvmlVgpuTypeId_t>) |vgpu| {
        let supported: Vec<u32> = vgpu.supported.iter().map(|(id, _)| *id).collect();
        ids.set_list(count, &supported)
    };
    fn nvmlDeviceGetCreatableVgpus(count: Out<c_uint>, ids: Out<nvmlVgpuTypeId_t>)
        |vgpu| ids.set_list(count, &vgpu.creatable);
    fn nvmlDeviceGetActiveVgpus(count: Out<c_uint>, instances: Out<nvmlVgpuInstance_t>)
        |vgpu| instances.set_list(count, &vgpu.active);
    fn nvmlVgpuTypeGetMaxInstances(id: nvmlVgpuTypeId_t, count: Out<c_uint>) |vgpu| {
        let found = vgpu.supported.iter().find(|(each, _)| *each == id).ok_or(INVALID_ARGUMENT)?;
        count.set(found.1)
    };
}
