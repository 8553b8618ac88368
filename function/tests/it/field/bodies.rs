//! Bodies that lack something, are something else, or are encoded: never a part of a command in a
//! queue, the field named, and the signature over the bytes as received.

use serde_json::{Value, json};

use crate::client::Request;
use crate::machine::{API_KEY, Machine, NOW, TOKEN, sign};

const RELEASE: &str = r#"{"op":"release","key":"k"}"#;

/// [`RELEASE`], compressed.
fn gzip() -> Vec<u8> {
    hex::decode(
        "1f8b0800000000000203ab56ca2f50b2522a4acd494d2c4e55d251ca4ead04f2b3956a0169e738211a000000",
    )
    .unwrap()
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

async fn nothing_happened(machine: &Machine) {
    assert_eq!(machine.spy.effects(), (0, 0));
    assert!(machine.command().await.is_none());
    let listing = machine.get(TOKEN, "/v1/operations").await.json();
    assert_eq!(listing["items"], json!([]));
}

/// Each way in which a required field can be missing.
fn spoilt(whole: &Value, field: &str) -> Vec<Value> {
    let mut without = whole.clone();
    without.as_object_mut().unwrap().remove(field);
    let with = |value: Value| {
        let mut body = whole.clone();
        body[field] = value;
        body
    };
    [json!(null), json!(""), json!({}), json!([])]
        .map(with)
        .into_iter()
        .chain([without])
        .collect()
}

/// field F26: each required field in turn dropped, `null`, `""`, `{}` and `[]`, alone and beside
/// operations that are whole.
#[tokio::test]
async fn without_a_required_field_nothing_is_queued_and_the_answer_names_it() {
    let machine = Machine::start().await;
    let gpu = json!({"host": "gpu-1", "gpu": 0});
    for (operation, required) in [
        (
            json!({"op": "allocate", "key": "k", "profile": "T4-4Q"}),
            vec!["op", "key", "profile"],
        ),
        (json!({"op": "release", "key": "k"}), vec!["op", "key"]),
        (
            json!({"op": "renew", "key": "k", "ttl_s": 60}),
            vec!["op", "key", "ttl_s"],
        ),
        (
            json!({"op": "resize", "key": "k", "profile": "T4-4Q"}),
            vec!["op", "key", "profile"],
        ),
        (
            json!({"op": "partition", "target": gpu, "mode": "vgpu", "layout": [{"profile": "T4-4Q", "count": 1}]}),
            vec!["op", "target", "mode"],
        ),
        (
            json!({"op": "tune", "target": gpu, "defaults": true}),
            vec!["op", "target"],
        ),
        (json!({"op": "reset", "target": gpu}), vec!["op", "target"]),
        (
            json!({"op": "inspect", "target": {"host": "gpu-1"}}),
            vec!["op", "target"],
        ),
    ] {
        for field in required {
            for body in spoilt(&operation, field) {
                let whole = json!({"op": "allocate", "key": "whole", "profile": "T4-4Q"});
                let list = json!({"operations": [whole, body]});
                for (body, place) in [(&body, String::new()), (&list, "/operations/1".to_owned())] {
                    let answer = machine.post("msg", &body.to_string()).await;
                    assert_eq!(
                        (answer.status, answer.code()),
                        (422, "invalid-operation".to_owned()),
                        "{body}: {answer:?}"
                    );
                    let pointer = answer.json()["errors"][0]["pointer"]
                        .as_str()
                        .unwrap()
                        .to_owned();
                    assert!(
                        pointer.starts_with(&format!("{place}/{field}")),
                        "{body}: {pointer}"
                    );
                }
            }
        }
    }
    nothing_happened(&machine).await;
    machine.stop().await;
}

/// field F26: the same at the plain door.
#[tokio::test]
async fn without_a_required_field_the_plain_door_queues_nothing_either() {
    let machine = Machine::start().await;
    for body in spoilt(&json!({"gpu_id": 0, "vgpu_type": "T4-4Q"}), "vgpu_type") {
        let answer = Request::new("POST", "/vgpu", body.to_string())
            .with("content-type", "application/json")
            .with("x-api-key", API_KEY)
            .send(machine.address)
            .await;
        assert_eq!(answer.status, 422, "{body}");
        assert_eq!(
            answer.json()["errors"][0]["pointer"],
            "/vgpu_type",
            "{body}"
        );
    }
    nothing_happened(&machine).await;
    machine.stop().await;
}

/// field F26: an array, `null`, a string or a number where an object belongs, at the top and in the
/// list.
#[tokio::test]
async fn what_is_no_object_is_no_operation_anywhere() {
    let machine = Machine::start().await;
    let allocate = r#"{"op":"allocate","key":"whole","profile":"T4-4Q"}"#;
    for text in [
        format!("[{allocate}]"),
        r#"["allocate",{"key":"k"}]"#.to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "\"x\"".to_owned(),
        "1".to_owned(),
        "true".to_owned(),
    ] {
        let answer = machine.post("msg", &text).await;
        assert_eq!(
            (answer.status, answer.code()),
            (400, "malformed-json".to_owned()),
            "{text}"
        );
        assert!(answer.text.contains("must be a JSON object"), "{answer:?}");
        let list = format!(r#"{{"operations":[{allocate},{text}]}}"#);
        let answer = machine.post("msg", &list).await;
        assert_eq!(
            (answer.status, &answer.json()["errors"][0]["pointer"]),
            (422, &json!("/operations/1")),
            "{list}"
        );
    }
    nothing_happened(&machine).await;
    machine.stop().await;
}

/// field F26: compressed bodies, byte order marks and UTF-16. Encodings that are named get 415, and
/// the rest is malformed to whoever signed those very bytes and unauthenticated to whoever signed
/// the text within.
#[tokio::test]
async fn encodings_are_refused_by_name_and_signatures_are_over_the_bytes_received() {
    let machine = Machine::start().await;
    let over = |body: &[u8], signed: &[u8]| {
        let signature = sign("ci", b"msg", NOW.to_string().as_bytes(), signed);
        machine
            .signed("ci", "msg", body)
            .replacing("webhook-signature", signature)
    };
    let marked = format!("\u{feff}{RELEASE}").into_bytes();
    for (name, bytes) in [
        ("gzip that is not declared", gzip()),
        ("byte order mark", marked),
        ("UTF-16", utf16(RELEASE)),
        ("UTF-16 with its mark", utf16(&format!("\u{feff}{RELEASE}"))),
    ] {
        for (signed, status, code) in [
            (bytes.as_slice(), 400, "malformed-json"),
            (RELEASE.as_bytes(), 401, "unauthenticated"),
        ] {
            let answer = over(&bytes, signed).send(machine.address).await;
            let got = (answer.status, answer.code());
            assert_eq!(got, (status, code.to_owned()), "{name}: {answer:?}");
        }
    }
    let unsupported = [
        ("content-encoding", "gzip"),
        ("content-encoding", "x-gzip"),
        ("content-encoding", "GZIP"),
        ("content-encoding", "br"),
        ("content-encoding", "deflate"),
        ("content-encoding", "zstd"),
        ("content-encoding", "identity, gzip"),
        ("content-encoding", ""),
        ("content-type", "application/json; charset=utf-16"),
        ("content-type", "application/json; charset=utf-16le"),
        ("content-type", "application/json; charset=iso-8859-1"),
        ("content-type", "application/gzip"),
    ];
    for (header, value) in unsupported {
        for body in [gzip(), utf16(RELEASE), RELEASE.as_bytes().to_vec()] {
            let request = over(&body, &body).replacing(header, value);
            let answer = request.send(machine.address).await;
            assert_eq!(
                (answer.status, answer.code()),
                (415, "unsupported-media-type".to_owned()),
                "{header}: {value}: {answer:?}"
            );
            assert!(!answer.text.contains("JSON at line"), "{answer:?}");
        }
    }
    nothing_happened(&machine).await;
    let plain = over(RELEASE.as_bytes(), RELEASE.as_bytes()).with("content-encoding", "identity");
    assert_eq!(plain.send(machine.address).await.status, 202);
    machine.stop().await;
}
