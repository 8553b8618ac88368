//! The same webhook again, another body under the same id, and two at the same time (field F04).

use std::sync::atomic::Ordering;

use crate::machine::{Machine, op_id};

const ALLOCATE: &str = r#"{"op":"allocate","key":"k","profile":"T4-4Q"}"#;

#[tokio::test]
async fn a_replay_gets_the_same_answer_and_changes_nothing() {
    let machine = Machine::start().await;
    let first = machine.post("msg", ALLOCATE).await;
    // Later, under another timestamp, and after everything that could have decided otherwise changed.
    machine.clock.0.fetch_add(3_600_000, Ordering::SeqCst);
    let mut gone = crate::board::inventory(&machine.host());
    gone.gpus.clear();
    machine.observe(gone).await;
    let again = machine.post("msg", ALLOCATE).await;
    assert_eq!((again.status, &again.text), (202, &first.text));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(machine.spy.effects(), (1, 1));
    machine.stop().await;
}

#[tokio::test]
async fn another_body_under_a_known_id_is_a_mismatch_even_if_it_is_no_json() {
    let machine = Machine::start().await;
    machine.post("msg", ALLOCATE).await;
    for body in [
        r#"{"op":"allocate","key":"k","profile":"T4-8Q"}"#,
        "not json",
        "",
    ] {
        let answer = machine.post("msg", body).await;
        assert_eq!(
            (answer.status, answer.code()),
            (409, "idempotency-mismatch".to_owned()),
            "{body}"
        );
    }
    // Ids belong to their source: the rival's same id is another delivery.
    let rival = machine
        .signed("rival", "msg", ALLOCATE.as_bytes())
        .send(machine.address)
        .await;
    assert_eq!(
        (rival.status, rival.header("idempotent-replayed")),
        (202, None)
    );
    assert_eq!(machine.spy.effects(), (2, 2));
    machine.stop().await;
}

/// field F04: a duplicate in flight.
#[tokio::test]
async fn a_duplicate_of_an_unfinished_delivery_is_told_to_come_again() {
    let machine = Machine::start().await;
    let held = machine.spy.gate.forget_permits(usize::MAX);
    let request = machine.signed("ci", "msg", ALLOCATE.as_bytes());
    let address = machine.address;
    let first = tokio::spawn(async move { request.send(address).await });
    machine.spy.at_gate.acquire().await.unwrap().forget();
    let second = machine.post("msg", ALLOCATE).await;
    assert_eq!(
        (second.status, second.code()),
        (409, "in-progress".to_owned())
    );
    assert_eq!(second.header("retry-after"), Some("1"));
    machine.spy.gate.add_permits(held);
    let first = first.await.unwrap();
    assert_eq!(first.status, 202);
    let third = machine.post("msg", ALLOCATE).await;
    assert_eq!((third.status, &third.text), (202, &first.text));
    assert_eq!(machine.spy.effects(), (1, 1));
    machine.stop().await;
}

/// field F04: duplicates in parallel.
#[tokio::test]
async fn sixteen_at_once_are_one_delivery() {
    let machine = Machine::start().await;
    let request = machine.signed("ci", "msg", ALLOCATE.as_bytes());
    let all = (0..16).map(|_| {
        let (request, address) = (request.clone(), machine.address);
        tokio::spawn(async move { request.send(address).await })
    });
    let mut accepted = Vec::new();
    for one in all.collect::<Vec<_>>() {
        let answer = one.await.unwrap();
        match answer.status {
            202 => accepted.push(answer.text),
            409 => assert_eq!(answer.code(), "in-progress"),
            other => panic!("{other}: {answer:?}"),
        }
    }
    accepted.dedup();
    assert_eq!(accepted.len(), 1, "{accepted:?}");
    assert_eq!(machine.spy.effects(), (1, 1));
    machine.stop().await;
}

/// The caller goes away after the body was read: what was accepted is sent all the same.
#[tokio::test]
async fn a_caller_that_hangs_up_leaves_a_finished_delivery() {
    use tokio::io::AsyncWriteExt;

    let machine = Machine::start().await;
    let held = machine.spy.gate.forget_permits(usize::MAX);
    let mut stream = tokio::net::TcpStream::connect(machine.address)
        .await
        .unwrap();
    stream
        .write_all(&machine.signed("ci", "msg", ALLOCATE.as_bytes()).bytes())
        .await
        .unwrap();
    machine.spy.at_gate.acquire().await.unwrap().forget();
    drop(stream);
    machine.spy.gate.add_permits(held);
    let again = loop {
        let answer = machine.post("msg", ALLOCATE).await;
        if answer.status != 409 {
            break answer;
        }
    };
    assert_eq!(
        (again.status, again.header("idempotent-replayed")),
        (202, Some("true"))
    );
    assert!(machine.record(op_id(&again, 0)).await.sent);
    assert_eq!(machine.spy.effects(), (1, 1));
    machine.stop().await;
}
