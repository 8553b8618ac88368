//! The truth of the simulated host: GPUs, mediated devices and the VMs that hold them, and the driver's rules about
//! them. Pure: no files, no sockets, no clock, no waiting; `host` carries its decisions out.

mod gpu;
mod mdev;
mod mig;

use std::collections::BTreeMap;

use rustix::io::Errno;
use uuid::Uuid;

pub(crate) use self::gpu::{Condition, Gpu, GpuProcess};
pub(crate) use self::mdev::{Mdev, Removal, Vm};
pub(crate) use self::mig::{ComputeInstance, GpuInstance};
use crate::{
    board::VgpuType,
    description::{
        DescriptionError, Flavour, ForeignMdev, HostDescription, RemoveInUse, SameSize,
        SecondRemover,
    },
};

/// First IOMMU group of an mdev; the groups below belong to the machine's own devices.
const FIRST_MDEV_GROUP: u32 = 100;

/// One host's truth.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) description: HostDescription,
    pub(crate) boot: u64,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) mdevs: BTreeMap<Uuid, Mdev>,
    next_iommu_group: u32,
    next_vgpu_instance: u32,
    next_mig_handle: u64,
}

/// What a write to `remove` leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemoveStep {
    /// Nothing asked for.
    Nothing,
    /// The device can go at once.
    Remove,
    /// A VM holds it: the writer waits for the VM for as long as it takes.
    WaitForVm,
    /// A VM holds it: the writer waits for the driver's patience, then hears EBUSY.
    WaitBriefly,
}

impl Machine {
    pub(crate) fn new(description: HostDescription) -> Result<Self, DescriptionError> {
        let gpus = description
            .resolve_boards()?
            .into_iter()
            .enumerate()
            .map(|(index, (slot, board))| Gpu::new(index, &slot, board, &description.name))
            .collect();
        let mut machine = Self {
            description,
            boot: 1,
            gpus,
            mdevs: BTreeMap::new(),
            next_iommu_group: FIRST_MDEV_GROUP,
            next_vgpu_instance: 1,
            next_mig_handle: 0,
        };
        machine.make_foreign()?;
        Ok(machine)
    }

    /// What another manager makes at boot.
    fn make_foreign(&mut self) -> Result<(), DescriptionError> {
        for foreign in self.description.foreign.clone() {
            let made = self.make_one_foreign(&foreign);
            made.ok_or_else(|| DescriptionError::Foreign {
                host: self.description.name.clone(),
                pci: foreign.pci,
                vgpu_type: foreign.vgpu_type,
                uuid: foreign.uuid,
            })?;
        }
        Ok(())
    }

    fn make_one_foreign(&mut self, foreign: &ForeignMdev) -> Option<()> {
        let gpu = self.gpus.iter().find(|gpu| gpu.pci == foreign.pci)?;
        let mut types = gpu.board.vgpu_types.iter();
        let id = types.find(|each| each.name == foreign.vgpu_type)?.id;
        let text = foreign.uuid.to_string();
        self.create(gpu.index, id, text.as_bytes()).ok()?;
        match &foreign.vm {
            Some(vm) => self.open(foreign.uuid, vm.clone(), None).ok(),
            None => Some(()),
        }
    }

    /// Instances of `vgpu_type` that still fit on a GPU: one counter per GPU, from the published maxima. A device that
    /// is being removed counts until it has gone.
    pub(crate) fn available(&self, gpu: usize, vgpu_type: &VgpuType) -> u32 {
        let mut used = 0;
        for mdev in self.mdevs.values().filter(|each| each.gpu == gpu) {
            let same = match self.description.quirks.same_size {
                SameSize::Framebuffer => mdev.framebuffer_mib == vgpu_type.framebuffer_mib,
                SameSize::Type => mdev.type_id == vgpu_type.id,
            };
            if !same {
                return 0;
            }
            used += 1;
        }
        vgpu_type.max_instances.saturating_sub(used)
    }

    /// Whether this host publishes vGPU types at all.
    pub(crate) fn has_vgpu(&self) -> bool {
        self.description.flavour == Flavour::VgpuHost
    }

    /// A write to `create`. The order of the checks is the mdev core's, then the driver's. `None`: nothing was asked for.
    pub(crate) fn create(
        &mut self,
        gpu: usize,
        type_id: u32,
        bytes: &[u8],
    ) -> Result<Option<Uuid>, Errno> {
        let Some(uuid) = mdev::parse_create(bytes)? else {
            return Ok(None);
        };
        if self.mdevs.contains_key(&uuid) {
            return Err(Errno::EXIST);
        }
        let parent = self.gpus.get(gpu).ok_or(Errno::NODEV)?;
        let vgpu_type = parent.board.vgpu_type(type_id).ok_or(Errno::NODEV)?;
        if parent.condition == Condition::Lost || self.available(gpu, vgpu_type) == 0 {
            return Err(self.refusal());
        }
        let mdev = Mdev::new(uuid, gpu, vgpu_type, self.next_iommu_group);
        self.next_iommu_group += 1;
        self.mdevs.insert(uuid, mdev);
        Ok(Some(uuid))
    }

