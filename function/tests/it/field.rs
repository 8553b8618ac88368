//! What broke other people's webhook receivers (field records F04, F09, F26, F29, F30, F31): each
//! record's trial, value by value, where no other file has it.

use function::config::Scheme;
use function::signature::WebhookSecret;
use serde_json::{Value, json};

use crate::log;
use crate::machine::{Machine, NOW, TOKEN, sign, whsec};

/// Five operations of one delivery.
fn five() -> String {
    let allocate = |n: u32| json!({"op": "allocate", "key": format!("k{n}"), "profile": "T4-4Q"});
    json!({"operations": (0..5).map(allocate).collect::<Vec<_>>()}).to_string()
}

async fn commands(machine: &Machine) -> Vec<String> {
    let mut keys = Vec::new();
    while let Some(command) = machine.command().await {
        keys.push(command.operation.key().unwrap().to_string());
    }
    keys.sort();
    keys
}

/// field F04: a part of a delivery that was not queued makes it a 503, and the sender's retry gives each
/// command exactly once: refused by the queue, or taken without an answer.
#[tokio::test]
async fn a_delivery_of_which_two_sends_fail_is_queued_whole_by_the_retry() {
    for silent in [false, true] {
        let machine = Machine::start().await;
        // The second send fails, and so does the fourth attempt after it.
        machine
            .spy
            .failing
            .lock()
            .unwrap()
            .extend([(1, silent), (4, silent)]);
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.push(machine.post("msg", &five()).await);
        }
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [503, 503, 202], "{answers:?}");
        assert!(answers[0].header("retry-after").is_some());
        assert_eq!(commands(&machine).await, ["k0", "k1", "k2", "k3", "k4"]);
        machine.stop().await;
    }
}

/// field F04: a receiver that dies between accepting and sending, and one that dies before it could
/// note that it has sent: another one over the same store finishes the delivery.
#[tokio::test]
async fn a_delivery_outlives_the_door_that_accepted_it() {
    for sent in [false, true] {
        let machine = Machine::start().await;
        machine
            .spy
            .failing
            .lock()
            .unwrap()
            .extend((0..5).map(|attempt| (attempt, sent)));
        assert_eq!(machine.post("msg", &five()).await.status, 503);
        let known = machine.get(TOKEN, "/v1/operations").await.json();
        assert_eq!(known["items"].as_array().unwrap().len(), 5, "accepted");
        // What the second life shares with the first is the store alone.
        let second = Machine::over(&machine).await;
        let answer = second.post("msg", &five()).await;
        assert_eq!(
            (answer.status, answer.header("idempotent-replayed")),
            (202, Some("true"))
        );
        assert_eq!(commands(&second).await, ["k0", "k1", "k2", "k3", "k4"]);
        second.stop().await;
        machine.stop().await;
    }
}

const RELEASE: &str = r#"{"op":"release","key":"k"}"#;

/// field F09: texts of a timestamp that are not in-window integer seconds, each correctly signed over the
/// very text; the log tells malformed, stale and future apart.
#[tokio::test]
async fn only_whole_seconds_within_the_window_are_fresh() {
    let machine = Machine::start().await;
    for (text, expect) in [
        (NOW.to_string(), 202),
        ((NOW + 300).to_string(), 202),
        ((NOW - 300).to_string(), 202),
        ((NOW + 301).to_string(), 401),
        ((NOW - 301).to_string(), 401),
        ((NOW + 3600).to_string(), 401),
        ((NOW - 3600).to_string(), 401),
        ("abc".into(), 401),
        (String::new(), 401),
        ("1e10".into(), 401),
        ("-1".into(), 401),
        (format!("+{NOW}"), 401),
        (format!(" {NOW}"), 401),
        (format!("{NOW}.5"), 401),
        ("9".repeat(20), 401),
        (format!("{NOW}000"), 401),
    ] {
        let id = format!("fresh-{}", text.len());
        let signature = sign("ci", id.as_bytes(), text.as_bytes(), RELEASE.as_bytes());
        let request = machine
            .signed("ci", &id, RELEASE.as_bytes())
            .replacing("webhook-timestamp", text.clone())
            .replacing("webhook-signature", signature);
        let answer = request.send(machine.address).await;
        // Known by its id from the row before: what counts is that it was let in.
        let let_in = matches!(answer.status, 202 | 409);
        assert_eq!(let_in, expect == 202, "{text:?}: {answer:?}");
        assert!(let_in || answer.status == 401, "{text:?}: {answer:?}");
    }
    let twice = machine
        .signed("ci", "twice", RELEASE.as_bytes())
        .with("webhook-timestamp", (NOW + 1).to_string());
    assert_ne!(twice.send(machine.address).await.status, 202);
    for bytes in [&b"v1,\xc3\xa9"[..], b"\xff\xfe", b"v1,\xc3"] {
        let request = machine
            .signed("ci", "bytes", RELEASE.as_bytes())
            .replacing("webhook-signature", bytes);
        assert_eq!(request.send(machine.address).await.status, 401);
    }
    let logged = log::text();
    for reason in [
        "not a plain number of seconds",
        "looks like milliseconds",
        "s old",
        "s ahead",
    ] {
        assert!(logged.contains(reason), "the log has no {reason:?}");
    }
    machine.stop().await;
}

