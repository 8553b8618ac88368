//! The life of GPU and compute instances: NVML calls that the wrapper crate has no safe form of, each
//! behind a safe function here and nowhere else. Handles do not leave this file: they die with a
//! session, a reset or a change of mode, and what is said about an instance is said by its place.
#![expect(unsafe_code, reason = "nvml-wrapper has no safe interface to MIG")]

use std::ffi::{CStr, c_char, c_uint};
use std::mem::zeroed;

use events::inventory::Slices;
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as sys;

use super::code::{
    CallError, FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_SUPPORTED,
};

type Called<T> = Result<T, CallError>;

/// A kind of GPU instance, as this board and this driver have it. The id differs between boards for
/// the same name, and means another profile on another board (14 is 2g on A100, 1g on A30).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstanceProfile {
    /// Index in nvml.h, 0 to 16: says which variant it is.
    pub index: u32,
    /// What the other calls take.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// How many fit on an empty GPU.
    pub instances: u32,
    /// Memory.
    pub memory_mib: u64,
    /// The driver's own name for it (`MIG 1g.10gb`), where it tells.
    pub name: Option<String>,
}

/// One GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its id.
    pub id: u32,
    /// Its profile's id.
    pub profile_id: u32,
    /// Where it lies.
    pub slices: Slices,
    /// Its compute instances.
    pub compute: Vec<ComputeInstance>,
}

/// One compute instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstance {
    /// Its id within its GPU instance.
    pub id: u32,
    /// The MIG device's UUID.
    pub uuid: String,
    /// Processes on it.
    pub pids: Vec<u32>,
}

/// One GPU within a session.
pub struct Mig<'session> {
    lib: &'session sys::NvmlLib,
    device: sys::nvmlDevice_t,
}

/// Calls a function that the library may lack.
macro_rules! call {
    ($self:ident.$name:ident($($argument:expr),*)) => {
        match &$self.lib.$name {
            // SAFETY: the handles are of this session, which outlives `self`; pointers are to locals
            // that outlive the call, and lists are as long as their counts say.
            Ok(function) => check(stringify!($name), unsafe { function($($argument),*) }),
            Err(_) => Err(CallError { call: stringify!($name), number: FUNCTION_NOT_FOUND }),
        }
    };
}

fn check(call: &'static str, number: u32) -> Called<()> {
    match number {
        0 => Ok(()),
        number => Err(CallError { call, number }),
    }
}

/// More instances or processes than a GPU can have: a count beyond it is not believed.
const MOST: u32 = 4096;

impl<'session> Mig<'session> {
    /// The GPU of a session's device.
    #[must_use]
    pub fn of(device: &Device<'session>) -> Self {
        Self {
            lib: device.nvml().lib(),
            // SAFETY: the handle is used within the session that it borrows.
            device: unsafe { device.handle() },
        }
    }

