//! The rows of `webhook-vectors.json` that concern this crate: DSSE and key load.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use events::envelope::{open_bytes, pae};
use events::key::{KeyError, PublicKey};
use serde_json::Value;

use crate::here;

fn vector(name: &str) -> Value {
    let text = std::fs::read(here("tests/data/webhook-vectors.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&text).unwrap();
    rows.into_iter()
        .find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no vector {name}"))
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_else(|| panic!("{field}"))
}

#[test]
fn pae_is_as_published() {
    for name in ["DSSE-PAE-PUBLISHED", "DSSE-ED25519-1"] {
        let row = vector(name);
        let made = pae(text(&row, "payloadType"), text(&row, "payload").as_bytes());
        assert_eq!(
            String::from_utf8(made).unwrap(),
            text(&row, "pae"),
            "{name}"
        );
    }
}

#[test]
fn signed_command_vector_opens_and_its_forgeries_do_not() {
    const TYPE: &str = "application/vnd.example.gpu-command.v1+json";
    let row = vector("DSSE-ED25519-1");
    assert_eq!(text(&row, "payloadType"), TYPE);
    let key = PublicKey::parse_published(text(&row, "public_key")).unwrap();
    let envelope = |payload: &str, signature: &str| {
        serde_json::json!({
            "payload": STANDARD.encode(payload), "payloadType": TYPE,
            "signatures": [{"keyid": "any", "sig": signature}],
        })
        .to_string()
    };
    let (payload, signature) = (text(&row, "payload"), text(&row, "signature_b64"));
    assert_eq!(
        open_bytes(&envelope(payload, signature), TYPE, &[key]).unwrap(),
        payload.as_bytes()
    );
    let other_host = payload.replace("host-0001", "host-0002");
    for (payload, signature) in [
        (other_host.as_str(), signature),
        (payload, &signature[4..]),
        (payload, ""),
    ] {
        assert!(open_bytes(&envelope(payload, signature), TYPE, &[key]).is_err());
    }
}

/// Under a small-order key ring accepts this signature for arbitrary messages; hence the refusal.
#[test]
fn small_order_keys_of_the_vector_are_refused_at_load() {
    let row = vector("ED25519-SMALL-ORDER");
    let keys = row["public_keys_hex"].as_array().unwrap();
    assert_eq!(keys.len(), 8);
    for key in keys {
        let bytes: [u8; 32] = hex::decode(key.as_str().unwrap())
            .unwrap()
            .try_into()
            .unwrap();
        assert_eq!(
            PublicKey::from_bytes(bytes),
            Err(KeyError::SmallOrder),
            "{key}"
        );
    }
}
