//! Timestamps and signatures of every spelling, each signed over the very text sent: what is not a
//! plain number of seconds within the window is 401, and the log says which of the reasons it was.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::client::Request;
use crate::log;
use crate::machine::{Machine, NOW, sign};

const MALFORMED: &str = "webhook-timestamp is not a plain number of seconds";
const MILLISECONDS: &str = "webhook-timestamp looks like milliseconds; seconds are expected";

/// A body that no other request has, so that its line in the log can be told apart.
fn body(case: &str) -> String {
    let unique = hex::encode(case);
    format!(r#"{{"op":"release","key":"freshness:{unique}"}}"#)
}

fn signed(case: &str, timestamp: &[u8]) -> Request {
    let body = body(case);
    let signature = sign("ci", b"msg", timestamp, body.as_bytes());
    Request::new("POST", "/v1/hooks/ci", body)
        .with("content-type", "application/json")
        .with("webhook-id", "msg")
        .with("webhook-timestamp", timestamp)
        .with("webhook-signature", signature)
}

async fn refused_for(machine: &Machine, case: &str, request: Request, reason: &str) {
    let answer = request.send(machine.address).await;
    assert_eq!(
        (answer.status, answer.code()),
        (401, "unauthenticated".to_owned()),
        "{case}: {answer:?}"
    );
    let line = log::refusal(&request.body);
    assert!(line.contains(reason), "{case}: {line}");
}

/// field F09: each timestamp of the trial.
#[tokio::test]
async fn only_whole_seconds_within_the_window_pass_and_the_log_tells_why_not() {
    let machine = Machine::start().await;
    let stale = |age: i64| format!("webhook-timestamp is {age} s old");
    let future = |age: i64| format!("webhook-timestamp is {age} s ahead");
    for (timestamp, reason) in [
        ("abc".to_owned(), MALFORMED.to_owned()),
        ("NaN".to_owned(), MALFORMED.to_owned()),
        (String::new(), MALFORMED.to_owned()),
        ("1e10".to_owned(), MALFORMED.to_owned()),
        ("-1".to_owned(), MALFORMED.to_owned()),
        ("0".to_owned(), MALFORMED.to_owned()),
        (format!("+{NOW}"), MALFORMED.to_owned()),
        (format!("0{NOW}"), MALFORMED.to_owned()),
        (format!("{NOW}.5"), MALFORMED.to_owned()),
        (format!("{NOW} 0"), MALFORMED.to_owned()),
        (format!("{NOW},{NOW}"), MALFORMED.to_owned()),
        ("9".repeat(20), MALFORMED.to_owned()),
        (format!("{NOW}000"), MILLISECONDS.to_owned()),
        ((NOW - 3600).to_string(), stale(3600)),
        ((NOW - 301).to_string(), stale(301)),
        ("1".to_owned(), stale(NOW - 1)),
        ((NOW + 3600).to_string(), future(3600)),
        ((NOW + 301).to_string(), future(301)),
        ("9".repeat(11), future(99_999_999_999 - NOW)),
        // HTTP drops the space around a value, so that the text signed is not the text received.
        (format!(" {NOW}"), "no signature verifies".to_owned()),
    ] {
        let request = signed(&timestamp, timestamp.as_bytes());
        refused_for(&machine, &timestamp, request, &reason).await;
    }
    assert_eq!(machine.spy.effects(), (0, 0));
    for (number, offset) in [-300, -299, 0, 299, 300].into_iter().enumerate() {
        let timestamp = (NOW + offset).to_string();
        let (id, body) = (format!("msg_{number}"), body("in the window"));
        let signature = sign("ci", id.as_bytes(), timestamp.as_bytes(), body.as_bytes());
        let request = signed("in the window", timestamp.as_bytes())
            .replacing("webhook-id", id)
            .replacing("webhook-signature", signature);
        assert_eq!(request.send(machine.address).await.status, 202, "{offset}");
    }
    machine.stop().await;
}

/// field F09: the header twice with different values, whichever of them was signed.
#[tokio::test]
async fn two_timestamps_are_refused_whichever_was_signed() {
    let machine = Machine::start().await;
    let (old, now) = ((NOW - 4000).to_string(), NOW.to_string());
    for (signed_over, first, second) in [
        (&now, &now, &old),
        (&now, &old, &now),
        (&old, &old, &now),
        (&now, &now, &now),
    ] {
        let case = format!("{signed_over} {first} {second}");
        let request = signed(&case, signed_over.as_bytes())
            .replacing("webhook-timestamp", first.as_str())
            .with("Webhook-Timestamp", second.as_str());
        refused_for(&machine, &case, request, "webhook-timestamp is repeated").await;
    }
    assert_eq!(machine.spy.effects(), (0, 0));
    machine.stop().await;
}

/// field F09: signatures that are not ASCII, or hexadecimal of every length, made from the right
/// MAC.
#[tokio::test]
async fn signatures_of_odd_bytes_are_401_and_never_500() {
    let machine = Machine::start().await;
    let timestamp = NOW.to_string();
    for case in 0..14_usize {
        let name = format!("signature {case}");
        let body = body(&name);
        let right = sign("ci", b"msg", timestamp.as_bytes(), body.as_bytes());
        let mac = STANDARD.decode(right.trim_start_matches("v1,")).unwrap();
        let digits = hex::encode(mac);
        let bytes = match case {
            0 => b"sha256=\xc3\xa9".to_vec(),
            1 => b"v1,\xc3\xa9".to_vec(),
            2 => [right.as_bytes(), b"\xc3\xa9"].concat(),
            3 => b"\xff\xfe\xfd".to_vec(),
            4 => format!("sha256={}", &digits[..33]).into_bytes(),
            5 => format!("sha256={}", &digits[..63]).into_bytes(),
            6 => format!("sha256={digits}0").into_bytes(),
            7 => format!("sha256={digits}").into_bytes(),
            8 => format!("sha256={}", digits.to_uppercase()).into_bytes(),
            9 => format!("v1,{}", &digits[..63]).into_bytes(),
            10 => format!("v1,{digits}0").into_bytes(),
            11 => format!("v1,{digits}").into_bytes(),
            12 => format!("v1,{}", digits.to_uppercase()).into_bytes(),
            _ => right.to_uppercase().into_bytes(),
        };
        let request = signed(&name, timestamp.as_bytes()).replacing("webhook-signature", bytes);
        let reason = "webhook-signature has no well-formed v1 or v1a entry";
        refused_for(&machine, &name, request, reason).await;
    }
    assert_eq!(machine.spy.effects(), (0, 0));
    machine.stop().await;
}
