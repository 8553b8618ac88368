//! The host as its files: what a reader finds, and that it never finds half of it.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::fixture::{FIRST, Fixture, SECOND, remove, uuid};

#[test]
fn host_reads_as_a_real_one_does() {
    let host = Fixture::builtin("two-t4");
    for (path, expect) in [
        ("/sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n"),
        ("/sys/bus/pci/devices/0000:3b:00.0/device", "0x1eb8\n"),
        ("/sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n"),
        ("/sys/bus/pci/devices/0000:af:00.0/numa_node", "0\n"),
        ("/sys/module/nvidia/version", "535.161.05\n"),
        (
            "/sys/class/mdev_bus/0000:3b:00.0/mdev_supported_types/nvidia-232/name",
            "NVIDIA T4-4Q\n",
        ),
        (
            "/sys/class/mdev_bus/0000:3b:00.0/mdev_supported_types/nvidia-232/device_api",
            "vfio-pci\n",
        ),
        (
            "/sys/class/mdev_bus/0000:3b:00.0/mdev_supported_types/nvidia-232/description",
            "num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=7680x4320, max_instance=4\n",
        ),
    ] {
        assert_eq!(host.read(path), expect, "{path}");
    }
    let state = host.client().state().unwrap();
    assert_eq!(
        host.read("/proc/sys/kernel/random/boot_id").trim_end(),
        state.boot_id
    );
    let information = host.read("/proc/driver/nvidia/gpus/0000:3b:00.0/information");
    assert!(information.contains(&state.gpus[0].uuid), "{information}");
    assert!(
        host.read("/proc/driver/nvidia/version")
            .contains("535.161.05")
    );
    for (link, target) in [
        (
            format!("/sys/class/mdev_bus/{FIRST}"),
            format!("/sys/bus/pci/devices/{FIRST}"),
        ),
        (
            format!("/sys/bus/pci/devices/{SECOND}/driver"),
            "/sys/bus/pci/drivers/nvidia".to_owned(),
        ),
        (
            format!("/sys/bus/pci/drivers/nvidia/{SECOND}"),
            format!("/sys/bus/pci/devices/{SECOND}"),
        ),
    ] {
        let [link, target] = [link, target].map(|path| host.path(&path).canonicalize().unwrap());
        assert_eq!(link, target);
    }
    assert!(host.path("/dev/nvidia1").exists());
    assert_eq!(
        fs::read_dir(host.path(&format!("/sys/class/mdev_bus/{FIRST}/mdev_supported_types")))
            .unwrap()
            .count(),
        17
    );
}

#[test]
fn cpus_of_a_node_are_the_machines_own() {
    let host = Fixture::builtin("t4");
    let real = fs::read_to_string("/sys/devices/system/node/node0/cpulist")
        .or_else(|_| fs::read_to_string("/sys/devices/system/cpu/online"))
        .unwrap();
    assert_eq!(host.read("/sys/devices/system/node/node0/cpulist"), real);
    assert_eq!(
        host.read(&format!("/sys/bus/pci/devices/{FIRST}/local_cpulist")),
        real
    );
}

