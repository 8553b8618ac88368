//! Functions about MIG: mode, GPU instance profiles, GPU and compute instances, MIG devices.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t, nvmlDevice_t,
    nvmlDeviceAttributes_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_t,
};
use simulator::{
    MigProfile,
    protocol::{
        ComputeProfileFacts, Cut, DeviceFacts, GpuInstanceFacts, MigDeviceFacts, MigFacts,
        NvmlValue,
    },
};

use crate::{
    call::{self, exports},
    pointer::{Out, Versioned, fixed},
};

impl Versioned for nvmlGpuInstanceProfileInfo_v2_t {
    const NUMBER: u32 = 2;

    fn version(&self) -> u32 {
        self.version
    }
}

impl Versioned for nvmlComputeInstanceProfileInfo_v2_t {
    const NUMBER: u32 = 2;

    fn version(&self) -> u32 {
        self.version
    }
}

exports! { via device(device: nvmlDevice_t);
    fn nvmlDeviceGetMigMode(current: Out<c_uint>, pending: Out<c_uint>) |gpu| {
        let mig = gpu.mig.ok_or(NOT_SUPPORTED)?;
        current.set(mig.current.into())?;
        pending.set(mig.pending.into())
    };
    fn nvmlDeviceGetMaxMigDeviceCount(count: Out<c_uint>)
        |gpu| count.set(gpu.mig.map_or(0, |mig| mig.max_devices));
    fn nvmlDeviceIsMigDeviceHandle(is_mig: Out<c_uint>)
        |gpu| is_mig.set(gpu.mig_device.is_some().into());
    fn nvmlDeviceGetMigDeviceHandleByIndex(index: c_uint, mig_device: Out<nvmlDevice_t>) |gpu| {
        let mig = on(gpu)?;
        if index >= mig.max_devices {
            return Err(INVALID_ARGUMENT);
        }
        let mut all = mig.instances.iter().flat_map(|each| &each.compute);
        let found = all.find(|each| each.slot == index).ok_or(NOT_FOUND)?;
        mig_device.set(call::mig_device(found.handle))
    };
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_of: Out<nvmlDevice_t>) |gpu| {
        device_of.set(call::handle(part(&gpu)?.instance.gpu))
    };
    fn nvmlDeviceGetGpuInstanceId(id: Out<c_uint>) |gpu| id.set(part(&gpu)?.instance.id);
    fn nvmlDeviceGetComputeInstanceId(id: Out<c_uint>) |gpu| id.set(part(&gpu)?.compute.id);
    fn nvmlDeviceGetAttributes(attributes: Out<nvmlDeviceAttributes_t>)
        |gpu| attributes.set(attributes_of(part(&gpu)?));
    fn nvmlDeviceGetAttributes_v2(attributes: Out<nvmlDeviceAttributes_t>)
        |gpu| attributes.set(attributes_of(part(&gpu)?));

    fn nvmlDeviceGetGpuInstanceProfileInfo(profile: c_uint, info: Out<nvmlGpuInstanceProfileInfo_t>)
        |gpu| info.set(profile_v1(&by_index(gpu, profile)?));
    fn nvmlDeviceGetGpuInstanceProfileInfoV(profile: c_uint, info: Out<nvmlGpuInstanceProfileInfo_v2_t>)
        |gpu| {
        let version = info.get_versioned()?.version;
        info.set(profile_v2(version, &by_index(gpu, profile)?))
    };
    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(id: c_uint, info: Out<nvmlGpuInstanceProfileInfo_v2_t>)
        |gpu| {
        let version = info.get_versioned()?.version;
        info.set(profile_v2(version, &by_id(gpu, id)?.0))
    };
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(id: c_uint, placements: Out<nvmlGpuInstancePlacement_t>, count: Out<c_uint>)
        |gpu| {
        let (profile, _) = by_id(gpu, id)?;
        let mut starts = profile.starts;
        starts.sort_unstable();
        let size = profile.size;
        let all: Vec<_> = starts.iter().map(|start| nvmlGpuInstancePlacement_t { start: *start, size }).collect();
        if placements.is_null() { count.set(all.len() as c_uint) } else { placements.set_list(count, &all) }
    };
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(id: c_uint, count: Out<c_uint>) |gpu| {
        let (_, remaining) = by_id_on(gpu, id)?;
        count.set(remaining)
    };
    fn nvmlDeviceGetGpuInstances(id: c_uint, instances: Out<nvmlGpuInstance_t>, count: Out<c_uint>)
        |gpu| {
        let all = on(gpu)?.instances.into_iter().filter(|each| each.profile.id == id);
        let handles: Vec<_> = all.map(|each| call::gpu_instance(each.handle)).collect();
        instances.set_all(count, &handles)
    };
    fn nvmlDeviceGetGpuInstanceById(id: c_uint, instance: Out<nvmlGpuInstance_t>) |gpu| {
        let found = on(gpu)?.instances.into_iter().find(|each| each.id == id).ok_or(NOT_FOUND)?;
        instance.set(call::gpu_instance(found.handle))
    };
}

