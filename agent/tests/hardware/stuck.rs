//! A kernel that does not come back from a write: what the agent says, what goes on meanwhile, who
//! may die, and that it ends by itself.

use std::path::PathBuf;

use events::outcome::Outcome;
use events::result::EventKind;
use events::{AllocationId, Code, Command};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use simulator::{Effect, Fault, WaitCause, Window};
use uuid::Uuid;

use crate::DEADLINE;
use crate::daemon::Daemon;
use crate::frozen::Frozen;

fn allocate(daemon: &mut Daemon, key: &str, gpu: usize, count: u32) -> String {
    let gpu = daemon.client.state().unwrap().gpus[gpu].uuid.clone();
    format!(
        r#"{{"op":"allocate","key":"{key}","target":{{"host":"gpu-1","gpu":"{gpu}"}},"profile":"T4-4Q","mode":"vgpu","count":{count}}}"#
    )
}

fn release(key: &str) -> String {
    format!(r#"{{"op":"release","key":"{key}"}}"#)
}

fn device(key: &str) -> Uuid {
    let id = AllocationId::of(&"acme".parse().unwrap(), &key.parse().unwrap());
    id.partition(0).0
}

fn gpu(status: &Value, index: usize) -> &Value {
    &status["inventory"]["gpus"][index]
}

fn is_stuck(status: &Value, index: usize) -> bool {
    let reason = gpu(status, index)["unavailable"].as_str();
    reason.is_some_and(|reason| reason.starts_with("stuck: "))
}

/// An allocation `held` on the first GPU whose removal has reached the kernel after a VM opened the
/// device: between the agent's look and its write. Returns the release and the writing process.
fn block_a_removal(daemon: &mut Daemon) -> (Command, u32) {
    let operation = allocate(daemon, "held", 0, 1);
    let made = daemon.done(1, &operation);
    assert_eq!(made.kind, EventKind::OperationSucceeded, "{made:?}");
    let fault = Fault::WriteHold {
        path_suffix: "remove".to_owned(),
        effect: Effect::Before,
        window: Window::default(),
    };
    daemon.client.fault(fault).unwrap();
    let command = daemon.send(2, &release("held"));
    wait_for(daemon, WaitCause::HeldBefore);
    daemon.client.vm_open(device("held"), "vm-seven").unwrap();
    daemon.client.release().unwrap();
    let writer = wait_for(daemon, WaitCause::Vm);
    (command, writer)
}

/// Waits until a write waits for `cause`; returns its process.
fn wait_for(daemon: &mut Daemon, cause: WaitCause) -> u32 {
    let waits = |state: &simulator::State| state.waiting.iter().any(|write| write.cause == cause);
    let state = daemon.client.wait_for(DEADLINE, waits).unwrap();
    state.waiting[0].pid
}

fn process(pid: u32, what: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{what}"))
}

/// field F44, a device that its VM holds: the removal blocks its GPU alone, is counted and told, and
/// is finished when the VM lets go, without anybody asking again.
#[test]
fn a_removal_that_blocks_leaves_its_gpu_stuck_alone_and_ends_by_itself() {
    let mut daemon = Daemon::start(2);
    let (command, writer) = block_a_removal(&mut daemon);

    let sibling = allocate(&mut daemon, "sibling", 1, 1);
    for (revision, operation) in [(1, sibling.clone()), (2, release("sibling"))] {
        let end = daemon.done(revision, &operation);
        assert_eq!(end.kind, EventKind::OperationSucceeded, "{end:?}");
    }

    let end = daemon.end_of(&command);
    let failure = end.data.failure.unwrap();
    assert_eq!(
        (failure.code, failure.retryable),
        (Code::GpuStuck, true),
        "{}",
        failure.message
    );
    let status = daemon.status_when("the stuck GPU", |status| {
        status["allocations"][0]["phase"] == "releasing" && is_stuck(status, 0)
    });
    assert_eq!(gpu(&status, 1)["unavailable"], Value::Null, "{status:#}");
    let used = &gpu(&status, 0)["partitions"];
    assert_eq!(
        (
            &used[0]["id"],
            &used[0]["in_use"],
            &used[0]["owner"]["tenant"]
        ),
        (
            &device("held").to_string().into(),
            &true.into(),
            &"acme".into()
        ),
        "what is leaving is counted as used: {used:#}"
    );
    let told = end.data.inventory.unwrap();
    assert_eq!(
        (told.gpus[0].partitions.len(), told.gpus[1].partitions.len()),
        (1, 0)
    );
    let other = allocate(&mut daemon, "other", 0, 1);
    let refused = daemon.done(1, &other);
    assert_eq!(refused.data.failure.unwrap().code, Code::GpuStuck);
    let again = daemon.done(3, &release("held"));
    assert_eq!(
        again.data.failure.unwrap().code,
        Code::GpuStuck,
        "asking again is no way round"
    );
    let sibling = daemon.done(3, &sibling);
    assert_eq!(
        sibling.kind,
        EventKind::OperationSucceeded,
        "its sibling still works: {sibling:?}"
    );

    daemon.client.vm_close(device("held")).unwrap();
    gone_by_itself(&mut daemon);
    assert!(
        !process(writer, "").exists(),
        "the writer has ended and was reaped"
    );
    let made = daemon.done(2, &other);
    assert_eq!(made.kind, EventKind::OperationSucceeded, "{made:?}");
}

/// The allocation `held` ends: told once, and nothing of it is left.
fn gone_by_itself(daemon: &mut Daemon) {
    let id = AllocationId::of(&"acme".parse().unwrap(), &"held".parse().unwrap());
    let gone = daemon.event("the allocation's end", |event| {
        event.kind == EventKind::AllocationExpired && event.data.allocation == Some(id)
    });
    assert!(
        matches!(gone.data.outcome, Some(Outcome::Released(_))),
        "{gone:?}"
    );
    let status = daemon.status_when("a free GPU", |status| {
        let of_it = |allocation: &Value| allocation["spec"]["key"] == "held";
        !is_stuck(status, 0) && !status["allocations"].as_array().unwrap().iter().any(of_it)
    });
    assert_eq!(gpu(&status, 0)["unavailable"], Value::Null, "{status:#}");
    assert_eq!(daemon.client.state().unwrap().mdev(device("held")), None);
    let told = daemon
        .events()
        .iter()
        .filter(|event| event.kind == EventKind::AllocationExpired);
    assert_eq!(told.count(), 1);
}

/// field F10, work that outlives its process: the agent dies in a removal that the kernel keeps, and
/// the next one starts over the same ledger while the old write still hangs.
#[test]
fn an_agent_killed_while_a_removal_blocks_is_replaced_at_once() {
    let mut daemon = Daemon::start(600);
    let (command, writer) = block_a_removal(&mut daemon);
    let links = descriptors(writer);
    let own = links.iter().filter(|link| {
        link.starts_with(daemon.state_dir()) || link.to_string_lossy().contains("backplane")
    });
    assert_eq!(
        (own.count(), links.len()),
        (0, 4),
        "it shares nothing with the agent: {links:?}"
    );

    // Where that can be had, with a writer that not even SIGKILL ends: as the kernel keeps it.
    let frozen = Frozen::new(writer);
    if frozen.is_some() {
        let pid = Pid::from_raw(i32::try_from(writer).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
    daemon.kill();
    assert!(process(writer, "exe").exists(), "the writer hangs on");
    daemon.run();
    assert!(
        process(writer, "exe").exists(),
        "the writer hangs on, and another agent runs"
    );
    let end = daemon.end_of(&command);
    assert_eq!(end.data.failure.unwrap().code, Code::GpuStuck);
    let sibling = allocate(&mut daemon, "sibling", 1, 1);
    let made = daemon.done(1, &sibling);
    assert_eq!(made.kind, EventKind::OperationSucceeded, "{made:?}");
    daemon.status_when("the stuck GPU", |status| is_stuck(status, 0));

    drop(frozen);
    daemon.client.vm_close(device("held")).unwrap();
    gone_by_itself(&mut daemon);
}

/// field F10: what a dead agent's process still does in the kernel is not done a second time, and what
/// comes of it late is removed.
#[test]
fn a_creation_that_outlives_its_agent_is_not_begun_again() {
    let mut daemon = Daemon::start(600);
    let fault = Fault::WriteHold {
        path_suffix: "create".to_owned(),
        effect: Effect::Before,
        window: Window::default(),
    };
    daemon.client.fault(fault).unwrap();
    let operation = allocate(&mut daemon, "held", 0, 2);
    let command = daemon.send(1, &operation);
    wait_for(&mut daemon, WaitCause::HeldBefore);
    daemon.kill();
    daemon.run();
    let end = daemon.end_of(&command);
    let failure = end.data.failure.unwrap();
    assert_eq!(
        (end.kind, failure.code),
        (EventKind::OperationFailed, Code::GpuStuck),
        "{}",
        failure.message
    );
    assert_eq!(
        daemon.client.state().unwrap().writes.all,
        1,
        "nothing else was written"
    );
    daemon.status_when("the GPU to be stuck, alone", |status| {
        let reason = gpu(status, 0)["unavailable"].as_str().unwrap_or_default();
        let releasing = status["allocations"][0]["phase"] == "releasing";
        reason.starts_with("stuck: ") && reason.contains("/create") && releasing
    });
    let sibling = allocate(&mut daemon, "sibling", 1, 1);
    let made = daemon.done(1, &sibling);
    assert_eq!(made.kind, EventKind::OperationSucceeded, "{made:?}");

    daemon.client.release().unwrap();
    let made = |state: &simulator::State| state.writes.created == 2 && state.mdevs.len() == 1;
    daemon.client.wait_for(DEADLINE, made).unwrap();
    daemon.status_when("the late partition to be removed as its own", |status| {
        let left = status["allocations"].as_array().map_or(0, Vec::len);
        gpu(status, 0)["unavailable"].is_null() && left == 1
    });
}

fn descriptors(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(process(pid, "fd")).unwrap();
    entries
        .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap())
        .collect()
}

/// What an agent has: descriptors, threads outside its async runtime, children.
fn holdings(pid: u32) -> (usize, usize, usize) {
    let (mut threads, mut children) = (0, 0);
    for task in std::fs::read_dir(process(pid, "task")).unwrap() {
        let task = task.unwrap().path();
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        // The runtime starts and ends threads for blocking calls as it needs them.
        threads += usize::from(!read("comm").starts_with("tokio"));
        children += read("children").split_whitespace().count();
    }
    (
        std::fs::read_dir(process(pid, "fd")).unwrap().count(),
        threads,
        children,
    )
}

#[test]
fn fifty_writes_leave_no_process_no_thread_and_no_descriptor() {
    let mut daemon = Daemon::start(30);
    let four = allocate(&mut daemon, "four", 0, 4);
    let round = |daemon: &mut Daemon, n: u64| {
        for (revision, operation) in [(n, four.clone()), (n + 1, release("four"))] {
            let end = daemon.done(revision, &operation);
            assert_eq!(end.kind, EventKind::OperationSucceeded, "{end:?}");
        }
    };
    // The first round starts what stays: the GPU's worker, connections.
    round(&mut daemon, 1);
    let before = holdings(daemon.pid());
    for n in 1..=7 {
        round(&mut daemon, 2 * n + 1);
    }
    assert!(daemon.client.state().unwrap().writes.all >= 50);
    let pid = daemon.pid();
    daemon.status_when("nothing more than before", |_| {
        let now = holdings(pid);
        now.0 <= before.0 && now.1 <= before.1 && now.2 == 0
    });
}
