//! Conformance: the queue. Semantics in `backplane::queue`, sources in the SQS developer guide.

use std::time::Duration;

use backplane::SendError;
use backplane::queue::{
    DEDUPLICATION_WINDOW, DEFAULT_VISIBILITY, MAX_BODY, MAX_RECEIVES, MAX_WAIT, Settled,
};
use backplane::{Clock, Message, QueueName, Receiver, SystemClock};

use crate::implementation::{Backplane, DEADLINE, QueueTime};
use crate::sample::{commands, message};

conforms!(
    a_group_is_delivered_in_order_and_one_at_a_time,
    a_blocked_group_blocks_no_other,
    a_receipt_is_worthless_once_its_time_has_run_out,
    a_message_put_back_returns_after_its_delay_and_holds_its_group,
    a_message_delivered_too_often_dies_and_its_group_goes_on,
    a_deduplication_id_outlives_the_ack_and_not_its_window,
    queues_share_nothing,
    illegal_messages_are_refused,
    a_waiting_receiver_is_woken_by_a_send,
    a_waiting_receiver_is_woken_by_an_ack,
    a_receive_that_finds_nothing_ends,
);

const NOW: Duration = Duration::ZERO;

/// The host whose queue hides what it delivered for a second only, where nobody can move its clock.
pub(crate) const HASTY: &str = "hasty";

async fn send(backplane: &Backplane, group: &str, dedup: &str) {
    send_to(backplane, "t4", group, dedup).await;
}

async fn send_to(backplane: &Backplane, host: &str, group: &str, dedup: &str) {
    let queue = commands(host);
    let sent = backplane.sender.send(&queue, message(group, dedup));
    sent.await.unwrap();
}

/// The next message, once whatever hides it is over.
async fn next(backplane: &Backplane, receiver: &dyn Receiver, hidden: Duration) -> Message {
    match backplane.queue_time {
        QueueTime::OfTheTest => backplane.clock.advance(hidden),
        QueueTime::ItsOwn => {}
    }
    for _ in 0..3 {
        if let Some(message) = receiver.receive(MAX_WAIT).await.unwrap() {
            return message;
        }
    }
    panic!("nothing came in a minute");
}

/// What settling a receipt that no longer holds answers; where that cannot be told, only that it has no
/// effect counts, which every case goes on to show.
fn assert_lost(backplane: &Backplane, settled: Settled) {
    if backplane.queue_time == QueueTime::OfTheTest {
        assert_eq!(settled, Settled::Lost);
    }
}

fn assert_now(backplane: &Backplane, time_ms: i64) {
    match backplane.queue_time {
        QueueTime::OfTheTest => assert_eq!(time_ms, backplane.now_ms()),
        QueueTime::ItsOwn => {
            let off_ms = (time_ms - SystemClock.now_ms()).abs();
            assert!(off_ms < 30_000, "{off_ms} ms off");
        }
    }
}

async fn receive(receiver: &dyn Receiver) -> Option<Message> {
    receiver.receive(NOW).await.unwrap()
}

async fn a_group_is_delivered_in_order_and_one_at_a_time(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands("t4"));
    for dedup in ["1", "2", "3"] {
        send(&backplane, "a", dedup).await;
    }
    for dedup in ["1", "2", "3"] {
        let message = receive(&*receiver).await.unwrap();
        assert_eq!(message.body, format!("a/{dedup}"));
        assert_eq!((message.group.as_str(), message.receive_count), ("a", 1));
        assert_now(&backplane, message.server_time_ms);
        assert_eq!(receive(&*receiver).await, None, "two of a group at once");
        let acked = receiver.ack(&message.receipt).await.unwrap();
        assert_eq!(acked, Settled::Done);
    }
    assert_eq!(receive(&*receiver).await, None);
}

async fn a_blocked_group_blocks_no_other(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands("t4"));
    for (group, dedup) in [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"), ("c", "5")] {
        send(&backplane, group, dedup).await;
    }
    let mut bodies = Vec::new();
    while let Some(message) = receive(&*receiver).await {
        bodies.push(message.body);
    }
    assert_eq!(bodies, ["a/1", "b/3", "c/5"]);
}

