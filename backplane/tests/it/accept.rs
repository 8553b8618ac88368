//! Conformance: acceptance, which is all or nothing.

use std::sync::Arc;
use std::time::Duration;

use backplane::store::{
    Acceptance, Accepted, AllocationState, Attempt, Due, Ending, IdempotencyKeys, Route,
};
use events::outcome::{Outcome, Released};
use events::{Code, OperationState};
use serde_json::json;

use crate::implementation::Backplane;
use crate::sample::{
    allocate, delivery, host, id_of, new, operation, placed, release, succeeded, tenant,
};

conforms!(
    a_delivery_is_kept_whole_and_in_order,
    a_delivery_that_comes_again_is_told_apart,
    a_repeated_signed_content_is_known_under_any_id,
    keys_are_forgotten_at_their_time,
    of_parallel_duplicates_one_is_new,
    a_host_that_changed_turns_the_whole_delivery_away,
    one_delivery_may_reserve_twice_on_one_host,
    revisions_grow_per_allocation_and_per_group,
    a_held_key_reserves_once_and_stays_on_its_host,
    an_operation_may_be_settled_at_once,
    what_fails_leaves_no_trace_and_harms_no_neighbour,
    a_release_that_overtakes_its_allocate_wins_for_a_day,
);

async fn judge(backplane: &Backplane, acceptance: Acceptance) -> Accepted {
    backplane.store.accept(acceptance).await.unwrap()
}

async fn a_delivery_is_kept_whole_and_in_order(backplane: Backplane) {
    backplane.enrol("t4").await;
    let inspect = operation(json!({"op": "inspect", "target": {"host": "t4"}}));
    let new = vec![placed("one", "t4", 1), new(inspect, "t4")];
    let acceptance = delivery(1, backplane.now_ms(), new.clone());
    let Accepted::New(records) = judge(&backplane, acceptance.clone()).await else {
        panic!("a new delivery was not new");
    };
    for (record, new) in records.iter().zip(&new) {
        assert_eq!((record.id, &record.operation), (new.id, &new.operation));
        assert_eq!((record.state, record.sent), (OperationState::Queued, false));
        assert_eq!(record.host, Some(host("t4")));
        assert_eq!(record.callbacks, ["hooks"]);
        assert_eq!(record.accepted_at_ms, backplane.now_ms());
        let read = backplane.reads.operation(&tenant(), record.id).await;
        assert_eq!(read.unwrap().as_ref(), Some(record));
    }
    let read = backplane
        .reads
        .delivery(&tenant(), acceptance.delivery)
        .await;
    assert_eq!(read.unwrap(), Some(records));
    let allocation = backplane.reads.allocation(&tenant(), id_of("one")).await;
    let allocation = allocation.unwrap().unwrap();
    assert_eq!(
        (allocation.state, allocation.host),
        (AllocationState::Pending, host("t4"))
    );
    assert_eq!(backplane.reserved("t4").await, 1);
    assert_ne!(backplane.version("t4").await, 1);
}

/// field F04: a delivery that was never sent is not finished, and says what is left to send.
async fn a_delivery_that_comes_again_is_told_apart(backplane: Backplane) {
    backplane.enrol("t4").await;
    let first = delivery(1, backplane.now_ms(), vec![placed("one", "t4", 1)]);
    let Accepted::New(records) = judge(&backplane, first.clone()).await else {
        panic!("a new delivery was not new");
    };
    let again = delivery(1, backplane.now_ms(), vec![placed("one", "t4", 1)]);
    let Accepted::InFlight(known) = judge(&backplane, again.clone()).await else {
        panic!("an unsent delivery counts as finished");
    };
    assert_eq!((known.delivery, &known.unsent), (first.delivery, &records));
    let read = backplane
        .reads
        .known_delivery(&first.keys, backplane.now_ms())
        .await;
    assert_eq!(read.unwrap(), Some(known));

    backplane.store.mark_sent(records[0].id).await.unwrap();
    let Accepted::Replay(known) = judge(&backplane, again.clone()).await else {
        panic!("a sent delivery is not replayed");
    };
    assert_eq!((known.delivery, known.unsent.len()), (first.delivery, 0));
    assert_eq!((known.body, known.response), (first.body, first.response));

    let other_body = Acceptance {
        body: [9; 32],
        ..again
    };
    assert_eq!(judge(&backplane, other_body).await, Accepted::Mismatch);
    let page = backplane
        .reads
        .operations(&tenant(), None, 10)
        .await
        .unwrap();
    assert_eq!(page.items.len(), 1, "a repetition left an operation");
}

