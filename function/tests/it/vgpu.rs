//! `POST /vgpu`: the plain form, with an API key.

use events::Operation;
use serde_json::json;

use crate::board;
use crate::client::Request;
use crate::machine::{API_KEY, Machine};

fn request(body: &str) -> Request {
    Request::new("POST", "/vgpu", body)
        .with("content-type", "application/json")
        .with("X-API-KEY", API_KEY)
}

#[tokio::test]
async fn a_gpu_and_a_type_become_an_allocation_on_the_default_target() {
    let machine = Machine::start().await;
    let uuid = board::uuid(1);
    for (gpu, group) in [
        ("1", 1),
        ("\"0000:3c:00.0\"", 1),
        (&format!("\"{uuid}\""), 1),
        ("0", 0),
    ] {
        let answer = request(&format!(r#"{{"gpu_id":{gpu},"vgpu_type":"T4-4Q"}}"#))
            .send(machine.address)
            .await;
        assert_eq!(answer.status, 202, "{gpu}: {answer:?}");
        let command = machine.command().await.unwrap();
        let Operation::Allocate(allocate) = &command.operation else {
            panic!()
        };
        assert_eq!(allocate.key.as_str(), format!("vgpu:{}", command.op_id));
        assert_eq!(
            (allocate.count, allocate.profile.as_ref().unwrap().as_str()),
            (1, "T4-4Q")
        );
        assert_eq!(
            machine.record(command.op_id).await.group,
            board::uuid(group)
        );
        assert_eq!(answer.json()["operations"][0]["key"], allocate.key.as_str());
    }
    // Without gpu_id: first fit.
    assert_eq!(
        request(r#"{"vgpu_type":"T4-4Q"}"#)
            .send(machine.address)
            .await
            .status,
        202
    );
    assert_eq!(
        machine.spy.effects(),
        (5, 5),
        "without an Idempotency-Key each call is a new one"
    );
    machine.stop().await;
}

#[tokio::test]
async fn an_idempotency_key_makes_calls_one_call() {
    let machine = Machine::start().await;
    let body = r#"{"gpu_id":0,"vgpu_type":"T4-4Q"}"#;
    let keyed = request(body).with("idempotency-key", "once.and-only");
    let first = keyed.send(machine.address).await;
    let again = keyed.send(machine.address).await;
    assert_eq!(
        (
            first.status,
            again.status,
            again.header("idempotent-replayed")
        ),
        (202, 202, Some("true"))
    );
    assert_eq!(first.text, again.text);
    let other =
        request(r#"{"gpu_id":1,"vgpu_type":"T4-4Q"}"#).with("idempotency-key", "once.and-only");
    assert_eq!(
        other.send(machine.address).await.code(),
        "idempotency-mismatch"
    );
    assert_eq!(machine.spy.effects(), (1, 1));
    machine.stop().await;
}

#[tokio::test]
async fn bad_calls_leave_no_trace() {
    let machine = Machine::start().await;
    let good = r#"{"gpu_id":0,"vgpu_type":"T4-4Q"}"#;
    let long = "x".repeat(256);
    for (name, request, status, code) in [
        (
            "no key",
            request(good).without("X-API-KEY"),
            401,
            "unauthenticated",
        ),
        (
            "wrong key",
            request(good).replacing("X-API-KEY", "key_0123456789abcdefghijklmnoP"),
            401,
            "unauthenticated",
        ),
        (
            "empty key",
            request(good).replacing("X-API-KEY", ""),
            401,
            "unauthenticated",
        ),
        (
            "key twice",
            request(good).with("x-api-key", API_KEY),
            401,
            "unauthenticated",
        ),
        (
            "key as bearer",
            request(good)
                .without("X-API-KEY")
                .with("authorization", format!("Bearer {API_KEY}")),
            401,
            "unauthenticated",
        ),
        (
            "no type",
            request(r#"{"gpu_id":0}"#),
            422,
            "invalid-operation",
        ),
        (
            "null type",
            request(r#"{"gpu_id":0,"vgpu_type":null}"#),
            422,
            "invalid-operation",
        ),
        (
            "type as list",
            request(r#"{"gpu_id":0,"vgpu_type":[]}"#),
            422,
            "invalid-operation",
        ),
        (
            "bad gpu",
            request(r#"{"gpu_id":"../x","vgpu_type":"T4-4Q"}"#),
            422,
            "invalid-operation",
        ),
        (
            "null gpu",
            request(r#"{"gpu_id":null,"vgpu_type":"T4-4Q"}"#),
            422,
            "invalid-operation",
        ),
        (
            "gpu 64",
            request(r#"{"gpu_id":64,"vgpu_type":"T4-4Q"}"#),
            422,
            "invalid-operation",
        ),
        (
            "gpu 9",
            request(r#"{"gpu_id":9,"vgpu_type":"T4-4Q"}"#),
            422,
            "unplaceable",
        ),
        (
            "unknown type",
            request(r#"{"gpu_id":0,"vgpu_type":"T4-3Q"}"#),
            422,
            "unplaceable",
        ),
        (
            "other field",
            request(r#"{"gpu_id":0,"vgpu_type":"T4-4Q","x":1}"#),
            422,
            "invalid-operation",
        ),
        ("array", request("[]"), 400, "malformed-json"),
        ("empty", request(""), 400, "empty-body"),
        (
            "Idempotency-Key twice",
            request(good)
                .with("idempotency-key", "a")
                .with("idempotency-key", "a"),
            400,
            "duplicate-header",
        ),
        (
            "Idempotency-Key too long",
            request(good).with("idempotency-key", long),
            400,
            "malformed-id",
        ),
        (
            "Idempotency-Key with space",
            request(good).with("idempotency-key", "a b"),
            400,
            "malformed-id",
        ),
        (
            "no content type",
            request(good).without("content-type"),
            415,
            "unsupported-media-type",
        ),
        (
            "GET",
            Request {
                method: "GET".to_owned(),
                ..request(good)
            },
            405,
            "method-not-allowed",
        ),
    ] {
        let answer = request.send(machine.address).await;
        assert_eq!(
            (answer.status, answer.code()),
            (status, code.to_owned()),
            "{name}: {answer:?}"
        );
        if status == 401 {
            assert!(
                answer
                    .header("www-authenticate")
                    .unwrap()
                    .contains("X-API-KEY"),
                "{name}"
            );
        }
    }
    assert_eq!(machine.spy.effects(), (0, 0));
    let both = request(r#"{"gpu_id":"x","vgpu_type":1}"#)
        .send(machine.address)
        .await
        .json();
    let pointers: Vec<_> = both["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].clone())
        .collect();
    assert_eq!(pointers, [json!("/gpu_id"), json!("/vgpu_type")]);
    machine.stop().await;
}
