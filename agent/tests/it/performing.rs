//! Effects: all or nothing, read back, and only on what is ours.

use events::Code;
use events::outcome::{LimitsState, Outcome};
use events::result::EventKind;

use crate::machine::{Machine, allocate};

const TWO_LIMITED: &str = r#","count":2,"limits":{"memory_mib":64}"#;

#[tokio::test]
async fn an_allocate_of_two_is_read_back_and_reported_once() {
    let machine = Machine::start().await;
    let foreign = machine.add_foreign();
    let command = machine.command(1, 1, &allocate(TWO_LIMITED));
    machine.send(&command);
    let end = machine.end_of(&command).await;
    let Some(Outcome::Allocated(allocated)) = &end.data.outcome else {
        panic!("{end:?}")
    };
    assert_eq!(allocated.limits_state, LimitsState::Applied);
    assert_eq!(allocated.partitions.len(), 2);
    for (handle, ordinal) in allocated.partitions.iter().zip(0..) {
        assert_eq!(
            handle.id,
            allocated.allocation.partition(ordinal),
            "ids follow from the key"
        );
        assert!(machine.partitions().contains(&handle.id));
        assert!(
            handle
                .libvirt_xml
                .as_ref()
                .unwrap()
                .contains(&handle.id.to_string())
        );
        assert_eq!(
            handle.cgroup_path.as_deref().unwrap(),
            format!("/gpuhook/{}/{ordinal}", allocated.allocation)
        );
    }
    let gpu = &end.data.inventory.as_ref().unwrap().gpus[0];
    let owners: Vec<_> = gpu
        .partitions
        .iter()
        .map(|partition| (partition.id == foreign, partition.owner.is_some()))
        .collect();
    assert_eq!(
        owners
            .iter()
            .filter(|(is_foreign, owned)| *is_foreign != *owned)
            .count(),
        3,
        "{owners:?}"
    );
    let events = machine.events();
    assert!(
        events
            .windows(2)
            .all(|pair| pair[0].sequence < pair[1].sequence),
        "the sequence only grows"
    );
    assert_eq!(machine.ends_of(&command).len(), 1);
}

/// field F19: what a failed operation made is taken back, each time.
#[tokio::test]
async fn a_failed_create_leaves_nothing_and_the_room_is_as_before() {
    for after_effect in [false, true] {
        let machine = Machine::start().await;
        let foreign = machine.add_foreign();
        machine.state.lock().unwrap().fail_after_effect = after_effect;
        for n in 0..5 {
            machine.state.lock().unwrap().create_errors = [None, Some(Code::DriverError)].into();
            let end = machine
                .done(n, u64::try_from(n).unwrap() + 1, &allocate(TWO_LIMITED))
                .await;
            let failure = end.data.failure.unwrap();
            assert_eq!(
                (end.kind, failure.code, failure.residue.len()),
                (EventKind::OperationFailed, Code::DriverError, 0),
                "{after_effect}"
            );
            assert_eq!(machine.partitions(), [foreign], "attempt {n}");
        }
        machine.state.lock().unwrap().create_errors.clear();
        let end = machine.done(9, 9, &allocate(TWO_LIMITED)).await;
        assert_eq!(end.kind, EventKind::OperationSucceeded);
    }
}

#[tokio::test]
async fn limits_that_fail_take_the_partitions_with_them() {
    let machine = Machine::start().await;
    machine.state.lock().unwrap().limit_error = Some(Code::LimitsFailed);
    let end = machine.done(1, 1, &allocate(TWO_LIMITED)).await;
    assert_eq!(
        (end.kind, end.data.failure.unwrap().code),
        (EventKind::OperationFailed, Code::LimitsFailed)
    );
    assert_eq!(machine.partitions(), []);
    machine.state.lock().unwrap().refuse_limits = true;
    let effects = machine.effects();
    let end = machine.done(2, 2, &allocate(TWO_LIMITED)).await;
    assert_eq!(
        (end.kind, end.data.failure.unwrap().code),
        (EventKind::OperationRefused, Code::LimitRefused)
    );
    assert_eq!(machine.effects(), effects, "refused before the first step");
}

/// field F44: what this agent did not make is never touched, whatever it is called.
#[tokio::test]
async fn a_partition_that_bears_our_id_and_is_not_ours_is_left_alone() {
    let machine = Machine::start().await;
    let tenant = "acme".parse().unwrap();
    let id = events::AllocationId::of(&tenant, &"k".parse().unwrap()).partition(0);
    machine
        .state
        .lock()
        .unwrap()
        .partitions
        .insert(id, ("T4-4Q".parse().unwrap(), Vec::new()));
    let end = machine.done(1, 1, &allocate("")).await;
    assert_eq!(end.kind, EventKind::OperationRefused, "{end:?}");
    assert_eq!((machine.partitions(), machine.effects()), (vec![id], 0));
}

/// A live allocation asked for again is never rolled back, even when the hardware is not as it was.
#[tokio::test]
async fn asking_again_for_a_changed_allocation_fails_and_removes_nothing() {
    let machine = Machine::start().await;
    machine.done(1, 1, &allocate(r#","count":2"#)).await;
    let id = machine.partitions()[0];
    machine
        .state
        .lock()
        .unwrap()
        .partitions
        .insert(id, ("T4-8Q".parse().unwrap(), Vec::new()));
    let end = machine.done(2, 2, &allocate(r#","count":2"#)).await;
    assert_eq!(end.kind, EventKind::OperationFailed, "{end:?}");
    assert_eq!(machine.partitions().len(), 2);
}