async fn a_repeated_signed_content_is_known_under_any_id(backplane: Backplane) {
    let keys = |id: u8| IdempotencyKeys {
        id: [id; 32],
        content: Some([100; 32]),
    };
    let first = Acceptance {
        keys: keys(1),
        ..delivery(1, backplane.now_ms(), Vec::new())
    };
    let forged = Acceptance {
        keys: keys(2),
        ..delivery(1, backplane.now_ms(), Vec::new())
    };
    assert_eq!(
        judge(&backplane, first.clone()).await,
        Accepted::New(Vec::new())
    );
    let Accepted::Replay(known) = judge(&backplane, forged).await else {
        panic!("a captured request ran again under a fresh id");
    };
    assert_eq!(known.delivery, first.delivery);
    // An id and a content that happen to be equal are still two things.
    let unrelated = Acceptance {
        keys: IdempotencyKeys {
            id: [100; 32],
            content: None,
        },
        ..delivery(3, backplane.now_ms(), Vec::new())
    };
    assert_eq!(
        judge(&backplane, unrelated).await,
        Accepted::New(Vec::new())
    );
}

async fn keys_are_forgotten_at_their_time(backplane: Backplane) {
    let first = delivery(1, backplane.now_ms(), Vec::new());
    judge(&backplane, first.clone()).await;
    let at = |now_ms| Acceptance {
        now_ms,
        ..delivery(1, now_ms, Vec::new())
    };
    let just_before = judge(&backplane, at(first.forget_at_ms - 1)).await;
    assert!(
        matches!(just_before, Accepted::Replay(_)),
        "{just_before:?}"
    );
    let read = backplane
        .reads
        .known_delivery(&first.keys, first.forget_at_ms)
        .await;
    assert_eq!(read.unwrap(), None, "known past its time, before any purge");
    assert_eq!(
        judge(&backplane, at(first.forget_at_ms)).await,
        Accepted::New(Vec::new())
    );
}

async fn of_parallel_duplicates_one_is_new(backplane: Backplane) {
    backplane.enrol("t4").await;
    let mut attempts = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let store = Arc::clone(&backplane.store);
        let acceptance = delivery(1, backplane.now_ms(), vec![placed("one", "t4", 1)]);
        attempts.spawn(async move { store.accept(acceptance).await.unwrap() });
    }
    let verdicts = attempts.join_all().await;
    let count = |is: fn(&Accepted) -> bool| verdicts.iter().filter(|verdict| is(verdict)).count();
    assert_eq!(count(|verdict| matches!(verdict, Accepted::New(_))), 1);
    assert_eq!(
        count(|verdict| matches!(verdict, Accepted::InFlight(_))),
        15
    );
}

async fn a_host_that_changed_turns_the_whole_delivery_away(backplane: Backplane) {
    backplane.enrol("a").await;
    backplane.enrol("b").await;
    backplane.accept_placed(1, "first", "b").await;
    let before = backplane.version("a").await;
    let stale = vec![placed("one", "a", before), placed("two", "b", 1)];
    let acceptance = delivery(2, backplane.now_ms(), stale);
    assert_eq!(
        judge(&backplane, acceptance.clone()).await,
        Accepted::CapacityMoved
    );
    let unknown = delivery(2, backplane.now_ms(), vec![placed("one", "nowhere", 1)]);
    assert_eq!(judge(&backplane, unknown).await, Accepted::CapacityMoved);

    assert_eq!(
        (backplane.version("a").await, backplane.reserved("a").await),
        (before, 0)
    );
    let read = backplane
        .reads
        .delivery(&tenant(), acceptance.delivery)
        .await;
    assert_eq!(read.unwrap(), None);
    // Placed again it is new: its keys were not used up.
    backplane.accept_placed(2, "two", "b").await;
}

async fn one_delivery_may_reserve_twice_on_one_host(backplane: Backplane) {
    backplane.enrol("t4").await;
    backplane
        .accept(1, vec![placed("one", "t4", 1), placed("two", "t4", 1)])
        .await;
    assert_eq!(backplane.reserved("t4").await, 2);
}

