//! MIG: the mode, and GPU and compute instances on a map of memory slices (gpu facts §4.6, §5.3). Refusals are NVML's codes.

use uuid::Uuid;

use super::{Condition, Machine};
use crate::{
    board::{MigBoard, MigProfile},
    code::{
        GPU_IS_LOST, IN_USE, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, NOT_SUPPORTED,
        RESET_REQUIRED,
    },
    description::MigActivation,
};

/// Namespace of MIG devices: the same place on the same GPU has the same UUID.
const MIG_DEVICES: Uuid = Uuid::from_u128(0x5f0c_2b7e_93a1_5d44_8e17_0a6b_c3d2_0002);

/// Compute instance profiles of a GPU instance by its slices: index (which is the id too), slices, instances.
const COMPUTE_PROFILES: [(u32, &[[u32; 3]]); 5] = [
    (1, &[[0, 1, 1]]),
    (2, &[[0, 1, 2], [1, 2, 1]]),
    (3, &[[0, 1, 3], [1, 2, 1], [2, 3, 1]]),
    (4, &[[0, 1, 4], [1, 2, 2], [3, 4, 1]]),
    (7, &[[0, 1, 7], [1, 2, 3], [2, 3, 2], [3, 4, 1], [4, 7, 1]]),
];

/// The MIG state of one GPU.
#[derive(Debug, Default)]
pub(crate) struct Mig {
    pub(crate) current: bool,
    pub(crate) pending: bool,
    pub(crate) instances: Vec<GpuInstance>,
}

/// One GPU instance.
#[derive(Debug)]
pub(crate) struct GpuInstance {
    /// Never used twice: a handle of what has gone is noticed.
    pub(crate) handle: u64,
    pub(crate) id: u32,
    pub(crate) profile: MigProfile,
    pub(crate) start: u32,
    pub(crate) compute: Vec<ComputeInstance>,
}

/// One compute instance, which is one MIG device.
#[derive(Debug, Clone)]
pub(crate) struct ComputeInstance {
    pub(crate) handle: u64,
    pub(crate) id: u32,
    pub(crate) profile_id: u32,
    pub(crate) start: u32,
    pub(crate) slices: u32,
    /// Index among the GPU's MIG devices, which keeps its holes.
    pub(crate) slot: u32,
    pub(crate) uuid: String,
}

/// A profile of compute instances within one GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ComputeProfile {
    pub(crate) id: u32,
    pub(crate) slices: u32,
    pub(crate) instances: u32,
}

impl GpuInstance {
    fn overlaps(&self, start: u32, size: u32) -> bool {
        self.start < start + size && start < self.start + self.profile.size
    }

    /// Which compute instances can be made in it.
    pub(crate) fn compute_profiles(&self) -> Vec<ComputeProfile> {
        let of = COMPUTE_PROFILES
            .iter()
            .find(|(slices, _)| *slices == self.profile.slices);
        let list = of.map_or(&[][..], |(_, list)| *list);
        list.iter()
            .map(|[id, slices, instances]| ComputeProfile {
                id: *id,
                slices: *slices,
                instances: *instances,
            })
            .collect()
    }
}

impl ComputeProfile {
    /// First compute slices that instances of it may lie at.
    pub(crate) fn starts(self) -> impl Iterator<Item = u32> {
        // Three slices begin where four would.
        let step = if self.slices == 3 { 4 } else { self.slices };
        (0..self.instances).map(move |n| n * step)
    }
}

impl MigBoard {
    /// Id of a GPU instance: by place, as observed on A100 and H100.
    fn instance_id(&self, size: u32, start: u32) -> u32 {
        let per_gpu = self.memory_slices / size;
        per_gpu - 1 + start / size
    }
}

impl Machine {
    fn mig_board(&self, gpu: usize) -> Result<&MigBoard, u32> {
        let gpu = self.gpus.get(gpu).ok_or(INVALID_ARGUMENT)?;
        if gpu.condition == Condition::Lost {
            return Err(GPU_IS_LOST);
        }
        gpu.board.mig.as_ref().ok_or(NOT_SUPPORTED)
    }