/// field F10.
async fn a_receipt_is_worthless_once_its_time_has_run_out(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands(HASTY));
    send_to(&backplane, HASTY, "a", "1").await;
    let first = receive(&*receiver).await.unwrap();
    if backplane.queue_time == QueueTime::OfTheTest {
        backplane.clock.advance(DEFAULT_VISIBILITY);
        // Run out, though nobody else has it yet.
        assert_eq!(receiver.ack(&first.receipt).await.unwrap(), Settled::Lost);
    }
    let second = next(&backplane, &*receiver, NOW).await;
    assert_eq!((&second.id, second.receive_count), (&first.id, 2));
    assert_ne!(second.receipt, first.receipt);
    let late = receiver.ack(&first.receipt).await.unwrap();
    assert_lost(&backplane, late);
    // The late receipt deleted nothing: it comes again.
    let third = next(&backplane, &*receiver, DEFAULT_VISIBILITY).await;
    assert_eq!((&third.id, third.receive_count), (&first.id, 3));
    if backplane.queue_time == QueueTime::OfTheTest {
        let put_back = receiver.nack(&first.receipt, NOW).await.unwrap();
        assert_eq!(put_back, Settled::Lost);
    }
    assert_eq!(receiver.ack(&third.receipt).await.unwrap(), Settled::Done);
    let again = receiver.ack(&third.receipt).await.unwrap();
    assert_lost(&backplane, again);
    let invented = receiver.ack("no receipt").await.unwrap();
    assert_lost(&backplane, invented);
}

async fn a_message_put_back_returns_after_its_delay_and_holds_its_group(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands("t4"));
    send(&backplane, "a", "1").await;
    send(&backplane, "a", "2").await;
    let delay = Duration::from_secs(2);
    let first = receive(&*receiver).await.unwrap();
    let put_back = receiver.nack(&first.receipt, delay).await.unwrap();
    assert_eq!(put_back, Settled::Done);
    let almost = delay - Duration::from_millis(1);
    backplane.clock.advance(almost);
    assert_eq!(receive(&*receiver).await, None, "out of order or too early");
    let again = next(&backplane, &*receiver, delay - almost).await;
    assert_eq!((again.id, again.receive_count), (first.id, 2));
}

async fn a_message_delivered_too_often_dies_and_its_group_goes_on(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands(HASTY));
    send_to(&backplane, HASTY, "a", "poison").await;
    send_to(&backplane, HASTY, "a", "good").await;
    let mut hidden = NOW;
    for count in 1..=MAX_RECEIVES {
        let message = next(&backplane, &*receiver, hidden).await;
        assert_eq!(
            (message.body.as_str(), message.receive_count),
            ("a/poison", count)
        );
        hidden = DEFAULT_VISIBILITY;
    }
    let good = next(&backplane, &*receiver, hidden).await;
    assert_eq!(good.body, "a/good");
}

async fn a_deduplication_id_outlives_the_ack_and_not_its_window(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands("t4"));
    send(&backplane, "a", "1").await;
    send(&backplane, "a", "1").await;
    let message = receive(&*receiver).await.unwrap();
    receiver.ack(&message.receipt).await.unwrap();
    if backplane.queue_time == QueueTime::ItsOwn {
        send(&backplane, "a", "1").await;
        assert_eq!(receive(&*receiver).await, None, "a duplicate was queued");
        return;
    }
    backplane
        .clock
        .advance(DEDUPLICATION_WINDOW - Duration::from_millis(1));
    send(&backplane, "a", "1").await;
    assert_eq!(receive(&*receiver).await, None, "a duplicate was queued");
    // The window runs from the first send: the duplicate just now did not extend it.
    backplane.clock.advance(Duration::from_millis(1));
    send(&backplane, "a", "1").await;
    assert_ne!(receive(&*receiver).await.unwrap().id, message.id);
}

