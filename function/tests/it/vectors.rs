//! Everybody's vectors on the real Router: published by the senders' own libraries, and derived ones
//! that other verifiers are known to take (webhook facts §1.3, `webhook-vectors.json`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use function::config::Scheme;
use function::signature::WebhookSecret;
use serde_json::Value;

use crate::client::Request;
use crate::machine::Machine;

/// What a row expects of the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// Authenticated; no vector's body is an operation, so it ends in 400 or 422.
    Authenticated,
    /// 401.
    Refused,
    /// 400 about the id.
    Malformed,
}

fn expect(vector: &Value) -> Expect {
    let text = vector["expect"].as_str().unwrap();
    if text.starts_with("accept") || text.starts_with("signature valid") {
        Expect::Authenticated
    } else if text.starts_with("400") {
        Expect::Malformed
    } else {
        Expect::Refused
    }
}

fn body(vector: &Value) -> Vec<u8> {
    match vector["body_b64"].as_str() {
        Some(encoded) => STANDARD.decode(encoded).unwrap(),
        None => vector["body"].as_str().unwrap().as_bytes().to_vec(),
    }
}

fn secrets(vector: &Value) -> Vec<WebhookSecret> {
    let one = vector["secret"].as_str().or(vector["public_key"].as_str());
    let several = vector["secrets_at_receiver"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    one.into_iter()
        .chain(several)
        .map(|text| WebhookSecret::parse_published("vector", text).unwrap())
        .collect()
}

/// The clock of a row: its own timestamp where that is one, else that of SW-B.
fn now_s(vector: &Value) -> i64 {
    let own = vector["timestamp"]
        .as_str()
        .and_then(|text| text.parse().ok());
    own.filter(|now| (1_500_000_000..1_800_000_000).contains(now))
        .unwrap_or(1_614_265_330)
}

#[tokio::test]
async fn every_standard_webhooks_vector_gets_its_expected_answer() {
    let vectors: Value = serde_json::from_str(include_str!(
        "../../../events/tests/data/webhook-vectors.json"
    ))
    .unwrap();
    let (mut checked, mut for_doors) = (0, Vec::new());
    for vector in vectors.as_array().unwrap() {
        let name = vector["name"].as_str().unwrap();
        let scheme = vector["scheme"].as_str().unwrap_or("pae");
        if !matches!(scheme, "standard-v1" | "standard-v1a") {
            for_doors.push(format!("{name} ({scheme})"));
            continue;
        }
        let machine = Machine::with(|config| {
            let source = config
                .sources
                .iter_mut()
                .find(|source| source.caller.name.as_str() == "ci")
                .unwrap();
            source.scheme = Scheme::StandardWebhooks {
                secrets: secrets(vector),
                tolerance_s: 300,
            };
        })
        .await;
        for (offset, in_window) in [
            (0, true),
            (300, true),
            (-300, true),
            (301, false),
            (-301, false),
        ] {
            machine.clock.0.store(
                (now_s(vector) + offset) * 1000,
                std::sync::atomic::Ordering::SeqCst,
            );
            let answer = Request::new("POST", "/v1/hooks/ci", body(vector))
                .with("content-type", "application/json")
                .with("webhook-id", vector["id"].as_str().unwrap())
                .with("webhook-timestamp", vector["timestamp"].as_str().unwrap())
                .with("webhook-signature", vector["signature"].as_str().unwrap())
                .send(machine.address)
                .await;
            let got = match (answer.status, answer.code().as_str()) {
                (401, "unauthenticated") => Expect::Refused,
                (400, "malformed-id") => Expect::Malformed,
                (400 | 422, _) => Expect::Authenticated,
                other => panic!("{name}: {other:?}"),
            };
            let wanted = match expect(vector) {
                Expect::Authenticated if !in_window => Expect::Refused,
                wanted => wanted,
            };
            assert_eq!(got, wanted, "{name} at {offset}: {answer:?}");
        }
        assert_eq!(machine.spy.effects(), (0, 0), "{name}");
        checked += 1;
        machine.stop().await;
    }
    println!(
        "checked {checked} standard-webhooks vectors; for Doors, events and configuration: {}",
        for_doors.join(", ")
    );
    assert_eq!(checked, 36);
    assert_eq!(checked + for_doors.len(), 47);
}
