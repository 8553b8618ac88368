//! The sweep over a store and real receivers, with a clock that is turned by hand.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use backplane::store::{Attempt, Due, OperationRecord};
use function::callback::Callbacks;
use function::callback::endpoint::Endpoint;
use function::callback::exchange::Limits;
use function::sweep::{Dispatch, DispatchFailed, Sweep};
use tokio::sync::watch;

use crate::log::Log;
use crate::receiver::{
    Answer, FakeClock, FakeResolver, LIMITS, NOW_MS, Receiver, due, endpoint, status,
};
use crate::results::{allocate, operation};
use crate::store::FakeStore;

/// Level-triggered waits end with this at the latest.
const DEADLINE: Duration = Duration::from_secs(20);

/// Remembers what was sent.
#[derive(Default)]
pub(crate) struct FakeDispatch {
    sent: Mutex<Vec<OperationRecord>>,
    refuse: bool,
}

#[async_trait]
impl Dispatch for FakeDispatch {
    async fn dispatch(&self, operation: &OperationRecord) -> Result<(), DispatchFailed> {
        self.sent.lock().unwrap().push(operation.clone());
        if self.refuse {
            Err("queue is down".into())
        } else {
            Ok(())
        }
    }
}

fn sweep(
    store: &Arc<FakeStore>,
    clock: &Arc<FakeClock>,
    endpoints: Vec<Endpoint>,
    limits: Limits,
) -> (Arc<Sweep>, Arc<FakeDispatch>) {
    let dispatch = Arc::new(FakeDispatch::default());
    let resolver = FakeResolver::always(&["127.0.0.1:1".parse().unwrap()]);
    let callbacks = Arc::new(Callbacks::new(endpoints, resolver, clock.clone(), limits));
    let sweep = Sweep::new(store.clone(), clock.clone(), callbacks, dispatch.clone());
    (Arc::new(sweep), dispatch)
}

/// field F24: retries that went out unsigned, with a stale timestamp, or with another body.
#[tokio::test]
async fn every_attempt_has_the_same_id_and_body_and_a_fresh_signature() {
    let receiver = Receiver::start(|number| status(if number < 4 { 500 } else { 200 })).await;
    let (endpoint, verifier) = endpoint("demo", receiver.address.port());
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    let (sweep, _) = sweep(&store, &clock, vec![endpoint], LIMITS);
    store.push("demo", "msg_a_1", &due().body, NOW_MS);
    let mut attempted_at_s = Vec::new();
    for attempt in 0..5 {
        let due_at_ms = store.rows().callbacks[0].due_at_ms;
        clock.set(due_at_ms - 1);
        sweep.once().await;
        assert_eq!(receiver.received().len(), attempt, "not before it is due");
        clock.set(due_at_ms);
        sweep.once().await;
        sweep.once().await;
        assert_eq!(
            receiver.received().len(),
            attempt + 1,
            "once when it is due"
        );
        attempted_at_s.push(due_at_ms / 1_000);
    }
    assert_eq!(store.rows().callbacks[0].ended, Some(Attempt::Delivered));
    for (request, at_s) in receiver.received().iter().zip(&attempted_at_s) {
        verifier.check(request);
        assert_eq!(request.header("webhook-timestamp"), at_s.to_string());
        assert_eq!(request.header("webhook-id"), "msg_a_1");
        assert_eq!(request.body, due().body.as_bytes());
    }
    // Past the tolerance of receivers: the first timestamp would be refused by now.
    assert!(attempted_at_s.last().unwrap() - attempted_at_s[0] > 300);
}

