//! Conformance: what is due, and to one worker at a time.

use std::time::Duration;

use backplane::store::{Attempt, Due, DueCallback, DueKinds};
use events::outcome::Outcome;
use events::result::EventKind;

use crate::implementation::Backplane;
use crate::sample::{allocated, callback, new, of_operation, placed, release, succeeded};

conforms!(
    an_unsent_operation_is_due_until_it_is_sent,
    an_overdue_operation_is_due_until_it_is_final,
    a_callback_is_due_until_it_is_delivered_or_parked,
    a_late_answer_never_undoes_a_delivery,
    what_is_due_is_bounded_and_the_unsent_are_not_starved,
    only_what_is_asked_for_is_leased,
);

/// Longer than the lease that tests take.
const LEASE: Duration = Duration::from_secs(60);

fn kinds(due: &[Due]) -> Vec<&'static str> {
    let kind = |due: &Due| match due {
        Due::Unsent(_) => "unsent",
        Due::Overdue(_) => "overdue",
        Due::Callback(_) => "callback",
    };
    due.iter().map(kind).collect()
}

/// An operation's callback, as it was queued with the operation's end.
async fn owe(backplane: &Backplane, n: u8) {
    let key = format!("key-{n}");
    let record = backplane.accept_placed(n, &key, "t4").await;
    let event = succeeded(&record, u64::from(n), Outcome::Allocated(allocated(&key)));
    let callbacks = vec![callback(&format!("w{n}"))];
    let settled = backplane.store.settle(event, callbacks, backplane.now_ms());
    settled.await.unwrap();
}

async fn only_callback(backplane: &Backplane) -> DueCallback {
    match &backplane.due(10).await[..] {
        [Due::Callback(callback)] => callback.clone(),
        other => panic!("one callback is due, not {other:?}"),
    }
}

async fn an_unsent_operation_is_due_until_it_is_sent(backplane: Backplane) {
    backplane.enrol("t4").await;
    let record = backplane.accept_placed(1, "one", "t4").await;
    backplane.clock.advance(Duration::from_millis(4999));
    assert_eq!(backplane.due(10).await, [], "the front door is still at it");
    backplane.clock.advance(Duration::from_millis(1));
    assert_eq!(
        backplane.due(10).await,
        [Due::Unsent(Box::new(record.clone()))]
    );
    assert_eq!(backplane.due(10).await, [], "leased");
    backplane.clock.advance(LEASE);
    assert_eq!(kinds(&backplane.due(10).await), ["unsent"]);
    backplane.clock.advance(LEASE);
    backplane.store.mark_sent(record.id).await.unwrap();
    assert_eq!(backplane.due(10).await, []);
}

async fn an_overdue_operation_is_due_until_it_is_final(backplane: Backplane) {
    backplane.enrol("t4").await;
    let record = backplane.accept_placed(1, "one", "t4").await;
    backplane.store.mark_sent(record.id).await.unwrap();
    backplane.clock.advance(Duration::from_secs(900 + 59));
    assert_eq!(backplane.due(10).await, [], "its host may still report");
    backplane.clock.advance(Duration::from_secs(1));
    assert_eq!(kinds(&backplane.due(10).await), ["overdue"]);
    backplane.clock.advance(LEASE);
    assert_eq!(kinds(&backplane.due(10).await), ["overdue"]);
    backplane.clock.advance(LEASE);
    backplane
        .settle(of_operation(&record, EventKind::OperationExpired, 1, None))
        .await;
    assert_eq!(backplane.due(10).await, []);
}

async fn a_callback_is_due_until_it_is_delivered_or_parked(backplane: Backplane) {
    backplane.enrol("t4").await;
    for (n, end) in [
        (1, Attempt::Delivered),
        (2, Attempt::Parked("gone".to_owned())),
    ] {
        owe(&backplane, n).await;
        let first = only_callback(&backplane).await;
        assert_eq!((first.endpoint.as_str(), first.attempts), ("hooks", 0));
        assert_eq!(first.body, format!("body of w{n}"));
        assert_eq!(backplane.due(10).await, [], "leased");
        let later = backplane.now_ms() + 5000;
        backplane
            .attempt(&first, Attempt::RetryAt(later, "503".to_owned()))
            .await;
        backplane.clock.advance(Duration::from_millis(4999));
        assert_eq!(backplane.due(10).await, []);
        backplane.clock.advance(Duration::from_millis(1));
        let second = only_callback(&backplane).await;
        assert_eq!(
            second,
            DueCallback {
                attempts: 1,
                ..first
            }
        );
        // Whoever had it died with it.
        backplane.clock.advance(LEASE);
        let third = only_callback(&backplane).await;
        backplane.attempt(&third, end).await;
        backplane.clock.advance(Duration::from_secs(30 * 24 * 3600));
        assert_eq!(backplane.due(10).await, []);
    }
}

async fn a_late_answer_never_undoes_a_delivery(backplane: Backplane) {
    backplane.enrol("t4").await;
    owe(&backplane, 1).await;
    let callback = only_callback(&backplane).await;
    backplane.attempt(&callback, Attempt::Delivered).await;
    let retry = Attempt::RetryAt(backplane.now_ms(), "timeout".to_owned());
    backplane.attempt(&callback, retry).await;
    backplane.clock.advance(LEASE);
    assert_eq!(backplane.due(10).await, []);
}

async fn what_is_due_is_bounded_and_the_unsent_are_not_starved(backplane: Backplane) {
    backplane.enrol("t4").await;
    backplane.enrol("silent").await;
    for n in 1..=3 {
        let lost = backplane
            .accept_placed(n, &format!("lost-{n}"), "silent")
            .await;
        backplane.store.mark_sent(lost.id).await.unwrap();
    }
    backplane.clock.advance(Duration::from_secs(1000));
    let mut fresh = new(release("x"), "t4");
    fresh.expires_at_s += 1000;
    backplane.accept(10, vec![fresh]).await;
    let mut placed = placed("y", "t4", 1);
    placed.expires_at_s += 1000;
    backplane.accept(11, vec![placed]).await;
    backplane.clock.advance(Duration::from_secs(5));
    // A host that stays silent is no reason to keep others waiting.
    assert_eq!(
        kinds(&backplane.due(3).await),
        ["unsent", "unsent", "overdue"]
    );
    assert_eq!(kinds(&backplane.due(1).await), ["overdue"]);
    assert_eq!(kinds(&backplane.due(0).await), [""; 0]);
    assert_eq!(kinds(&backplane.due(10).await), ["overdue"]);
}

/// A function that cannot send commands must not keep them from the one that can.
async fn only_what_is_asked_for_is_leased(backplane: Backplane) {
    backplane.enrol("t4").await;
    owe(&backplane, 1).await;
    backplane.accept_placed(2, "unsent", "t4").await;
    backplane.clock.advance(Duration::from_secs(5));
    for (asked, expect) in [
        (DueKinds::Operations, vec!["unsent"]),
        (DueKinds::Operations, vec![]),
        (DueKinds::Callbacks, vec!["callback"]),
        (DueKinds::All, vec![]),
    ] {
        let claimed = backplane
            .store
            .claim_due(asked, backplane.now_ms(), 60_000, 10)
            .await;
        assert_eq!(kinds(&claimed.unwrap()), expect, "{asked:?}");
    }
}
