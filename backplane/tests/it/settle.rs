//! Conformance: settling, forward only and newer only. What it does to allocations is in
//! `allocation.rs`.

use backplane::store::{Due, Settlement};
use events::outcome::{Failure, Outcome};
use events::result::{EventData, EventKind, HostEvent};
use events::{Code, OperationState};

use crate::implementation::Backplane;
use crate::sample::{allocated, callback, event, host, inventory, of_operation, succeeded, tenant};

conforms!(
    an_operation_moves_forward_and_never_back,
    a_final_event_settles_everything_it_concerns,
    a_failure_is_kept,
    an_event_that_moves_nothing_owes_no_callback,
    a_callback_is_owed_once,
    an_event_about_what_was_never_accepted_is_unknown,
    an_older_inventory_never_replaces_a_newer_one,
    the_same_inventory_later_moves_no_capacity,
    enrolling_again_keeps_what_was_observed,
    an_event_proves_that_its_command_was_sent,
);

async fn an_operation_moves_forward_and_never_back(backplane: Backplane) {
    backplane.enrol("t4").await;
    let record = backplane.accept_placed(1, "one", "t4").await;
    let outcome = Some(Outcome::Allocated(allocated("one")));
    let steps = [
        (
            EventKind::OperationAccepted,
            1,
            Some(OperationState::Running),
        ),
        (EventKind::OperationAccepted, 1, None),
        (
            EventKind::OperationSucceeded,
            2,
            Some(OperationState::Succeeded),
        ),
        (EventKind::OperationSucceeded, 2, None),
        (EventKind::OperationAccepted, 3, None),
        (EventKind::OperationFailed, 4, None),
        (EventKind::OperationExpired, 5, None),
    ];
    for (kind, sequence, moves_to) in steps {
        let outcome = outcome
            .clone()
            .filter(|_| kind == EventKind::OperationSucceeded);
        let settled = backplane
            .settle(of_operation(&record, kind, sequence, outcome))
            .await;
        match (settled, moves_to) {
            (Settlement::Applied(Some(after)), Some(state)) => assert_eq!(after.state, state),
            (Settlement::Stale, None) => {}
            (settled, _) => panic!("{kind:?} number {sequence}: {settled:?}"),
        }
    }
    let read = backplane
        .reads
        .operation(&tenant(), record.id)
        .await
        .unwrap();
    let read = read.unwrap();
    assert_eq!(
        (read.state, read.outcome),
        (OperationState::Succeeded, outcome)
    );
}

async fn a_final_event_settles_everything_it_concerns(backplane: Backplane) {
    backplane.enrol("t4").await;
    let record = backplane.accept_placed(1, "one", "t4").await;
    let before = backplane.version("t4").await;
    let mut event = succeeded(&record, 7, Outcome::Allocated(allocated("one")));
    event.event.data.inventory = Some(inventory("t4", 5));
    backplane.clock.advance(std::time::Duration::from_secs(1));
    let now_ms = backplane.now_ms();
    let settled = backplane
        .store
        .settle(event, vec![callback("w1")], now_ms)
        .await;
    assert!(matches!(settled.unwrap(), Settlement::Applied(Some(_))));

    let view = backplane.reads.host(&host("t4")).await.unwrap().unwrap();
    assert_eq!(view.inventory, Some(inventory("t4", 5)));
    assert_eq!((view.reserved.len(), view.heard_at_ms), (0, Some(now_ms)));
    assert!(view.version > before);
    let due = backplane.due(10).await;
    assert!(
        matches!(&due[..], [Due::Callback(owed)] if owed.webhook_id == "w1"),
        "{due:?}"
    );
    let read = backplane
        .reads
        .operation_for_host(&host("t4"), record.id)
        .await;
    let read = read.unwrap().unwrap();
    assert_eq!(
        (read.changed_at_ms, read.accepted_at_ms),
        (now_ms, record.accepted_at_ms)
    );
}

async fn a_failure_is_kept(backplane: Backplane) {
    backplane.enrol("t4").await;
    let record = backplane.accept_placed(1, "one", "t4").await;
    let mut event = of_operation(&record, EventKind::OperationFailed, 1, None);
    let failure = Some(Failure::new(
        Code::DriverError,
        "write error: Input/output error",
    ));
    event.event.data.failure.clone_from(&failure);
    backplane.settle(event).await;
    let read = backplane
        .reads
        .operation(&tenant(), record.id)
        .await
        .unwrap();
    assert_eq!(read.unwrap().failure, failure);
    assert_eq!(
        backplane.reserved("t4").await,
        0,
        "a failed operation holds capacity"
    );
}

async fn an_event_that_moves_nothing_owes_no_callback(backplane: Backplane) {
    backplane.enrol("t4").await;
    let record = backplane.accept_placed(1, "one", "t4").await;
    backplane.store.mark_sent(record.id).await.unwrap();
    backplane
        .settle(succeeded(&record, 2, Outcome::Allocated(allocated("one"))))
        .await;
    let late = of_operation(&record, EventKind::OperationAccepted, 1, None);
    let settled = backplane
        .store
        .settle(late, vec![callback("late")], backplane.now_ms())
        .await;
    assert_eq!(settled.unwrap(), Settlement::Stale);
    assert_eq!(backplane.due(10).await, []);
}

