//! Where callbacks can go: nowhere but to the address that was judged, and only if its certificate
//! proves the name.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use backplane::store::Attempt;
use function::callback::Callbacks;
use function::callback::endpoint::Endpoint;
use function::callback::trust::Trust;

use crate::receiver::{
    FakeClock, FakeResolver, LIMITS, NOW_MS, Receiver, due, endpoint, settings, status,
};

fn reason(attempt: Attempt) -> String {
    match attempt {
        Attempt::RetryAt(_, reason) => reason,
        other => panic!("{other:?} is not a failure to be tried again"),
    }
}

/// field F12: a name is judged by every address that it has.
#[tokio::test]
async fn one_denied_answer_of_the_resolver_refuses_them_all() {
    let receiver = Receiver::start(|_| status(204)).await;
    let listed = receiver.address;
    for denied in [
        "10.0.0.1",
        "127.0.0.2",
        "169.254.169.254",
        "100.64.0.1",
        "::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "fd00:ec2::254",
        // Public, but on a port that is listed for loopback only.
        "1.1.1.1",
    ] {
        let denied = SocketAddr::new(denied.parse().unwrap(), listed.port());
        for answers in [vec![denied], vec![listed, denied], vec![denied, listed]] {
            let resolver = FakeResolver::always(&answers);
            let (endpoint, _) = endpoint("demo", listed.port());
            let clock = FakeClock::at(NOW_MS);
            let callbacks = Callbacks::new(vec![endpoint], resolver.clone(), clock, LIMITS);
            let reason = reason(callbacks.attempt(&due()).await);
            assert!(
                reason.contains("callbacks may not reach"),
                "{answers:?}: {reason}"
            );
            assert_eq!(resolver.asked.load(Ordering::SeqCst), 1);
        }
    }
    assert_eq!(receiver.connections(), 0);
}

/// field F12: a name that changes its mind between check and connection: nobody asks again.
#[tokio::test]
async fn rebinding_finds_no_second_question() {
    let receiver = Receiver::start(|_| status(204)).await;
    let elsewhere = Receiver::start(|_| status(204)).await;
    let resolver = FakeResolver::each(vec![vec![receiver.address], vec![elsewhere.address]]);
    let (endpoint, _) = endpoint("demo", receiver.address.port());
    let clock = FakeClock::at(NOW_MS);
    let callbacks = Callbacks::new(vec![endpoint], resolver.clone(), clock, LIMITS);
    assert_eq!(callbacks.attempt(&due()).await, Attempt::Delivered);
    assert_eq!(resolver.asked.load(Ordering::SeqCst), 1);
    assert_eq!((receiver.connections(), elsewhere.connections()), (1, 0));
}

#[tokio::test]
async fn the_port_is_the_urls_whatever_the_resolver_says() {
    let receiver = Receiver::start(|_| status(204)).await;
    let resolver = FakeResolver::always(&[SocketAddr::new(receiver.address.ip(), 1)]);
    let (endpoint, _) = endpoint("demo", receiver.address.port());
    let clock = FakeClock::at(NOW_MS);
    let callbacks = Callbacks::new(vec![endpoint], resolver, clock, LIMITS);
    assert_eq!(callbacks.attempt(&due()).await, Attempt::Delivered);
}

#[tokio::test]
async fn names_without_addresses_are_tried_again() {
    let resolver = FakeResolver::always(&[]);
    let (endpoint, _) = endpoint("demo", 9443);
    let callbacks = Callbacks::new(vec![endpoint], resolver, FakeClock::at(NOW_MS), LIMITS);
    assert_eq!(
        reason(callbacks.attempt(&due()).await),
        "host has no addresses"
    );
}

#[tokio::test]
async fn a_listed_address_needs_no_name() {
    let receiver = Receiver::start_as("127.0.0.1", |_| status(204)).await;
    let url = format!("https://{}/cb", receiver.address);
    let (settings, verifier) = settings("demo", url, receiver.address.port());
    let endpoint = Endpoint::new(settings, &Trust::load()).unwrap();
    let resolver = FakeResolver::always(&[]);
    let clock = FakeClock::at(NOW_MS);
    let callbacks = Callbacks::new(vec![endpoint], resolver.clone(), clock, LIMITS);
    assert_eq!(callbacks.attempt(&due()).await, Attempt::Delivered);
    verifier.check(&receiver.received()[0]);
    assert_eq!(resolver.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_certificate_must_be_for_the_name_and_from_a_trusted_root() {
    let other = Receiver::start_as("other.test", |_| status(204)).await;
    let right = Receiver::start(|_| status(204)).await;
    for (receiver, with_ca) in [(&other, true), (&right, false)] {
        let port = receiver.address.port();
        let (mut settings, _) = settings("demo", format!("https://hooks.test:{port}/"), port);
        settings.ca_pem = settings.ca_pem.filter(|_| with_ca);
        let endpoint = Endpoint::new(settings, &Trust::load()).unwrap();
        let resolver = FakeResolver::always(&[receiver.address]);
        let callbacks = Callbacks::new(vec![endpoint], resolver, FakeClock::at(NOW_MS), LIMITS);
        let reason = reason(callbacks.attempt(&due()).await);
        assert!(
            reason.starts_with("no TLS: invalid peer certificate"),
            "{reason}"
        );
        assert!(receiver.received().is_empty(), "nothing was posted");
    }
}
