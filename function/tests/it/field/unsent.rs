//! Sends that fail, half fail or are cut off by a crash: no 2xx before every command is queued, and
//! each command exactly once after it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use events::OperationId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::Answer;
use crate::machine::{Machine, NOW, op_id};
use crate::spy::Fault;

/// Longest wait for what comes at once.
const DEADLINE: Duration = Duration::from_secs(60);

fn allocates(count: usize) -> String {
    let one = |number| format!(r#"{{"op":"allocate","key":"k{number}","profile":"T4-4Q"}}"#);
    let all: Vec<_> = (0..count).map(one).collect();
    format!(r#"{{"operations":[{}]}}"#, all.join(","))
}

fn op_ids(answer: &Answer, count: usize) -> Vec<OperationId> {
    (0..count).map(|at| op_id(answer, at)).collect()
}

/// What the host finds in its queue, in order.
async fn queued(machine: &Machine) -> Vec<OperationId> {
    let mut found = Vec::new();
    while let Some(command) = machine.command().await {
        found.push(command.op_id);
    }
    found
}

/// Delivers until it is accepted, and says how often it was told to come again.
async fn deliver(machine: &Machine, body: &str, name: &str) -> (Answer, usize) {
    for refused in 0..20 {
        let answer = machine.post("msg", body).await;
        if answer.status == 202 {
            return (answer, refused);
        }
        assert_eq!(
            (answer.status, answer.code()),
            (503, "queue-unavailable".to_owned()),
            "{name}: {answer:?}"
        );
        assert!(answer.header("retry-after").is_some(), "{name}");
    }
    panic!("{name}: never accepted")
}

/// field F04: SendMessage is refused, throttled, or times out after accepting, for one, for two of
/// five, and for each in turn.
#[tokio::test]
async fn no_send_that_fails_is_answered_2xx_and_the_redelivery_queues_each_command_once() {
    let of = |fault| (Some(fault), None::<Fault>);
    let (rejected, ok) = of(Fault::Rejected);
    let (lost, _) = of(Fault::Lost);
    let (unconfirmed, _) = of(Fault::Unconfirmed);
    for (name, faults) in [
        ("access denied", vec![rejected]),
        ("throttled", vec![lost]),
        ("timed out after accepting", vec![unconfirmed]),
        ("the last of five", vec![ok, ok, ok, ok, rejected]),
        // The delivery stops at its second and goes on with it: its fourth is the fifth send.
        ("2 of 5 refused", vec![ok, rejected, ok, ok, rejected]),
        (
            "2 of 5 unconfirmed",
            vec![ok, unconfirmed, ok, ok, unconfirmed],
        ),
        (
            "the same one again and again",
            vec![lost, rejected, unconfirmed],
        ),
        (
            "each in turn",
            vec![rejected, ok, lost, ok, unconfirmed, ok, rejected, ok, lost],
        ),
    ] {
        let machine = Machine::start().await;
        let failing = faults.iter().flatten().count();
        *machine.spy.faults.lock().unwrap() = faults.into();
        let (answer, refused) = deliver(&machine, &allocates(5), name).await;
        assert_eq!(refused, failing, "{name}: told of each failure");
        let ids = op_ids(&answer, 5);
        for id in &ids {
            assert!(machine.record(*id).await.sent, "{name}");
        }
        assert_eq!(queued(&machine).await, ids, "{name}: each once, in order");
        let again = machine.post("msg", &allocates(5)).await;
        assert_eq!(
            (
                again.status,
                again.header("idempotent-replayed"),
                &again.text
            ),
            (202, Some("true"), &answer.text),
            "{name}"
        );
        assert_eq!(queued(&machine).await, [], "{name}: nothing again");
        assert_eq!(machine.spy.accepts.load(Ordering::SeqCst), 1, "{name}");
        machine.stop().await;
    }
}

/// field F04: the process ends between the marker (the delivery in the store) and the send, and
/// between the send and the marker (the operation as sent).
#[tokio::test]
async fn a_crash_around_a_send_is_made_good_by_the_redelivery() {
    // Within the queue's deduplication window and beyond it.
    for (fault, later_s, copies) in [
        (Fault::CrashBefore, 1, 1),
        (Fault::CrashBefore, 400, 1),
        (Fault::CrashAfter, 1, 1),
        (Fault::CrashAfter, 400, 2),
    ] {
        let case = format!("{fault:?}, {later_s} s later");
        let machine = Machine::start().await;
        *machine.spy.faults.lock().unwrap() = [None, Some(fault)].into();
        let body = allocates(3);
        let mut first = TcpStream::connect(machine.address).await.unwrap();
        let request = machine.signed("ci", "msg", body.as_bytes()).bytes();
        first.write_all(&request).await.unwrap();
        let standing = timeout(DEADLINE, machine.spy.at_crash.acquire()).await;
        standing.expect("the send is reached").unwrap().forget();

        let machine = machine.crash(|_| {}).await;
        let mut answer = Vec::new();
        let _ = first.read_to_end(&mut answer).await;
        assert_eq!(answer, b"", "{case}: the first was never answered");
        machine.clock.0.fetch_add(later_s * 1000, Ordering::SeqCst);
        let (answer, refused) = deliver(&machine, &body, &case).await;
        assert_eq!(refused, 0, "{case}: nothing stands in its way");
        assert_eq!(answer.header("idempotent-replayed"), Some("true"), "{case}");

        let ids = op_ids(&answer, 3);
        let mut found = Vec::new();
        while let Some(message) = machine.message().await {
            found.push(message.body);
        }
        // A copy that the queue no longer knows as one is the same command, byte for byte, under the
        // same operation: the host's ledger has it already.
        found.sort();
        assert_eq!(found.len(), 2 + copies, "{case}");
        found.dedup();
        assert_eq!(found.len(), 3, "{case}");
        for id in &ids {
            let record = machine.record(*id).await;
            assert!(record.sent && record.accepted_at_ms == NOW * 1000, "{case}");
        }
        machine.stop().await;
    }
}

/// field F04: duplicates that come while the first is held for 3 s are told to come again, and what
/// they find then is the first's own fate.
#[tokio::test]
async fn duplicates_of_a_held_delivery_are_never_acknowledged_as_done() {
    for fails in [false, true] {
        let machine = Machine::start().await;
        *machine.spy.faults.lock().unwrap() = [fails.then_some(Fault::Rejected)].into();
        let held = machine.spy.gate.forget_permits(usize::MAX);
        let body = allocates(1);
        let post = || {
            let request = machine.signed("ci", "msg", body.as_bytes());
            let address = machine.address;
            tokio::spawn(async move { request.send(address).await })
        };
        let first = post();
        let standing = timeout(DEADLINE, machine.spy.at_gate.acquire()).await;
        standing.expect("the send is reached").unwrap().forget();
        for _ in 0..3 {
            machine.clock.0.fetch_add(1000, Ordering::SeqCst);
            let together: Vec<_> = (0..8).map(|_| post()).collect();
            for duplicate in together {
                let answer = duplicate.await.unwrap();
                assert_eq!(
                    (answer.status, answer.code(), answer.header("retry-after")),
                    (409, "in-progress".to_owned(), Some("1")),
                );
            }
        }
        machine.spy.gate.add_permits(held);
        assert_eq!(first.await.unwrap().status, if fails { 503 } else { 202 });
        let (answer, _) = deliver(&machine, &body, "afterwards").await;
        assert_eq!(answer.header("idempotent-replayed"), Some("true"));
        assert_eq!(queued(&machine).await, op_ids(&answer, 1));
        assert_eq!(machine.spy.effects(), (1, 1));
        machine.stop().await;
    }
}
