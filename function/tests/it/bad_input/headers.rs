//! Rows 1 to 23: signature, id and timestamp headers.

use crate::machine::{Machine, NOW, sign};

use super::{Case, GOOD, case};

/// The cases.
pub(super) fn cases(machine: &Machine) -> Vec<Case> {
    let good = || machine.signed("ci", "msg", GOOD.as_bytes());
    let right = good()
        .headers
        .iter()
        .find(|(name, _)| name == "webhook-signature")
        .unwrap()
        .1
        .clone();
    let right = String::from_utf8(right).unwrap();
    let unauthenticated = "unauthenticated";
    let mut cases = vec![
        case(
            "1 no signature",
            good().without("webhook-signature"),
            401,
            unauthenticated,
        ),
        case(
            "no timestamp",
            good().without("webhook-timestamp"),
            401,
            unauthenticated,
        ),
        case("no id", good().without("webhook-id"), 401, unauthenticated),
        case(
            "4 10,000 entries",
            good().replacing("webhook-signature", "v1,AAAA ".repeat(6000)),
            401,
            unauthenticated,
        ),
        case(
            "4 the 17th entry",
            good().replacing(
                "webhook-signature",
                format!("{}{right}", "v1,AAAA ".repeat(16)),
            ),
            401,
            unauthenticated,
        ),
        case(
            "12 truncated",
            good().replacing("webhook-signature", "v1,g0hM9SsE"),
            401,
            unauthenticated,
        ),
        case(
            "14 signature twice",
            good().with("webhook-signature", right.clone()),
            401,
            unauthenticated,
        ),
        case(
            "15 id twice",
            good().with("webhook-id", "msg"),
            400,
            "duplicate-header",
        ),
        case(
            "15 id twice in other case",
            good().with("Webhook-Id", "msg"),
            400,
            "duplicate-header",
        ),
        case(
            "16 svix set beside",
            good()
                .with("svix-signature", "v1,AAAA")
                .replacing("webhook-signature", "v1,AAAA"),
            401,
            unauthenticated,
        ),
        case(
            "non-ASCII signature",
            good().replacing("webhook-signature", "v1,\u{e9}"),
            401,
            unauthenticated,
        ),
        case(
            "60 rotated-out key",
            {
                let timestamp = NOW.to_string();
                good().replacing(
                    "webhook-signature",
                    sign("former", b"msg", timestamp.as_bytes(), GOOD.as_bytes()),
                )
            },
            401,
            unauthenticated,
        ),
    ];
    let spoilt = [
        String::new(),
        "v1".to_owned(),
        "v1,".to_owned(),
        ",abc".to_owned(),
        right.replace("v1,", "v2,"),
        right.replace("v1,", "V1,"),
        right.trim_end_matches('=').to_owned(),
        format!("{right}="),
        format!("{right},junk"),
        right.replace("v1,", "v1, "),
        right
            .replace('+', "-")
            .replace('/', "_")
            .replace("v1,", "v1,-"),
        "invalid signature".to_owned(),
    ];
    cases.extend(spoilt.into_iter().map(|signature| {
        case(
            format!("2-13 {signature:?}"),
            good().replacing("webhook-signature", signature),
            401,
            unauthenticated,
        )
    }));
    let long = "x".repeat(257);
    for id in ["a.5", "with space", "", &long, "\u{430}"] {
        let timestamp = NOW.to_string();
        let signature = sign("ci", id.as_bytes(), timestamp.as_bytes(), GOOD.as_bytes());
        let request = good()
            .replacing("webhook-id", id)
            .replacing("webhook-signature", signature);
        cases.push(case(
            format!("17-18 {id:.20?}"),
            request,
            400,
            "malformed-id",
        ));
    }
    // Signed over the very text sent (field F09).
    let now = NOW;
    let texts = [
        format!("{now}000"),
        "-1".into(),
        "-0".into(),
        format!("+{now}"),
        format!("0{now}"),
        "1.6e9".into(),
        "0x6037b8b2".into(),
        format!("{now}.0"),
        "9223372036854775807".into(),
        "-9223372036854775808".into(),
        "18446744073709551616".into(),
        "\u{661}\u{666}".into(),
        "\u{ff11}".into(),
        String::new(),
        "abc".into(),
        (now - 301).to_string(),
        (now + 301).to_string(),
    ];
    cases.extend(texts.into_iter().map(|text: String| {
        let signature = sign("ci", b"msg", text.as_bytes(), GOOD.as_bytes());
        let request = good()
            .replacing("webhook-timestamp", text.clone())
            .replacing("webhook-signature", signature);
        case(format!("19-23 {text}"), request, 401, unauthenticated)
    }));
    cases
}
