//! `Prefer: wait=N`: the answer comes as soon as every operation has ended, or when the time is over.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::board;
use crate::machine::{Machine, TOKEN, op_id};

const ALLOCATE: &str = r#"{"op":"allocate","key":"k","profile":"T4-4Q"}"#;

#[tokio::test]
async fn a_wait_ends_with_the_operation() {
    let machine = Machine::start().await;
    let answer = machine.post("msg", ALLOCATE).await;
    let id = op_id(&answer, 0);
    let paths = [
        format!("/v1/operations/{id}"),
        answer.header("location").unwrap().to_owned(),
    ];
    let waiting = paths.map(|path| {
        let (request, address) = (
            machine.reading(TOKEN, &path).with("prefer", "wait=25"),
            machine.address,
        );
        tokio::spawn(async move { request.send(address).await })
    });
    let start = Instant::now();
    machine.succeed(id, board::inventory(&machine.host())).await;
    for (waiting, pointer) in waiting.into_iter().zip(["/state", "/operations/0/state"]) {
        let answer = waiting.await.unwrap();
        assert_eq!(
            (answer.status, answer.json().pointer(pointer)),
            (200, Some(&json!("succeeded")))
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "woken, not timed out"
    );
    machine.stop().await;
}

#[tokio::test]
async fn a_wait_that_is_over_is_answered_with_what_is() {
    let machine = Machine::start().await;
    let posted = machine
        .signed("ci", "msg", ALLOCATE.as_bytes())
        .with("prefer", "wait=1")
        .send(machine.address)
        .await;
    assert_eq!(
        (posted.status, posted.header("retry-after")),
        (202, Some("2"))
    );
    let path = format!("/v1/operations/{}", op_id(&posted, 0));
    let read = machine
        .reading(TOKEN, &path)
        .with("prefer", "wait=1")
        .send(machine.address)
        .await;
    assert_eq!(
        (read.status, &read.json()["state"]),
        (200, &json!("queued"))
    );
    machine.stop().await;
}

#[tokio::test]
async fn a_post_that_waited_is_answered_with_the_results() {
    let machine = Machine::start().await;
    let request = machine
        .signed("ci", "msg", ALLOCATE.as_bytes())
        .with("prefer", "respond-async, wait=25");
    let address = machine.address;
    let waiting = tokio::spawn(async move { request.send(address).await });
    machine.spy.at_gate.acquire().await.unwrap().forget();
    let command = loop {
        match machine.command().await {
            Some(command) => break command,
            None => tokio::task::yield_now().await,
        }
    };
    machine
        .succeed(command.op_id, board::inventory(&machine.host()))
        .await;
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json()["operations"][0]["outcome"]["kind"],
        "allocated"
    );
    // What is settled at once needs no waiting.
    let request = machine
        .signed("ci", "msg_2", br#"{"op":"release","key":"unknown"}"#)
        .with("prefer", "wait=25");
    let answer = request.send(machine.address).await;
    assert_eq!(
        (answer.status, &answer.json()["operations"][0]["state"]),
        (200, &json!("succeeded"))
    );
    machine.stop().await;
}
