//! Several signatures in one header, several secrets in one source, and the end of the old one.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use function::config::Scheme;
use function::signature::{WebhookSecret, standard};

use crate::board;
use crate::client::Answer;
use crate::machine::{Machine, NOW, TOKEN, op_id, sign, whsec};
use crate::spy::Fault;
use crate::{client::Request, log};

/// A webhook to `ci`, signed with the secret of that name.
fn signed_with(machine: &Machine, secret: &str, id: &str, body: &str) -> Request {
    let timestamp = NOW.to_string();
    let signature = sign(secret, id.as_bytes(), timestamp.as_bytes(), body.as_bytes());
    machine
        .signed("ci", id, body.as_bytes())
        .replacing("webhook-signature", signature)
}

/// Posts a release under a header made from its right signature and a stranger's.
async fn post(machine: &Machine, id: &str, header: impl Fn(&str, &str) -> String) -> Answer {
    let (body, timestamp) = (r#"{"op":"release","key":"k"}"#, NOW.to_string());
    let sign = |secret| sign(secret, id.as_bytes(), timestamp.as_bytes(), body.as_bytes());
    let header = header(&sign("ci"), &sign("stranger"));
    let request = machine.signed("ci", id, body.as_bytes());
    let request = request.replacing("webhook-signature", header);
    request.send(machine.address).await
}

/// field F31: any match wins, and unknown versions and empty items are skipped.
#[tokio::test]
async fn any_signature_that_matches_is_enough_and_unknown_ones_are_skipped() {
    type Header = fn(&str, &str) -> String;
    let machine = Machine::start().await;
    let cases: [(Header, u16); 17] = [
        (|good, bad| format!("{bad} {good}"), 202),
        (|good, bad| format!("{good} {bad}"), 202),
        (|good, bad| format!("{bad} {bad} {good} {bad}"), 202),
        (|good, _| format!("v1a,AAAA {good}"), 202),
        (
            |good, _| format!("v1a,{} {good}", STANDARD.encode([1; 64])),
            202,
        ),
        (|good, _| format!("v2,x v99,y {good}"), 202),
        (|good, _| format!("   {good}   "), 202),
        (|good, _| format!(", v1, , {good}"), 202),
        // Two header lines as a gateway joins them.
        (|good, bad| format!("{bad}, {good}"), 202),
        // Another sender's scheme beside ours is an unknown version; alone it is no signature.
        (
            |good, bad| format!("sha256={bad},sha256={good} {good}"),
            202,
        ),
        (|good, bad| format!("sha256={bad},sha256={good}"), 401),
        (|good, _| format!("v1a{}", &good[2..]), 401),
        (|good, _| format!("v2{}", &good[2..]), 401),
        (|_, bad| format!("{bad} {bad}"), 401),
        (|_, _| "v1,".to_owned(), 401),
        (|_, _| " ".to_owned(), 401),
        (|_, _| ", ,".to_owned(), 401),
    ];
    for (number, (header, status)) in cases.into_iter().enumerate() {
        let answer = post(&machine, &format!("msg_{number}"), header).await;
        let text = header("GOOD", "BAD!");
        assert_eq!(answer.status, status, "{text}: {answer:?}");
    }
    machine.stop().await;
}

/// field F31: the list is capped, wherever in it the match is; 10,000 whole signatures are more than
/// a head may hold.
#[tokio::test]
async fn ten_thousand_signatures_cost_no_more_than_sixteen() {
    let machine = Machine::start().await;
    for (id, header, status) in [
        (
            "first",
            &(|good: &str, _: &str| format!("{good} {}", "v1,AA ".repeat(10_000)))
                as &dyn Fn(&str, &str) -> String,
            202,
        ),
        (
            "sixteenth",
            &|good, _| format!("{}{good}", "v1,AA ".repeat(15)),
            202,
        ),
        (
            "seventeenth",
            &|good, _| format!("{}{good}", "v1,AA ".repeat(16)),
            401,
        ),
        (
            "empty",
            &|good, _| format!("{}{good}", " ,".repeat(16)),
            401,
        ),
        (
            "last",
            &|good, _| format!("{}{good}", "v1,AA ".repeat(10_000)),
            401,
        ),
        (
            "whole",
            &|good, bad| format!("{}{good}", format!("{bad} ").repeat(1_200)),
            401,
        ),
        (
            "beyond",
            &|good, bad| format!("{}{good}", format!("{bad} ").repeat(10_000)),
            431,
        ),
    ] {
        let answer = post(&machine, id, header).await;
        assert_eq!(answer.status, status, "{id}: {answer:?}");
    }
    machine.stop().await;
}

/// field F31: every secret is tried on every signature, so that the time taken does not tell which
/// of them matched.
#[test]
fn the_first_match_takes_as_long_as_the_last() {
    let body = vec![b'x'; 1_000_000];
    let timestamp = NOW.to_string();
    let right = sign("right", b"msg", timestamp.as_bytes(), &body);
    let wrong = sign("wrong", b"msg", timestamp.as_bytes(), &body);
    let secret = |name: &str| WebhookSecret::parse(name, &whsec(name)).unwrap();
    // What would return at the first match would be many times faster where that comes first.
    let quickest = |secret_at: usize, entry_at: usize| {
        let secrets: Vec<_> = (0..4)
            .map(|at| secret(if at == secret_at { "right" } else { "other" }))
            .collect();
        let mut entries = vec![wrong.as_str(); 16];
        entries[entry_at] = &right;
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", "msg"),
            ("webhook-timestamp", &timestamp),
            ("webhook-signature", &entries.join(" ")),
        ] {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let times = (0..5).map(|_| {
            let start = Instant::now();
            let verified = standard::verify(&headers, &body, &secrets, 300, NOW).unwrap();
            assert_eq!(verified.secret, "right");
            start.elapsed()
        });
        times.min().unwrap_or(Duration::ZERO)
    };
    let (first, last) = (quickest(0, 0), quickest(3, 15));
    assert!(first * 3 > last, "{first:?} {last:?}");
}

/// field F31: both secrets while the rotation lasts; after it only the new one, and what was
/// accepted under the old one still runs, queued or not.
#[tokio::test]
async fn after_a_rotation_only_the_new_secret_passes_and_what_is_queued_still_runs() {
    let allocate = |key: &str| format!(r#"{{"op":"allocate","key":"{key}","profile":"T4-4Q"}}"#);
    let machine = Machine::start().await;
    let old = signed_with(&machine, "ci", "old", &allocate("old"));
    let old = old.send(machine.address).await;
    let new = signed_with(&machine, "next", "new", &allocate("new"));
    let new = new.send(machine.address).await;
    assert_eq!((old.status, new.status), (202, 202));
    machine
        .spy
        .faults
        .lock()
        .unwrap()
        .push_back(Some(Fault::Rejected));
    let unsent = signed_with(&machine, "ci", "unsent", &allocate("unsent"));
    assert_eq!(unsent.send(machine.address).await.status, 503);

    let file = machine.folder.path().join("gpuhook.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let rotated = text.replace(r#"["file:ci", "file:next"]"#, r#"["file:next"]"#);
    assert_ne!(text, rotated);
    std::fs::write(&file, rotated).unwrap();
    std::fs::remove_file(machine.folder.path().join("ci")).unwrap();
    let machine = machine.crash(|_| {}).await;

    for (id, key) in [("late", "late"), ("old", "old"), ("unsent", "unsent")] {
        let request = signed_with(&machine, "ci", id, &allocate(key));
        assert_eq!(request.send(machine.address).await.status, 401, "{id}");
        let line = log::refusal(allocate(key).as_bytes());
        assert!(line.contains("no signature verifies"), "{line}");
    }
    let unsent = signed_with(&machine, "next", "unsent", &allocate("unsent"));
    let unsent = unsent.send(machine.address).await;
    assert_eq!(
        (unsent.status, unsent.header("idempotent-replayed")),
        (202, Some("true"))
    );
    let later = signed_with(&machine, "next", "later", &allocate("later"));
    let later = later.send(machine.address).await;
    assert_eq!(later.status, 202);

    let mut inventory = board::inventory(&machine.host());
    for (answer, key) in [
        (old, "old"),
        (new, "new"),
        (unsent, "unsent"),
        (later, "later"),
    ] {
        let id = op_id(&answer, 0);
        assert_eq!(machine.command().await.unwrap().op_id, id, "{key}");
        board::put(&mut inventory, "acme", key, "T4-4Q", 1);
        machine.succeed(id, inventory.clone()).await;
        let status = machine.get(TOKEN, &format!("/v1/operations/{id}")).await;
        assert_eq!(status.json()["state"], "succeeded", "{key}");
    }
    assert!(machine.command().await.is_none());
    machine.stop().await;
}

/// field F31: a stored delivery of hours ago can be verified by a source that is told to.
#[tokio::test]
async fn the_tolerance_is_the_sources_own() {
    for (tolerance, status) in [(300, 401), (21_599, 401), (21_600, 202)] {
        let machine = Machine::with(|config| {
            let ci = config.sources.iter_mut();
            let mut ci = ci.filter(|source| source.caller.name.as_str() == "ci");
            let Some(Scheme::StandardWebhooks { tolerance_s, .. }) =
                ci.next().map(|source| &mut source.scheme)
            else {
                panic!()
            };
            *tolerance_s = tolerance;
        })
        .await;
        let stored = signed_with(&machine, "ci", "msg", r#"{"op":"release","key":"k"}"#);
        machine
            .clock
            .0
            .fetch_add(21_600_000, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(
            stored.send(machine.address).await.status,
            status,
            "{tolerance}"
        );
        machine.stop().await;
    }
}