/// field F26: a required value that is missing or of no use never becomes a command; the answer names it.
#[tokio::test]
async fn no_partial_command_is_ever_queued() {
    let machine = Machine::start().await;
    let whole = [
        json!({"op": "allocate", "key": "k", "profile": "T4-4Q"}),
        json!({"op": "release", "key": "k"}),
        json!({"op": "renew", "key": "k", "ttl_s": 60}),
        json!({"op": "inspect", "target": {"host": "gpu-1"}}),
    ];
    let mut n = 0;
    for operation in &whole {
        for field in operation.as_object().unwrap().keys() {
            for wrong in [
                None,
                Some(Value::Null),
                Some(json!("")),
                Some(json!({})),
                Some(json!([])),
            ] {
                let mut body = operation.clone();
                match wrong {
                    None => body.as_object_mut().unwrap().remove(field),
                    Some(value) => body.as_object_mut().unwrap().insert(field.clone(), value),
                };
                n += 1;
                let answer = machine.post(&format!("m{n}"), &body.to_string()).await;
                assert_eq!(answer.status, 422, "{body}: {answer:?}");
                assert!(
                    answer.text.contains(field.as_str()),
                    "{body}: {}",
                    answer.text
                );
            }
        }
    }
    for body in [r#"[{"op":"release","key":"k"}]"#, "null", r#""x""#, "1"] {
        n += 1;
        let answer = machine.post(&format!("m{n}"), body).await;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
    for (header, value) in [
        ("content-encoding", "gzip"),
        ("content-encoding", "br"),
        ("content-type", "application/json; charset=utf-16"),
    ] {
        let request = machine
            .signed("ci", "encoded", b"\x1f\x8b\x08\x00")
            .without(header)
            .with(header, value);
        assert_eq!(request.send(machine.address).await.status, 415, "{value}");
    }
    assert_eq!(
        machine.spy.effects(),
        (0, 0),
        "nothing was accepted or sent"
    );
    machine.stop().await;
}

/// field F29: a refusal's log line has what a sender's mistake is found with: source, names of the
/// secrets, length and hash of the body.
#[tokio::test]
async fn a_failed_signature_is_logged_with_a_hint() {
    let machine = Machine::start().await;
    let body = r#"{"op":"release","key":"hint-7741"}"#;
    let request = machine
        .signed("ci", "hint", body.as_bytes())
        .replacing("webhook-signature", sign("other", b"hint", b"1", b""));
    assert_eq!(request.send(machine.address).await.status, 401);
    let hash = hex::encode(ring::digest::digest(&ring::digest::SHA256, body.as_bytes()));
    let logged = log::text();
    let line = logged.lines().find(|line| line.contains(&hash)).unwrap();
    for hint in [
        "webhook refused".to_owned(),
        "source.name=ci".to_owned(),
        format!("body.bytes={}", body.len()),
        "file:ci".to_owned(),
        "file:next".to_owned(),
    ] {
        assert!(line.contains(&hint), "no {hint} in {line}");
    }
    machine.stop().await;
}

/// field F30: bad signatures of every kind, then every byte that was stored or logged is searched for the
/// right signature, the secrets and the body.
#[tokio::test]
async fn the_right_signature_is_nowhere_after_wrong_ones() {
    let machine = Machine::start().await;
    let body = r#"{"op":"release","key":"nowhere-5518"}"#;
    let timestamp = NOW.to_string();
    let right = sign("ci", b"nowhere", timestamp.as_bytes(), body.as_bytes());
    let (_, right) = right.split_once(',').unwrap();
    let mut texts = Vec::new();
    for wrong in [
        "",
        "v1",
        "v1,",
        "v2,AAAA",
        "v1a,AAAA",
        &right[..20],
        &format!("V1,{right}"),
        &format!("v1,{}", &right[..right.len() - 1]),
        &sign("rival", b"nowhere", timestamp.as_bytes(), body.as_bytes()),
        &"v1,AAAA ".repeat(10_000),
    ] {
        let request = machine
            .signed("ci", "nowhere", body.as_bytes())
            .replacing("webhook-signature", wrong);
        let answer = request.send(machine.address).await;
        assert!(matches!(answer.status, 401 | 431), "{answer:?}");
        texts.push(answer.text.into_bytes());
    }
    texts.push(log::text().into_bytes());
    for file in std::fs::read_dir(machine.folder.path()).unwrap() {
        let path = file.unwrap().path();
        if path.to_string_lossy().contains("backplane") {
            texts.push(std::fs::read(path).unwrap());
        }
    }
    for (what, needle) in [
        ("signature", right),
        ("secret", &whsec("ci")[6..]),
        ("body", "nowhere-5518"),
    ] {
        let found = texts.iter().any(|text| {
            text.windows(needle.len())
                .any(|part| part == needle.as_bytes())
        });
        assert!(!found, "the {what} can be read somewhere");
    }
    machine.stop().await;
}

/// A header made of a good and a bad signature.
type Header<'a> = &'a dyn Fn(&str, &str) -> String;

/// field F31: several signatures in one header, and what they have to be for one to count.
#[tokio::test]
async fn any_valid_signature_of_a_bounded_list_wins() {
    let machine = Machine::start().await;
    let signed = |n: usize, header: Header<'_>| {
        let (id, timestamp) = (format!("list-{n}"), NOW.to_string());
        let good = sign(
            "ci",
            id.as_bytes(),
            timestamp.as_bytes(),
            RELEASE.as_bytes(),
        );
        let bad = sign(
            "other",
            id.as_bytes(),
            timestamp.as_bytes(),
            RELEASE.as_bytes(),
        );
        machine
            .signed("ci", &id, RELEASE.as_bytes())
            .replacing("webhook-signature", header(&good, &bad))
    };
    let headers: [(Header<'_>, bool); 8] = [
        (&|good, bad| format!("{bad} {good}"), true),
        (&|good, _| format!("v1a,AAAA {good}"), true),
        (&|good, _| format!("v9,AAAA {good} v1,"), true),
        (&|good, _| format!("  {good}  "), true),
        (
            &|good, bad| format!("{}{good}", format!("{bad} ").repeat(15)),
            true,
        ),
        (
            &|good, bad| format!("{}{good}", format!("{bad} ").repeat(16)),
            false,
        ),
        (&|good, _| format!("{good},{good}"), false),
        (&|_, bad| format!("{bad} {bad}"), false),
    ];
    for (n, (header, accepted)) in headers.into_iter().enumerate() {
        let answer = signed(n, header).send(machine.address).await;
        let expect = if accepted { 202 } else { 401 };
        assert_eq!(answer.status, expect, "row {n}: {answer:?}");
    }
    machine.stop().await;
}

/// field F31: both secrets while they rotate; after the window the new one alone, and what was queued
/// under the old one still runs.
#[tokio::test]
async fn rotation_ends_with_the_new_secret_alone() {
    let machine = Machine::start().await;
    let post = async |machine: &Machine, secret: &str, id: &str, body: &str| {
        let signature = sign(
            secret,
            id.as_bytes(),
            NOW.to_string().as_bytes(),
            body.as_bytes(),
        );
        let request = machine
            .signed("ci", id, body.as_bytes())
            .replacing("webhook-signature", signature);
        request.send(machine.address).await.status
    };
    let allocate =
        |key: &str| json!({"op": "allocate", "key": key, "profile": "T4-4Q"}).to_string();
    assert_eq!(post(&machine, "ci", "old", &allocate("old")).await, 202);
    assert_eq!(post(&machine, "next", "new", &allocate("new")).await, 202);
    let after = Machine::over_with(&machine, |config| {
        for source in &mut config.sources {
            if let Scheme::StandardWebhooks { secrets, .. } = &mut source.scheme
                && source.caller.name.as_str() == "ci"
            {
                *secrets = vec![WebhookSecret::parse("file:next", &whsec("next")).unwrap()];
            }
        }
    })
    .await;
    assert_eq!(post(&after, "ci", "late", RELEASE).await, 401);
    assert_eq!(post(&after, "next", "later", RELEASE).await, 202);
    assert_eq!(
        commands(&after).await,
        ["new", "old"],
        "what was queued still runs"
    );
    after.stop().await;
    machine.stop().await;
}