async fn queues_share_nothing(backplane: Backplane) {
    let queues = [commands("t4"), commands("t4-2"), QueueName::Results];
    for queue in &queues {
        let sent = backplane.sender.send(queue, message("a", "1")).await;
        sent.unwrap();
    }
    let mut receipts = Vec::new();
    for queue in &queues {
        let receiver = (backplane.receiver)(queue);
        receipts.push(receive(&*receiver).await.unwrap().receipt);
        assert_eq!(receive(&*receiver).await, None);
    }
    let results = (backplane.receiver)(&QueueName::Results);
    if backplane.queue_time == QueueTime::OfTheTest {
        assert_eq!(results.ack(&receipts[0]).await.unwrap(), Settled::Lost);
    }
    assert_eq!(results.ack(&receipts[2]).await.unwrap(), Settled::Done);
}

/// field F58.
async fn illegal_messages_are_refused(backplane: Backplane) {
    let most = "x".repeat(128);
    let too_long = "x".repeat(129);
    let labels = [
        ("a", true),
        ("GPU-2a8b/3:1.0!~", true),
        (most.as_str(), true),
        (too_long.as_str(), false),
        ("", false),
        ("a b", false),
        ("a\n", false),
        ("é", false),
        ("🦀", false),
    ];
    let largest = "x".repeat(MAX_BODY);
    let too_large = "x".repeat(MAX_BODY + 1);
    let bodies = [
        ("{}\r\n\t", true),
        (largest.as_str(), true),
        (too_large.as_str(), false),
        ("", false),
        ("a\u{0}", false),
        ("\u{7f}", false),
        ("\u{fffe}", false),
        ("é", false),
    ];
    let mut messages = Vec::new();
    for (number, (label, legal)) in labels.into_iter().enumerate() {
        messages.push((message(label, &format!("group-{number}")), legal));
        messages.push((message("a", label), legal));
        messages
            .iter_mut()
            .for_each(|(message, _)| message.body = "{}".to_owned());
    }
    for (number, (body, legal)) in bodies.into_iter().enumerate() {
        let mut message = message("a", &format!("body-{number}"));
        message.body = body.to_owned();
        messages.push((message, legal));
    }
    for (message, legal) in messages {
        let shown = format!(
            "{:?} {:?} {}",
            message.group,
            message.dedup,
            message.body.len()
        );
        match backplane.sender.send(&commands("t4"), message).await {
            Ok(()) => assert!(legal, "{shown} was queued"),
            Err(SendError::Rejected(_)) => assert!(!legal, "{shown} was refused"),
            Err(error) => panic!("{shown}: {error}"),
        }
    }
}

async fn a_waiting_receiver_is_woken_by_a_send(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands("t4"));
    let waiting = tokio::spawn(async move { receiver.receive(Duration::from_secs(20)).await });
    // Whichever comes first, the send or the wait, the message arrives without the wait running out.
    tokio::task::yield_now().await;
    send(&backplane, "a", "1").await;
    let message = tokio::time::timeout(DEADLINE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(message.unwrap().unwrap().body, "a/1");
}

async fn a_waiting_receiver_is_woken_by_an_ack(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands("t4"));
    send(&backplane, "a", "1").await;
    send(&backplane, "a", "2").await;
    let first = receive(&*receiver).await.unwrap();
    let other = (backplane.receiver)(&commands("t4"));
    let waiting = tokio::spawn(async move { other.receive(Duration::from_secs(20)).await });
    tokio::task::yield_now().await;
    receiver.ack(&first.receipt).await.unwrap();
    let message = tokio::time::timeout(DEADLINE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(message.unwrap().unwrap().body, "a/2");
}

async fn a_receive_that_finds_nothing_ends(backplane: Backplane) {
    let receiver = (backplane.receiver)(&commands("t4"));
    let received = receiver.receive(Duration::from_millis(20));
    let received = tokio::time::timeout(DEADLINE, received).await.unwrap();
    assert_eq!(received.unwrap(), None);
}
