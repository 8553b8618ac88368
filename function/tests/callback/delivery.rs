//! What a receiver gets, and what its answers lead to.

use backplane::store::Attempt;
use function::callback::endpoint::{Endpoint, InvalidEndpoint};
use function::callback::trust::Trust;

use function::callback::Callbacks;

use crate::receiver::{
    FakeClock, FakeResolver, LIMITS, NAME, NOW_MS, Receiver, callbacks, due, endpoint, settings,
    status,
};

#[tokio::test]
async fn a_callback_is_posted_once_and_verifies_with_every_secret_and_key() {
    let receiver = Receiver::start(|_| status(204)).await;
    let (callbacks, verifier) = callbacks(&receiver, LIMITS);
    assert_eq!(callbacks.attempt(&due()).await, Attempt::Delivered);
    let [request] = &receiver.received()[..] else {
        panic!("one request")
    };
    verifier.check(request);
    assert_eq!(request.line, "POST /cb?token=url-secret HTTP/1.1");
    assert_eq!(request.body, due().body.as_bytes());
    let host = format!("{NAME}:{}", receiver.address.port());
    for (name, value) in [
        ("host", host.as_str()),
        ("content-type", "application/cloudevents+json"),
        ("webhook-id", "msg_a_1"),
        ("webhook-timestamp", "1700000000"),
        ("user-agent", concat!("gpuhook/", env!("CARGO_PKG_VERSION"))),
        ("connection", "close"),
    ] {
        assert_eq!(request.header(name), value);
    }
    assert!(
        !request
            .headers
            .iter()
            .any(|(name, _)| name == "accept-encoding")
    );
}

#[tokio::test]
async fn answers_lead_to_delivery_retry_or_parking() {
    let parked = |reason: &str| Attempt::Parked(reason.to_owned());
    let again =
        |after_s: i64, reason: &str| Attempt::RetryAt(NOW_MS + after_s * 1_000, reason.to_owned());
    let with = |code: u16, header: &str| {
        format!("HTTP/1.1 {code} X\r\n{header}\r\ncontent-length: 0\r\n\r\n")
    };
    for (answer, expect) in [
        (with(200, "x: y"), Attempt::Delivered),
        (
            with(410, "x: y"),
            parked("410: the receiver wants no more of these"),
        ),
        (with(429, "retry-after: 8"), again(8, "status 429")),
        (with(503, "retry-after: 100000"), again(10, "status 503")),
        (with(500, "retry-after: 0"), again(5, "status 500")),
        (
            with(503, "retry-after: Tue, 14 Nov 2023 22:13:27 GMT"),
            again(7, "status 503"),
        ),
        (
            "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
            Attempt::Delivered,
        ),
    ] {
        let text = answer.clone();
        let receiver = Receiver::start(move |_| crate::receiver::Answer::Text(text.clone())).await;
        let (callbacks, _) = callbacks(&receiver, LIMITS);
        assert_eq!(callbacks.attempt(&due()).await, expect, "{answer}");
    }
}

/// field F24: every attempt verifies over the raw bytes received, under a timestamp of its own that a
/// receiver with five minutes of patience takes, with the same id and the same body.
#[tokio::test]
async fn each_of_many_attempts_verifies_afresh_under_the_same_id() {
    let receiver = Receiver::start(|n| status(if n < 4 { 500 } else { 204 })).await;
    let (endpoint, verifier) = endpoint("demo", receiver.address.port());
    let clock = FakeClock::at(NOW_MS);
    let resolver = FakeResolver::always(&[receiver.address]);
    let callbacks = Callbacks::new(vec![endpoint], resolver, clock.clone(), LIMITS);
    let mut due = due();
    due.body =
        r#"{"name":"Grüße – 日本","price":1.0,"big":1e3,"nested":{"b":{"a":[1.50]}}}"#.to_owned();
    let mut now_ms = NOW_MS;
    let mut longest_ms = 0;
    let delivered = loop {
        clock.set(now_ms);
        match callbacks.attempt(&due).await {
            Attempt::RetryAt(at_ms, _) => {
                longest_ms = longest_ms.max(at_ms - now_ms);
                // The schedule's own pauses, and then more: a sweep may come late.
                now_ms = at_ms.max(now_ms + 100_000);
                due.attempts += 1;
            }
            end => break end,
        }
    };
    assert_eq!(delivered, Attempt::Delivered);
    let received = receiver.received();
    assert_eq!(received.len(), 5);
    assert!(now_ms - NOW_MS > 300_000, "past five minutes");
    let mut timestamps = Vec::new();
    for (n, request) in received.iter().enumerate() {
        verifier.check(request);
        assert_eq!(request.body, due.body.as_bytes(), "attempt {n}");
        assert_eq!(request.header("webhook-id"), due.webhook_id);
        timestamps.push(request.header("webhook-timestamp").parse::<i64>().unwrap());
    }
    assert!(timestamps.is_sorted_by(|a, b| a < b), "{timestamps:?}");
    assert_eq!(timestamps.last(), Some(&(now_ms / 1000)));
}

/// Field F12: what a first URL was checked for says nothing about a second one.
#[tokio::test]
async fn redirects_are_never_followed() {
    let target = Receiver::start(|_| status(200)).await;
    for code in [301, 302, 303, 307, 308] {
        for location in [
            format!("https://{NAME}:{}/", target.address.port()),
            format!("http://{}/", target.address),
            "http://169.254.169.254/".to_owned(),
            "https://[::ffff:10.0.0.1]/".to_owned(),
            "/cb".to_owned(),
        ] {
            let text = format!(
                "HTTP/1.1 {code} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
            );
            let receiver =
                Receiver::start(move |_| crate::receiver::Answer::Text(text.clone())).await;
            let (callbacks, _) = callbacks(&receiver, LIMITS);
            let expect = format!("{code}: redirects are not followed");
            assert_eq!(callbacks.attempt(&due()).await, Attempt::Parked(expect));
            assert_eq!(receiver.connections(), 1, "{code} {location}");
        }
    }
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn an_endpoint_that_is_not_configured_is_tried_again() {
    let receiver = Receiver::start(|_| status(204)).await;
    let (callbacks, _) = callbacks(&receiver, LIMITS);
    let mut due = due();
    due.endpoint = "gone".to_owned();
    let Attempt::RetryAt(_, reason) = callbacks.attempt(&due).await else {
        panic!("to be tried again")
    };
    assert_eq!(reason, "endpoint is not configured");
}

#[test]
fn endpoints_that_could_not_deliver_are_refused_at_load() {
    let trust = Trust::load();
    let at = |url: &str| settings("demo", url.to_owned(), 9443).0;
    let mut unsigned = at("https://hooks.test/");
    unsigned.secrets.clear();
    unsigned.keys.clear();
    assert!(matches!(
        Endpoint::new(unsigned, &trust),
        Err(InvalidEndpoint::Unsigned)
    ));
    assert!(matches!(
        Endpoint::new(at("http://hooks.test/"), &trust),
        Err(InvalidEndpoint::Url(_))
    ));
    for pem in [
        "",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        let mut settings = at("https://hooks.test/");
        settings.ca_pem = Some(pem.as_bytes().to_vec());
        assert!(
            matches!(
                Endpoint::new(settings, &trust),
                Err(InvalidEndpoint::Trust(_))
            ),
            "{pem}"
        );
    }
    let endpoint = Endpoint::new(at("https://hooks.test/?token=url-secret"), &trust).unwrap();
    assert_eq!(format!("{endpoint:?}"), "Endpoint(demo)");
}
