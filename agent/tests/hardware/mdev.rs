//! Mediated devices on the simulated host: the errno tables in words, and nobody else's devices.

use std::sync::Arc;

use agent::attributes::ChildAttributes;
use agent::gpus::Gpus;
use agent::operation::place::Place;
use agent::partitioner::{Class, Partitioner, Slot};
use events::inventory::Backend;
use events::{Code, PartitionId};
use simulator::{Client, Fault, HostDescription, Simulator, Window};

use crate::{DEADLINE, PROGRAM};

struct Host {
    partitioner: Gpus,
    client: Client,
    slot: Slot,
    simulator: Simulator,
    _folder: tempfile::TempDir,
}

fn id(n: u128) -> PartitionId {
    PartitionId(uuid::Uuid::from_u128(
        0x5be6_c0a4_1d9f_4c6e_9d1c_0000_0000_0000 + n,
    ))
}

fn host() -> Host {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start(
        HostDescription::builtin("t4").unwrap(),
        &folder.path().join("host"),
    )
    .unwrap();
    let attributes = ChildAttributes::socket(PROGRAM.into(), simulator.socket(), DEADLINE);
    let partitioner = Gpus::new(
        simulator.root(),
        simulator.library(),
        "/proc".into(),
        Arc::new(attributes),
    );
    let client = Client::connect(simulator.dir()).unwrap();
    let gpu = partitioner.observe().unwrap().gpus.remove(0).uuid;
    Host {
        partitioner,
        client,
        slot: Slot {
            gpu,
            place: Place::mdev(id(1)),
        },
        simulator,
        _folder: folder,
    }
}

impl Host {
    fn slot(&self, n: u128) -> Slot {
        Slot {
            place: Place::mdev(id(n)),
            ..self.slot.clone()
        }
    }

    fn create(&self, n: u128, profile: &str) -> Result<(), (Code, Class, String)> {
        let created = self
            .partitioner
            .create(&self.slot(n), &profile.parse().unwrap());
        created.map_err(|error| (error.code, error.class, error.message))
    }

    fn available(&self, profile: &str) -> u32 {
        let observed = self.partitioner.observe_gpu(&self.slot.gpu).unwrap();
        observed
            .profiles
            .iter()
            .find(|offer| offer.profile.as_str() == profile)
            .unwrap()
            .available
    }
}

#[test]
fn a_t4_is_seen_as_it_is() {
    let host = host();
    let observation = host.partitioner.observe().unwrap();
    let gpu = &observation.gpus[0];
    assert_eq!(
        (gpu.pci.to_string().as_str(), gpu.backend, &gpu.unavailable),
        ("0000:3b:00.0", Some(Backend::Mdev), &None)
    );
    assert_eq!((gpu.memory_mib, gpu.profiles.len()), (Some(15360), 17));
    let four = gpu
        .profiles
        .iter()
        .find(|offer| offer.profile.as_str() == "T4-4Q")
        .unwrap();
    assert_eq!(
        (four.memory_mib, four.max_instances, four.available),
        (4096, 4, 4)
    );
    assert!(observation.epoch.contains(&observation.driver_version));
}

#[test]
fn a_partition_is_made_read_back_and_removed() {
    let host = host();
    host.create(1, "T4-4Q").unwrap();
    let seen = host
        .partitioner
        .observe_gpu(&host.slot.gpu)
        .unwrap()
        .partitions;
    assert_eq!(
        (seen.len(), &seen[0].place, seen[0].profile.as_str()),
        (1, &Place::mdev(id(1)), "T4-4Q")
    );
    assert_eq!(
        seen[0].access.sysfs_path,
        format!("/sys/bus/mdev/devices/{}", id(1))
    );
    assert_eq!((host.available("T4-4Q"), host.available("T4-8Q")), (3, 0));
    host.partitioner.destroy(&host.slot(1)).unwrap();
    host.partitioner.destroy(&host.slot(1)).unwrap();
    assert_eq!((host.available("T4-4Q"), host.available("T4-8Q")), (4, 2));
}

/// field F57: another size, a full GPU and an unknown type are three different things.
#[test]
fn refusals_say_what_is_in_the_way() {
    let host = host();
    for n in 0..4 {
        host.create(n, "T4-4Q").unwrap();
    }
    let (code, class, text) = host.create(9, "T4-4Q").unwrap_err();
    assert_eq!((code, class), (Code::NoCapacity, Class::Refuse), "{text}");
    let (code, class, text) = host.create(9, "T4-8Q").unwrap_err();
    assert_eq!((code, class), (Code::SizeMismatch, Class::Refuse));
    assert!(text.contains("T4-4Q (4 in use)"), "{text}");
    let (code, _, text) = host.create(9, "T4-3Q").unwrap_err();
    assert_eq!(code, Code::UnknownProfile);
    assert!(text.contains("T4-16Q"), "the choices are listed: {text}");
    let (code, _, text) = host.create(3, "T4-4Q").unwrap_err();
    assert!(
        matches!(code, Code::NoCapacity | Code::DriverError),
        "{text}"
    );
    assert_eq!(
        host.partitioner
            .observe_gpu(&host.slot.gpu)
            .unwrap()
            .partitions
            .len(),
        4
    );
}

#[test]
fn a_uuid_that_is_taken_is_told_apart() {
    let mut host = host();
    let path = "/sys/bus/pci/devices/0000:3b:00.0/mdev_supported_types/nvidia-232/create";
    host.client
        .write(path, id(1).to_string().as_bytes())
        .unwrap();
    let (code, class, text) = host.create(1, "T4-4Q").unwrap_err();
    assert_eq!((code, class), (Code::DriverError, Class::Refuse));
    assert!(text.contains("exists already"), "{text}");
}