#[tokio::test]
async fn a_receiver_that_never_recovers_is_given_up_after_nine_attempts() {
    let receiver = Receiver::start(|_| status(503)).await;
    let (endpoint, _) = endpoint("demo", receiver.address.port());
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    let (sweep, _) = sweep(&store, &clock, vec![endpoint], LIMITS);
    store.push("demo", "msg_a_1", "{}", NOW_MS);
    let mut now_ms = NOW_MS;
    while store.rows().callbacks[0].ended.is_none() {
        now_ms = store.rows().callbacks[0].due_at_ms;
        clock.set(now_ms);
        sweep.once().await;
    }
    assert_eq!(receiver.received().len(), 9);
    let parked = Attempt::Parked("status 503 after 9 attempts".to_owned());
    assert_eq!(store.rows().callbacks[0].ended, Some(parked));
    let hours = (now_ms - NOW_MS) / 3_600_000;
    assert!((22..=34).contains(&hours), "{hours} h");
}

#[tokio::test]
async fn a_slow_receiver_stalls_nobody_else() {
    let slow = Receiver::start(|_| Answer::Drip("HTTP/1.1 200 OK\r\nx: ".to_owned())).await;
    let fast = Receiver::start(|_| status(204)).await;
    let endpoints = vec![
        endpoint("slow", slow.address.port()).0,
        endpoint("fast", fast.address.port()).0,
    ];
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    for number in 0..700 {
        store.push("slow", &format!("msg_slow_{number}"), "{}", NOW_MS);
    }
    // The slow ones' deadline is beyond the test's own.
    let limits = Limits {
        total: DEADLINE * 2,
        ..LIMITS
    };
    let (sweep, _) = sweep(&store, &clock, endpoints, limits);
    let (_stop, stopped) = watch::channel(false);
    let running = tokio::spawn(Arc::clone(&sweep).run(stopped));
    store.push("fast", "msg_fast_1", "{}", NOW_MS);
    sweep.poke();
    let delivered = async {
        loop {
            let recorded = store.recorded.notified();
            if store.rows().callbacks[700].ended == Some(Attempt::Delivered) {
                return;
            }
            recorded.await;
        }
    };
    tokio::time::timeout(DEADLINE, delivered).await.unwrap();
    assert!(slow.connections() <= 4, "turns of one endpoint are few");
    assert_eq!(
        store.rows().callbacks[..700]
            .iter()
            .filter(|row| row.due.attempts > 0)
            .count(),
        0
    );
    running.abort();
}

/// A function that is woken for one receiver may be all that there is for the others.
#[tokio::test]
async fn a_slow_receiver_stalls_nobody_in_a_function_either() {
    let slow = Receiver::start(|_| Answer::Drip("HTTP/1.1 200 OK\r\nx: ".to_owned())).await;
    let fast = Receiver::start(|_| status(204)).await;
    let endpoints = vec![
        endpoint("slow", slow.address.port()).0,
        endpoint("fast", fast.address.port()).0,
    ];
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    store.push("slow", "msg_slow_1", "{}", NOW_MS);
    let limits = Limits {
        total: DEADLINE * 2,
        ..LIMITS
    };
    let (sweep, _) = sweep(&store, &clock, endpoints, limits);
    let running = tokio::spawn(async move { sweep.once().await });
    let delivered = async {
        while slow.connections() == 0 {
            tokio::task::yield_now().await;
        }
        store.push("fast", "msg_fast_1", "{}", NOW_MS);
        loop {
            let recorded = store.recorded.notified();
            if store.rows().callbacks[1].ended == Some(Attempt::Delivered) {
                return;
            }
            recorded.await;
        }
    };
    tokio::time::timeout(DEADLINE, delivered).await.unwrap();
    assert!(!running.is_finished(), "the slow one is still under way");
    running.abort();
}

#[tokio::test]
async fn many_callbacks_to_one_endpoint_are_each_delivered_once() {
    let receiver = Receiver::start(|_| status(204)).await;
    let (endpoint, _) = endpoint("demo", receiver.address.port());
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    for number in 0..100 {
        store.push("demo", &format!("msg_{number}_1"), "{}", NOW_MS);
    }
    let (sweep, _) = sweep(&store, &clock, vec![endpoint], LIMITS);
    sweep.once().await;
    let mut ids: Vec<_> = receiver
        .received()
        .iter()
        .map(|request| request.header("webhook-id").to_owned())
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), receiver.received().len()), (100, 100));
}