#[test]
fn gpus_are_the_same_in_every_run_and_no_boot_is_the_same() {
    let (one, two) = (Fixture::builtin("two-t4"), Fixture::builtin("two-t4"));
    let [one, two] = [one, two].map(|host| host.client().state().unwrap());
    let gpus = |state: &simulator::State| {
        state
            .gpus
            .iter()
            .map(|gpu| gpu.uuid.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(gpus(&one), gpus(&two));
    assert_ne!(one.gpus[0].uuid, one.gpus[1].uuid);
    assert_ne!(one.boot_id, two.boot_id);
}

#[test]
fn device_has_every_link_that_the_kernel_makes() {
    let host = Fixture::builtin("t4");
    host.create(FIRST, 232, uuid(1));
    let device = host.path(&format!("/sys/bus/mdev/devices/{}", uuid(1)));
    let parent = host
        .path(&format!("/sys/bus/pci/devices/{FIRST}"))
        .canonicalize()
        .unwrap();
    assert_eq!(
        device.canonicalize().unwrap(),
        parent.join(uuid(1).to_string())
    );
    assert_eq!(
        device.join("mdev_type").canonicalize().unwrap(),
        parent.join("mdev_supported_types/nvidia-232")
    );
    let of_type = parent.join(format!(
        "mdev_supported_types/nvidia-232/devices/{}",
        uuid(1)
    ));
    assert_eq!(
        of_type.canonicalize().unwrap(),
        device.canonicalize().unwrap()
    );
    assert!(
        device
            .join("driver")
            .canonicalize()
            .unwrap()
            .ends_with("bus/mdev/drivers/nvidia-vgpu-vfio")
    );
    let group = device.join("iommu_group").canonicalize().unwrap();
    let group = group.file_name().unwrap().to_str().unwrap();
    assert_eq!(
        group,
        host.client().state().unwrap().mdevs[0]
            .iommu_group
            .to_string()
    );
    assert!(host.path(&format!("/dev/vfio/{group}")).exists());
    host.write(&remove(uuid(1)), b"1");
    assert!(!host.path(&format!("/dev/vfio/{group}")).exists());
    assert!(!parent.join(uuid(1).to_string()).exists());
}

#[test]
fn reader_never_sees_a_half_made_device() {
    let host = Fixture::builtin("t4");
    let devices = host.path("/sys/bus/mdev/devices");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            loop {
                // Read before looking, so that the last round sees every device.
                let last = done.load(Ordering::SeqCst);
                let mut seen = 0;
                for entry in fs::read_dir(&devices).unwrap().map(Result::unwrap) {
                    assert_eq!(
                        fs::read_to_string(entry.path().join("nvidia/vm_name")).unwrap(),
                        "\n"
                    );
                    assert!(entry.path().join("mdev_type/name").is_file());
                    assert!(entry.path().join("iommu_group/devices").is_dir());
                    assert!(entry.path().join("remove").is_file());
                    seen += 1;
                }
                if last {
                    return seen;
                }
            }
        });
        for n in 1..=16 {
            host.create(FIRST, 230, uuid(n));
        }
        done.store(true, Ordering::SeqCst);
        assert_eq!(reader.join().unwrap(), 16);
    });
}

#[test]
fn params_are_kept_verbatim_and_refused_while_a_vm_runs() {
    let host = Fixture::builtin("t4");
    host.create(FIRST, 232, uuid(1));
    let path = format!("/sys/bus/mdev/devices/{}/nvidia/vgpu_params", uuid(1));
    assert_eq!(host.write(&path, b"frame_rate_limiter=0,enable_uvm=1"), 0);
    assert_eq!(host.read(&path), "frame_rate_limiter=0,enable_uvm=1");
    assert_eq!(host.write(&path, &[b'x'; 2000]), 7, "E2BIG");
    host.client().vm_open(uuid(1), "vm").unwrap();
    assert_eq!(host.write(&path, b"a=1"), crate::fixture::EPERM);
}

#[test]
fn data_centre_driver_publishes_no_types() {
    let mut description = simulator::HostDescription::builtin("t4").unwrap();
    description.flavour = simulator::Flavour::DataCentre;
    let host = Fixture::with(description);
    assert!(
        host.path(&format!("/sys/bus/pci/devices/{FIRST}/vendor"))
            .exists()
    );
    assert!(
        !host
            .path(&format!(
                "/sys/bus/pci/devices/{FIRST}/mdev_supported_types"
            ))
            .exists()
    );
    assert!(!host.path("/sys/class/mdev_bus").exists());
}

#[test]
fn reboot_loses_every_device_and_changes_the_boot_id() {
    let host = Fixture::builtin("t4");
    host.create(FIRST, 232, uuid(1));
    host.client().vm_open(uuid(1), "vm").unwrap();
    let before = host.read("/proc/sys/kernel/random/boot_id");
    host.client().reboot().unwrap();
    assert_ne!(host.read("/proc/sys/kernel/random/boot_id"), before);
    assert_eq!(
        fs::read_dir(host.path("/sys/bus/mdev/devices"))
            .unwrap()
            .count(),
        0
    );
    assert_eq!(host.available(FIRST, 230), 16);
    let state = host.client().state().unwrap();
    assert_eq!((state.boot, state.mdevs.len()), (2, 0));
}
