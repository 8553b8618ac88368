//! SQS and DynamoDB that fail: refusals, throttling, silence, and answers that are lost after the deed
//! (field F04). Nothing is lost, nothing is done twice, and what is not certain is said to be uncertain.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backplane::SendError;
use backplane::store::{Accepted, Due, Settlement};
use events::outcome::Outcome;

use crate::aws::{Fate, emulator, installation};
use crate::implementation::{Backplane, DEADLINE};
use crate::sample::{
    allocated, commands, delivery, message, new, placed, release, succeeded, tenant,
};

/// An installation whose calls go as `Script` says.
struct Trial {
    backplane: Backplane,
    script: Arc<Mutex<Script>>,
    calls: Arc<AtomicU32>,
}

/// The fate of the next calls of one name.
struct Script {
    call: &'static str,
    fate: Fate,
    times: u32,
}

impl Trial {
    async fn start() -> Self {
        let script = Arc::new(Mutex::new(Script {
            call: "",
            fate: Fate::Answered,
            times: 0,
        }));
        let calls = Arc::new(AtomicU32::new(0));
        let fates = {
            let (script, calls) = (Arc::clone(&script), Arc::clone(&calls));
            Arc::new(move |call: &str| {
                let mut script = script.lock().unwrap();
                if call != script.call {
                    return Fate::Answered;
                }
                calls.fetch_add(1, Ordering::SeqCst);
                if script.times == 0 {
                    return Fate::Answered;
                }
                script.times -= 1;
                script.fate.clone()
            })
        };
        let backplane = installation(&emulator(fates).await).await;
        backplane.enrol("t4").await;
        Self {
            backplane,
            script,
            calls,
        }
    }