#[tokio::test]
async fn an_attempt_that_cannot_be_recorded_is_made_again_when_its_lease_ends() {
    let counted = Arc::new(AtomicUsize::new(0));
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    let receiver = Receiver::start({
        let (counted, store) = (counted.clone(), store.clone());
        move |number| {
            store.rows().down = number == 0;
            counted.fetch_add(1, Ordering::SeqCst);
            status(204)
        }
    })
    .await;
    let (endpoint, _) = endpoint("demo", receiver.address.port());
    let (sweep, _) = sweep(&store, &clock, vec![endpoint], LIMITS);
    store.push("demo", "msg_a_1", "{}", NOW_MS);
    sweep.once().await;
    assert_eq!(store.rows().callbacks[0].ended, None);
    store.rows().down = false;
    sweep.once().await;
    assert_eq!(counted.load(Ordering::SeqCst), 1, "still leased");
    let lease_end_ms = store.rows().callbacks[0].due_at_ms;
    clock.set(lease_end_ms);
    sweep.once().await;
    assert_eq!(store.rows().callbacks[0].ended, Some(Attempt::Delivered));
}

#[tokio::test]
async fn unsent_operations_are_sent_and_overdue_ones_are_not() {
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    let (sweep, dispatch) = sweep(&store, &clock, Vec::new(), LIMITS);
    let (unsent, overdue) = (operation(1, allocate("a")), operation(2, allocate("b")));
    store.rows().other_due = vec![
        Due::Unsent(Box::new(unsent.clone())),
        Due::Overdue(Box::new(overdue)),
    ];
    sweep.once().await;
    assert_eq!(*dispatch.sent.lock().unwrap(), [unsent]);
}

#[tokio::test]
async fn a_silent_host_is_reported_once_per_operation() {
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    let (sweep, _) = sweep(&store, &clock, Vec::new(), LIMITS);
    let log = Log::start();
    for _ in 0..3 {
        let overdue = [operation(1, allocate("a")), operation(2, allocate("b"))];
        store.rows().other_due = overdue
            .map(|record| Due::Overdue(Box::new(record)))
            .to_vec();
        sweep.once().await;
    }
    assert_eq!(
        log.text().matches("host_silent").count(),
        2,
        "{}",
        log.text()
    );
}

#[tokio::test]
async fn a_queue_or_store_that_is_down_does_not_end_the_sweep() {
    let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
    let receiver = Receiver::start(|_| status(204)).await;
    let callbacks = Callbacks::new(
        vec![endpoint("demo", receiver.address.port()).0],
        FakeResolver::always(&[receiver.address]),
        clock.clone(),
        LIMITS,
    );
    let refusing = Arc::new(FakeDispatch {
        refuse: true,
        ..FakeDispatch::default()
    });
    let sweep = Arc::new(Sweep::new(
        store.clone(),
        clock,
        Arc::new(callbacks),
        refusing.clone(),
    ));
    store.rows().down = true;
    sweep.once().await;
    store.rows().down = false;
    store.rows().other_due = vec![Due::Unsent(Box::new(operation(1, allocate("a"))))];
    store.push("demo", "msg_a_1", "{}", NOW_MS);
    sweep.once().await;
    assert_eq!(refusing.sent.lock().unwrap().len(), 1);
    assert_eq!(store.rows().callbacks[0].ended, Some(Attempt::Delivered));
}

#[tokio::test]
async fn the_sweep_ends_when_told_to_or_when_nobody_is_left_to_tell_it() {
    for tell in [true, false] {
        let (store, clock) = (FakeStore::new(), FakeClock::at(NOW_MS));
        let (sweep, _) = sweep(&store, &clock, Vec::new(), LIMITS);
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(sweep.run(stopped));
        if tell {
            stop.send(true).unwrap();
        }
        drop(stop);
        tokio::time::timeout(DEADLINE, running)
            .await
            .unwrap()
            .unwrap();
    }
}
