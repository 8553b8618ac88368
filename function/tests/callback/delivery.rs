//! What a receiver gets, and what its answers lead to.

use backplane::store::Attempt;
use function::callback::endpoint::{Endpoint, InvalidEndpoint};
use function::callback::trust::Trust;

use crate::receiver::{LIMITS, NAME, NOW_MS, Receiver, callbacks, due, settings, status};

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

/// field F12: what a first URL was checked for says nothing about a second one.
#[tokio::test]
async fn redirects_are_never_followed() {
    let target = Receiver::start(|_| status(200)).await;
    for code in [301, 302, 303, 307, 308] {
        for location in [
            format!("https://{NAME}:{}/", target.address.port()),
            format!("http://{}/", target.address),
            format!("https://{}/", target.address),
            // The same host, without TLS.
            format!("http://{NAME}:{}/cb", target.address.port()),
            format!("http://{NAME}/cb"),
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
