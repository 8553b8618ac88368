//! Removing a device that a VM has open, under each belief about what happens then.

use std::{thread, time::Duration};

use simulator::{HostDescription, RemoveInUse, SecondRemover, WaitCause};

use crate::fixture::{
    DEADLINE, EAGAIN, EBUSY, EEXIST, ENODEV, ENOENT, EPERM, FIRST, Fixture, create, errno, remove,
    uuid,
};

fn host(remove_in_use: RemoveInUse, second_remover: SecondRemover) -> Fixture {
    let mut description = HostDescription::builtin("t4").unwrap();
    description.quirks.remove_in_use = Some(remove_in_use);
    description.quirks.second_remover = Some(second_remover);
    description.quirks.ebusy_after_ms = Some(50);
    let host = Fixture::with(description);
    assert_eq!(host.create(FIRST, 232, uuid(1)), 0);
    host.client().vm_open(uuid(1), "tenant-7").unwrap();
    host
}

/// Path of the device that stays while its removal waits.
fn real_remove() -> String {
    format!("/sys/bus/pci/devices/{FIRST}/{}/remove", uuid(1))
}

#[test]
fn remove_blocks_until_the_vm_closes_and_the_device_is_hidden_meanwhile() {
    let host = host(RemoveInUse::Block, SecondRemover::Enoent);
    thread::scope(|scope| {
        let remover = scope.spawn(|| host.write(&remove(uuid(1)), b"1"));
        let mut client = host.client();
        let state = client
            .wait_for(DEADLINE, |state| !state.waiting.is_empty())
            .unwrap();
        assert_eq!(state.waiting[0].cause, WaitCause::Vm);
        assert!(state.mdev(uuid(1)).unwrap().being_removed);
        // What the real kernel showed: the bus link is gone, a second remover finds nothing, the UUID is still taken.
        assert!(
            !host
                .path(&format!("/sys/bus/mdev/devices/{}", uuid(1)))
                .exists()
        );
        assert_eq!(host.write(&remove(uuid(1)), b"1"), ENOENT);
        assert_eq!(host.write(&real_remove(), b"1"), ENOENT);
        assert_eq!(host.create(FIRST, 232, uuid(1)), EEXIST);
        assert_eq!(host.available(FIRST, 232), 3);
        // Other writes of the host go on.
        assert_eq!(host.create(FIRST, 232, uuid(2)), 0);
        assert!(!remover.is_finished());
        client.vm_close(uuid(1)).unwrap();
        assert_eq!(remover.join().unwrap(), 0);
    });
    let state = host.client().state().unwrap();
    assert!(state.mdev(uuid(1)).is_none());
    assert_eq!(host.available(FIRST, 232), 3);
    assert_eq!(host.create(FIRST, 232, uuid(1)), 0);
}

#[test]
fn second_remover_is_told_what_the_kernel_kind_says() {
    for (quirk, expect) in [
        (SecondRemover::Eagain, EAGAIN),
        (SecondRemover::Enodev, ENODEV),
    ] {
        let host = host(RemoveInUse::Block, quirk);
        thread::scope(|scope| {
            let remover = scope.spawn(|| host.write(&remove(uuid(1)), b"1"));
            let mut client = host.client();
            client
                .wait_for(DEADLINE, |state| !state.waiting.is_empty())
                .unwrap();
            assert_eq!(host.write(&remove(uuid(1)), b"1"), expect);
            client.vm_close(uuid(1)).unwrap();
            assert_eq!(remover.join().unwrap(), 0);
        });
        assert_eq!(host.write(&remove(uuid(1)), b"1"), ENOENT);
    }
}

#[test]
fn older_driver_refuses_at_once() {
    let host = host(RemoveInUse::Eperm, SecondRemover::Eagain);
    assert_eq!(host.write(&remove(uuid(1)), b"1"), EPERM);
    host.client().vm_close(uuid(1)).unwrap();
    assert_eq!(host.write(&remove(uuid(1)), b"1"), 0);
}

#[test]
fn legacy_kernel_is_the_same_without_naming_the_quirk() {
    let host = Fixture::builtin("t4-legacy");
    host.create(FIRST, 232, uuid(1));
    host.client().vm_open(uuid(1), "vm").unwrap();
    assert_eq!(host.write(&remove(uuid(1)), b"1"), EPERM);
}