    /// errno with which the driver refuses a create.
    fn refusal(&self) -> Errno {
        self.description
            .quirks
            .capacity_errno
            .map_or(Errno::IO, Errno::from_raw_os_error)
    }

    /// A write to `remove`: marks the device as going away where its removal has begun.
    pub(crate) fn begin_remove(&mut self, uuid: Uuid, bytes: &[u8]) -> Result<RemoveStep, Errno> {
        if bytes.is_empty() || mdev::parse_unsigned(bytes)? == 0 {
            return Ok(RemoveStep::Nothing);
        }
        let (in_use, second) = (
            self.description.remove_in_use(),
            self.description.second_remover(),
        );
        let lost = self
            .mdevs
            .get(&uuid)
            .is_some_and(|mdev| self.gpus[mdev.gpu].condition == Condition::Lost);
        let mdev = self.mdevs.get_mut(&uuid).ok_or(Errno::NODEV)?;
        if mdev.removal == Removal::UnderWay {
            return Err(match second {
                SecondRemover::Eagain => Errno::AGAIN,
                SecondRemover::Enodev | SecondRemover::Enoent => Errno::NODEV,
            });
        }
        let step = match (&mdev.vm, in_use) {
            (Some(_), RemoveInUse::Eperm) => return Err(Errno::PERM),
            (Some(_), RemoveInUse::Block) => RemoveStep::WaitForVm,
            (Some(_), RemoveInUse::Ebusy) => RemoveStep::WaitBriefly,
            // The driver cannot tell a lost GPU to free the instance.
            (None, _) if lost => return Err(Errno::IO),
            (None, _) => RemoveStep::Remove,
        };
        mdev.removal = Removal::UnderWay;
        Ok(step)
    }

    /// The patience of the removal is over and the VM is still there.
    pub(crate) fn abandon_remove(&mut self, uuid: Uuid) {
        if let Some(mdev) = self.mdevs.get_mut(&uuid) {
            mdev.removal = Removal::None;
        }
    }

    /// The device is gone.
    pub(crate) fn finish_remove(&mut self, uuid: Uuid) -> Option<Mdev> {
        self.mdevs.remove(&uuid)
    }

    /// A write to `nvidia/vgpu_params`: stored as it is, applied when a VM next opens the device.
    pub(crate) fn set_params(&mut self, uuid: Uuid, bytes: &[u8]) -> Result<(), Errno> {
        let mdev = self.mdevs.get_mut(&uuid).ok_or(Errno::NXIO)?;
        if mdev.vm.is_some() {
            return Err(Errno::PERM);
        }
        mdev.params = mdev::parse_params(bytes)?;
        Ok(())
    }

    /// A VM opens the device: from now on it is an active vGPU with its frame buffer committed.
    pub(crate) fn open(
        &mut self,
        uuid: Uuid,
        name: String,
        connection: Option<u64>,
    ) -> Result<(), Errno> {
        let instance = self.next_vgpu_instance;
        let mdev = self.mdevs.get_mut(&uuid).ok_or(Errno::NOENT)?;
        if mdev.vm.is_some() {
            return Err(Errno::BUSY);
        }
        if mdev.removal == Removal::UnderWay {
            return Err(Errno::NODEV);
        }
        if self.gpus[mdev.gpu].condition == Condition::Lost {
            return Err(Errno::IO);
        }
        mdev.vm = Some(Vm {
            name,
            instance,
            connection,
        });
        self.next_vgpu_instance += 1;
        Ok(())
    }

    /// The VM closes the device.
    pub(crate) fn close(&mut self, uuid: Uuid) -> Result<(), Errno> {
        let mdev = self.mdevs.get_mut(&uuid).ok_or(Errno::NOENT)?;
        mdev.vm.take().map(drop).ok_or(Errno::NODEV)
    }

    /// Everything that a client held is released, as the kernel does when the process ends. Answers the devices whose
    /// VM went with it.
    pub(crate) fn release_client(&mut self, connection: u64) -> Vec<Uuid> {
        for gpu in &mut self.gpus {
            gpu.processes.retain(|each| each.connection != connection);
        }
        let held = |mdev: &&mut Mdev| {
            mdev.vm
                .as_ref()
                .is_some_and(|vm| vm.connection == Some(connection))
        };
        self.mdevs
            .values_mut()
            .filter(held)
            .map(|mdev| {
                mdev.vm = None;
                mdev.uuid
            })
            .collect()
    }

