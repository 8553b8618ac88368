//! Faults on demand: the write or call that is hit, and what is true afterwards.

use std::thread;

use simulator::{Effect, Fault, WaitCause, Window, protocol::Query};

use crate::fixture::{DEADLINE, EIO, FIRST, Fixture, create, remove, uuid};

fn write_fault(path_suffix: &str, errno: i32, effect: Effect, window: Window) -> Fault {
    Fault::Write {
        path_suffix: path_suffix.into(),
        errno,
        effect,
        window,
    }
}

#[test]
fn nth_write_fails_before_its_effect() {
    let host = Fixture::builtin("t4");
    host.client()
        .fault(write_fault("create", 12, Effect::Before, Window::nth(2)))
        .unwrap();
    assert_eq!(
        [1, 2, 3].map(|n| host.create(FIRST, 232, uuid(n))),
        [0, 12, 0]
    );
    let state = host.client().state().unwrap();
    assert!(state.mdev(uuid(2)).is_none());
    assert_eq!(
        (state.writes.all, state.writes.created, state.writes.refused),
        (3, 2, 1)
    );
}

#[test]
fn write_can_fail_although_its_effect_has_happened() {
    let host = Fixture::builtin("t4");
    host.client()
        .fault(write_fault(
            "nvidia-232/create",
            EIO,
            Effect::After,
            Window::default(),
        ))
        .unwrap();
    assert_eq!(host.create(FIRST, 232, uuid(1)), EIO);
    assert!(
        host.path(&format!("/sys/bus/mdev/devices/{}/mdev_type", uuid(1)))
            .exists()
    );
    host.client()
        .fault(write_fault("remove", EIO, Effect::After, Window::default()))
        .unwrap();
    assert_eq!(host.write(&remove(uuid(1)), b"1"), EIO);
    assert!(host.client().state().unwrap().mdevs.is_empty());
}

#[test]
fn held_write_stays_on_its_side_of_the_effect_until_released() {
    for (effect, cause, mdevs) in [
        (Effect::Before, WaitCause::HeldBefore, 0),
        (Effect::After, WaitCause::HeldAfter, 1),
    ] {
        let host = Fixture::builtin("t4");
        let mut client = host.client();
        client
            .fault(Fault::WriteHold {
                path_suffix: "create".into(),
                effect,
                window: Window::default(),
            })
            .unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| host.create(FIRST, 232, uuid(1)));
            let state = client
                .wait_for(DEADLINE, |state| !state.waiting.is_empty())
                .unwrap();
            assert_eq!((state.waiting[0].cause, state.mdevs.len()), (cause, mdevs));
            client.release().unwrap();
            assert_eq!(writer.join().unwrap(), 0);
        });
        assert_eq!(host.client().state().unwrap().mdevs.len(), 1);
    }
}

#[test]
fn in_use_can_last_for_a_number_of_calls() {
    let host = Fixture::builtin("t4");
    let mut client = host.client();
    assert_eq!(client.nvml("nvmlInit_v2", Query::Init).unwrap().code, 0);
    let function = "nvmlDeviceGetName".to_owned();
    client
        .fault(Fault::Nvml {
            function,
            code: 19,
            window: Window::times(2),
        })
        .unwrap();
    let mut code = |function: &str| client.nvml(function, Query::Device(0)).unwrap().code;
    assert_eq!(code("nvmlDeviceGetUUID"), 0);
    assert_eq!([0; 3].map(|_| code("nvmlDeviceGetName")), [19, 19, 0]);
}

#[test]
fn slow_call_and_slow_write_take_at_least_their_time() {
    let host = Fixture::builtin("t4");
    let mut client = host.client();
    client.nvml("nvmlInit_v2", Query::Init).unwrap();
    client
        .fault(Fault::NvmlDelay {
            function: "*".into(),
            ms: 60,
            window: Window::default(),
        })
        .unwrap();
    let write = Fault::WriteDelay {
        path_suffix: "create".into(),
        ms: 60,
        effect: Effect::Before,
        window: Window::default(),
    };
    client.fault(write).unwrap();
    for (what, act) in [("call", true), ("write", false)] {
        let started = std::time::Instant::now();
        if act {
            client.nvml("nvmlDeviceGetName", Query::Device(0)).unwrap();
        } else {
            client
                .write(&create(FIRST, 232), uuid(1).to_string().as_bytes())
                .unwrap();
        }
        assert!(started.elapsed().as_millis() >= 60, "{what}");
    }
}

#[test]
fn lost_gpu_answers_15_and_refuses_writes_until_the_reboot() {
    let host = Fixture::builtin("two-t4");
    host.create(FIRST, 232, uuid(1));
    let mut client = host.client();
    client.nvml("nvmlInit_v2", Query::Init).unwrap();
    client.fault(Fault::GpuLost { gpu: FIRST.into() }).unwrap();
    assert_eq!(
        client
            .nvml("nvmlDeviceGetName", Query::Device(0))
            .unwrap()
            .code,
        15
    );
    assert_eq!(
        client
            .nvml("nvmlDeviceGetName", Query::Device(1))
            .unwrap()
            .code,
        0
    );
    assert_eq!(host.create(FIRST, 232, uuid(2)), EIO);
    assert_eq!(host.write(&remove(uuid(1)), b"1"), EIO);
    client.reboot().unwrap();
    // Its session belonged to the earlier boot.
    assert_eq!(
        client
            .nvml("nvmlDeviceGetName", Query::Device(0))
            .unwrap()
            .code,
        1
    );
    client.nvml("nvmlInit_v2", Query::Init).unwrap();
    assert_eq!(
        client
            .nvml("nvmlDeviceGetName", Query::Device(0))
            .unwrap()
            .code,
        0
    );
    assert!(client.fault(Fault::GpuLost { gpu: "7".into() }).is_err());
}

#[test]
fn cleared_faults_hit_nothing() {
    let host = Fixture::builtin("t4");
    host.client()
        .fault(write_fault("create", 5, Effect::Before, Window::always()))
        .unwrap();
    assert_eq!(
        [
            host.create(FIRST, 232, uuid(1)),
            host.create(FIRST, 232, uuid(1))
        ],
        [5, 5]
    );
    host.client().fault(Fault::Clear {}).unwrap();
    assert_eq!(host.create(FIRST, 232, uuid(1)), 0);
}

#[test]
fn oracle_remembers_who_wrote_what() {
    let host = Fixture::builtin("t4");
    host.write(&create(FIRST, 232), b"nonsense");
    let state = host.client().state().unwrap();
    let last = state.recent_writes.last().unwrap();
    assert_eq!(
        (last.path.as_str(), last.text.as_str(), last.errno),
        (create(FIRST, 232).as_str(), "nonsense", 22)
    );
    assert_eq!(last.pid, std::process::id());
}
