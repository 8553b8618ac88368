//! Where a callback ends up, whatever URL, resolver and answers say: at the address that was judged,
//! once, or nowhere.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use backplane::store::Attempt;
use function::callback::Callbacks;
use function::callback::endpoint::{Endpoint, InvalidEndpoint};
use function::callback::exchange::Limits;
use function::callback::trust::Trust;

use crate::log::Log;
use crate::receiver::{
    Answer, FakeClock, FakeResolver, LIMITS, NAME, NOW_MS, Receiver, callbacks, due, endpoint,
    settings, status,
};

/// field F12: addresses in every spelling, and what hides the real host, never become an endpoint.
#[test]
fn urls_that_hide_an_address_never_become_an_endpoint() {
    let trust = Trust::load();
    for url in [
        "http://2130706433/",
        "https://2130706433/",
        "http://0x7f.1/",
        "https://0x7f.1/",
        "https://017700000001/",
        "http://[::1]/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[::ffff:a00:1]/",
        "https://[64:ff9b::a00:1]/",
        "http://100.64.0.1/",
        "https://100.64.0.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://good@10.0.0.1/",
        "https://good.example@10.0.0.1/",
        "https://good@hooks.test/",
        "https://hooks.test:pw@10.0.0.1:8443/",
        "http://hooks.test/",
        "HTTP://hooks.test/",
    ] {
        let (mut settings, _) = settings("demo", url.to_owned(), 443);
        settings.allow_private.clear();
        let refused = Endpoint::new(settings, &trust);
        assert!(matches!(refused, Err(InvalidEndpoint::Url(_))), "{url}");
    }
}

/// field F12: what the resolver said an attempt ago, or says a moment later, counts for nothing.
/// The listed address stands for a public one: tests reach no network.
#[tokio::test]
async fn each_attempt_is_judged_by_its_own_answer() {
    let receiver = Receiver::start(|_| status(500)).await;
    let good = receiver.address;
    let private: SocketAddr = format!("10.0.0.1:{}", good.port()).parse().unwrap();
    // The good answer is given once; whoever asked again within an attempt would get the other.
    let resolver = FakeResolver::each(vec![vec![good], vec![private], vec![good], vec![private]]);
    let (endpoint, _) = endpoint("demo", good.port());
    let clock = FakeClock::at(NOW_MS);
    let callbacks = Callbacks::new(vec![endpoint], resolver.clone(), clock, LIMITS);
    for (asked, expect) in [
        (1, "status 500"),
        (
            2,
            "host resolves to 10.0.0.1, which callbacks may not reach",
        ),
        (3, "status 500"),
        (
            4,
            "host resolves to 10.0.0.1, which callbacks may not reach",
        ),
    ] {
        let Attempt::RetryAt(_, reason) = callbacks.attempt(&due()).await else {
            panic!("a failure to be tried again")
        };
        assert_eq!(reason, expect);
        assert_eq!(resolver.asked.load(Ordering::SeqCst), asked);
    }
    assert_eq!(receiver.connections(), 2);
}

/// field F12: an endless answer of any status is cut off and nothing of it is repeated.
#[tokio::test]
async fn endless_answers_of_any_status_are_capped_and_never_echoed() {
    let log = Log::start();
    for code in [200, 302, 307, 400, 500] {
        let head = format!(
            "HTTP/1.1 {code} answer-secret\r\nlocation: http://{NAME}/answer-secret\r\n\
             content-length: 1000000000\r\n\r\nanswer-secret"
        );
        let receiver = Receiver::start(move |_| Answer::Flood(head.clone())).await;
        // Only the cap can end this long before the deadline.
        let (callbacks, _) = callbacks(&receiver, Limits::default());
        let start = Instant::now();
        let attempt = callbacks.attempt(&due()).await;
        assert!(start.elapsed() < Duration::from_secs(8), "{code}");
        assert_eq!(attempt == Attempt::Delivered, code == 200, "{attempt:?}");
        assert!(!format!("{attempt:?}").contains("secret"), "{attempt:?}");
        assert_eq!(receiver.connections(), 1, "{code}");
        // What was written beyond the cap sits in the sockets' buffers.
        assert!(receiver.written.load(Ordering::SeqCst) < 32 * 1024 * 1024);
    }
    let text = log.text();
    assert!(text.contains("callback.endpoint"), "the log is on");
    assert!(!text.contains("answer-secret"), "{text}");
}