    /// A reboot: no device, VM or process is left, and a lost GPU is back.
    pub(crate) fn reboot(&mut self) {
        self.boot += 1;
        self.mdevs.clear();
        self.next_iommu_group = FIRST_MDEV_GROUP;
        for gpu in &mut self.gpus {
            gpu.condition = Condition::Healthy;
            gpu.processes.clear();
            gpu.mig.reboot(gpu.board.mig.as_ref());
        }
        self.make_foreign()
            .expect("it was made at the first boot, on the same empty GPUs");
    }

    /// The GPU that `text` names by UUID, PCI address or index.
    pub(crate) fn find_gpu(&self, text: &str) -> Option<usize> {
        let pci = text.parse().ok();
        self.gpus.iter().position(|gpu| {
            gpu.uuid == text || Some(gpu.pci) == pci || gpu.index.to_string() == text
        })
    }

    /// As [`Self::find_gpu`], or the MIG device with this UUID: its GPU and its compute instance.
    pub(crate) fn find_device(&self, text: &str) -> Option<(usize, Option<u64>)> {
        let mut devices = self.compute_instances();
        match devices.find(|(_, _, compute)| compute.uuid == text) {
            Some((gpu, _, compute)) => Some((gpu, Some(compute.handle))),
            None => self.find_gpu(text).map(|gpu| (gpu, None)),
        }
    }