    /// From now on, the next `times` calls of this name.
    fn play(&self, call: &'static str, fate: Fate, times: u32) {
        *self.script.lock().unwrap() = Script { call, fate, times };
        self.calls.store(0, Ordering::SeqCst);
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn send(&self) -> Result<(), SendError> {
        let queue = commands("t4");
        self.backplane.sender.send(&queue, message("a", "1")).await
    }

    /// How many messages there are.
    async fn messages(&self) -> usize {
        let receiver = (self.backplane.receiver)(&commands("t4"));
        let mut count = 0;
        while let Some(message) = receiver.receive(Duration::ZERO).await.unwrap() {
            receiver.ack(&message.receipt).await.unwrap();
            count += 1;
        }
        count
    }
}

#[tokio::test]
async fn a_send_says_what_is_certain() {
    let trial = Trial::start().await;
    for (status, code) in [
        (400, "ThrottlingException"),
        (400, "RequestThrottled"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ] {
        trial.play("SendMessage", Fate::Refused(status, code), u32::MAX);
        match trial.send().await {
            Err(SendError::Ambiguous(text)) => assert!(text.contains(code), "{text}"),
            other => panic!("{code}: {other:?}"),
        }
        assert_eq!(trial.calls(), 3, "{code}: tried again, and not without end");
    }
    for code in ["AccessDeniedException", "QueueDoesNotExist"] {
        trial.play("SendMessage", Fate::Refused(400, code), u32::MAX);
        match trial.send().await {
            Err(SendError::Rejected(text)) => assert!(text.contains(code), "{text}"),
            other => panic!("{code}: {other:?}"),
        }
        assert_eq!(trial.calls(), 1, "{code}: no use in trying again");
    }
    assert_eq!(trial.messages().await, 0);
}

#[tokio::test]
async fn a_send_whose_answer_is_lost_is_queued_once() {
    let trial = Trial::start().await;
    trial.play("SendMessage", Fate::Lost, 1);
    trial.send().await.unwrap();
    trial.play("SendMessage", Fate::Lost, u32::MAX);
    assert!(matches!(trial.send().await, Err(SendError::Ambiguous(_))));
    trial.play("SendMessage", Fate::Answered, 0);
    trial.send().await.unwrap();
    assert_eq!(trial.messages().await, 1);
}

/// field F14.
#[tokio::test]
async fn silence_ends_at_its_deadline() {
    let trial = Trial::start().await;
    let receiver = (trial.backplane.receiver)(&commands("t4"));
    trial.play("ReceiveMessage", Fate::Silent, 1);
    let begun = Instant::now();
    let received = tokio::time::timeout(DEADLINE, receiver.receive(Duration::ZERO)).await;
    received.unwrap().unwrap_err();
    let took = begun.elapsed();
    assert!(
        (Duration::from_secs(4)..Duration::from_secs(8)).contains(&took),
        "{took:?}"
    );
    assert_eq!(
        trial.calls(),
        1,
        "a poll is not tried again behind its caller's back"
    );
    trial.play("SendMessage", Fate::Silent, u32::MAX);
    let sent = tokio::time::timeout(DEADLINE, trial.send()).await.unwrap();
    assert!(matches!(sent, Err(SendError::Ambiguous(_))), "{sent:?}");
}

#[tokio::test]
async fn an_acceptance_whose_answer_is_lost_is_one_acceptance() {
    let trial = Trial::start().await;
    let now_ms = trial.backplane.now_ms();
    let version = trial.backplane.version("t4").await;
    let first = delivery(1, now_ms, vec![placed("one", "t4", version)]);
    trial.play("TransactWriteItems", Fate::Lost, 1);
    let accepted = trial.backplane.store.accept(first.clone()).await.unwrap();
    assert!(
        matches!(&accepted, Accepted::New(records) if records.len() == 1),
        "{accepted:?}"
    );
    assert_eq!(trial.calls(), 2);
    let again = trial.backplane.store.accept(first).await.unwrap();
    assert!(matches!(again, Accepted::InFlight(_)), "{again:?}");

    // All answers are lost: the caller cannot know, and is told so; the sender's retry finds it.
    let version = trial.backplane.version("t4").await;
    let second = delivery(2, now_ms, vec![placed("two", "t4", version)]);
    trial.play("TransactWriteItems", Fate::Lost, u32::MAX);
    trial
        .backplane
        .store
        .accept(second.clone())
        .await
        .unwrap_err();
    trial.play("TransactWriteItems", Fate::Answered, 0);
    let again = trial.backplane.store.accept(second.clone()).await.unwrap();
    match again {
        Accepted::InFlight(known) => assert_eq!(known.delivery, second.delivery),
        other => panic!("{other:?}"),
    }
    assert_eq!(trial.backplane.reserved("t4").await, 2);
    let listed = trial.backplane.reads.operations(&tenant(), None, 10).await;
    assert_eq!(listed.unwrap().items.len(), 2);
}

#[tokio::test]
async fn a_table_that_refuses_leaves_no_trace() {
    let trial = Trial::start().await;
    for (status, code) in [
        (400, "ProvisionedThroughputExceededException"),
        (400, "AccessDeniedException"),
        (500, "InternalServerError"),
    ] {
        trial.play("TransactWriteItems", Fate::Refused(status, code), u32::MAX);
        let acceptance = delivery(1, trial.backplane.now_ms(), vec![new(release("one"), "t4")]);
        let error = trial.backplane.store.accept(acceptance).await.unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(code), "{source}");
    }
    let listed = trial.backplane.reads.operations(&tenant(), None, 10).await;
    assert_eq!(listed.unwrap().items, []);
}

#[tokio::test]
async fn a_settlement_whose_answer_is_lost_owes_one_callback() {
    let trial = Trial::start().await;
    let record = trial.backplane.accept_placed(1, "one", "t4").await;
    trial.play("PutItem", Fate::Lost, 1);
    trial.backplane.store.mark_sent(record.id).await.unwrap();
    let event = succeeded(&record, 1, Outcome::Allocated(allocated("one")));
    let owed = vec![crate::sample::callback("w1")];
    trial.play("TransactWriteItems", Fate::Lost, u32::MAX);
    let now_ms = trial.backplane.now_ms();
    let settle = |event, owed| trial.backplane.store.settle(event, owed, now_ms);
    settle(event.clone(), owed.clone()).await.unwrap_err();
    trial.play("TransactWriteItems", Fate::Answered, 0);
    assert_eq!(settle(event, owed).await.unwrap(), Settlement::Stale);
    let due = trial.backplane.due(10).await;
    assert!(matches!(&due[..], [Due::Callback(_)]), "{due:?}");
    assert_eq!(trial.backplane.reserved("t4").await, 0);
}

/// Everything that a host reports touches the host's own items.
#[tokio::test]
async fn results_that_settle_at_once_all_settle() {
    let trial = Trial::start().await;
    let mut records = Vec::new();
    for n in 0..12 {
        records.push(
            trial
                .backplane
                .accept_placed(n, &format!("key-{n}"), "t4")
                .await,
        );
    }
    let mut settling = tokio::task::JoinSet::new();
    for (n, record) in records.iter().enumerate() {
        let outcome = Outcome::Allocated(allocated(&format!("key-{n}")));
        let event = succeeded(record, u64::try_from(n).unwrap(), outcome);
        let (store, now_ms) = (trial.backplane.store.clone(), trial.backplane.now_ms());
        settling.spawn(async move { store.settle(event, Vec::new(), now_ms).await.unwrap() });
    }
    for settled in settling.join_all().await {
        assert!(
            matches!(settled, Settlement::Applied(Some(_))),
            "{settled:?}"
        );
    }
    assert_eq!(trial.backplane.reserved("t4").await, 0);
}

/// A transaction takes a hundred items; what never fits is told apart from what may fit later.
#[tokio::test]
async fn what_never_fits_one_transaction_is_refused_whole() {
    let trial = Trial::start().await;
    let mut operations = Vec::new();
    for n in 0..60 {
        operations.push(new(release(&format!("key-{n}")), "t4"));
    }
    let acceptance = delivery(1, trial.backplane.now_ms(), operations);
    let accepted = trial.backplane.store.accept(acceptance).await.unwrap();
    assert!(
        matches!(&accepted, Accepted::TooLarge(text) if text.contains("100 fit")),
        "{accepted:?}"
    );
    let listed = trial.backplane.reads.operations(&tenant(), None, 10).await;
    assert_eq!(listed.unwrap().items, []);
}