    /// Sets the mode; answers the activation status. `other_clients`: somebody else has the driver open.
    pub(crate) fn set_mig_mode(
        &mut self,
        gpu: usize,
        on: bool,
        other_clients: bool,
    ) -> Result<u32, u32> {
        self.mig_board(gpu)?;
        let has_mdevs = self.mdevs.values().any(|mdev| mdev.gpu == gpu);
        let activation = self.description.quirks.mig_activation;
        let held = other_clients || !self.gpus[gpu].processes.is_empty();
        let mig = &mut self.gpus[gpu].mig;
        if has_mdevs || (!on && !mig.instances.is_empty()) {
            return Err(IN_USE);
        }
        mig.pending = on;
        if mig.current == on {
            return Ok(0);
        }
        if held {
            return Ok(IN_USE);
        }
        if activation == MigActivation::ResetRequired {
            return Ok(RESET_REQUIRED);
        }
        mig.current = on;
        Ok(0)
    }

    fn mig_profile(&self, gpu: usize, profile_id: u32) -> Result<&MigProfile, u32> {
        let board = self.mig_board(gpu)?;
        let mut profiles = board.profiles.iter();
        let found = profiles.find(|profile| profile.id == profile_id);
        found.ok_or(INVALID_ARGUMENT)
    }

    fn free_starts(&self, gpu: usize, profile: &MigProfile) -> Vec<u32> {
        let instances = &self.gpus[gpu].mig.instances;
        let same = instances
            .iter()
            .filter(|each| each.profile.id == profile.id);
        if same.count() >= profile.instances as usize {
            return Vec::new();
        }
        let free = |start: &u32| {
            !instances
                .iter()
                .any(|each| each.overlaps(*start, profile.size))
        };
        profile.starts.iter().copied().filter(free).collect()
    }

    /// How many more instances of a profile fit.
    pub(crate) fn mig_remaining(&self, gpu: usize, profile_id: u32) -> Result<u32, u32> {
        let profile = self.mig_profile(gpu, profile_id)?;
        let mig = &self.gpus[gpu].mig;
        if !mig.current {
            return Err(NOT_SUPPORTED);
        }
        let same = mig
            .instances
            .iter()
            .filter(|each| each.profile.id == profile_id);
        let left = profile.instances as usize - same.count();
        Ok(self.free_starts(gpu, profile).len().min(left) as u32)
    }

    /// Makes a GPU instance, at `placement` (start and size) or where the driver likes it; answers its handle.
    pub(crate) fn create_gpu_instance(
        &mut self,
        gpu: usize,
        profile_id: u32,
        placement: Option<(u32, u32)>,
    ) -> Result<u64, u32> {
        let profile = self.mig_profile(gpu, profile_id)?.clone();
        if !self.gpus[gpu].mig.current {
            return Err(NOT_SUPPORTED);
        }
        if self.gpus[gpu]
            .processes
            .iter()
            .any(|each| each.compute.is_none())
        {
            return Err(IN_USE);
        }
        let free = self.free_starts(gpu, &profile);
        let start = match placement {
            None => free.first().copied(),
            Some((start, size)) if size == profile.size && profile.starts.contains(&start) => {
                free.contains(&start).then_some(start)
            }
            Some(_) => return Err(INVALID_ARGUMENT),
        };
        let start = start.ok_or(INSUFFICIENT_RESOURCES)?;
        let id = self.mig_board(gpu)?.instance_id(profile.size, start);
        let handle = self.new_handle();
        self.gpus[gpu].mig.instances.push(GpuInstance {
            handle,
            id,
            profile,
            start,
            compute: Vec::new(),
        });
        self.gpus[gpu].mig.instances.sort_by_key(|each| each.id);
        Ok(handle)
    }

    fn new_handle(&mut self) -> u64 {
        self.next_mig_handle += 1;
        self.next_mig_handle
    }

