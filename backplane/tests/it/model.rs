//! The queue against a reference small enough to be believed: random sends, receives,
//! acknowledgements with any receipt ever seen, and jumps of the clock.

use std::collections::HashMap;
use std::time::Duration;

use backplane::queue::{DEDUPLICATION_WINDOW, DEFAULT_VISIBILITY, MAX_RECEIVES, Settled};
use backplane::{Clock, Receiver, Sender};
use proptest::prelude::*;

use crate::implementation::{ManualClock, open};
use crate::sample::{commands, message};

/// What is done to both.
#[derive(Debug, Clone)]
enum Action {
    Send {
        group: u8,
        dedup: u8,
    },
    Receive,
    /// With one of the receipts given out so far.
    Ack(prop::sample::Index),
    Nack(prop::sample::Index, Duration),
    Advance(Duration),
}

fn action() -> impl Strategy<Value = Action> {
    let index = any::<prop::sample::Index>;
    let around = |duration: Duration| {
        let ms = u64::try_from(duration.as_millis()).unwrap();
        prop_oneof![Just(ms - 1), Just(ms), Just(1), 1..ms].prop_map(Duration::from_millis)
    };
    prop_oneof![
        4 => (0..3u8, 0..12u8).prop_map(|(group, dedup)| Action::Send { group, dedup }),
        8 => Just(Action::Receive),
        2 => index().prop_map(Action::Ack),
        2 => (index(), around(DEFAULT_VISIBILITY)).prop_map(|(index, delay)| Action::Nack(index, delay)),
        4 => around(DEFAULT_VISIBILITY).prop_map(Action::Advance),
        1 => around(DEDUPLICATION_WINDOW).prop_map(Action::Advance),
    ]
}

struct Entry {
    group: String,
    body: String,
    visible_at_ms: i64,
    receives: u32,
    /// Number of the delivery that holds it.
    delivery: Option<usize>,
}

/// The reference: messages in one list, oldest first.
#[derive(Default)]
struct Model {
    messages: Vec<Entry>,
    forget_at_ms: HashMap<String, i64>,
    deliveries: usize,
    dead: Vec<String>,
}

impl Model {
    fn send(&mut self, group: String, dedup: String, body: String, now_ms: i64) {
        if self
            .forget_at_ms
            .get(&dedup)
            .is_some_and(|at_ms| now_ms < *at_ms)
        {
            return;
        }
        self.forget_at_ms
            .insert(dedup, now_ms + ms(DEDUPLICATION_WINDOW));
        self.messages.push(Entry {
            group,
            body,
            visible_at_ms: now_ms,
            receives: 0,
            delivery: None,
        });
    }

    /// Body and count of what is delivered.
    fn receive(&mut self, now_ms: i64) -> Option<(String, u32)> {
        loop {
            let is_head = |index: usize| {
                let group = &self.messages[index].group;
                self.messages[..index]
                    .iter()
                    .all(|earlier| earlier.group != *group)
            };
            let next = (0..self.messages.len())
                .find(|&index| is_head(index) && self.messages[index].visible_at_ms <= now_ms)?;
            if self.messages[next].receives == MAX_RECEIVES {
                self.dead.push(self.messages.remove(next).body);
                continue;
            }
            let message = &mut self.messages[next];
            message.receives += 1;
            message.visible_at_ms = now_ms + ms(DEFAULT_VISIBILITY);
            message.delivery = Some(self.deliveries);
            self.deliveries += 1;
            return Some((message.body.clone(), message.receives));
        }
    }

    /// The message that a delivery still holds.
    fn held(&self, delivery: usize, now_ms: i64) -> Option<usize> {
        self.messages
            .iter()
            .position(|entry| entry.delivery == Some(delivery) && entry.visible_at_ms > now_ms)
    }

    fn ack(&mut self, delivery: usize, now_ms: i64) -> Settled {
        let Some(index) = self.held(delivery, now_ms) else {
            return Settled::Lost;
        };
        self.messages.remove(index);
        Settled::Done
    }

    fn nack(&mut self, delivery: usize, after: Duration, now_ms: i64) -> Settled {
        let Some(index) = self.held(delivery, now_ms) else {
            return Settled::Lost;
        };
        self.messages[index].delivery = None;
        self.messages[index].visible_at_ms = now_ms + ms(after);
        Settled::Done
    }
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap()
}

async fn agree(actions: Vec<Action>) {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::start();
    let backplane = open(&folder.path().join("backplane.db"), clock.clone());
    let queue = commands("t4");
    let receiver = backplane.receiver(&queue);
    let mut model = Model::default();
    let mut receipts: Vec<String> = Vec::new();
    for (step, action) in actions.into_iter().enumerate() {
        let now_ms = clock.now_ms();
        match action {
            Action::Send { group, dedup } => {
                let mut message = message(&format!("g{group}"), &format!("d{dedup}"));
                message.body = format!("message of step {step}");
                model.send(
                    message.group.clone(),
                    message.dedup.clone(),
                    message.body.clone(),
                    now_ms,
                );
                backplane.send(&queue, message).await.unwrap();
            }
            Action::Receive => {
                let received = receiver.receive(Duration::ZERO).await.unwrap();
                receipts.extend(received.iter().map(|message| message.receipt.clone()));
                let received = received.map(|message| (message.body, message.receive_count));
                assert_eq!(received, model.receive(now_ms), "step {step}");
            }
            Action::Ack(index) if !receipts.is_empty() => {
                let delivery = index.index(receipts.len());
                let acked = receiver.ack(&receipts[delivery]).await.unwrap();
                assert_eq!(acked, model.ack(delivery, now_ms), "step {step}");
            }
            Action::Nack(index, after) if !receipts.is_empty() => {
                let delivery = index.index(receipts.len());
                let put_back = receiver.nack(&receipts[delivery], after).await.unwrap();
                assert_eq!(put_back, model.nack(delivery, after, now_ms), "step {step}");
            }
            Action::Ack(_) | Action::Nack(..) => {}
            Action::Advance(by) => clock.advance(by),
        }
    }
    let dead = backplane.dead_letters(usize::MAX).await.unwrap();
    model.dead.reverse();
    assert_eq!(
        dead.into_iter()
            .map(|letter| letter.body)
            .collect::<Vec<_>>(),
        model.dead
    );
}

proptest! {
    // Each case is a file of its own and some fifty commits to disk.
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_does_what_its_model_does(actions in prop::collection::vec(action(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(agree(actions));
    }
}