#[test]
fn what_a_vm_holds_is_not_removed_and_the_vm_is_named() {
    let mut host = host();
    host.create(1, "T4-4Q").unwrap();
    host.client.vm_open(id(1).0, "vm-seven").unwrap();
    let error = host.partitioner.destroy(&host.slot(1)).unwrap_err();
    assert_eq!((error.code, error.class), (Code::InUse, Class::Refuse));
    assert!(error.message.contains("vm-seven"), "{}", error.message);
    assert_eq!(
        host.client.state().unwrap().writes.removed,
        0,
        "no write was tried"
    );
    host.client.vm_close(id(1).0).unwrap();
    host.partitioner.destroy(&host.slot(1)).unwrap();
}

#[test]
fn what_a_process_has_open_is_not_removed_and_the_process_is_named() {
    let host = host();
    host.create(1, "T4-4Q").unwrap();
    let root = host.simulator.root();
    let group =
        std::fs::read_link(root.join(format!("sys/bus/mdev/devices/{}/iommu_group", id(1))))
            .unwrap();
    let node = std::fs::File::open(root.join("dev/vfio").join(group.file_name().unwrap())).unwrap();
    let error = host.partitioner.destroy(&host.slot(1)).unwrap_err();
    assert_eq!(error.code, Code::InUse);
    assert!(
        error.message.contains(&std::process::id().to_string()),
        "{}",
        error.message
    );
    drop(node);
    host.partitioner.destroy(&host.slot(1)).unwrap();
}

/// A removal that a VM blocks is not a removal, although the device has left the host's list.
#[test]
fn a_removal_that_blocks_makes_the_gpu_stuck_until_it_comes_back() {
    let mut host = host();
    host.create(1, "T4-4Q").unwrap();
    host.create(2, "T4-4Q").unwrap();
    host.client.vm_open(id(1).0, "vm1").unwrap();
    let path = format!("/sys/bus/mdev/devices/{}/remove", id(1));
    let mut remover = Client::connect(host.simulator.dir()).unwrap();
    let removal = std::thread::spawn(move || remover.write(&path, b"1"));
    let waits = |state: &simulator::State| !state.waiting.is_empty();
    host.client.wait_for(DEADLINE, waits).unwrap();
    let observed = host.partitioner.observe_gpu(&host.slot.gpu).unwrap();
    assert!(
        observed
            .unavailable
            .as_ref()
            .unwrap()
            .contains(&id(1).to_string()),
        "{observed:?}"
    );
    assert_eq!(observed.partitions.len(), 1, "its sibling is still seen");
    host.client.vm_close(id(1).0).unwrap();
    removal.join().unwrap().unwrap();
    let observed = host.partitioner.observe_gpu(&host.slot.gpu).unwrap();
    assert_eq!((observed.unavailable, observed.partitions.len()), (None, 1));
}

/// Each errno of the table reaches its class; what a passing shortage meant is tried again.
#[test]
fn errnos_reach_their_class() {
    for (errno, code, class) in [
        (libc::EBUSY, Code::DriverError, Class::Retry),
        (libc::ENOMEM, Code::DriverError, Class::Retry),
        (libc::EINVAL, Code::Internal, Class::Bug),
        (libc::EACCES, Code::DriverError, Class::Refuse),
        (libc::EIO, Code::DriverError, Class::Refuse),
    ] {
        let mut host = host();
        let fault = Fault::Write {
            path_suffix: "create".to_owned(),
            errno,
            effect: simulator::Effect::Before,
            window: Window::default(),
        };
        host.client.fault(fault).unwrap();
        let (got, got_class, text) = host.create(1, "T4-4Q").unwrap_err();
        assert_eq!((got, got_class), (code, class), "errno {errno}: {text}");
        assert_eq!(host.available("T4-4Q"), 4);
    }
}

#[test]
fn a_driver_that_goes_and_comes_back_is_found_again() {
    let mut host = host();
    let before = host.partitioner.observe().unwrap();
    host.create(1, "T4-4Q").unwrap();
    host.client.reboot().unwrap();
    // The old session is refused once; the next look has a new one.
    let after = host
        .partitioner
        .observe()
        .or_else(|_| host.partitioner.observe())
        .unwrap();
    assert_ne!(before.epoch, after.epoch, "a reboot is another epoch");
    assert_eq!(after.gpus[0].partitions, []);
}

/// field F57: a number that cannot be read is an error of that GPU, and not 0.
#[test]
fn an_unreadable_number_of_instances_is_not_zero() {
    let host = host();
    let file = host.simulator.root().join(
        "sys/bus/pci/devices/0000:3b:00.0/mdev_supported_types/nvidia-232/available_instances",
    );
    for (text, readable) in [
        ("3\n", true),
        ("3", true),
        ("", false),
        ("-1\n", false),
        ("x\n", false),
    ] {
        std::fs::write(&file, text).unwrap();
        let gpu = host.partitioner.observe_gpu(&host.slot.gpu).unwrap();
        assert_eq!(
            gpu.unavailable.is_none(),
            readable,
            "{text:?}: {:?}",
            gpu.unavailable
        );
        if readable {
            assert_eq!(host.available("T4-4Q"), 3);
        } else {
            let reason = gpu.unavailable.unwrap();
            assert!(reason.contains("available_instances"), "{reason}");
            assert!(gpu.profiles.is_empty(), "nothing is offered");
        }
    }
}