    /// Frame buffer in use on a GPU in MiB: running VMs and processes. A created but unopened mdev takes none.
    pub(crate) fn used_mib(&self, gpu: usize) -> u64 {
        let vms: u64 = self
            .mdevs
            .values()
            .filter(|each| each.gpu == gpu && each.vm.is_some())
            .map(|each| each.framebuffer_mib)
            .sum();
        let processes: u64 = self.gpus[gpu]
            .processes
            .iter()
            .map(|each| each.memory_mib)
            .sum();
        let board = &self.gpus[gpu].board;
        // Sixteen 1Q are 16384 MiB of a 15360 MiB board: the guest sees less than the type's name says.
        (vms + processes).min(board.memory_mib - board.reserved_mib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(host: &str) -> Machine {
        Machine::new(HostDescription::builtin(host).unwrap()).unwrap()
    }

    fn available(machine: &Machine, type_id: u32) -> u32 {
        machine.available(0, machine.gpus[0].board.vgpu_type(type_id).unwrap())
    }

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn create(
        machine: &mut Machine,
        gpu: usize,
        type_id: u32,
        n: u128,
    ) -> Result<Option<Uuid>, Errno> {
        machine.create(gpu, type_id, uuid(n).to_string().as_bytes())
    }

    #[test]
    fn first_instance_sets_the_size_for_the_whole_gpu_and_the_last_one_frees_it() {
        let mut t4 = machine("t4");
        assert_eq!(
            (
                available(&t4, 230),
                available(&t4, 231),
                available(&t4, 232)
            ),
            (16, 8, 4)
        );
        create(&mut t4, 0, 231, 1).unwrap();
        assert_eq!(
            (
                available(&t4, 230),
                available(&t4, 231),
                available(&t4, 232)
            ),
            (0, 7, 0)
        );
        // Another series of the same size shares the counter.
        assert_eq!(available(&t4, 226), 7);
        assert_eq!(create(&mut t4, 0, 230, 2), Err(Errno::IO));
        create(&mut t4, 0, 226, 2).unwrap();
        assert_eq!(available(&t4, 231), 6);
        for n in [1, 2] {
            assert_eq!(t4.begin_remove(uuid(n), b"1"), Ok(RemoveStep::Remove));
            t4.finish_remove(uuid(n));
        }
        assert_eq!(
            (
                available(&t4, 230),
                available(&t4, 231),
                available(&t4, 232)
            ),
            (16, 8, 4)
        );
    }

    #[test]
    fn same_type_quirk_refuses_another_series_of_the_same_size() {
        let mut t4 = machine("t4");
        t4.description.quirks.same_size = SameSize::Type;
        create(&mut t4, 0, 231, 1).unwrap();
        assert_eq!(create(&mut t4, 0, 226, 2), Err(Errno::IO));
        create(&mut t4, 0, 231, 2).unwrap();
    }

    #[test]
    fn capacity_is_the_published_maximum_and_not_arithmetic_on_memory() {
        let mut t4 = machine("t4");
        for n in 1..=16 {
            create(&mut t4, 0, 230, n).unwrap();
        }
        assert_eq!(create(&mut t4, 0, 230, 17), Err(Errno::IO));
        t4.description.quirks.capacity_errno = Some(Errno::NOSPC.raw_os_error());
        assert_eq!(create(&mut t4, 0, 230, 17), Err(Errno::NOSPC));
    }

    #[test]
    fn uuid_is_unique_across_parents_and_case() {
        let mut host = machine("two-t4");
        let text = "aaaaaaaa-0000-4000-8000-00000000000a";
        host.create(0, 232, text.as_bytes()).unwrap();
        for (gpu, bytes) in [
            (0, text.to_owned()),
            (1, text.to_owned()),
            (1, text.to_uppercase()),
        ] {
            assert_eq!(host.create(gpu, 230, bytes.as_bytes()), Err(Errno::EXIST));
        }
        // The sibling has a size of its own.
        create(&mut host, 1, 230, 2).unwrap();
    }

    #[test]
    fn removing_an_open_device_follows_the_quirk() {
        for (quirk, expect) in [
            (RemoveInUse::Block, Ok(RemoveStep::WaitForVm)),
            (RemoveInUse::Ebusy, Ok(RemoveStep::WaitBriefly)),
            (RemoveInUse::Eperm, Err(Errno::PERM)),
        ] {
            let mut t4 = machine("t4");
            t4.description.quirks.remove_in_use = Some(quirk);
            create(&mut t4, 0, 232, 1).unwrap();
            t4.open(uuid(1), "vm".into(), None).unwrap();
            assert_eq!(t4.begin_remove(uuid(1), b"1\n"), expect);
        }
    }

    #[test]
    fn second_remover_is_told_what_the_quirk_says() {
        for (quirk, expect) in [
            (SecondRemover::Eagain, Errno::AGAIN),
            (SecondRemover::Enodev, Errno::NODEV),
            (SecondRemover::Enoent, Errno::NODEV),
        ] {
            let mut t4 = machine("t4");
            t4.description.quirks.second_remover = Some(quirk);
            create(&mut t4, 0, 232, 1).unwrap();
            t4.begin_remove(uuid(1), b"1").unwrap();
            assert_eq!(t4.begin_remove(uuid(1), b"1"), Err(expect));
            t4.finish_remove(uuid(1));
            assert_eq!(t4.begin_remove(uuid(1), b"1"), Err(Errno::NODEV));
        }
    }

    #[test]
    fn frame_buffer_is_committed_when_a_vm_opens_the_device() {
        let mut t4 = machine("t4");
        create(&mut t4, 0, 232, 1).unwrap();
        assert_eq!(t4.used_mib(0), 0);
        t4.open(uuid(1), "vm".into(), None).unwrap();
        assert_eq!(t4.used_mib(0), 4096);
        assert_eq!(t4.open(uuid(1), "other".into(), None), Err(Errno::BUSY));
        t4.close(uuid(1)).unwrap();
        assert_eq!(t4.used_mib(0), 0);
        assert_eq!(t4.close(uuid(1)), Err(Errno::NODEV));
    }

    #[test]
    fn lost_gpu_refuses_creates_and_removes_until_the_reboot() {
        let mut t4 = machine("t4");
        create(&mut t4, 0, 232, 1).unwrap();
        t4.gpus[0].condition = Condition::Lost;
        assert_eq!(create(&mut t4, 0, 232, 2), Err(Errno::IO));
        assert_eq!(t4.begin_remove(uuid(1), b"1"), Err(Errno::IO));
        assert_eq!(t4.open(uuid(1), "vm".into(), None), Err(Errno::IO));
        t4.reboot();
        assert!(t4.mdevs.is_empty());
        create(&mut t4, 0, 232, 2).unwrap();
    }

    #[test]
    fn params_are_refused_while_a_vm_runs_and_when_too_long() {
        let mut t4 = machine("t4");
        assert_eq!(t4.set_params(uuid(1), b"a=1"), Err(Errno::NXIO));
        create(&mut t4, 0, 232, 1).unwrap();
        t4.set_params(uuid(1), b"enable_uvm=1\n").unwrap();
        assert_eq!(t4.mdevs[&uuid(1)].params, "enable_uvm=1\n");
        assert_eq!(t4.set_params(uuid(1), &[b'a'; 4096]), Err(Errno::TOOBIG));
        t4.open(uuid(1), "vm".into(), None).unwrap();
        assert_eq!(t4.set_params(uuid(1), b"a=1"), Err(Errno::PERM));
    }

    #[test]
    fn gpus_are_found_by_uuid_address_and_index() {
        let host = machine("two-t4");
        let second = host.gpus[1].uuid.clone();
        for text in [second.as_str(), "0000:af:00.0", "00000000:AF:00.0", "1"] {
            assert_eq!(host.find_gpu(text), Some(1), "{text}");
        }
        assert_eq!(host.find_gpu("2"), None);
    }
}
