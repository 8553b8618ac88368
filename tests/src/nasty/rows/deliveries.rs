//! Rows 51 to 54: the same again, and who may.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Row, row};
use crate::nasty::sender::{GOOD, Key};
use crate::nasty::trial::{Trial, UNAUTHENTICATED, without_names};
use crate::nasty::wire::{self, Request};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(
        51,
        "replay inside the window",
        "the same 202 as at first, nothing new",
        replay,
    ),
    row(
        52,
        "same id, other body",
        "409 idempotency-mismatch",
        mismatch,
    ),
    row(
        53,
        "unknown source",
        "404, one answer whatever else is right or wrong, with a bad MAC's work",
        unknown_source,
    ),
    row(
        54,
        "good MAC, not allowed this operation or host",
        "403",
        not_permitted,
    ),
];

fn replay(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        let first = trial.accepted("first", &webhook.request());
        let later = (trial.machine.now_s() + 200).to_string();
        for (name, again) in [
            ("the same bytes", webhook.clone()),
            ("signed anew, as retries are", webhook.timestamp(later)),
        ] {
            let again = trial.replayed(name, &again.request());
            let same = |header: fn(&wire::Answer) -> Vec<u8>| {
                first.as_ref().map(header) == again.as_ref().map(header)
            };
            let body = same(|answer| answer.body.clone());
            let location = same(|answer| answer.header("location").unwrap_or_default().into());
            let fault = (!body || !location).then(|| "the answer differs".to_owned());
            trial.holds(format!("{name}: the answer"), "as at first", fault);
        }
    }
    Ok(())
}

fn mismatch(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        trial.accepted("first", &webhook.request());
        for body in [
            r#"{"op":"release","key":"k"}"#,
            "not json",
            "",
            &format!("{GOOD} "),
        ] {
            let other = webhook.clone().body(body).request();
            trial.refused(
                format!("then {body:?}"),
                &other,
                409,
                "idempotency-mismatch",
            );
        }
    }
    // Ids belong to their source.
    let webhook = trial.machine.webhook("ci");
    trial.accepted("an id of ci", &webhook.request());
    let rival = trial.machine.webhook("rival").id(webhook.id);
    trial.accepted("the same id of another source", &rival.request());
    Ok(())
}

fn unknown_source(trial: &mut Trial<'_>) -> Result<()> {
    let mut seen = Vec::new();
    let elsewhere = "/v1/hooks/nobody-here";
    let at = |request: Request| request.path(elsewhere);
    let webhook = trial.webhook();
    let good = webhook.request();
    let cases = [
        ("signed by a known sender", at(good.clone())),
        ("unsigned", at(good.clone().without("webhook-signature"))),
        (
            "badly signed",
            at(good.clone().replacing("webhook-signature", "v1,AAAA")),
        ),
        ("stale", at(webhook.clone().timestamp("1").request())),
        ("dotted id", at(webhook.clone().id("a.5").request())),
        ("id twice", at(good.clone().with("webhook-id", "x"))),
        ("no JSON", at(webhook.clone().body("x").request())),
        ("an API-key source", good.clone().path("/v1/hooks/seed")),
        ("a tenant", good.clone().path("/v1/hooks/acme")),
        ("no source's name at all", good.path("/v1/hooks/%00")),
    ];
    for (name, request) in cases {
        let answer = trial.refused(name, &request, 404, "not-found");
        seen.extend(answer.as_ref().map(without_names));
    }
    seen.dedup();
    let fault = (seen.len() != 1).then(|| format!("{seen:?}"));
    trial.holds("all of them", "one answer", fault);
    like_a_bad_mac(trial)
}

/// Apart from what the status says, an unknown source looks like a bad MAC: same headers, same
/// members, and about the same time, which is told here and not judged: it is a busy machine's.
fn like_a_bad_mac(trial: &mut Trial<'_>) -> Result<()> {
    let bad = trial.machine.webhook("rival").body(vec![b' '; 200_000]);
    let bad = bad.under(Key::V1("nobody's"));
    let known = bad.request();
    let unknown = known.clone().path("/v1/hooks/nobody-here");
    let shape = |answer: &wire::Answer| {
        let document = answer.json();
        let members = document
            .as_object()
            .map(|members| members.keys().cloned().collect::<Vec<_>>());
        let headers = answer.headers.iter().map(|(name, _)| name.clone());
        let headers: Vec<_> = headers.filter(|name| name != "www-authenticate").collect();
        (members, headers)
    };
    let one = trial.refused("bad MAC of a known source", &known, 401, UNAUTHENTICATED);
    let other = trial.refused("the same of an unknown one", &unknown, 404, "not-found");
    let fault =
        (one.as_ref().map(shape) != other.as_ref().map(shape)).then(|| "they differ".to_owned());
    trial.holds("headers and members of both", "the same", fault);
    let mut took = [Vec::new(), Vec::new()];
    for _ in 0..40 {
        for (at, request) in [&known, &unknown].into_iter().enumerate() {
            let start = Instant::now();
            wire::exchange(trial.machine.address, &request.bytes())?;
            took[at].push(start.elapsed());
        }
    }
    let median = |mut took: Vec<Duration>| -> Result<Duration> {
        took.sort();
        took.get(took.len() / 2)
            .copied()
            .context("nothing was timed")
    };
    let [known, unknown] = took.map(median);
    let told = format!("401 in {:.1?}, 404 in {:.1?}", known?, unknown?);
    trial.observed(
        "medians of 40 with 200 kB each",
        "told, not judged",
        told,
        Vec::new(),
    );
    Ok(())
}

fn not_permitted(trial: &mut Trial<'_>) -> Result<()> {
    let code = "not-permitted";
    for body in [
        GOOD,
        r#"{"op":"release","key":"k"}"#,
        r#"{"op":"renew","key":"k","ttl_s":60}"#,
        r#"{"op":"allocate","key":"k","profile":"T4-4Q"}"#,
        r#"{"operations":[{"op":"inspect","target":{"host":"gpu-1"}},{"op":"release","key":"k"}]}"#,
    ] {
        let request = trial.machine.webhook("nobody").body(body).request();
        trial.refused(
            format!("a source without a role: {body}"),
            &request,
            403,
            code,
        );
    }
    let vault = r#"{"op":"inspect","target":{"host":"vault"}}"#;
    for webhook in trial.both() {
        let request = webhook.body(vault).request();
        trial.refused(
            "a host that policy closes to the tenant",
            &request,
            403,
            code,
        );
    }
    let both = format!(r#"{{"operations":[{GOOD},{vault}]}}"#);
    let request = trial.webhook().body(both).request();
    trial.refused("all or nothing", &request, 403, code);
    let rival = trial.machine.webhook("rival").body(vault).request();
    trial.accepted("the same host for another tenant", &rival);
    Ok(())
}