    /// The GPU and GPU instance with this handle.
    pub(crate) fn gpu_instance(&self, handle: u64) -> Result<(usize, &GpuInstance), u32> {
        let mut all = self.gpus.iter().flat_map(|gpu| {
            let instances = gpu.mig.instances.iter();
            instances.map(|instance| (gpu.index, instance))
        });
        all.find(|(_, instance)| instance.handle == handle)
            .ok_or(INVALID_ARGUMENT)
    }

    /// The GPU, GPU instance and compute instance with this handle.
    pub(crate) fn compute_instance(
        &self,
        handle: u64,
    ) -> Result<(usize, &GpuInstance, &ComputeInstance), u32> {
        self.compute_instances()
            .find(|(_, _, compute)| compute.handle == handle)
            .ok_or(INVALID_ARGUMENT)
    }

    /// Every compute instance of the host.
    pub(crate) fn compute_instances(
        &self,
    ) -> impl Iterator<Item = (usize, &GpuInstance, &ComputeInstance)> {
        self.gpus.iter().flat_map(|gpu| {
            gpu.mig.instances.iter().flat_map(move |instance| {
                let compute = instance.compute.iter();
                compute.map(move |compute| (gpu.index, instance, compute))
            })
        })
    }

    /// Removes a GPU instance that has no compute instance.
    pub(crate) fn destroy_gpu_instance(&mut self, handle: u64) -> Result<(), u32> {
        let (gpu, instance) = self.gpu_instance(handle)?;
        if !instance.compute.is_empty() {
            return Err(IN_USE);
        }
        self.gpus[gpu]
            .mig
            .instances
            .retain(|each| each.handle != handle);
        Ok(())
    }

    /// Makes a compute instance; answers its handle.
    pub(crate) fn create_compute_instance(
        &mut self,
        instance: u64,
        profile_id: u32,
        start: Option<u32>,
    ) -> Result<u64, u32> {
        let (gpu, found) = self.gpu_instance(instance)?;
        let profiles = found.compute_profiles();
        let profile = profiles.into_iter().find(|each| each.id == profile_id);
        let profile = profile.ok_or(INVALID_ARGUMENT)?;
        let taken = |start: u32| {
            let mut compute = found.compute.iter();
            compute
                .any(|each| each.start < start + profile.slices && start < each.start + each.slices)
        };
        let mut starts = profile.starts();
        let start = match start {
            None => starts.find(|start| !taken(*start)),
            Some(start) if starts.any(|each| each == start) => (!taken(start)).then_some(start),
            Some(_) => return Err(INVALID_ARGUMENT),
        };
        let start = start.ok_or(INSUFFICIENT_RESOURCES)?;
        let unused = |used: &dyn Fn(u32) -> bool| (0..).find(|n| !used(*n)).unwrap_or_default();
        let id = unused(&|n| found.compute.iter().any(|each| each.id == n));
        let mig = &self.gpus[gpu].mig;
        let on_gpu = |n| {
            mig.instances
                .iter()
                .flat_map(|each| &each.compute)
                .any(|each| each.slot == n)
        };
        let slot = unused(&on_gpu);
        let place = format!(
            "{}/{}@{}/{profile_id}@{start}",
            self.gpus[gpu].uuid, found.profile.id, found.start
        );
        let compute = ComputeInstance {
            handle: self.next_mig_handle + 1,
            id,
            profile_id,
            start,
            slices: profile.slices,
            slot,
            uuid: format!("MIG-{}", Uuid::new_v5(&MIG_DEVICES, place.as_bytes())),
        };
        let handle = self.new_handle();
        let mut instances = self.gpus[gpu].mig.instances.iter_mut();
        if let Some(found) = instances.find(|each| each.handle == instance) {
            found.compute.push(compute);
        }
        Ok(handle)
    }

