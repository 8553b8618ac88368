//! Boards beside the T4, and partitions of another manager.

use nvml_wrapper::Nvml;

use crate::fixture::{Fixture, uuid};

const V100: &str = "0000:5e:00.0";
const V100D: &str = "0000:d8:00.0";

#[test]
fn both_v100_are_read_as_what_they_are() {
    let host = Fixture::builtin("v100");
    let nvml = Nvml::builder()
        .lib_path(host.simulator.library().as_os_str())
        .init()
        .unwrap();
    for (index, name, gib, device_id) in [
        (0, "Tesla V100-PCIE-16GB", 16_u64, 0x1db4_10de),
        (1, "Tesla V100-PCIE-32GB", 32, 0x1db6_10de),
    ] {
        let device = nvml.device_by_index(index).unwrap();
        assert_eq!(device.name().unwrap(), name);
        assert_eq!(device.memory_info().unwrap().total, gib << 30);
        assert_eq!(device.pci_info().unwrap().pci_device_id, device_id);
        let compute = device.cuda_compute_capability().unwrap();
        assert_eq!((compute.major, compute.minor), (7, 0));
    }
}

/// Exhaustion is by the published table (gpu facts §5.2), and one size fills the whole GPU.
#[test]
fn each_board_takes_its_own_number_of_each_size() {
    let host = Fixture::builtin("v100");
    for (parent, type_id, other, max) in [(V100, 107, 108, 4), (V100D, 182, 183, 8)] {
        assert_eq!(host.available(parent, type_id), max);
        for n in 0..max {
            let id = uuid(u8::try_from(type_id % 100 + 20 * n).unwrap());
            assert_eq!(host.create(parent, type_id, id), 0, "{parent} {n}");
            assert_eq!(host.available(parent, type_id), max - n - 1);
            assert_eq!(host.available(parent, other), 0, "another size");
        }
        assert_eq!(
            host.create(parent, type_id, uuid(255)),
            rustix::io::Errno::IO.raw_os_error(),
            "one more than the table has"
        );
    }
}

#[test]
fn what_another_manager_made_is_there_at_every_boot() {
    let host = Fixture::builtin("mixed");
    let before = host.client().state().unwrap().mdevs;
    let types: Vec<_> = before.iter().map(|mdev| mdev.type_name.as_str()).collect();
    assert_eq!(types, ["T4-4Q", "V100D-8Q"]);
    assert_eq!(before[0].vm_name.as_deref(), Some("somebody-elses-desktop"));
    assert_eq!(host.available("0000:3b:00.0", 232), 3);
    assert_eq!(host.available("0000:3b:00.0", 233), 0, "another size");
    assert_eq!(host.create("0000:3b:00.0", 232, uuid(1)), 0);
    host.client().reboot().unwrap();
    assert_eq!(host.client().state().unwrap().mdevs, before);
    assert_eq!(host.available("0000:3b:00.0", 232), 3);
    for mdev in &before {
        let device = format!("/sys/bus/mdev/devices/{}", mdev.uuid);
        assert!(host.path(&device).exists());
        assert_eq!(
            host.read(&format!("{device}/nvidia/vm_name")),
            format!("{}\n", mdev.vm_name.as_deref().unwrap_or_default())
        );
    }
}
