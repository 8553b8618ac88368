//! Functions about an active vGPU: a device that a VM has open.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEnableState_t, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlVgpuInstance_t, nvmlVgpuLicenseExpiry_t, nvmlVgpuLicenseInfo_t, nvmlVgpuPlacementId_t,
    nvmlVgpuRuntimeState_t, nvmlVgpuTypeId_t, nvmlVgpuVmIdType_t,
};

use crate::{
    call::exports,
    pointer::{Out, TextOut, Versioned},
};

/// The VM's id is a UUID, as QEMU's is.
const VM_ID_UUID: nvmlVgpuVmIdType_t = 1;

/// Not in a GPU instance.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Not in a placement.
const NO_PLACEMENT: c_uint = 0xffff;

/// The guest has not said which driver it runs; what a freshly started VM shows.
const GUEST_DRIVER: &str = "N/A";

impl Versioned for nvmlVgpuPlacementId_t {
    const NUMBER: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}

impl Versioned for nvmlVgpuRuntimeState_t {
    const NUMBER: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}

exports! { via vgpu_instance(instance: nvmlVgpuInstance_t);
    fn nvmlVgpuInstanceGetUUID(uuid: TextOut, length: c_uint) |vgpu| uuid.set(length, &vgpu.uuid);
    fn nvmlVgpuInstanceGetMdevUUID(uuid: TextOut, length: c_uint)
        |vgpu| uuid.set(length, &vgpu.mdev_uuid);
    fn nvmlVgpuInstanceGetVmID(id: TextOut, length: c_uint, kind: Out<nvmlVgpuVmIdType_t>) |vgpu| {
        id.set(length, &vgpu.vm_id)?;
        kind.set(VM_ID_UUID)
    };
    fn nvmlVgpuInstanceGetVmDriverVersion(version: TextOut, length: c_uint)
        |_vgpu| version.set(length, GUEST_DRIVER);
    fn nvmlVgpuInstanceGetType(id: Out<nvmlVgpuTypeId_t>) |vgpu| id.set(vgpu.type_id);
    fn nvmlVgpuInstanceGetFbUsage(bytes: Out<c_ulonglong>) |vgpu| bytes.set(vgpu.framebuffer_bytes);
    fn nvmlVgpuInstanceGetFrameRateLimit(frames_per_second: Out<c_uint>)
        |vgpu| frames_per_second.set(vgpu.frame_rate_limit);
    fn nvmlVgpuInstanceGetEccMode(mode: Out<nvmlEnableState_t>) |_vgpu| mode.set(1);
    fn nvmlVgpuInstanceGetGpuInstanceId(id: Out<c_uint>) |_vgpu| id.set(NO_INSTANCE);
    fn nvmlVgpuInstanceGetGpuPciId(_address: TextOut, _length: Out<c_uint>)
        |_vgpu| Err(NOT_SUPPORTED);
    fn nvmlVgpuInstanceGetLicenseStatus(licensed: Out<c_uint>) |_vgpu| licensed.set(0);
    fn nvmlVgpuInstanceGetLicenseInfo(info: Out<nvmlVgpuLicenseInfo_t>)
        |_vgpu| info.set(UNLICENSED);
    fn nvmlVgpuInstanceGetLicenseInfo_v2(info: Out<nvmlVgpuLicenseInfo_t>)
        |_vgpu| info.set(UNLICENSED);
    fn nvmlVgpuInstanceGetPlacementId(placement: Out<nvmlVgpuPlacementId_t>) |_vgpu| {
        let asked = placement.get_versioned()?;
        placement.set(nvmlVgpuPlacementId_t { placementId: NO_PLACEMENT, ..asked })
    };
    fn nvmlVgpuInstanceGetRuntimeStateSize(state: Out<nvmlVgpuRuntimeState_t>) |vgpu| {
        let asked = state.get_versioned()?;
        state.set(nvmlVgpuRuntimeState_t { size: vgpu.framebuffer_bytes, ..asked })
    };
}

/// A VM without a licence server, within its first minutes: unlicensed and not yet restricted, no expiry.
const UNLICENSED: nvmlVgpuLicenseInfo_t = nvmlVgpuLicenseInfo_t {
    isLicensed: 0,
    licenseExpiry: nvmlVgpuLicenseExpiry_t {
        year: 0,
        month: 0,
        day: 0,
        hour: 0,
        min: 0,
        sec: 0,
        status: 0,
    },
    currentState: 2,
};
