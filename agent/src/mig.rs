//! Partitions as GPU instances of a MIG GPU (gpu facts §4.6): each with one compute instance that has
//! all of it. Placements are planned elsewhere and given; the driver is never left to choose.

mod nodes;

mod profile;

use std::sync::Arc;

use events::inventory::{Placements, ProfileInventory, Slices};
use events::operation::Mode;
use events::{Code, ProfileName};

use crate::gpus::Backend;
use crate::nvml::code::CallError;
use crate::nvml::raw::{self, GpuInstance, GpuInstanceProfile};
use crate::nvml::{Device, Driver};
use crate::operation::place::Place;
use crate::partitioner::{Access, Class, ObservedGpu, ObservedPartition, PartitionError};
use crate::probe::HostRoot;

/// Drives the GPU instances of one host.
pub(crate) struct Mig {
    driver: Arc<Driver>,
    root: HostRoot,
}

impl Mig {
    /// A host below `root`, through its driver.
    pub(crate) fn new(driver: Arc<Driver>, root: HostRoot) -> Self {
        Self { driver, root }
    }

    /// Runs `job` on one GPU within the driver's session.
    fn on<T>(
        &self,
        device: &Device,
        job: impl FnOnce(&raw::Mig<'_>) -> Result<T, CallError>,
    ) -> Result<T, PartitionError> {
        let object = format!("GPU {}", device.pci);
        self.driver
            .on(&device.uuid, |nvml| job(&raw::Mig::of(nvml)))
            .map_err(|error| error.about(&object))
    }

    /// Turns MIG on or off. Two answers count: the call's own, and whether it has taken effect.
    pub(crate) fn set_mode(&self, device: &Device, on: bool) -> Result<(), PartitionError> {
        let object = format!("GPU {}: MIG mode", device.pci);
        // No other session of ours may stand in the way: the sampler's is closed with this.
        let activation = self
            .driver
            .alone(&device.uuid, |nvml| nvml.set_mig_mode(on))
            .map_err(|error| error.about(&object))?;
        if activation != 0 {
            let error = CallError {
                call: "nvmlDeviceSetMigMode (activation)",
                number: activation,
            };
            return Err(error.about(&object));
        }
        match self.driver.on(&device.uuid, |nvml| {
            nvml.mig_mode()
                .map_err(|error| CallError::of("nvmlDeviceGetMigMode", &error))
        }) {
            Ok(mode) if mode.current == u32::from(on) && mode.pending == mode.current => Ok(()),
            Ok(mode) => Err(PartitionError {
                code: Code::DriverError,
                class: Class::Refuse,
                message: format!(
                    "{object}: the driver said yes, and reads current {} and pending {}: the GPU needs a reset",
                    mode.current, mode.pending
                ),
            }),
            Err(error) => Err(error.about(&object)),
        }
    }

    fn instances(
        mig: &raw::Mig<'_>,
        profiles: &[(ProfileName, GpuInstanceProfile)],
    ) -> Result<Vec<(ProfileName, GpuInstance)>, CallError> {
        let mut found = Vec::new();
        for (name, profile) in profiles {
            for instance in mig.gpu_instances(profile)? {
                found.push((name.clone(), instance));
            }
        }
        Ok(found)
    }

    /// The profile that a name means on this GPU.
    fn named(
        device: &Device,
        mig: &raw::Mig<'_>,
        name: &ProfileName,
    ) -> Result<Option<GpuInstanceProfile>, CallError> {
        let profiles = profile::named(mig.profiles()?, device.memory_mib);
        let mut found = profiles.into_iter().filter(|(other, _)| other == name);
        Ok(found.next().map(|(_, profile)| profile))
    }

    fn partition(
        &self,
        device: &Device,
        profile: ProfileName,
        instance: &GpuInstance,
    ) -> ObservedPartition {
        let holders = instance.compute.iter().flat_map(|compute| &compute.pids);
        let complete = instance.compute.first();
        ObservedPartition {
            place: Place::Mig(instance.slices),
            profile,
            is_complete: complete.is_some(),
            holders: holders.map(|pid| format!("process {pid}")).collect(),
            access: Access {
                mig_uuid: complete.map(|compute| compute.uuid.clone()),
                device_nodes: complete.map_or_else(Vec::new, |compute| {
                    nodes::of(&self.root, device.minor, instance.id, compute.id)
                }),
                ..Access::default()
            },
        }
    }
}

impl Backend for Mig {
    fn read(&self, device: &Device, observed: &mut ObservedGpu) -> Result<(), String> {
        let look = |mig: &raw::Mig<'_>| {
            let profiles = profile::named(mig.profiles()?, device.memory_mib);
            // Profiles and their places are known while MIG is off; nothing can be made or be there.
            let is_on = device.mig.is_some_and(|mode| mode.current);
            let mut offers = Vec::new();
            for (name, profile) in &profiles {
                let places = mig.placements(profile.id)?;
                let offer = ProfileInventory {
                    profile: name.clone(),
                    memory_mib: profile.memory_mib,
                    max_instances: profile.instances,
                    available: if is_on { mig.remaining(profile.id)? } else { 0 },
                    mode: Mode::Mig,
                    placements: Some(Placements {
                        starts: places.iter().map(|place| place.start).collect(),
                        size: places.first().map_or(0, |place| place.size),
                    }),
                };
                offers.push(offer);
            }
            let instances = if is_on {
                Self::instances(mig, &profiles)?
            } else {
                Vec::new()
            };
            Ok((offers, instances))
        };
        let (offers, instances) = self.on(device, look).map_err(|error| error.message)?;
        observed.profiles.extend(offers);
        let seen = instances
            .into_iter()
            .map(|(profile, instance)| self.partition(device, profile, &instance));
        observed.partitions.extend(seen);
        observed.partitions.sort_by(|a, b| a.place.cmp(&b.place));
        Ok(())
    }

