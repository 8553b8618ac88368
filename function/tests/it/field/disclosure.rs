//! What an answer, a log or a row must never hold: the MAC that would have been right, a secret, the
//! body as it was sent.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use backplane::store::DueKinds;
use backplane::{Message, QueueName, Receiver, Store};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use events::envelope::seal;
use events::key::SecretKey;
use events::result::RESULT_TYPE;
use function::results::ResultsWorker;

use crate::board;
use crate::client::Request;
use crate::log;
use crate::machine::{API_KEY, Machine, NOW, READER, RIVAL, TOKEN, op_id, sign, whsec};

/// Bodies are spelt as nobody else spells them: what is stored of one is written anew. No quotes, so
/// that it stays itself within a string.
const SPELT: &str = "  :                    ";

fn allocate() -> String {
    format!(r#"{{"op":"allocate","key":"disclosed","profile"{SPELT}"T4-4Q"}}"#)
}

fn release() -> String {
    format!(r#"{{"op":"release","key"{SPELT}"undisclosed"}}"#)
}

/// Everything that must be found nowhere, with a name for the report.
struct Forbidden(Vec<(String, String)>);

impl Forbidden {
    fn new(folder: &std::path::Path) -> Self {
        let mut all = Self(Vec::new());
        for name in ["ci", "next", "rival", "nobody", "pooled"] {
            let encoded = whsec(name)[6..].to_owned();
            let bytes = STANDARD.decode(&encoded).unwrap();
            all.add(&format!("secret of {name}"), encoded);
            all.add(&format!("hexadecimal secret of {name}"), hex::encode(bytes));
        }
        for (name, text) in [
            ("API key", API_KEY),
            ("token", TOKEN),
            ("token", READER),
            ("token", RIVAL),
            ("raw body", SPELT),
        ] {
            all.add(name, text.to_owned());
        }
        let key = fs::read_to_string(folder.join("function.whsk")).unwrap();
        all.add("signing key", key.trim_start_matches("whsk_").to_owned());
        all
    }

    fn add(&mut self, name: &str, text: String) {
        assert!(text.len() > 16, "{name} is found everywhere");
        self.0.push((name.to_owned(), text));
    }

    /// The MACs that would have let `request` in, in every spelling.
    fn expect_macs(&mut self, request: &Request) {
        let header = |wanted: &str| {
            let mut values = request.headers.iter().filter(|(name, _)| name == wanted);
            values
                .next()
                .map(|(_, value)| value.clone())
                .unwrap_or_default()
        };
        let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
        for timestamp in [timestamp, NOW.to_string().into_bytes()] {
            for secret in ["ci", "next"] {
                let mac = sign(secret, &id, &timestamp, &request.body)[3..].to_owned();
                let bytes = STANDARD.decode(&mac).unwrap();
                self.add("expected MAC", mac);
                self.add("url-safe expected MAC", URL_SAFE.encode(&bytes));
                self.add("hexadecimal expected MAC", hex::encode(&bytes));
            }
        }
    }

    fn absent_from(&self, place: &str, text: &[u8]) {
        for (name, forbidden) in &self.0 {
            let forbidden = forbidden.as_bytes();
            let found = text.windows(forbidden.len()).any(|part| part == forbidden);
            assert!(!found, "{name} in {place}");
        }
    }
}

/// Bad signatures of every kind, and what is refused before or after the signature.
fn bad_requests(machine: &Machine) -> Vec<Request> {
    let good = || machine.signed("ci", "msg", allocate().as_bytes());
    let timestamped = |timestamp: i64| {
        let timestamp = timestamp.to_string();
        let signature = sign(
            "stranger",
            b"msg",
            timestamp.as_bytes(),
            allocate().as_bytes(),
        );
        good()
            .replacing("webhook-timestamp", timestamp)
            .replacing("webhook-signature", signature)
    };
    let mut all = vec![
        good().without("webhook-signature"),
        good().without("webhook-id"),
        good().without("webhook-timestamp"),
        good().replacing("webhook-id", "a.b"),
        good().with("webhook-id", "msg_2"),
        good().with("webhook-timestamp", "1"),
        good().replacing("content-type", "text/plain"),
        good().replacing("webhook-signature", sign("stranger", b"m", b"1", b"")),
        timestamped(NOW),
        timestamped(NOW - 4000),
        timestamped(NOW + 4000),
    ];
    for signature in ["", "v1", "v1,", "v1,AAAA", "v2,AAAA", "sha256=00", "\u{e9}"] {
        all.push(good().replacing("webhook-signature", signature));
    }
    let zeros = [("v1", 32), ("v1a", 64)]
        .map(|(tag, length)| format!("{tag},{}", STANDARD.encode(vec![0; length])));
    for signature in zeros {
        all.push(good().replacing("webhook-signature", signature));
    }
    for timestamp in ["abc", "1e10", "1700000000000", "99999999999999999999"] {
        all.push(good().replacing("webhook-timestamp", timestamp));
    }
    all
}

/// The file itself, its log beside it: every column of every table, and what was deleted of them.
fn stored(machine: &Machine) -> Vec<u8> {
    let path = machine.spy.inner.path();
    let log = path.with_extension("db-wal");
    [fs::read(path).unwrap(), fs::read(log).unwrap_or_default()].concat()
}

async fn settle(machine: &Machine, body: String) {
    let worker = ResultsWorker::new(
        machine.spy.clone(),
        machine.spy.clone(),
        machine.clock.clone(),
        Arc::new(|| {}),
    );
    let message = Message {
        id: "m".to_owned(),
        receipt: "r".to_owned(),
        group: "gpu-1".to_owned(),
        body,
        receive_count: 1,
        server_time_ms: NOW * 1000,
        sender: None,
    };
    assert!(worker.handle(vec![message]).await.is_empty());
}

/// field F30: bad signatures of every kind, an internal error, and a delivery through to its
/// callback and its dead letter; answers, logs of every level, callbacks and rows are searched.
#[tokio::test]
async fn no_answer_log_callback_or_row_holds_a_mac_a_secret_or_a_raw_body() {
    let machine = Machine::with(|config| {
        for source in &mut config.sources {
            source.caller.callbacks = vec!["receiver".to_owned()];
        }
    })
    .await;
    machine.observe(board::inventory(&machine.host())).await;
    let mut forbidden = Forbidden::new(machine.folder.path());
    let mut answers = Vec::new();
    for request in bad_requests(&machine) {
        forbidden.expect_macs(&request);
        let answer = request.send(machine.address).await;
        assert!((400..500).contains(&answer.status), "{answer:?}");
        answers.push(answer);
    }
    for flag in [
        &machine.spy.panics,
        &machine.spy.store_down,
        &machine.spy.queue_down,
    ] {
        flag.store(true, Ordering::SeqCst);
        answers.push(machine.post("msg_fault", &release()).await);
        answers.push(machine.post("msg", &allocate()).await);
        flag.store(false, Ordering::SeqCst);
    }
    let statuses: Vec<_> = answers
        .iter()
        .rev()
        .take(6)
        .map(|answer| answer.status)
        .collect();
    assert_eq!(statuses, [503, 202, 503, 503, 500, 500]);
    forbidden.expect_macs(&machine.signed("ci", "msg_fault", release().as_bytes()));
    let accepted = machine.post("msg", &allocate()).await;
    let id = op_id(&accepted, 0);
    answers.push(machine.post("msg", &release()).await);
    forbidden.expect_macs(&machine.signed("ci", "msg", release().as_bytes()));

    // A result that settles and owes a callback, and one that nobody can verify.
    let key = fs::read_to_string(machine.folder.path().join("host.whsk")).unwrap();
    let key = SecretKey::parse(&key).unwrap();
    let event = machine.success(id, board::inventory(&machine.host())).await;
    settle(&machine, seal(&event.event, RESULT_TYPE, &key).unwrap()).await;
    settle(&machine, allocate()).await;
    let due = machine
        .spy
        .claim_due(DueKinds::All, NOW * 1000, 1000, 10)
        .await
        .unwrap();
    assert!(format!("{due:?}").contains("receiver"), "{due:?}");
    // The command is received until it is dead.
    let receiver = machine
        .spy
        .inner
        .receiver(&QueueName::Commands(machine.host()));
    while let Some(message) = receiver.receive(Duration::ZERO).await.unwrap() {
        receiver
            .nack(&message.receipt, Duration::ZERO)
            .await
            .unwrap();
    }
    let dead = machine.spy.inner.dead_letters(10).await.unwrap();
    assert_eq!(dead.len(), 1, "{dead:?}");
    let sealed: serde_json::Value = serde_json::from_str(&dead[0].body).unwrap();
    let command = STANDARD
        .decode(sealed["payload"].as_str().unwrap())
        .unwrap();
    forbidden.absent_from("the command", &command);
    for path in ["/v1/operations", "/v1/allocations", "/v1/hosts"] {
        answers.push(machine.get(TOKEN, path).await);
    }
    answers.push(machine.get(TOKEN, &format!("/v1/operations/{id}")).await);

    let (logged, rows) = (log::text(), stored(&machine));
    let found = |text: &[u8]| rows.windows(text.len()).any(|part| part == text);
    assert!(
        found(b"disclosed") && found(id.to_string().as_bytes()),
        "rows are searched"
    );
    assert!(
        logged.contains("webhook refused") && logged.contains("signature verified"),
        "so is the log"
    );
    for answer in answers.iter().chain([&accepted]) {
        forbidden.absent_from("an answer", format!("{answer:?}").as_bytes());
        forbidden.absent_from("an answer", answer.text.as_bytes());
    }
    forbidden.absent_from("the log", logged.as_bytes());
    forbidden.absent_from("the rows", &rows);
    forbidden.absent_from("what is due", format!("{due:?}").as_bytes());
    forbidden.absent_from("the dead letters", format!("{dead:?}").as_bytes());
    machine.stop().await;
}
