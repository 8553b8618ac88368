//! What enters the ledger, and what does not.

use events::Code;
use events::command::COMMAND_TYPE;
use events::envelope::seal;
use events::key::SecretKey;
use events::result::EventKind;

use crate::machine::{Machine, allocate};

const TWO: &str = r#","count":2"#;

#[tokio::test]
async fn a_command_delivered_again_reports_the_stored_outcome_and_touches_nothing() {
    let machine = Machine::start().await;
    let command = machine.command(1, 1, &allocate(TWO));
    machine.send(&command);
    let end = machine.end_of(&command).await;
    assert_eq!(end.kind, EventKind::OperationSucceeded);
    let effects = machine.effects();
    // Even past its expiry: what is known is known.
    machine.pass_s(10_000);
    machine.send(&command);
    machine
        .until("the acknowledgement", || {
            (*machine.queues.acknowledged.lock().unwrap() == 2).then_some(())
        })
        .await;
    assert_eq!(machine.ends_of(&command), [end]);
    assert_eq!(machine.effects(), effects);
}

#[tokio::test]
async fn what_is_not_a_command_for_this_host_is_kept_aside_and_never_executed() {
    let machine = Machine::start().await;
    let good = machine.command(1, 1, &allocate(""));
    let mut elsewhere = machine.command(2, 1, &allocate(""));
    elsewhere.aud = "gpu-2".parse().unwrap();
    machine.queues.put("not an envelope".to_owned());
    machine
        .queues
        .put(seal(&good, COMMAND_TYPE, &SecretKey::generate().unwrap()).unwrap());
    machine
        .queues
        .put(seal(&good, "application/vnd.other+json", &machine.function).unwrap());
    machine.send(&elsewhere);
    // The queue goes on behind all of them.
    machine.send(&good);
    assert_eq!(
        machine.end_of(&good).await.kind,
        EventKind::OperationSucceeded
    );
    let mut other = machine.command(1, 1, &allocate(TWO));
    other.iat += 1;
    machine.send(&other);
    machine
        .until("all acknowledgements", || {
            (*machine.queues.acknowledged.lock().unwrap() == 6).then_some(())
        })
        .await;
    assert_eq!(machine.dead_letters(), 5);
    assert_eq!(machine.partitions().len(), 1);
}

#[tokio::test]
async fn expired_overtaken_and_unsupported_commands_are_answered_and_not_done() {
    let machine = Machine::start().await;
    let mut late = machine.command(1, 1, &allocate(""));
    late.exp = late.iat;
    machine.send(&late);
    let end = machine.end_of(&late).await;
    assert_eq!(
        (end.kind, end.data.failure.unwrap().code),
        (EventKind::OperationExpired, Code::Expired)
    );
    assert_eq!(
        machine
            .done(2, 7, r#"{"op":"release","key":"k"}"#)
            .await
            .kind,
        EventKind::OperationSucceeded
    );
    for (n, revision, operation, expect) in [
        (3, 6, allocate(""), Code::Superseded),
        (
            4,
            1,
            r#"{"op":"reset","target":{"host":"gpu-1"}}"#.to_owned(),
            Code::NotSupported,
        ),
        (
            5,
            1,
            r#"{"op":"tune","target":{"host":"gpu-1"}}"#.to_owned(),
            Code::NotPermitted,
        ),
        (
            6,
            8,
            r#"{"op":"renew","key":"k","ttl_s":5}"#.to_owned(),
            Code::UnknownAllocation,
        ),
        (
            7,
            8,
            allocate("").replace("T4-4Q", "T4-3Q"),
            Code::UnknownProfile,
        ),
        (
            8,
            8,
            allocate("").replace("0001\"", "0009\""),
            Code::UnknownGpu,
        ),
        (9, 8, allocate(r#","count":5"#), Code::NoCapacity),
    ] {
        let end = machine.done(n, revision, &operation).await;
        assert_eq!(
            (end.kind, end.data.failure.map(|failure| failure.code)),
            (EventKind::OperationRefused, Some(expect)),
            "{operation}"
        );
    }
    assert_eq!(machine.effects(), 0);
}

#[tokio::test]
async fn the_same_key_with_the_same_spec_is_the_same_allocation() {
    let machine = Machine::start().await;
    machine.done(1, 1, &allocate(TWO)).await;
    let effects = machine.effects();
    let again = machine.done(2, 2, &allocate(TWO)).await;
    assert_eq!(again.kind, EventKind::OperationSucceeded);
    assert_eq!(machine.effects(), effects);
    let other = machine.done(3, 3, &allocate("")).await;
    assert_eq!(other.data.failure.unwrap().code, Code::UseResize);
}
