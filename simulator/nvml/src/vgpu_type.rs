//! Functions about a vGPU type.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlVgpuTypeBar1Info_t,
    nvmlVgpuTypeId_t,
};

use crate::{
    call::exports,
    pointer::{Out, TextOut, Versioned},
};

/// Not MIG-backed.
const NO_PROFILE: c_uint = c_uint::MAX;

/// BAR1 of a vGPU of a Turing board, in bytes.
const BAR1_BYTES: c_ulonglong = 256 << 20;

impl Versioned for nvmlVgpuTypeBar1Info_t {
    const NUMBER: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}

exports! { via vgpu_type(id: nvmlVgpuTypeId_t);
    fn nvmlVgpuTypeGetName(name: TextOut, length: Out<c_uint>)
        |kind| name.set_sized(length, &kind.name);
    fn nvmlVgpuTypeGetClass(class: TextOut, length: Out<c_uint>)
        |kind| class.set_sized(length, &kind.class);
    fn nvmlVgpuTypeGetLicense(license: TextOut, length: c_uint)
        |kind| license.set(length, &kind.license);
    fn nvmlVgpuTypeGetDeviceID(device: Out<c_ulonglong>, subsystem: Out<c_ulonglong>) |kind| {
        device.set(kind.device_id)?;
        subsystem.set(kind.subsystem_id)
    };
    fn nvmlVgpuTypeGetFramebufferSize(bytes: Out<c_ulonglong>)
        |kind| bytes.set(kind.framebuffer_bytes);
    fn nvmlVgpuTypeGetNumDisplayHeads(heads: Out<c_uint>) |kind| heads.set(kind.heads);
    fn nvmlVgpuTypeGetResolution(head: c_uint, width: Out<c_uint>, height: Out<c_uint>) |kind| {
        if head >= kind.heads {
            return Err(INVALID_ARGUMENT);
        }
        width.set(kind.max_resolution[0])?;
        height.set(kind.max_resolution[1])
    };
    fn nvmlVgpuTypeGetFrameRateLimit(frames_per_second: Out<c_uint>)
        |kind| frames_per_second.set(kind.frame_rate_limit);
    fn nvmlVgpuTypeGetMaxInstancesPerVm(count: Out<c_uint>) |_kind| count.set(1);
    fn nvmlVgpuTypeGetGpuInstanceProfileId(id_of_profile: Out<c_uint>)
        |_kind| id_of_profile.set(NO_PROFILE);
    fn nvmlVgpuTypeGetBAR1Info(info: Out<nvmlVgpuTypeBar1Info_t>) |_kind| {
        let asked = info.get_versioned()?;
        info.set(nvmlVgpuTypeBar1Info_t { bar1Size: BAR1_BYTES, ..asked })
    };
}