async fn revisions_grow_per_allocation_and_per_group(backplane: Backplane) {
    backplane.enrol("t4").await;
    let inspect = || operation(json!({"op": "inspect", "target": {"host": "t4"}}));
    let mut revisions = Vec::new();
    let one = vec![
        placed("one", "t4", 1),
        new(release("one"), "t4"),
        new(inspect(), "t4"),
    ];
    let two = vec![
        new(allocate("two"), "t4"),
        new(release("one"), "t4"),
        new(inspect(), "t4"),
    ];
    for (n, operations) in [(1, one), (2, two)] {
        let records = backplane.accept(n, operations).await;
        revisions.push(
            records
                .iter()
                .map(|record| record.revision)
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(revisions, [[1, 2, 1], [1, 3, 2]]);
}

async fn a_held_key_reserves_once_and_stays_on_its_host(backplane: Backplane) {
    backplane.enrol("a").await;
    backplane.enrol("b").await;
    let first = backplane.accept_placed(1, "one", "a").await;
    // Two webhooks decided at the same time, each on its own sight of the hosts.
    let elsewhere = delivery(2, backplane.now_ms(), vec![placed("one", "b", 1)]);
    assert_eq!(judge(&backplane, elsewhere).await, Accepted::CapacityMoved);
    let within = vec![
        placed("two", "a", backplane.version("a").await),
        placed("two", "b", 1),
    ];
    let within = delivery(2, backplane.now_ms(), within);
    assert_eq!(judge(&backplane, within).await, Accepted::CapacityMoved);

    let again = backplane
        .accept(2, vec![new(allocate("one"), "a")])
        .await
        .remove(0);
    assert!(again.revision > first.revision);
    // With a reservation of its own, decided on what the host was: it needs none.
    backplane.accept(3, vec![placed("one", "a", 1)]).await;
    assert_eq!(backplane.reserved("a").await, 1);
}

async fn an_operation_may_be_settled_at_once(backplane: Backplane) {
    let outcome = Outcome::Released(Released {
        allocation: id_of("one"),
        existed: false,
    });
    let ending = Ending {
        state: OperationState::Succeeded,
        outcome: Some(outcome.clone()),
        failure: None,
    };
    let mut settled = new(release("one"), "t4");
    settled.route = Route::Settled(ending.clone());
    settled.callbacks = vec!["grafana".to_owned()];
    let record = backplane.accept(1, vec![settled.clone()]).await.remove(0);
    let due = backplane.due(10).await;
    let told = format!("{}_succeeded", record.id);
    assert!(
        matches!(&due[..], [Due::Callback(owed)] if owed.webhook_id == told && owed.endpoint == "grafana"),
        "the caller of what ended at once is owed its end: {due:?}"
    );
    let Due::Callback(owed) = &due[0] else {
        unreachable!("matched above")
    };
    backplane
        .store
        .record_attempt(owed, Attempt::Delivered, backplane.now_ms())
        .await
        .unwrap();
    assert_eq!(
        (record.state, &record.host),
        (OperationState::Succeeded, &None)
    );
    assert_eq!(record.outcome, Some(outcome));
    backplane.clock.advance(Duration::from_secs(3600));
    assert!(
        backplane.due(10).await.is_empty(),
        "there is nothing to send"
    );
    let again = judge(&backplane, delivery(1, backplane.now_ms(), Vec::new())).await;
    assert!(matches!(again, Accepted::Replay(_)), "{again:?}");

    settled.id = new(release("one"), "t4").id;
    settled.route = Route::Settled(Ending {
        state: OperationState::Running,
        ..ending
    });
    let open = backplane
        .store
        .accept(delivery(2, backplane.now_ms(), vec![settled]))
        .await;
    open.expect_err("an operation without a host was left open for ever");
}

async fn what_fails_leaves_no_trace_and_harms_no_neighbour(backplane: Backplane) {
    backplane.enrol("t4").await;
    let taken = backplane.accept_placed(1, "one", "t4").await;
    let mut twin = new(allocate("three"), "t4");
    twin.id = taken.id;
    let good = delivery(2, backplane.now_ms(), vec![new(release("one"), "t4")]);
    let bad = delivery(
        3,
        backplane.now_ms(),
        vec![new(allocate("two"), "t4"), twin],
    );
    let (good, failed) = tokio::join!(
        backplane.store.accept(good),
        backplane.store.accept(bad.clone())
    );
    assert!(matches!(good.unwrap(), Accepted::New(_)));
    failed.expect_err("an operation id was used twice");
    let read = backplane.reads.delivery(&tenant(), bad.delivery).await;
    assert_eq!(read.unwrap(), None);
    let read = backplane.reads.allocation(&tenant(), id_of("two")).await;
    assert_eq!(read.unwrap(), None);
}

/// DESIGN §4: the tombstone of a key that has never existed.
async fn a_release_that_overtakes_its_allocate_wins_for_a_day(backplane: Backplane) {
    backplane.enrol("t4").await;
    let mut early = new(release("one"), "t4");
    early.route = Route::Settled(Ending {
        state: OperationState::Succeeded,
        outcome: None,
        failure: None,
    });
    backplane.accept(1, vec![early]).await;
    let late = backplane.accept_placed(2, "one", "t4").await;
    assert_eq!((late.state, late.host), (OperationState::Refused, None));
    assert_eq!(late.failure.unwrap().code, Code::ReleasedBeforeAllocate);
    assert_eq!(backplane.reserved("t4").await, 0);
    backplane.clock.advance(Duration::from_secs(24 * 3600));
    let next_day = backplane.accept_placed(3, "one", "t4").await;
    assert_eq!(next_day.state, OperationState::Queued);

    // After an ordinary release the key may be used again at once.
    let outcome = Outcome::Allocated(crate::sample::allocated("one"));
    backplane.settle(succeeded(&next_day, 1, outcome)).await;
    let ended = backplane
        .accept(4, vec![new(release("one"), "t4")])
        .await
        .remove(0);
    let outcome = Outcome::Released(Released {
        allocation: id_of("one"),
        existed: true,
    });
    backplane.settle(succeeded(&ended, 2, outcome)).await;
    let reused = backplane.accept_placed(5, "one", "t4").await;
    assert_eq!(reused.state, OperationState::Queued);
}
