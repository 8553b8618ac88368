//! What the queue does to commands: late receipts, redelivery, and its own idea of the time.

use std::sync::atomic::Ordering;

use events::Code;
use events::result::EventKind;

use crate::machine::{Machine, NOW_S, allocate};

/// field F10: receipts that ran out are no failure of the command, and its redelivery does nothing again.
#[tokio::test]
async fn lost_receipts_are_counted_and_nothing_is_done_twice() {
    let machine = Machine::start().await;
    machine.queues.lost.store(3, Ordering::SeqCst);
    let made = machine.done(1, 1, &allocate(r#","count":2"#)).await;
    assert_eq!(made.kind, EventKind::OperationSucceeded);
    machine
        .until("the fourth receipt to hold", || {
            (*machine.queues.acknowledged.lock().unwrap() == 1).then_some(())
        })
        .await;
    assert_eq!(machine.status()["lost_receipts"], 3);
    assert_eq!((machine.effects(), machine.partitions().len()), (2, 2));
    let ends = machine.ends_of(&machine.command(1, 1, &allocate(r#","count":2"#)));
    assert_eq!(ends.len(), 1, "told once");
}

/// DESIGN §3: what the front door has given up is not started by a host whose clock runs late.
#[tokio::test]
async fn the_queues_clock_expires_what_a_late_host_would_start() {
    let machine = Machine::start().await;
    let command = machine.command(1, 1, &allocate(""));
    machine
        .queues
        .server_time_ms
        .store((NOW_S + 901) * 1000, Ordering::SeqCst);
    machine.send(&command);
    let end = machine.end_of(&command).await;
    assert_eq!(
        (end.kind, end.data.failure.unwrap().code),
        (EventKind::OperationExpired, Code::Expired)
    );
    assert_eq!(machine.effects(), 0);
}