exports! { via instance(instance: nvmlGpuInstance_t);
    fn nvmlGpuInstanceGetInfo(info: Out<nvmlGpuInstanceInfo_t>) |facts| {
        info.set(nvmlGpuInstanceInfo_t {
            device: call::handle(facts.gpu),
            id: facts.id,
            profileId: facts.profile.id,
            placement: nvmlGpuInstancePlacement_t { start: facts.start, size: facts.profile.size },
        })
    };
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(profile: c_uint, engine: c_uint, info: Out<nvmlComputeInstanceProfileInfo_t>)
        |facts| {
        let found = compute_profile(&facts, profile, engine)?;
        let engines = facts.profile.engines;
        info.set(nvmlComputeInstanceProfileInfo_t {
            id: found.id,
            sliceCount: found.slices,
            instanceCount: found.instances,
            multiprocessorCount: found.multiprocessors,
            sharedCopyEngineCount: engines.copy,
            sharedDecoderCount: engines.decoder,
            sharedEncoderCount: engines.encoder,
            sharedJpegCount: engines.jpeg,
            sharedOfaCount: engines.ofa,
        })
    };
    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(profile: c_uint, engine: c_uint, info: Out<nvmlComputeInstanceProfileInfo_v2_t>)
        |facts| {
        let version = info.get_versioned()?.version;
        let found = compute_profile(&facts, profile, engine)?;
        let engines = facts.profile.engines;
        info.set(nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id: found.id,
            sliceCount: found.slices,
            instanceCount: found.instances,
            multiprocessorCount: found.multiprocessors,
            sharedCopyEngineCount: engines.copy,
            sharedDecoderCount: engines.decoder,
            sharedEncoderCount: engines.encoder,
            sharedJpegCount: engines.jpeg,
            sharedOfaCount: engines.ofa,
            name: fixed(&format!("MIG {}c.{}", found.slices, facts.profile.name)),
        })
    };
    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(id: c_uint, count: Out<c_uint>)
        |facts| count.set(compute_by_id(&facts, id)?.remaining);
    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(id: c_uint, placements: Out<nvmlComputeInstancePlacement_t>, count: Out<c_uint>)
        |facts| {
        let found = compute_by_id(&facts, id)?;
        let size = found.slices;
        let all: Vec<_> = found.starts.iter().map(|start| nvmlComputeInstancePlacement_t { start: *start, size }).collect();
        if placements.is_null() { count.set(all.len() as c_uint) } else { placements.set_list(count, &all) }
    };
    fn nvmlGpuInstanceGetComputeInstances(id: c_uint, instances: Out<nvmlComputeInstance_t>, count: Out<c_uint>)
        |facts| {
        let all = facts.compute.iter().filter(|each| each.profile_id == id);
        let handles: Vec<_> = all.map(|each| call::compute_instance(each.handle)).collect();
        instances.set_all(count, &handles)
    };
    fn nvmlGpuInstanceGetComputeInstanceById(id: c_uint, compute: Out<nvmlComputeInstance_t>) |facts| {
        let found = facts.compute.iter().find(|each| each.id == id).ok_or(NOT_FOUND)?;
        compute.set(call::compute_instance(found.handle))
    };
}

exports! { via compute(instance: nvmlComputeInstance_t);
    fn nvmlComputeInstanceGetInfo(info: Out<nvmlComputeInstanceInfo_t>)
        |device| info.set(compute_info(part(&device)?));
    fn nvmlComputeInstanceGetInfo_v2(info: Out<nvmlComputeInstanceInfo_t>)
        |device| info.set(compute_info(part(&device)?));
}