    /// Every profile that the board has.
    ///
    /// # Errors
    /// NVML's.
    pub fn profiles(&self) -> Called<Vec<GpuInstanceProfile>> {
        let mut found = Vec::new();
        for index in 0..sys::NVML_GPU_INSTANCE_PROFILE_COUNT {
            match self.profile(index) {
                Ok(profile) => found.push(profile),
                Err(error) if error.number == NOT_SUPPORTED => {}
                // An older library knows fewer.
                Err(error) if error.number == INVALID_ARGUMENT => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn profile(&self, index: u32) -> Called<GpuInstanceProfile> {
        // SAFETY: all-zero is a valid value of this plain structure.
        let mut info: sys::nvmlGpuInstanceProfileInfo_v2_t = unsafe { zeroed() };
        info.version = version_of::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2);
        match call!(self.nvmlDeviceGetGpuInstanceProfileInfoV(self.device, index, &raw mut info)) {
            Ok(()) => {
                return Ok(GpuInstanceProfile {
                    index,
                    id: info.id,
                    slices: info.sliceCount,
                    instances: info.instanceCount,
                    memory_mib: info.memorySizeMB,
                    name: text(&info.name),
                });
            }
            Err(error) if error.number == FUNCTION_NOT_FOUND => {}
            Err(error) => return Err(error),
        }
        // SAFETY: as above.
        let mut info: sys::nvmlGpuInstanceProfileInfo_t = unsafe { zeroed() };
        call!(self.nvmlDeviceGetGpuInstanceProfileInfo(self.device, index, &raw mut info))?;
        Ok(GpuInstanceProfile {
            index,
            id: info.id,
            slices: info.sliceCount,
            instances: info.instanceCount,
            memory_mib: info.memorySizeMB,
            name: None,
        })
    }

    /// Where instances of a profile may lie.
    ///
    /// # Errors
    /// NVML's.
    pub fn placements(&self, profile_id: u32) -> Called<Vec<Slices>> {
        let empty = sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let found = list(empty, |items, count| {
            call!(self.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                self.device,
                profile_id,
                items,
                count
            ))
        })?;
        Ok(found.iter().map(slices).collect())
    }

    /// How many more instances of a profile fit now.
    ///
    /// # Errors
    /// NVML's.
    pub fn remaining(&self, profile_id: u32) -> Called<u32> {
        let mut count = 0;
        call!(self.nvmlDeviceGetGpuInstanceRemainingCapacity(
            self.device,
            profile_id,
            &raw mut count
        ))?;
        Ok(count)
    }

    /// The GPU instances of a profile.
    ///
    /// # Errors
    /// NVML's.
    pub fn gpu_instances(&self, profile: &GpuInstanceProfile) -> Called<Vec<GpuInstance>> {
        let handles = self.handles(profile)?;
        handles
            .into_iter()
            .map(|handle| self.gpu_instance(handle))
            .collect()
    }

    /// Makes a GPU instance at `place`, with one compute instance that has all of it; or neither.
    ///
    /// # Errors
    /// NVML's; a GPU instance that could be neither completed nor removed stays, and is seen.
    pub fn create(&self, profile: &GpuInstanceProfile, place: Slices) -> Called<()> {
        let existing = self.find(profile, place)?;
        let placement = sys::nvmlGpuInstancePlacement_t {
            start: c_uint::from(place.start),
            size: c_uint::from(place.size),
        };
        let handle = if let Some(handle) = existing {
            handle
        } else {
            let mut handle = std::ptr::null_mut();
            call!(self.nvmlDeviceCreateGpuInstanceWithPlacement(
                self.device,
                profile.id,
                &raw const placement,
                &raw mut handle
            ))?;
            handle
        };
        let made = self.create_compute_instance(handle);
        if made.is_err() && existing.is_none() {
            // What cannot be undone here is seen at the next look, as an instance without compute.
            let _ = call!(self.nvmlGpuInstanceDestroy(handle));
        }
        made
    }

    fn create_compute_instance(&self, instance: sys::nvmlGpuInstance_t) -> Called<()> {
        let mut largest: Option<(u32, u32)> = None;
        for index in 0..sys::NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
            // SAFETY: all-zero is a valid value of this plain structure.
            let mut info: sys::nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
            let asked = call!(self.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance,
                index,
                sys::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                &raw mut info
            ));
            match asked {
                Ok(()) if largest.is_none_or(|(slices, _)| info.sliceCount > slices) => {
                    largest = Some((info.sliceCount, info.id));
                }
                Ok(()) => {}
                Err(error) if matches!(error.number, NOT_SUPPORTED | INVALID_ARGUMENT) => {}
                Err(error) => return Err(error),
            }
        }
        let (_, profile_id) = largest.ok_or(CallError {
            call: "nvmlGpuInstanceGetComputeInstanceProfileInfo",
            number: NOT_SUPPORTED,
        })?;
        let mut handle = std::ptr::null_mut();
        call!(self.nvmlGpuInstanceCreateComputeInstance(instance, profile_id, &raw mut handle))
    }

    /// Removes the GPU instance at `place` with its compute instances.
    ///
    /// # Errors
    /// NVML's: 19 while a process or a client has it. Compute instances that went before stay gone.
    pub fn destroy(&self, profile: &GpuInstanceProfile, place: Slices) -> Called<()> {
        let Some(instance) = self.find(profile, place)? else {
            return Ok(());
        };
        for compute in self.compute_handles(instance)? {
            call!(self.nvmlComputeInstanceDestroy(compute))?;
        }
        call!(self.nvmlGpuInstanceDestroy(instance))
    }

    fn find(
        &self,
        profile: &GpuInstanceProfile,
        place: Slices,
    ) -> Called<Option<sys::nvmlGpuInstance_t>> {
        for handle in self.handles(profile)? {
            if slices(&self.info(handle)?.placement) == place {
                return Ok(Some(handle));
            }
        }
        Ok(None)
    }

    fn handles(&self, profile: &GpuInstanceProfile) -> Called<Vec<sys::nvmlGpuInstance_t>> {
        // This call takes the caller's word for the length: a board's own number of instances.
        let mut handles = vec![std::ptr::null_mut(); profile.instances.clamp(1, MOST) as usize];
        let mut count = profile.instances.clamp(1, MOST);
        call!(self.nvmlDeviceGetGpuInstances(
            self.device,
            profile.id,
            handles.as_mut_ptr(),
            &raw mut count
        ))?;
        handles.truncate(count as usize);
        Ok(handles)
    }

    fn info(&self, instance: sys::nvmlGpuInstance_t) -> Called<sys::nvmlGpuInstanceInfo_t> {
        // SAFETY: all-zero is a valid value of this plain structure.
        let mut info: sys::nvmlGpuInstanceInfo_t = unsafe { zeroed() };
        call!(self.nvmlGpuInstanceGetInfo(instance, &raw mut info))?;
        Ok(info)
    }

    fn gpu_instance(&self, handle: sys::nvmlGpuInstance_t) -> Called<GpuInstance> {
        let info = self.info(handle)?;
        let compute = self.compute_handles(handle)?.into_iter();
        Ok(GpuInstance {
            id: info.id,
            profile_id: info.profileId,
            slices: slices(&info.placement),
            compute: compute
                .map(|handle| self.compute_instance(handle))
                .collect::<Called<_>>()?,
        })
    }

    fn compute_handles(
        &self,
        instance: sys::nvmlGpuInstance_t,
    ) -> Called<Vec<sys::nvmlComputeInstance_t>> {
        let mut found = Vec::new();
        for index in 0..sys::NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
            // SAFETY: all-zero is a valid value of this plain structure.
            let mut info: sys::nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
            let asked = call!(self.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance,
                index,
                sys::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                &raw mut info
            ));
            match asked {
                Ok(()) => {}
                Err(error) if matches!(error.number, NOT_SUPPORTED | INVALID_ARGUMENT) => continue,
                Err(error) => return Err(error),
            }
            let mut count = info.instanceCount.clamp(1, MOST);
            let mut handles = vec![std::ptr::null_mut(); count as usize];
            call!(self.nvmlGpuInstanceGetComputeInstances(
                instance,
                info.id,
                handles.as_mut_ptr(),
                &raw mut count
            ))?;
            handles.truncate(count as usize);
            found.extend(handles);
        }
        Ok(found)
    }

    fn compute_instance(&self, handle: sys::nvmlComputeInstance_t) -> Called<ComputeInstance> {
        // SAFETY: all-zero is a valid value of this plain structure.
        let mut info: sys::nvmlComputeInstanceInfo_t = unsafe { zeroed() };
        call!(self.nvmlComputeInstanceGetInfo_v2(handle, &raw mut info))?;
        // Long enough for the old form with the GPU's UUID in it (NVML_DEVICE_UUID_V2_BUFFER_SIZE).
        let mut uuid: [c_char; 96] = [0; 96];
        call!(self.nvmlDeviceGetUUID(info.device, uuid.as_mut_ptr(), 96))?;
        Ok(ComputeInstance {
            id: info.id,
            uuid: text(&uuid).unwrap_or_default(),
            pids: self.pids(info.device)?,
        })
    }

    fn pids(&self, device: sys::nvmlDevice_t) -> Called<Vec<u32>> {
        // SAFETY: all-zero is a valid value of this plain structure.
        let empty: sys::nvmlProcessInfo_t = unsafe { zeroed() };
        let found = list(empty, |items, count| {
            call!(self.nvmlDeviceGetComputeRunningProcesses_v3(device, count, items))
        });
        match found {
            Ok(found) => Ok(found.iter().map(|process| process.pid).collect()),
            // A driver that does not tell processes of MIG devices.
            Err(error) if error.number == NOT_SUPPORTED => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Reads a list by the two-call protocol: the length first, which may have grown by the second call.
fn list<T: Copy>(empty: T, ask: impl Fn(*mut T, *mut c_uint) -> Called<()>) -> Called<Vec<T>> {
    let mut count: c_uint = 0;
    loop {
        let room = count.min(MOST);
        let mut items = vec![empty; room as usize];
        count = room;
        let pointer = if room == 0 {
            std::ptr::null_mut()
        } else {
            items.as_mut_ptr()
        };
        match ask(pointer, &raw mut count) {
            Ok(()) if count <= room => {
                items.truncate(count as usize);
                return Ok(items);
            }
            // Some calls answer the length with success when no room was given.
            Ok(()) => {}
            Err(error) if error.number == INSUFFICIENT_SIZE && count > room && room < MOST => {}
            Err(error) => return Err(error),
        }
    }
}

fn slices(placement: &sys::nvmlGpuInstancePlacement_t) -> Slices {
    let byte = |number: c_uint| u8::try_from(number).unwrap_or(u8::MAX);
    Slices {
        start: byte(placement.start),
        size: byte(placement.size),
    }
}

/// What versioned structures begin with (nvml.h, `NVML_STRUCT_VERSION`).
fn version_of<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).expect("a structure is smaller than 4 GiB") | (number << 24)
}

fn text(buffer: &[c_char]) -> Option<String> {
    let bytes: Vec<u8> = buffer.iter().map(|byte| byte.cast_unsigned()).collect();
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}
