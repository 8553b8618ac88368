//! Receivers that are slow, endless or broken: bounded in time and memory, and quiet in the logs.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use backplane::store::Attempt;
use function::callback::Callbacks;
use function::callback::exchange::Limits;
use tokio::net::TcpListener;

use crate::log::Log;
use crate::receiver::{
    Answer, FakeClock, FakeResolver, LIMITS, NOW_MS, Receiver, callbacks, due, endpoint, status,
};

/// Far above the limits set here, far below those that the tests are about.
const SOON: Duration = Duration::from_secs(8);

const BRIEF: Limits = Limits {
    total: Duration::from_millis(800),
    ..LIMITS
};

async fn timed(receiver: &Receiver, limits: Limits) -> Attempt {
    let (callbacks, _) = callbacks(receiver, limits);
    let start = Instant::now();
    let attempt = callbacks.attempt(&due()).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    attempt
}

fn reason(attempt: Attempt) -> String {
    match attempt {
        Attempt::RetryAt(_, reason) => reason,
        other => panic!("{other:?} is not a failure to be tried again"),
    }
}

#[tokio::test]
async fn a_head_that_trickles_ends_with_the_deadline() {
    let receiver = Receiver::start(|_| Answer::Drip("HTTP/1.1 200 OK\r\nx: ".to_owned())).await;
    assert_eq!(
        reason(timed(&receiver, BRIEF).await),
        "the exchange took too long"
    );
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    let receiver = Receiver::start(|_| Answer::Flood("HTTP/1.1 200 OK\r\nx: ".to_owned())).await;
    let reason = reason(timed(&receiver, LIMITS).await);
    assert!(reason.starts_with("no HTTP answer"), "{reason}");
}

#[tokio::test]
async fn a_body_that_trickles_ends_with_the_deadline_and_the_status_stands() {
    for (code, delivered) in [(200, true), (500, false)] {
        let head = format!("HTTP/1.1 {code} X\r\ncontent-length: 1000000\r\n\r\n");
        let receiver = Receiver::start(move |_| Answer::Drip(head.clone())).await;
        let attempt = timed(&receiver, BRIEF).await;
        assert_eq!(attempt == Attempt::Delivered, delivered, "{attempt:?}");
    }
}

/// field F12: what is read of an answer is capped.
#[tokio::test]
async fn a_body_without_end_is_cut_off() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
    let receiver = Receiver::start(move |_| Answer::Flood(head.to_owned())).await;
    // The deadline is the default one: only the cap can end this soon.
    assert_eq!(
        timed(&receiver, Limits::default()).await,
        Attempt::Delivered
    );
    // What was written beyond the cap sits in the sockets' buffers.
    assert!(receiver.written.load(Ordering::SeqCst) < 32 * 1024 * 1024);
}

#[tokio::test]
async fn a_port_that_never_speaks_tls_ends_with_its_own_deadline() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits {
        tls: Duration::from_millis(300),
        ..LIMITS
    };
    let (endpoint, _) = endpoint("demo", address.port());
    let resolver = FakeResolver::always(&[address]);
    let callbacks = Callbacks::new(vec![endpoint], resolver, FakeClock::at(NOW_MS), limits);
    let start = Instant::now();
    let reason = reason(callbacks.attempt(&due()).await);
    assert_eq!(reason, "the TLS handshake took too long");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[tokio::test]
async fn answers_that_are_not_http_are_tried_again() {
    for text in [
        "",
        "hello\r\n\r\n",
        "HTTP/1.1 200",
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 abc OK\r\n\r\n",
    ] {
        let receiver = Receiver::start(move |_| Answer::Text(text.to_owned())).await;
        let reason = reason(timed(&receiver, LIMITS).await);
        assert!(reason.starts_with("no HTTP answer"), "{text:?}: {reason}");
    }
}

/// field F12: an answer is never echoed.
#[tokio::test]
async fn nothing_of_url_body_headers_or_answers_reaches_a_log() {
    let log = Log::start();
    let secret = "x-header: answer-secret\r\nlocation: https://answer-secret/\r\ncontent-length: 13\r\n\r\nanswer-secret";
    for text in [
        format!("HTTP/1.1 200 OK\r\n{secret}"),
        format!("HTTP/1.1 302 OK\r\n{secret}"),
        format!("HTTP/1.1 500 answer-secret\r\n{secret}"),
        "answer-secret".to_owned(),
    ] {
        let receiver = Receiver::start(move |_| Answer::Text(text.clone())).await;
        let (callbacks, _) = callbacks(&receiver, LIMITS);
        let attempt = format!("{:?}", callbacks.attempt(&due()).await);
        assert!(
            !attempt.contains("secret"),
            "the store keeps reasons: {attempt}"
        );
    }
    let silent = Receiver::start(|_| status(204)).await;
    let (callbacks, _) = callbacks(&silent, LIMITS);
    callbacks.attempt(&due()).await;
    let signature = silent.received()[0].header("webhook-signature").to_owned();
    let text = log.text();
    let ours: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("callback.endpoint"))
        .collect();
    assert_eq!(ours.len(), 5, "each attempt is logged once:\n{text}");
    for secret in ["url-secret", "body-secret", "answer-secret", &signature] {
        assert!(!text.contains(secret), "{secret} in\n{text}");
    }
    // The TLS library names the peer at DEBUG when another crate of the build turns its logging on;
    // our own lines name the endpoint as configured and never its URL.
    for line in text.lines().filter(|line| line.contains(" function::")) {
        assert!(!line.contains("hooks.test"), "{line}");
    }
}
