//! Conformance: what events do to allocations, in whatever order they arrive.

use backplane::store::{AllocationRecord, AllocationState, OperationRecord, Settlement};
use events::outcome::{Outcome, Released, Renewed};
use events::result::EventKind;
use serde_json::json;

use crate::implementation::Backplane;
use crate::sample::{
    allocate, allocated, host, id_of, new, of_allocation, of_operation, operation, release,
    succeeded, tenant,
};

conforms!(
    an_allocation_lives_from_its_success_to_its_release,
    a_renewal_moves_the_end_of_the_lease,
    only_the_allocate_that_made_it_pending_takes_an_allocation_down,
    an_allocation_that_was_lost_or_ran_out_has_ended,
    changed_handles_are_kept,
    an_ending_that_overtakes_the_success_wins,
    late_events_of_an_earlier_life_move_nothing,
    the_end_of_an_earlier_lifes_remains_ends_no_new_one,
    a_key_that_moved_hosts_listens_to_its_new_host_alone,
);

async fn find(backplane: &Backplane, key: &str) -> AllocationRecord {
    let read = backplane.reads.allocation(&tenant(), id_of(key)).await;
    read.unwrap().unwrap()
}

/// Allocated on a host, by its event number `sequence`.
async fn make_live(backplane: &Backplane, n: u8, key: &str, host_name: &str, sequence: u64) {
    let record = backplane.accept_placed(n, key, host_name).await;
    backplane
        .settle(succeeded(
            &record,
            sequence,
            Outcome::Allocated(allocated(key)),
        ))
        .await;
    assert_eq!(find(backplane, key).await.state, AllocationState::Live);
}

async fn make_ended(backplane: &Backplane, n: u8, key: &str, host_name: &str, sequence: u64) {
    let record = backplane
        .accept(n, vec![new(release(key), host_name)])
        .await
        .remove(0);
    let outcome = Outcome::Released(Released {
        allocation: id_of(key),
        existed: true,
    });
    backplane
        .settle(succeeded(&record, sequence, outcome))
        .await;
    assert_eq!(find(backplane, key).await.state, AllocationState::Ended);
}

async fn an_allocation_lives_from_its_success_to_its_release(backplane: Backplane) {
    backplane.enrol("t4").await;
    make_live(&backplane, 1, "one", "t4", 1).await;
    let live = find(&backplane, "one").await;
    assert_eq!(live.allocated, Some(allocated("one")));
    assert_eq!(live.spec, allocate("one"));
    let listed = backplane
        .reads
        .allocations(&tenant(), None, 10)
        .await
        .unwrap();
    assert_eq!(listed.items, [live]);
    make_ended(&backplane, 2, "one", "t4", 2).await;
    let listed = backplane
        .reads
        .allocations(&tenant(), None, 10)
        .await
        .unwrap();
    assert_eq!(listed.items, []);
}

async fn a_renewal_moves_the_end_of_the_lease(backplane: Backplane) {
    backplane.enrol("t4").await;
    make_live(&backplane, 1, "one", "t4", 1).await;
    let renew = operation(json!({"op": "renew", "key": "one", "ttl_s": 60}));
    let record = backplane.accept(2, vec![new(renew, "t4")]).await.remove(0);
    let outcome = Outcome::Renewed(Renewed {
        allocation: id_of("one"),
        expires_at: 2000,
    });
    backplane.settle(succeeded(&record, 2, outcome)).await;
    let renewed = find(&backplane, "one").await.allocated.unwrap();
    assert_eq!(renewed.expires_at, Some(2000));
}

async fn only_the_allocate_that_made_it_pending_takes_an_allocation_down(backplane: Backplane) {
    backplane.enrol("t4").await;
    let kinds = [
        EventKind::OperationFailed,
        EventKind::OperationRefused,
        EventKind::OperationExpired,
    ];
    for (n, kind) in (1..).zip(kinds) {
        let key = format!("key-{n}");
        let first = backplane.accept_placed(n, &key, "t4").await;
        let again = backplane
            .accept(10 + n, vec![new(allocate(&key), "t4")])
            .await
            .remove(0);
        let sequence = u64::from(n) * 2;
        backplane
            .settle(of_operation(&again, kind, sequence, None))
            .await;
        assert_eq!(find(&backplane, &key).await.state, AllocationState::Pending);
        backplane
            .settle(of_operation(&first, kind, sequence + 1, None))
            .await;
        assert_eq!(find(&backplane, &key).await.state, AllocationState::Ended);
    }
    make_live(&backplane, 20, "live", "t4", 100).await;
    let again = backplane
        .accept(21, vec![new(allocate("live"), "t4")])
        .await
        .remove(0);
    backplane
        .settle(of_operation(&again, EventKind::OperationRefused, 101, None))
        .await;
    assert_eq!(find(&backplane, "live").await.state, AllocationState::Live);
}

