//! GPU instances on simulated boards, by the shipped program: full layouts, partial changes, impossible
//! ones, and what the ledger says against what the hardware has.

use events::outcome::Outcome;
use events::result::EventKind;
use events::{Code, ResultEvent};
use simulator::{Fault, State, Window};

use crate::daemon::Daemon;

fn uuid(daemon: &mut Daemon) -> String {
    daemon.client.state().unwrap().gpus[0].uuid.clone()
}

fn partition(daemon: &mut Daemon, layout: &[(&str, u32)], more: &str) -> String {
    let gpu = uuid(daemon);
    let entries: Vec<_> = layout
        .iter()
        .map(|(profile, count)| format!(r#"{{"profile":"{profile}","count":{count}}}"#))
        .collect();
    format!(
        r#"{{"op":"partition","target":{{"host":"gpu-1","gpu":"{gpu}"}},"mode":"mig","layout":[{}]{more}}}"#,
        entries.join(",")
    )
}

fn allocate(daemon: &mut Daemon, key: &str, profile: &str, count: u32) -> String {
    let gpu = uuid(daemon);
    format!(
        r#"{{"op":"allocate","key":"{key}","target":{{"host":"gpu-1","gpu":"{gpu}"}},"profile":"{profile}","mode":"mig","count":{count}}}"#
    )
}

fn release(key: &str) -> String {
    format!(r#"{{"op":"release","key":"{key}"}}"#)
}

/// What the first GPU is cut into, as text; every GPU instance has exactly one compute instance.
fn hardware(state: &State) -> Vec<String> {
    let mig = state.gpus[0].mig.as_ref().unwrap();
    assert!(
        mig.instances.iter().all(|each| each.devices.len() == 1),
        "{mig:?}"
    );
    let mut all: Vec<_> = mig
        .instances
        .iter()
        .map(|each| format!("{} @{}+{}", each.profile, each.start, each.size))
        .collect();
    all.sort();
    all
}

fn profiles(state: &State) -> Vec<String> {
    let names = hardware(state);
    names
        .iter()
        .map(|name| name.split(' ').next().unwrap().to_owned())
        .collect()
}

fn expand(layout: &[(&str, u32)]) -> Vec<String> {
    let mut names: Vec<_> = layout
        .iter()
        .flat_map(|(profile, count)| (0..*count).map(|_| (*profile).to_owned()))
        .collect();
    names.sort();
    names
}

fn succeeded(event: &ResultEvent) {
    assert_eq!(event.kind, EventKind::OperationSucceeded, "{event:?}");
}

fn code(event: &ResultEvent) -> Code {
    event
        .data
        .failure
        .as_ref()
        .unwrap_or_else(|| panic!("{event:?}"))
        .code
}

/// What the agent's own status says is on the GPU is what the hardware has.
fn ledger_equals_hardware(daemon: &mut Daemon) {
    let wanted = hardware(&daemon.client.state().unwrap());
    daemon.status_when("the layout of the hardware", |status| {
        let partitions = status["inventory"]["gpus"][0]["partitions"].as_array();
        let mut seen: Vec<_> = partitions
            .into_iter()
            .flatten()
            .map(|each| {
                format!(
                    "{} @{}+{}",
                    each["profile"].as_str().unwrap_or_default(),
                    each["slices"]["start"],
                    each["slices"]["size"]
                )
            })
            .collect();
        seen.sort();
        seen == wanted
    });
}

fn every_layout(host: &str, layouts: &[Vec<(&str, u32)>], impossible: &[Vec<(&str, u32)>]) {
    let mut daemon = Daemon::start_on(host, 30);
    let mut revision = 0;
    for layout in layouts {
        let shuffled: Vec<_> = layout.iter().rev().copied().collect();
        for layout in [layout, &shuffled] {
            revision += 1;
            let asked = partition(&mut daemon, layout, "");
            let done = daemon.done(revision, &asked);
            succeeded(&done);
            assert_eq!(
                profiles(&daemon.client.state().unwrap()),
                expand(layout),
                "{host}"
            );
        }
        ledger_equals_hardware(&mut daemon);
    }
    let before = hardware(&daemon.client.state().unwrap());
    for layout in impossible {
        revision += 1;
        let asked = partition(&mut daemon, layout, "");
        let done = daemon.done(revision, &asked);
        assert_eq!(done.kind, EventKind::OperationRefused, "{host} {layout:?}");
        assert_eq!(code(&done), Code::NoCapacity, "{done:?}");
        assert_eq!(
            hardware(&daemon.client.state().unwrap()),
            before,
            "nothing was touched"
        );
    }
}

/// gpu facts §5.4, each in both orders, each after the one before: mode on, keep, make and remove.
/// Profiles are 1g, 1g with double memory, 2g, 3g, 4g, 7g.
fn seven_slices(host: &str, [one, double, two, three, four, seven]: [&str; 6]) {
    every_layout(
        host,
        &[
            vec![(one, 7)],
            vec![(two, 3), (one, 1)],
            vec![(three, 2)],
            vec![(four, 1), (three, 1)],
            vec![(seven, 1)],
            vec![(one, 2), (two, 1), (three, 1)],
            vec![(double, 4)],
        ],
        &[
            vec![(one, 8)],
            vec![(three, 3)],
            vec![(four, 2)],
            vec![(seven, 1), (one, 1)],
            vec![(three, 2), (one, 1)],
        ],
    );
}

#[test]
fn a100_40_takes_every_published_layout() {
    let names = [
        "1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb",
    ];
    seven_slices("a100-40", names);
}

#[test]
fn a100_80_takes_every_published_layout() {
    let names = [
        "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb",
    ];
    seven_slices("a100-80", names);
}

#[test]
fn h100_takes_every_published_layout() {
    let names = [
        "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb",
    ];
    seven_slices("h100", names);
}

#[test]
fn h200_takes_every_published_layout() {
    let names = [
        "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb",
    ];
    seven_slices("h200", names);
}

#[test]
fn a30_takes_every_published_layout() {
    every_layout(
        "a30",
        &[
            vec![("1g.6gb", 4)],
            vec![("2g.12gb", 2)],
            vec![("2g.12gb", 1), ("1g.6gb", 2)],
            vec![("4g.24gb", 1)],
        ],
        &[
            vec![("1g.6gb", 5)],
            vec![("4g.24gb", 1), ("1g.6gb", 1)],
            vec![("2g.12gb", 3)],
        ],
    );
}

/// field F19: what already matches stays, with its UUID and its users.
#[test]
fn what_matches_stays_and_an_allocation_in_the_way_is_named() {
    let mut daemon = Daemon::start_on("h100", 30);
    let asked = partition(&mut daemon, &[("3g.40gb", 1), ("1g.10gb", 2)], "");
    succeeded(&daemon.done(1, &asked));
    let asked = allocate(&mut daemon, "held", "3g.40gb", 1);
    let made = daemon.done(2, &asked);
    succeeded(&made);
    let Some(Outcome::Allocated(allocated)) = &made.data.outcome else {
        panic!("{made:?}");
    };
    let handle = &allocated.partitions[0];
    let device = handle.mig_uuid.clone().unwrap();
    assert!(device.starts_with("MIG-"), "{device}");
    // The GPU, the control node, unified memory, and the two capabilities.
    assert_eq!(handle.device_nodes.len(), 5, "{handle:?}");
    let of = |state: &State| {
        let mig = state.gpus[0].mig.clone().unwrap();
        let large = mig
            .instances
            .into_iter()
            .find(|each| each.profile == "3g.40gb");
        large.map(|each| each.devices[0].clone())
    };
    assert_eq!(of(&daemon.client.state().unwrap()), Some(device.clone()));

    let asked = partition(&mut daemon, &[("3g.40gb", 1), ("2g.20gb", 1)], "");
    succeeded(&daemon.done(3, &asked));
    let state = daemon.client.state().unwrap();
    assert_eq!(of(&state), Some(device.clone()), "kept, not made again");
    assert_eq!(profiles(&state), ["2g.20gb", "3g.40gb"]);

    let asked = partition(&mut daemon, &[("7g.80gb", 1)], "");
    let refused = daemon.done(4, &asked);
    assert_eq!(code(&refused), Code::InUse, "{refused:?}");
    assert_eq!(of(&daemon.client.state().unwrap()), Some(device));
    let asked = partition(
        &mut daemon,
        &[("2g.20gb", 3)],
        r#","dry_run":true,"if_busy":"force""#,
    );
    let planned = daemon.done(5, &asked);
    assert_eq!(
        profiles(&daemon.client.state().unwrap()),
        ["2g.20gb", "3g.40gb"],
        "{planned:?}"
    );
}

/// An allocation on a GPU that is not cut where it needs it makes its own instances, and takes them away.
#[test]
fn an_allocation_makes_what_it_needs_and_leaves_nothing() {
    let mut daemon = Daemon::start_on("a100-80", 30);
    let asked = partition(&mut daemon, &[], "");
    succeeded(&daemon.done(1, &asked));
    let asked = allocate(&mut daemon, "two", "2g.20gb", 2);
    succeeded(&daemon.done(2, &asked));
    assert_eq!(
        profiles(&daemon.client.state().unwrap()),
        ["2g.20gb", "2g.20gb"]
    );
    ledger_equals_hardware(&mut daemon);
    let asked = allocate(&mut daemon, "more", "3g.40gb", 2);
    let refused = daemon.done(3, &asked);
    assert_eq!(code(&refused), Code::NoCapacity, "{refused:?}");
    succeeded(&daemon.done(4, &release("two")));
    assert!(profiles(&daemon.client.state().unwrap()).is_empty());
}

/// field F05, NVIDIA/DCGM#95: somebody's MIG handle makes the first attempts fail; the operation goes on by itself.
#[test]
fn in_use_is_tried_again() {
    let mut daemon = Daemon::start_on("h100", 30);
    let asked = partition(&mut daemon, &[("1g.10gb", 2)], "");
    succeeded(&daemon.done(1, &asked));
    let fault = Fault::Nvml {
        function: "nvmlGpuInstanceDestroy".to_owned(),
        code: 19,
        window: Window { nth: 1, times: 2 },
    };
    daemon.client.fault(fault).unwrap();
    let asked = partition(&mut daemon, &[("7g.80gb", 1)], "");
    succeeded(&daemon.done(2, &asked));
    assert_eq!(profiles(&daemon.client.state().unwrap()), ["7g.80gb"]);
}

/// kubernetes-sigs/dra-driver-nvidia-gpu#1452: a compute instance that cannot be made leaves no GPU
/// instance behind.
#[test]
fn no_orphan_is_left_where_the_compute_instance_fails() {
    let mut daemon = Daemon::start_on("h100", 30);
    let asked = partition(&mut daemon, &[("3g.40gb", 1)], "");
    succeeded(&daemon.done(1, &asked));
    let before = hardware(&daemon.client.state().unwrap());
    let fault = Fault::Nvml {
        function: "nvmlGpuInstanceCreateComputeInstance".to_owned(),
        code: 23,
        window: Window { nth: 2, times: 1 },
    };
    daemon.client.fault(fault).unwrap();
    let asked = partition(&mut daemon, &[("1g.10gb", 2), ("2g.20gb", 1)], "");
    let failed = daemon.done(2, &asked);
    assert_eq!(failed.kind, EventKind::OperationFailed, "{failed:?}");
    assert_eq!(
        hardware(&daemon.client.state().unwrap()),
        before,
        "as it was"
    );
}

/// gpu facts §10.6: another client keeps the mode from taking effect, and the agent says so instead of going on.
#[test]
fn a_mode_that_waits_for_another_client_is_no_success() {
    let mut daemon = Daemon::start_on("a100-80", 30);
    let mut other = simulator::Client::connect(daemon.simulator.dir()).unwrap();
    other
        .nvml("nvmlInit_v2", simulator::protocol::Query::Init)
        .unwrap();
    let asked = partition(&mut daemon, &[("1g.10gb", 7)], "");
    let failed = daemon.done(1, &asked);
    assert_ne!(failed.kind, EventKind::OperationSucceeded, "{failed:?}");
    assert_eq!(code(&failed), Code::InUse, "{failed:?}");
    let mig = daemon.client.state().unwrap().gpus[0].mig.clone().unwrap();
    assert!(!mig.current && mig.instances.is_empty(), "{mig:?}");
}