    /// Removes a compute instance that no process uses.
    pub(crate) fn destroy_compute_instance(&mut self, handle: u64) -> Result<(), u32> {
        let (gpu, ..) = self.compute_instance(handle)?;
        let gpu = &mut self.gpus[gpu];
        if gpu
            .processes
            .iter()
            .any(|each| each.compute == Some(handle))
        {
            return Err(IN_USE);
        }
        for instance in &mut gpu.mig.instances {
            instance.compute.retain(|each| each.handle != handle);
        }
        Ok(())
    }
}

impl Mig {
    /// What a reboot leaves: no instance ever, and the mode where the board keeps it.
    pub(crate) fn reboot(&mut self, board: Option<&MigBoard>) {
        let kept = board.is_some_and(|board| board.mode_survives_reboot) && self.pending;
        *self = Self {
            current: kept,
            pending: kept,
            instances: Vec::new(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::HostDescription;

    fn machine(host: &str) -> Machine {
        let mut machine = Machine::new(HostDescription::builtin(host).unwrap()).unwrap();
        assert_eq!(machine.set_mig_mode(0, true, false), Ok(0));
        machine
    }

    fn profile(machine: &Machine, name: &str) -> u32 {
        let board = machine.gpus[0].board.mig.as_ref().unwrap();
        board
            .profiles
            .iter()
            .find(|each| each.name == name)
            .unwrap()
            .id
    }

    fn auto(machine: &mut Machine, names: &[&str]) -> Result<(), u32> {
        for name in names {
            let id = profile(machine, name);
            machine.create_gpu_instance(0, id, None)?;
        }
        Ok(())
    }

    /// gpu facts §4.6: the order in which the driver is asked decides whether a layout fits.
    #[test]
    fn small_instances_first_leave_no_room_for_large_ones() {
        for host in ["a100-40", "a100-80", "h100"] {
            let mut sizes = machine(host).gpus[0].board.mig.clone().unwrap().profiles;
            sizes.retain(|each| !each.name.contains('+') && (each.size != 2 || each.slices == 2));
            let name = |slices| {
                sizes
                    .iter()
                    .find(|each| each.slices == slices)
                    .unwrap()
                    .name
                    .clone()
            };
            let (one, two, three) = (name(1), name(2), name(3));
            assert_eq!(
                auto(&mut machine(host), &[&one, &one, &two, &three]),
                Err(INSUFFICIENT_RESOURCES)
            );
            assert_eq!(
                auto(&mut machine(host), &[&three, &one, &two, &one]),
                Ok(())
            );
        }
    }

    /// gpu facts §5.4, and A30's.
    #[test]
    fn published_full_layouts_fit_and_nothing_more_does() {
        for (host, layouts) in [
            (
                "a100-80",
                &[
                    &["1g.10gb"; 7][..],
                    &["2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"],
                    &["3g.40gb", "3g.40gb"],
                    &["4g.40gb", "3g.40gb"],
                    &["7g.80gb"],
                    &["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"],
                    &["1g.20gb"; 4],
                ][..],
            ),
            (
                "a30",
                &[
                    &["1g.6gb"; 4],
                    &["2g.12gb", "2g.12gb"],
                    &["2g.12gb", "1g.6gb", "1g.6gb"],
                    &["4g.24gb"],
                ],
            ),
        ] {
            for layout in layouts {
                let mut machine = machine(host);
                let ids: Vec<_> = layout.iter().map(|name| profile(&machine, name)).collect();
                assert!(place(&mut machine, &ids), "{layout:?}");
                let board = machine.gpus[0].board.mig.clone().unwrap();
                // Seven of one slice leave the eighth memory slice to nobody.
                for profile in board.profiles {
                    assert_eq!(
                        machine.mig_remaining(0, profile.id),
                        Ok(0),
                        "{layout:?} {}",
                        profile.name
                    );
                }
            }
        }
    }

    /// Some choice of placements.
    fn place(machine: &mut Machine, ids: &[u32]) -> bool {
        let Some((first, rest)) = ids.split_first() else {
            return true;
        };
        let profile = machine.mig_profile(0, *first).unwrap().clone();
        for start in &profile.starts {
            if let Ok(handle) = machine.create_gpu_instance(0, *first, Some((*start, profile.size)))
            {
                if place(machine, rest) {
                    return true;
                }
                machine.destroy_gpu_instance(handle).unwrap();
            }
        }
        false
    }

    #[test]
    fn placements_and_ids_are_those_of_real_boards() {
        let mut a100 = machine("a100-80");
        let (one, three) = (profile(&a100, "1g.10gb"), profile(&a100, "3g.40gb"));
        let at = |machine: &mut Machine, id, start, size| {
            let handle = machine.create_gpu_instance(0, id, Some((start, size)))?;
            Ok::<_, u32>(machine.gpu_instance(handle)?.1.id)
        };
        assert_eq!(at(&mut a100, three, 4, 4), Ok(2));
        assert_eq!(at(&mut a100, three, 4, 4), Err(INSUFFICIENT_RESOURCES));
        assert_eq!(at(&mut a100, one, 2, 1), Ok(9));
        assert_eq!(at(&mut a100, one, 6, 1), Err(INSUFFICIENT_RESOURCES));
        assert_eq!(at(&mut a100, one, 7, 1), Err(INVALID_ARGUMENT));
        assert_eq!(a100.create_gpu_instance(0, 77, None), Err(INVALID_ARGUMENT));
    }

    #[test]
    fn instances_go_from_the_inside_out_and_never_under_a_process() {
        let mut h100 = machine("h100");
        let id = profile(&h100, "3g.40gb");
        let instance = h100.create_gpu_instance(0, id, None).unwrap();
        let compute = h100.create_compute_instance(instance, 2, None).unwrap();
        assert_eq!(
            h100.create_compute_instance(instance, 0, None),
            Err(INSUFFICIENT_RESOURCES)
        );
        assert_eq!(
            h100.create_compute_instance(instance, 4, None),
            Err(INVALID_ARGUMENT)
        );
        assert_eq!(h100.destroy_gpu_instance(instance), Err(IN_USE));
        h100.gpus[0].processes.push(super::super::GpuProcess {
            connection: 1,
            pid: 1,
            memory_mib: 1,
            compute: Some(compute),
        });
        assert_eq!(h100.destroy_compute_instance(compute), Err(IN_USE));
        h100.release_client(1);
        assert_eq!(h100.destroy_compute_instance(compute), Ok(()));
        assert_eq!(h100.set_mig_mode(0, false, false), Err(IN_USE));
        assert_eq!(h100.destroy_gpu_instance(instance), Ok(()));
        assert_eq!(
            h100.destroy_gpu_instance(instance),
            Err(INVALID_ARGUMENT),
            "stale"
        );
        assert_eq!(h100.set_mig_mode(0, false, false), Ok(0));
        assert_eq!(h100.create_gpu_instance(0, id, None), Err(NOT_SUPPORTED));
    }

    /// gpu facts §10.6 and §10.11, NVIDIA/gpu-operator#2600.
    #[test]
    fn mode_waits_for_other_clients_and_survives_a_reboot_on_ampere_only() {
        for (host, survives) in [
            ("a100-80", true),
            ("h100", false),
            ("a30", true),
            ("h200", false),
        ] {
            let mut machine = machine(host);
            machine.reboot();
            assert_eq!(machine.gpus[0].mig.current, survives, "{host}");
            machine.set_mig_mode(0, false, false).unwrap();
            assert_eq!(machine.set_mig_mode(0, true, true), Ok(IN_USE));
            let mig = &machine.gpus[0].mig;
            assert_eq!((mig.current, mig.pending), (false, true));
            machine.description.quirks.mig_activation = MigActivation::ResetRequired;
            assert_eq!(machine.set_mig_mode(0, true, false), Ok(RESET_REQUIRED));
        }
        assert_eq!(
            Machine::new(HostDescription::builtin("t4").unwrap())
                .unwrap()
                .set_mig_mode(0, true, false),
            Err(NOT_SUPPORTED)
        );
    }
}