async fn an_allocation_that_was_lost_or_ran_out_has_ended(backplane: Backplane) {
    backplane.enrol("t4").await;
    let kinds = [EventKind::AllocationExpired, EventKind::AllocationLost];
    for (n, kind) in (1..).zip(kinds) {
        let key = format!("key-{n}");
        let sequence = u64::from(n) * 10;
        make_live(&backplane, n, &key, "t4", sequence).await;
        let stale = of_allocation("t4", &key, kind, sequence - 1);
        assert_eq!(backplane.settle(stale).await, Settlement::Stale);
        assert_eq!(find(&backplane, &key).await.state, AllocationState::Live);
        let ending = of_allocation("t4", &key, kind, sequence + 1);
        assert_eq!(
            backplane.settle(ending.clone()).await,
            Settlement::Applied(None)
        );
        assert_eq!(find(&backplane, &key).await.state, AllocationState::Ended);
        assert_eq!(backplane.settle(ending).await, Settlement::Stale);
    }
    let unheard_of = of_allocation("t4", "unheard-of", EventKind::AllocationLost, 99);
    assert_eq!(backplane.settle(unheard_of).await, Settlement::Unknown);
    let mut other_tenant = of_allocation("t4", "key-1", EventKind::AllocationLost, 99);
    other_tenant.event.tenant = Some("evil".parse().unwrap());
    assert_eq!(backplane.settle(other_tenant).await, Settlement::Unknown);
}

async fn changed_handles_are_kept(backplane: Backplane) {
    backplane.enrol("t4").await;
    make_live(&backplane, 1, "one", "t4", 1).await;
    let mut handles = allocated("one");
    handles.pci = "0000:af:00.0".parse().unwrap();
    let mut event = of_allocation("t4", "one", EventKind::AllocationChanged, 2);
    event.event.data.outcome = Some(Outcome::Allocated(handles.clone()));
    assert_eq!(backplane.settle(event).await, Settlement::Applied(None));
    assert_eq!(find(&backplane, "one").await.allocated, Some(handles));
}

async fn an_ending_that_overtakes_the_success_wins(backplane: Backplane) {
    backplane.enrol("t4").await;
    let record = backplane.accept_placed(1, "one", "t4").await;
    let lost = of_allocation("t4", "one", EventKind::AllocationLost, 9);
    assert_eq!(backplane.settle(lost).await, Settlement::Applied(None));
    let success = succeeded(&record, 5, Outcome::Allocated(allocated("one")));
    let settled = backplane.settle(success).await;
    assert!(
        matches!(settled, Settlement::Applied(Some(_))),
        "the operation did succeed: {settled:?}"
    );
    assert_eq!(find(&backplane, "one").await.state, AllocationState::Ended);
}

async fn late_events_of_an_earlier_life_move_nothing(backplane: Backplane) {
    backplane.enrol("t4").await;
    make_live(&backplane, 1, "one", "t4", 1).await;
    make_ended(&backplane, 2, "one", "t4", 5).await;
    backplane.accept_placed(3, "one", "t4").await;
    let late = of_allocation("t4", "one", EventKind::AllocationExpired, 4);
    assert_eq!(backplane.settle(late).await, Settlement::Stale);
    assert_eq!(
        find(&backplane, "one").await.state,
        AllocationState::Pending
    );
}

async fn a_key_that_moved_hosts_listens_to_its_new_host_alone(backplane: Backplane) {
    backplane.enrol("old").await;
    backplane.enrol("new").await;
    make_live(&backplane, 1, "one", "old", 1000).await;
    let late = backplane
        .accept(2, vec![new(release("one"), "old")])
        .await
        .remove(0);
    make_ended(&backplane, 3, "one", "old", 1001).await;
    // Hosts count apart: the new one's low numbers are news.
    make_live(&backplane, 4, "one", "new", 3).await;
    assert_eq!(find(&backplane, "one").await.host, host("new"));

    let expired = of_allocation("old", "one", EventKind::AllocationExpired, 2000);
    assert_eq!(backplane.settle(expired).await, Settlement::Unknown);
    let outcome = Outcome::Released(Released {
        allocation: id_of("one"),
        existed: false,
    });
    backplane.settle(succeeded(&late, 2001, outcome)).await;
    assert_eq!(find(&backplane, "one").await.state, AllocationState::Live);

    let expired = of_allocation("new", "one", EventKind::AllocationExpired, 4);
    assert_eq!(backplane.settle(expired).await, Settlement::Applied(None));
    assert_eq!(find(&backplane, "one").await.state, AllocationState::Ended);
}

/// A failed allocate left something behind, which its host removes while another allocate of the key is
/// on its way: the new one is not taken down by the old one's end.
async fn the_end_of_an_earlier_lifes_remains_ends_no_new_one(backplane: Backplane) {
    backplane.enrol("t4").await;
    let first = backplane.accept_placed(1, "one", "t4").await;
    backplane
        .settle(of_operation(&first, EventKind::OperationFailed, 1, None))
        .await;
    let second = backplane.accept_placed(2, "one", "t4").await;
    let end_of = |operation: &OperationRecord, sequence| {
        let mut event = of_allocation("t4", "one", EventKind::AllocationExpired, sequence);
        event.event.data.op_id = Some(operation.id);
        event
    };
    assert_eq!(backplane.settle(end_of(&first, 2)).await, Settlement::Stale);
    assert_eq!(
        find(&backplane, "one").await.state,
        AllocationState::Pending
    );
    // Its own end counts, even if it overtakes the success.
    assert_eq!(
        backplane.settle(end_of(&second, 4)).await,
        Settlement::Applied(None)
    );
    assert_eq!(find(&backplane, "one").await.state, AllocationState::Ended);
    let late = succeeded(&second, 3, Outcome::Allocated(allocated("one")));
    backplane.settle(late).await;
    assert_eq!(find(&backplane, "one").await.state, AllocationState::Ended);
}
