//! No secret, header value or body reaches the log at any level, nor a secret any answer (field F30).

use crate::client::Request;
use crate::log;
use crate::machine::{API_KEY, Machine, NOW, READER, TOKEN, sign, whsec};

/// field F30: what a sender put there is not found there.
#[tokio::test]
async fn nothing_of_a_body_a_header_or_a_secret_is_logged() {
    let machine = Machine::start().await;
    let canary = |place: &str| format!("canary-{place}-7f3a9b");
    let body = |place: &str| format!(r#"{{"op":"release","key":"k","{0}":"{0}"}}"#, canary(place));
    let timestamp = NOW.to_string();
    let right = sign(
        "ci",
        canary("id").as_bytes(),
        timestamp.as_bytes(),
        body("body").as_bytes(),
    );
    let mut answers = Vec::new();
    for request in [
        machine.signed("ci", &canary("id"), body("body").as_bytes()),
        machine.signed(
            "ci",
            &canary("key-id"),
            format!(r#"{{"op":"release","key":"{}"}}"#, canary("key")).as_bytes(),
        ),
        machine
            .signed("ci", &canary("id"), body("body").as_bytes())
            .replacing("webhook-signature", format!("v1,{}", canary("signature"))),
        machine
            .signed("ci", &canary("id"), body("body").as_bytes())
            .replacing("webhook-signature", sign("other", b"x", b"1", b"")),
        machine
            .signed("ci", &canary("id"), body("body").as_bytes())
            .replacing("webhook-timestamp", canary("timestamp")),
        machine
            .signed("ci", &canary("id"), body("body").as_bytes())
            .replacing("content-type", canary("type")),
        Request::new("POST", &format!("/v1/hooks/{}", canary("path")), "{}")
            .with("content-type", "application/json"),
        Request::new("POST", "/vgpu", "{}")
            .with("content-type", "application/json")
            .with("x-api-key", canary("api-key")),
        machine.reading(&canary("token"), "/v1/operations"),
        Request {
            method: "DELETE".to_owned(),
            ..machine.reading(READER, &format!("/v1/allocations/{}", canary("allocation")))
        },
    ] {
        answers.push(request.send(machine.address).await);
    }
    assert_eq!(answers[1].status, 202, "{:?}", answers[1]);
    let logged = log::text();
    assert!(
        logged.contains("request answered") && logged.contains("webhook refused"),
        "the log is on"
    );
    assert!(
        logged.contains("no such source"),
        "an unknown source is logged like a bad signature"
    );
    for place in [
        "id",
        "body",
        "key",
        "key-id",
        "signature",
        "timestamp",
        "type",
        "path",
        "api-key",
        "token",
        "allocation",
    ] {
        assert!(!logged.contains(&canary(place)), "{place} is logged");
    }
    let right = right.trim_start_matches("v1,").to_owned();
    let secrets = ["ci", "next", "rival", "nobody"].map(|name| whsec(name)[6..].to_owned());
    for secret in secrets
        .iter()
        .map(String::as_str)
        .chain([API_KEY, TOKEN, READER, right.as_str()])
    {
        assert!(!logged.contains(secret), "a secret is logged");
        assert!(
            answers.iter().all(|answer| !answer.text.contains(secret)),
            "a secret is answered"
        );
    }
    machine.stop().await;
}