async fn a_callback_is_owed_once(backplane: Backplane) {
    backplane.enrol("t4").await;
    let first = backplane.accept_placed(1, "one", "t4").await;
    let second = backplane.accept_placed(2, "two", "t4").await;
    for (record, key) in [(first, "one"), (second, "two")] {
        let event = succeeded(&record, 1, Outcome::Allocated(allocated(key)));
        let settled = backplane
            .store
            .settle(event, vec![callback("same")], backplane.now_ms());
        settled.await.unwrap();
    }
    assert_eq!(backplane.due(10).await.len(), 1);
}

async fn an_event_about_what_was_never_accepted_is_unknown(backplane: Backplane) {
    backplane.enrol("a").await;
    backplane.enrol("b").await;
    let record = backplane.accept_placed(1, "one", "a").await;
    let outcome = || Outcome::Allocated(allocated("one"));
    let data = EventData {
        op_id: Some(record.id),
        ..EventData::default()
    };
    let from_b = event("b", EventKind::OperationSucceeded, 1, data.clone());
    let stranger = event("stranger", EventKind::OperationSucceeded, 1, data);
    let mut other_tenant = succeeded(&record, 1, outcome());
    other_tenant.event.tenant = Some("evil".parse().unwrap());
    let mut unheard_of = succeeded(&record, 1, outcome());
    unheard_of.event.data.op_id = Some("018f0000-0000-7000-8000-000000000000".parse().unwrap());
    for event in [from_b, stranger, other_tenant, unheard_of] {
        let shown = format!("{event:?}");
        let settled = backplane
            .store
            .settle(event, vec![callback("w")], backplane.now_ms())
            .await;
        assert_eq!(settled.unwrap(), Settlement::Unknown, "{shown}");
    }
    assert_eq!(backplane.due(10).await, []);
    let read = backplane
        .reads
        .operation(&tenant(), record.id)
        .await
        .unwrap();
    assert_eq!(read.unwrap().state, OperationState::Queued);
    let read = backplane
        .reads
        .operation_for_host(&host("b"), record.id)
        .await;
    assert_eq!(read.unwrap(), None);
}

fn observed(sequence: u64, taken_at_ms: i64, epoch: &str) -> HostEvent {
    let mut inventory = inventory("t4", taken_at_ms);
    inventory.epoch = epoch.to_owned();
    let data = EventData {
        inventory: Some(inventory),
        ..EventData::default()
    };
    event("t4", EventKind::HostObserved, sequence, data)
}

async fn an_older_inventory_never_replaces_a_newer_one(backplane: Backplane) {
    backplane.enrol("t4").await;
    // By sequence, whatever the host's clock says.
    let steps = [
        (5, 100, true),
        (4, 200, false),
        (5, 300, false),
        (6, 50, true),
    ];
    for (sequence, taken_at_ms, news) in steps {
        let settled = backplane
            .settle(observed(sequence, taken_at_ms, "boot-1"))
            .await;
        let expect = if news {
            Settlement::Applied(None)
        } else {
            Settlement::Stale
        };
        assert_eq!(settled, expect, "number {sequence}");
    }
    let view = backplane.reads.host(&host("t4")).await.unwrap().unwrap();
    assert_eq!(view.inventory.unwrap().taken_at_ms, 50);

    // A stale operation event may still carry the newest inventory.
    let record = backplane.accept_placed(1, "one", "t4").await;
    backplane
        .settle(succeeded(&record, 7, Outcome::Allocated(allocated("one"))))
        .await;
    let mut stale = of_operation(&record, EventKind::OperationFailed, 8, None);
    stale.event.data.inventory = Some(inventory("t4", 400));
    assert_eq!(backplane.settle(stale).await, Settlement::Stale);
    let view = backplane.reads.host(&host("t4")).await.unwrap().unwrap();
    assert_eq!(view.inventory.unwrap().taken_at_ms, 400);
}

/// Otherwise every report of a host would send placements on it back to the start.
async fn the_same_inventory_later_moves_no_capacity(backplane: Backplane) {
    backplane.enrol("t4").await;
    backplane.settle(observed(1, 100, "boot-1")).await;
    let version = backplane.version("t4").await;
    backplane.settle(observed(2, 200, "boot-1")).await;
    assert_eq!(backplane.version("t4").await, version);
    backplane.settle(observed(3, 300, "boot-2")).await;
    assert_ne!(backplane.version("t4").await, version);
}

async fn enrolling_again_keeps_what_was_observed(backplane: Backplane) {
    backplane.enrol("t4").await;
    assert_eq!(
        backplane
            .reads
            .host(&host("t4"))
            .await
            .unwrap()
            .unwrap()
            .inventory,
        None
    );
    backplane.settle(observed(1, 100, "boot-1")).await;
    backplane.accept_placed(1, "one", "t4").await;
    let before = backplane.reads.host(&host("t4")).await.unwrap();
    backplane.enrol("t4").await;
    assert_eq!(backplane.reads.host(&host("t4")).await.unwrap(), before);
    let mut changed = before.unwrap();
    changed.record.public_key = "whpk_other".to_owned();
    backplane
        .store
        .put_host(changed.record.clone())
        .await
        .unwrap();
    let after = backplane.reads.host(&host("t4")).await.unwrap().unwrap();
    assert_eq!(
        (after.record, after.inventory),
        (changed.record, changed.inventory)
    );
}

/// A crash between the send and its record must not send a running command again.
async fn an_event_proves_that_its_command_was_sent(backplane: Backplane) {
    backplane.enrol("t4").await;
    let record = backplane.accept_placed(1, "one", "t4").await;
    backplane
        .settle(of_operation(&record, EventKind::OperationAccepted, 1, None))
        .await;
    backplane.clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(backplane.due(10).await, []);
}