/// Functions that change what a GPU is cut into.
macro_rules! cuts {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $cut:expr => |$value:ident| $body:expr;)*) => {$(
        #[doc = concat!("NVML's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> nvmlReturn_t {
            call::cut(stringify!($name), $cut, |$value| $body)
        }
    )*};
}

cuts! {
    fn nvmlDeviceSetMigMode(device: nvmlDevice_t, mode: c_uint, activation: Out<nvmlReturn_t>)
        set_mode(device, mode) => |value| match value {
            Some(NvmlValue::Activation(status)) => activation.set(status),
            _ => Err(UNKNOWN),
        };
    fn nvmlDeviceCreateGpuInstance(device: nvmlDevice_t, profile: c_uint, instance: Out<nvmlGpuInstance_t>)
        call::index(device).map(|gpu| Cut::CreateInstance { gpu, profile, placement: None })
        => |value| instance.set(call::gpu_instance(handle(value)?));
    fn nvmlDeviceCreateGpuInstanceWithPlacement(device: nvmlDevice_t, profile: c_uint, placement: Out<nvmlGpuInstancePlacement_t>, instance: Out<nvmlGpuInstance_t>)
        placed(device, profile, placement) => |value| instance.set(call::gpu_instance(handle(value)?));
    fn nvmlGpuInstanceDestroy(instance: nvmlGpuInstance_t)
        call::instance_handle(instance).map(Cut::DestroyInstance) => |_value| Ok(());
    fn nvmlGpuInstanceCreateComputeInstance(instance: nvmlGpuInstance_t, profile: c_uint, compute: Out<nvmlComputeInstance_t>)
        call::instance_handle(instance).map(|instance| Cut::CreateCompute { instance, profile, start: None })
        => |value| compute.set(call::compute_instance(handle(value)?));
    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance: nvmlGpuInstance_t, profile: c_uint, placement: Out<nvmlComputeInstancePlacement_t>, compute: Out<nvmlComputeInstance_t>)
        compute_placed(instance, profile, placement) => |value| compute.set(call::compute_instance(handle(value)?));
    fn nvmlComputeInstanceDestroy(instance: nvmlComputeInstance_t)
        call::compute_handle(instance).map(Cut::DestroyCompute) => |_value| Ok(());
}

fn set_mode(device: nvmlDevice_t, mode: c_uint) -> Result<Cut, nvmlReturn_t> {
    let gpu = call::index(device)?;
    match mode {
        0 | 1 => Ok(Cut::Mode { gpu, on: mode == 1 }),
        _ => Err(INVALID_ARGUMENT),
    }
}

fn placed(
    device: nvmlDevice_t,
    profile: c_uint,
    placement: Out<nvmlGpuInstancePlacement_t>,
) -> Result<Cut, nvmlReturn_t> {
    let gpu = call::index(device)?;
    let placement = placement.get()?;
    Ok(Cut::CreateInstance {
        gpu,
        profile,
        placement: Some((placement.start, placement.size)),
    })
}

fn compute_placed(
    instance: nvmlGpuInstance_t,
    profile: c_uint,
    placement: Out<nvmlComputeInstancePlacement_t>,
) -> Result<Cut, nvmlReturn_t> {
    let instance = call::instance_handle(instance)?;
    let start = Some(placement.get()?.start);
    Ok(Cut::CreateCompute {
        instance,
        profile,
        start,
    })
}

fn handle(value: Option<NvmlValue>) -> Result<u64, nvmlReturn_t> {
    match value {
        Some(NvmlValue::Handle(handle)) => Ok(handle),
        _ => Err(UNKNOWN),
    }
}

/// MIG of a GPU where it is on.
fn on(gpu: DeviceFacts) -> Result<MigFacts, nvmlReturn_t> {
    gpu.mig.filter(|mig| mig.current).ok_or(NOT_SUPPORTED)
}

/// What makes a MIG device; other handles are not one.
fn part(device: &DeviceFacts) -> Result<&MigDeviceFacts, nvmlReturn_t> {
    device.mig_device.as_ref().ok_or(INVALID_ARGUMENT)
}

/// Profiles are known whether MIG is on or off.
fn by_index(gpu: DeviceFacts, index: u32) -> Result<MigProfile, nvmlReturn_t> {
    let mig = gpu.mig.ok_or(NOT_SUPPORTED)?;
    if index >= nvml_wrapper_sys::bindings::NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(INVALID_ARGUMENT);
    }
    let mut profiles = mig.profiles.into_iter();
    profiles
        .find(|each| each.index == index)
        .ok_or(NOT_SUPPORTED)
}