    fn create(
        &self,
        device: &Device,
        place: &Place,
        profile: &ProfileName,
    ) -> Result<(), PartitionError> {
        let slices = slices_of(device, place)?;
        let made = self.on(device, |mig| {
            let Some(found) = Self::named(device, mig, profile)? else {
                return Ok(false);
            };
            mig.create(&found, slices)?;
            let mut now = mig.gpu_instances(&found)?.into_iter();
            Ok(now.any(|seen| seen.slices == slices && !seen.compute.is_empty()))
        })?;
        if made {
            return Ok(());
        }
        let text = format!(
            "GPU {}: no {profile} is at {place} after it was made, or the board has no such profile",
            device.pci
        );
        Err(PartitionError {
            code: Code::DriverError,
            class: Class::Refuse,
            message: text,
        })
    }

    fn destroy(&self, device: &Device, place: &Place) -> Result<(), PartitionError> {
        let slices = slices_of(device, place)?;
        let found = self.on(device, |mig| {
            let profiles = profile::named(mig.profiles()?, device.memory_mib);
            let instances = Self::instances(mig, &profiles)?;
            let there = instances
                .into_iter()
                .find(|(_, instance)| instance.slices == slices);
            Ok(there.and_then(|(name, instance)| {
                let profile = profiles.into_iter().find(|(other, _)| *other == name);
                Some((profile?.1, instance))
            }))
        })?;
        let Some((profile, instance)) = found else {
            return Ok(());
        };
        let mut pids = instance.compute.iter().flat_map(|compute| &compute.pids);
        if let Some(pid) = pids.next() {
            return Err(PartitionError {
                code: Code::InUse,
                class: Class::Refuse,
                message: format!("{place} is held by process {pid}"),
            });
        }
        // Clients that hold a MIG device open and run nothing on it are seen only here
        // (NVIDIA/DCGM#95): the caller tries again.
        self.on(device, |mig| mig.destroy(&profile, slices))
    }
}

fn slices_of(device: &Device, place: &Place) -> Result<Slices, PartitionError> {
    place.slices().ok_or_else(|| PartitionError {
        code: Code::Internal,
        class: Class::Bug,
        message: format!("GPU {} makes no {place}", device.pci),
    })
}