#[test]
fn driver_that_waits_for_its_plugin_gives_up_with_ebusy_and_the_device_is_whole_again() {
    for second_remover in [SecondRemover::Eagain, SecondRemover::Enoent] {
        let host = host(RemoveInUse::Ebusy, second_remover);
        assert_eq!(host.write(&remove(uuid(1)), b"1"), EBUSY);
        assert!(
            !host
                .client()
                .state()
                .unwrap()
                .mdev(uuid(1))
                .unwrap()
                .being_removed
        );
        assert_eq!(
            host.read(&format!("/sys/bus/mdev/devices/{}/nvidia/vm_name", uuid(1))),
            "tenant-7\n"
        );
        assert!(
            host.path(&format!("/sys/bus/mdev/devices/{}/mdev_type", uuid(1)))
                .is_dir()
        );
        host.client().vm_close(uuid(1)).unwrap();
        assert_eq!(host.write(&remove(uuid(1)), b"1"), 0);
    }
}

#[test]
fn remover_that_is_killed_does_not_stop_the_removal() {
    let host = host(RemoveInUse::Block, SecondRemover::Enoent);
    let mut client = host.client();
    // A writer that hangs up while the kernel waits: the task is uninterruptible, the removal goes on.
    let socket = std::os::unix::net::UnixStream::connect(host.simulator.socket()).unwrap();
    let line = format!(
        "{{\"attribute_write\":{{\"path\":\"{}\",\"bytes\":\"MQ==\"}}}}\n",
        remove(uuid(1))
    );
    std::io::Write::write_all(&mut &socket, line.as_bytes()).unwrap();
    client
        .wait_for(DEADLINE, |state| !state.waiting.is_empty())
        .unwrap();
    drop(socket);
    client.vm_close(uuid(1)).unwrap();
    client
        .wait_for(DEADLINE, |state| state.mdevs.is_empty())
        .unwrap();
}

#[test]
fn reboot_ends_a_blocked_removal() {
    let host = host(RemoveInUse::Block, SecondRemover::Enoent);
    thread::scope(|scope| {
        let remover = scope.spawn(|| host.write(&remove(uuid(1)), b"1"));
        let mut client = host.client();
        client
            .wait_for(DEADLINE, |state| !state.waiting.is_empty())
            .unwrap();
        client.reboot().unwrap();
        assert_eq!(remover.join().unwrap(), ENODEV);
    });
    assert_eq!(host.create(FIRST, 230, uuid(1)), 0);
}

#[test]
fn shutdown_ends_a_blocked_removal() {
    let host = host(RemoveInUse::Block, SecondRemover::Enoent);
    let mut writer = host.client();
    let remover = thread::spawn(move || writer.write(&remove(uuid(1)), b"1"));
    host.client()
        .wait_for(DEADLINE, |state| !state.waiting.is_empty())
        .unwrap();
    host.simulator.shutdown();
    // Answered or cut off; what matters is that it ends.
    assert!(remover.join().unwrap().is_err());
}

#[test]
fn vm_shows_in_vm_name_and_ends_with_its_process() {
    let host = Fixture::builtin("t4");
    host.create(FIRST, 232, uuid(1));
    let vm_name = format!("/sys/bus/mdev/devices/{}/nvidia/vm_name", uuid(1));
    let mut vm = host.client();
    vm.become_vm(uuid(1), "vm-a").unwrap();
    assert_eq!(host.read(&vm_name), "vm-a\n");
    assert_eq!(errno(host.client().vm_open(uuid(1), "vm-b")), EBUSY);
    drop(vm);
    host.client()
        .wait_for(DEADLINE, |state| state.mdevs[0].vm_name.is_none())
        .unwrap();
    assert_eq!(host.read(&vm_name), "\n");
    assert_eq!(errno(host.client().vm_close(uuid(1))), ENODEV);
    assert_eq!(errno(host.client().vm_open(uuid(2), "vm")), ENOENT);
}

#[test]
fn waiting_client_hears_of_a_change_and_not_of_its_absence() {
    let host = Fixture::builtin("t4");
    let short = Duration::from_millis(20);
    let error = host
        .client()
        .wait_for(short, |state| !state.mdevs.is_empty())
        .unwrap_err();
    assert!(
        matches!(error, simulator::ClientError::TimedOut(_)),
        "{error}"
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            host.client()
                .wait_for(DEADLINE, |state| !state.mdevs.is_empty())
                .unwrap()
        });
        assert_eq!(
            host.write(&create(FIRST, 232), uuid(1).to_string().as_bytes()),
            0
        );
        assert_eq!(waiter.join().unwrap().mdevs[0].mdev_type, "nvidia-232");
    });
}