fn by_id(gpu: DeviceFacts, id: u32) -> Result<(MigProfile, u32), nvmlReturn_t> {
    let mig = gpu.mig.ok_or(NOT_SUPPORTED)?;
    let mut profiles = mig.profiles.into_iter().zip(mig.remaining);
    profiles
        .find(|(each, _)| each.id == id)
        .ok_or(INVALID_ARGUMENT)
}

fn by_id_on(gpu: DeviceFacts, id: u32) -> Result<(MigProfile, u32), nvmlReturn_t> {
    if gpu.mig.as_ref().is_some_and(|mig| mig.current) {
        by_id(gpu, id)
    } else {
        Err(NOT_SUPPORTED)
    }
}

fn compute_profile(
    facts: &GpuInstanceFacts,
    index: u32,
    engine: u32,
) -> Result<&ComputeProfileFacts, nvmlReturn_t> {
    let count = nvml_wrapper_sys::bindings::NVML_COMPUTE_INSTANCE_PROFILE_COUNT;
    if engine != 0 || index >= count {
        return Err(INVALID_ARGUMENT);
    }
    // Id and index are the same.
    let mut profiles = facts.compute_profiles.iter();
    profiles.find(|each| each.id == index).ok_or(NOT_SUPPORTED)
}

fn compute_by_id(facts: &GpuInstanceFacts, id: u32) -> Result<&ComputeProfileFacts, nvmlReturn_t> {
    let mut profiles = facts.compute_profiles.iter();
    profiles.find(|each| each.id == id).ok_or(INVALID_ARGUMENT)
}

fn compute_info(part: &MigDeviceFacts) -> nvmlComputeInstanceInfo_t {
    nvmlComputeInstanceInfo_t {
        device: call::mig_device(part.compute.handle),
        gpuInstance: call::gpu_instance(part.instance.handle),
        id: part.compute.id,
        profileId: part.compute.profile_id,
        placement: nvmlComputeInstancePlacement_t {
            start: part.compute.start,
            size: part.compute.slices,
        },
    }
}

fn attributes_of(part: &MigDeviceFacts) -> nvmlDeviceAttributes_t {
    let profile = &part.instance.profile;
    nvmlDeviceAttributes_t {
        multiprocessorCount: part.compute.multiprocessors,
        sharedCopyEngineCount: profile.engines.copy,
        sharedDecoderCount: profile.engines.decoder,
        sharedEncoderCount: profile.engines.encoder,
        sharedJpegCount: profile.engines.jpeg,
        sharedOfaCount: profile.engines.ofa,
        gpuInstanceSliceCount: profile.slices,
        computeInstanceSliceCount: part.compute.slices,
        memorySizeMB: profile.memory_mib,
    }
}

fn profile_v1(profile: &MigProfile) -> nvmlGpuInstanceProfileInfo_t {
    nvmlGpuInstanceProfileInfo_t {
        id: profile.id,
        isP2pSupported: 0,
        sliceCount: profile.slices,
        instanceCount: profile.instances,
        multiprocessorCount: profile.multiprocessors,
        copyEngineCount: profile.engines.copy,
        decoderCount: profile.engines.decoder,
        encoderCount: profile.engines.encoder,
        jpegCount: profile.engines.jpeg,
        ofaCount: profile.engines.ofa,
        memorySizeMB: profile.memory_mib,
    }
}

fn profile_v2(version: u32, profile: &MigProfile) -> nvmlGpuInstanceProfileInfo_v2_t {
    let first = profile_v1(profile);
    nvmlGpuInstanceProfileInfo_v2_t {
        version,
        id: first.id,
        isP2pSupported: first.isP2pSupported,
        sliceCount: first.sliceCount,
        instanceCount: first.instanceCount,
        multiprocessorCount: first.multiprocessorCount,
        copyEngineCount: first.copyEngineCount,
        decoderCount: first.decoderCount,
        encoderCount: first.encoderCount,
        jpegCount: first.jpegCount,
        ofaCount: first.ofaCount,
        memorySizeMB: first.memorySizeMB,
        name: fixed(&format!("MIG {}", profile.name)),
    }
}
