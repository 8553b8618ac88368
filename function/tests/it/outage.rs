//! Store or queue down: 503 with `Retry-After`, never 202, and the sender's retry gives each command
//! exactly once (field F04).

use std::sync::atomic::Ordering;

use crate::machine::{Machine, TOKEN, op_id};

const TWO: &str = r#"{"operations":[{"op":"allocate","key":"a","profile":"T4-4Q"},{"op":"allocate","key":"b","profile":"T4-4Q"}]}"#;

#[tokio::test]
async fn a_store_that_is_down_is_503_everywhere() {
    let machine = Machine::start().await;
    machine.spy.store_down.store(true, Ordering::SeqCst);
    let paths = [
        "/v1/operations",
        "/v1/allocations",
        "/v1/allocations/k",
        "/v1/hosts",
        "/v1/operations/01890000-0000-7000-8000-000000000000",
    ];
    let mut answers = vec![
        machine.post("msg", TWO).await,
        machine.get("", "/healthz").await,
    ];
    for path in paths {
        answers.push(machine.get(TOKEN, path).await);
    }
    for answer in answers {
        assert_eq!(
            (answer.status, answer.code()),
            (503, "store-unavailable".to_owned()),
            "{answer:?}"
        );
        assert!(answer.header("retry-after").is_some());
        assert!(
            !answer.text.contains("told to be down"),
            "the reason is in the log"
        );
    }
    machine.spy.store_down.store(false, Ordering::SeqCst);
    assert_eq!(machine.get("", "/healthz").await.status, 200);
    assert_eq!(machine.post("msg", TWO).await.status, 202);
    assert_eq!(machine.spy.effects(), (1, 2));
    machine.stop().await;
}

/// field F04: nothing is queued while the queue is down.
#[tokio::test]
async fn a_queue_that_is_down_is_503_and_the_retry_sends_each_command_once() {
    let machine = Machine::start().await;
    machine.spy.queue_down.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let answer = machine.post("msg", TWO).await;
        assert_eq!(
            (answer.status, answer.code()),
            (503, "queue-unavailable".to_owned())
        );
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(
        machine.spy.effects(),
        (1, 0),
        "accepted once, and nothing sent"
    );
    assert_eq!(
        machine.post("msg", "{}").await.code(),
        "idempotency-mismatch"
    );
    machine.spy.queue_down.store(false, Ordering::SeqCst);
    let answer = machine.post("msg", TWO).await;
    assert_eq!(
        (answer.status, answer.header("idempotent-replayed")),
        (202, Some("true"))
    );
    for at in 0..2 {
        assert!(machine.record(op_id(&answer, at)).await.sent);
    }
    assert_eq!(machine.post("msg", TWO).await.text, answer.text);
    assert_eq!(machine.spy.effects(), (1, 2));
    machine.stop().await;
}

/// The sweep's half: `App` is its `Dispatch`.
#[tokio::test]
async fn what_was_accepted_and_not_sent_is_sent_by_dispatch() {
    let machine = Machine::start().await;
    machine.spy.queue_down.store(true, Ordering::SeqCst);
    machine
        .post("msg", r#"{"op":"allocate","key":"a","profile":"T4-4Q"}"#)
        .await;
    let listing = machine.get(TOKEN, "/v1/operations").await.json();
    let id: events::OperationId = listing["items"][0]["op_id"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let record = machine.record(id).await;
    assert!(machine.app.dispatcher.send(&record).await.is_err());
    machine.spy.queue_down.store(false, Ordering::SeqCst);
    machine.app.dispatcher.send(&record).await.unwrap();
    machine.app.dispatcher.send(&record).await.unwrap();
    assert_eq!(machine.command().await.unwrap().op_id, id);
    assert!(
        machine.command().await.is_none(),
        "the queue knows the operation's id"
    );
    assert!(machine.record(id).await.sent);
    machine.stop().await;
}
