//! Releases, leases, drift and reboots.

use events::Code;
use events::outcome::Outcome;
use events::result::EventKind;

use crate::machine::{Machine, allocate};

const RELEASE: &str = r#"{"op":"release","key":"k"}"#;

fn hold(machine: &Machine, holders: &[&str]) {
    let holders: Vec<String> = holders.iter().map(|holder| (*holder).to_owned()).collect();
    machine
        .state
        .lock()
        .unwrap()
        .partitions
        .values_mut()
        .for_each(|(_, held)| held.clone_from(&holders));
}

#[tokio::test]
async fn a_held_allocation_is_not_released_and_says_who_holds_it() {
    let machine = Machine::start().await;
    machine
        .done(1, 1, &allocate(r#","count":2,"limits":{"memory_mib":64}"#))
        .await;
    hold(&machine, &["VM vm1"]);
    let end = machine.done(2, 2, RELEASE).await;
    let failure = end.data.failure.unwrap();
    assert_eq!(
        (end.kind, failure.code, failure.retryable),
        (EventKind::OperationFailed, Code::InUse, true)
    );
    assert!(failure.message.contains("VM vm1"), "{}", failure.message);
    assert_eq!(
        (
            machine.partitions().len(),
            machine.state.lock().unwrap().groups.len()
        ),
        (2, 2),
        "nothing half removed"
    );
    hold(&machine, &[]);
    let end = machine.done(3, 3, RELEASE).await;
    assert!(
        matches!(end.data.outcome, Some(Outcome::Released(ref released)) if released.existed),
        "{end:?}"
    );
    assert_eq!(
        (
            machine.partitions().len(),
            machine.state.lock().unwrap().groups.len()
        ),
        (0, 0)
    );
    let again = machine.done(4, 4, &allocate("")).await;
    assert_eq!(
        again.kind,
        EventKind::OperationSucceeded,
        "the key may be used again"
    );
}

#[tokio::test]
async fn a_release_that_overtakes_its_allocate_leaves_a_tombstone() {
    let machine = Machine::start().await;
    let end = machine.done(1, 1, RELEASE).await;
    assert!(
        matches!(end.data.outcome, Some(Outcome::Released(ref released)) if !released.existed),
        "{end:?}"
    );
    let end = machine.done(2, 2, &allocate("")).await;
    assert_eq!(end.data.failure.unwrap().code, Code::ReleasedBeforeAllocate);
    machine.pass_s(24 * 3600 + 1);
    assert_eq!(
        machine.done(3, 3, &allocate("")).await.kind,
        EventKind::OperationSucceeded
    );
}

#[tokio::test]
async fn a_lease_that_ends_is_removed_and_reported_unless_it_is_held_or_renewed() {
    let machine = Machine::start().await;
    let command = machine.command(1, 1, &allocate(r#","ttl_s":60"#));
    machine.send(&command);
    machine.end_of(&command).await;
    machine.pass_s(59);
    let renewed = machine
        .done(2, 2, r#"{"op":"renew","key":"k","ttl_s":100}"#)
        .await;
    assert_eq!(renewed.kind, EventKind::OperationSucceeded);
    machine.pass_s(99);
    hold(&machine, &["process 7"]);
    machine.pass_s(2);
    let phase = |phase: &str| (machine.status()["allocations"][0]["phase"] == phase).then_some(());
    machine
        .until("the held lease to be noticed", || phase("expiring_held"))
        .await;
    assert_eq!(
        machine.partitions().len(),
        1,
        "what is held is not ripped out"
    );
    hold(&machine, &[]);
    let expired = |event: &events::ResultEvent| event.kind == EventKind::AllocationExpired;
    let event = machine
        .until("the lease's end", || {
            machine.events().into_iter().find(expired)
        })
        .await;
    assert_eq!(
        event.data.op_id,
        Some(command.op_id),
        "it reaches the callbacks of the allocate"
    );
    assert_eq!(machine.partitions(), []);
}

#[tokio::test]
async fn after_a_reboot_every_partition_comes_back_under_its_id_with_its_limits() {
    let mut machine = Machine::start().await;
    machine
        .done(1, 1, &allocate(r#","count":2,"limits":{"memory_mib":64}"#))
        .await;
    let before = machine.partitions();
    {
        let mut state = machine.state.lock().unwrap();
        state.epoch += 1;
        state.partitions.clear();
        state.groups.clear();
    }
    machine
        .until("the partitions", || {
            (machine.partitions() == before).then_some(())
        })
        .await;
    machine
        .until("the limits", || {
            (machine.state.lock().unwrap().groups.len() == 2).then_some(())
        })
        .await;
    let effects = machine.effects();
    machine.restart().await;
    machine
        .until("a look", || {
            machine.status()["inventory"].is_object().then_some(())
        })
        .await;
    assert_eq!(
        (machine.partitions(), machine.effects()),
        (before, effects),
        "a restart alone changes nothing"
    );
}
