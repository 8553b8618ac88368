//! Rows 15 to 23: ids and timestamps. What is refused here is correctly signed over the very text
//! sent.

use anyhow::{Context, Result};

use super::{Row, row};
use crate::nasty::sender::Webhook;
use crate::nasty::trial::{Trial, UNAUTHENTICATED};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(
        15,
        "webhook-id twice, also in other case",
        "400 duplicate-header",
        id_twice,
    ),
    row(
        16,
        "svix-* beside webhook-*",
        "the configured set only",
        svix,
    ),
    row(
        17,
        "id with a dot, CR, LF, NUL, of 257 bytes, or not ASCII",
        "400",
        odd_id,
    ),
    row(
        18,
        "confusable id (Cyrillic a)",
        "400, no normalisation",
        confusable_id,
    ),
    row(
        19,
        "timestamp in milliseconds",
        "401, the hint is in the log alone",
        milliseconds,
    ),
    row(
        20,
        "timestamp negative, -0, signed, zero-led, float, hexadecimal, with a space",
        "401; a space at the end is no part of a header's value",
        spelling,
    ),
    row(21, "timestamp i64::MIN, i64::MAX, 2^64", "401", extremes),
    row(
        22,
        "timestamp in Arabic-Indic or full-width digits",
        "401",
        foreign_digits,
    ),
    row(
        23,
        "timestamp 300 s and 301 s off, either way",
        "accepted and 401",
        window,
    ),
];

fn id_twice(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        for (name, header) in [("same case", "webhook-id"), ("other case", "Webhook-ID")] {
            for (which, id) in [("same id", webhook.id.clone()), ("other id", b"x".to_vec())] {
                let request = webhook.request().with(header, id);
                trial.refused(
                    format!("{name}, {which}"),
                    &request,
                    400,
                    "duplicate-header",
                );
            }
        }
    }
    Ok(())
}

fn svix(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        let svix = |id: &str, signature: String| {
            webhook
                .request()
                .with("svix-id", id)
                .with("svix-timestamp", webhook.timestamp.clone())
                .with("svix-signature", signature)
        };
        let wrong = svix("x", webhook.entry()).replacing("webhook-signature", "v1,AAAA");
        trial.refused("good svix, bad webhook", &wrong, 401, UNAUTHENTICATED);
        let alone = svix("x", webhook.entry())
            .without("webhook-signature")
            .without("webhook-id")
            .without("webhook-timestamp");
        trial.refused("svix alone", &alone, 401, UNAUTHENTICATED);
        trial.accepted(
            "bad svix, good webhook",
            &svix("other", "v1,AAAA".to_owned()),
        );
    }
    Ok(())
}

fn odd_id(trial: &mut Trial<'_>) -> Result<()> {
    let long = "x".repeat(257);
    for id in [
        "a.5",
        ".",
        "with space",
        "tab\there",
        "",
        &long,
        "caf\u{e9}",
        "\u{1f600}",
    ] {
        for webhook in trial.both() {
            let request = webhook.id(id).request();
            trial.refused(format!("{id:.20?}"), &request, 400, "malformed-id");
        }
    }
    for (name, id) in [
        ("CR", "a\rb"),
        ("LF", "a\nb"),
        ("CR LF", "a\r\nb"),
        ("NUL", "a\0b"),
        ("DEL", "a\x7fb"),
    ] {
        for webhook in trial.both() {
            trial.bare(name, &webhook.id(id).request().bytes(), 400);
        }
    }
    for webhook in trial.both() {
        let request = webhook.id("y".repeat(256)).request();
        trial.accepted("256 bytes", &request);
    }
    Ok(())
}

fn confusable_id(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        let id = format!("{}\u{430}", String::from_utf8_lossy(&webhook.id));
        let request = webhook.id(id).request();
        trial.refused("Cyrillic a", &request, 400, "malformed-id");
    }
    Ok(())
}

/// Each of these is signed over its own text, and still refused.
fn refused_timestamps(trial: &mut Trial<'_>, texts: &[String]) {
    for text in texts {
        for webhook in trial.both() {
            let request = webhook.timestamp(text.as_str()).request();
            trial.refused(format!("{text:?}"), &request, 401, UNAUTHENTICATED);
        }
    }
}

fn milliseconds(trial: &mut Trial<'_>) -> Result<()> {
    let now = trial.machine.now_s();
    refused_timestamps(trial, &["1614265330000".to_owned(), format!("{now}000")]);
    Ok(())
}

fn spelling(trial: &mut Trial<'_>) -> Result<()> {
    let now = trial.machine.now_s();
    let texts = [
        format!("-{now}"),
        "-0".to_owned(),
        "0".to_owned(),
        format!("+{now}"),
        format!("0{now}"),
        format!("{now}.0"),
        format!("{now}."),
        format!("{now}e0"),
        "1.6e9".to_owned(),
        format!("0x{now:x}"),
        format!("{now},{now}"),
        format!("{now} {now}"),
        format!("{now}_0"),
        "now".to_owned(),
        String::new(),
    ];
    refused_timestamps(trial, &texts);
    for webhook in trial.both() {
        let spaced = |webhook: &Webhook| [webhook.timestamp.as_slice(), b" "].concat();
        let signed = spaced(&webhook);
        let request = webhook.clone().timestamp(signed).request();
        trial.refused("space signed as well", &request, 401, UNAUTHENTICATED);
        let request = webhook
            .request()
            .replacing("webhook-timestamp", spaced(&webhook));
        trial.accepted("space on the wire alone", &request);
    }
    Ok(())
}

fn extremes(trial: &mut Trial<'_>) -> Result<()> {
    let texts = [
        i64::MIN.to_string(),
        i64::MAX.to_string(),
        u64::MAX.to_string(),
        "18446744073709551616".to_owned(),
        "99999999999".to_owned(),
        "1".to_owned(),
        "9".repeat(400),
    ];
    refused_timestamps(trial, &texts);
    Ok(())
}

fn foreign_digits(trial: &mut Trial<'_>) -> Result<()> {
    let now = trial.machine.now_s().to_string();
    let moved = |zero: u32| -> Option<String> {
        let digit = |digit: char| char::from_u32(zero + digit.to_digit(10)?);
        now.chars().map(digit).collect()
    };
    // Arabic-Indic, extended Arabic-Indic, Devanagari and full-width zeros.
    let texts = [0x660, 0x6f0, 0x966, 0xff10].map(moved);
    let texts: Option<Vec<_>> = texts.into_iter().collect();
    refused_timestamps(trial, &texts.context("digits have no counterparts")?);
    Ok(())
}

fn window(trial: &mut Trial<'_>) -> Result<()> {
    let now = trial.machine.now_s();
    for offset in [-300, -299, 0, 299, 300] {
        for webhook in trial.both() {
            let request = webhook.timestamp((now + offset).to_string()).request();
            trial.accepted(format!("{offset} s"), &request);
        }
    }
    let texts = [-301, 301, -86_400, 86_400].map(|offset| (now + offset).to_string());
    refused_timestamps(trial, &texts);
    Ok(())
}
