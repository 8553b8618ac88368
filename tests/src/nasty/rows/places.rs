//! Rows 46 to 50: paths, methods, and headers that would like to change either.

use std::io::{Read, Write};

use anyhow::Result;

use super::{Row, row};
use crate::nasty::sender;
use crate::nasty::trial::{Expected, Trial, UNAUTHENTICATED};
use crate::nasty::wire::{self, Request};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(
        46,
        "`..`, `%2e%2e`, `//`, a slash at the end, other case",
        "404, segments are decoded once and nothing is normalised",
        paths,
    ),
    row(
        47,
        "GET, HEAD, PUT, DELETE, TRACE, OPTIONS, …",
        "405 and Allow: POST; no source takes PUT or the CloudEvents handshake yet",
        methods,
    ),
    row(
        48,
        "Expect: 100-continue",
        "honoured; what the head decides is refused early: 413, 415, 401, 400",
        expect_continue,
    ),
    row(
        49,
        "Host, Forwarded and X-Forwarded-* spoofed",
        "never used, never echoed",
        spoofed,
    ),
    row(
        50,
        "method override by header or query",
        "ignored",
        overridden,
    ),
];

fn paths(trial: &mut Trial<'_>) -> Result<()> {
    for path in [
        "/",
        "/v1",
        "/v1/hooks",
        "/v1/hooks/",
        "/hooks/../admin",
        "/v1/hooks/../admin",
        "/v1/hooks/..",
        "/v1/hooks/%2e%2e",
        "/v1/hooks/%2e%2e%2fhosts",
        "/v1/hooks/x/../ci",
        "/v1/hooks/./ci",
        "/v1//hooks/ci",
        "//v1/hooks/ci",
        "/v1/hooks//ci",
        "/v1/hooks/ci/",
        "/v1/hooks/ci//",
        "/v1/hooks/ci/x",
        "/v1/hooks/ci;x=y",
        "/v1/hooks/ci%00",
        "/v1/hooks/ci%20",
        "/v1/hooks/ci%2f",
        "/v1/hooks/%2563i",
        "/v1/hooks/%ff",
        "/v1/hooks/%zz",
        "/v1/%68ooks/ci",
        "/V1/hooks/ci",
        "/v1/HOOKS/ci",
        "/v1/hooks/CI",
        "/v1/hooks/ci\\",
        "/vgpu/",
        "/VGPU",
    ] {
        let request = trial.webhook().request().path(path);
        trial.refused(path, &request, 404, "not-found");
    }
    for path in ["/v1/hooks/%63i", "/v1/hooks/ci?x=/../admin"] {
        let request = trial.webhook().request().path(path);
        trial.accepted(path, &request);
    }
    Ok(())
}

fn methods(trial: &mut Trial<'_>) -> Result<()> {
    for method in [
        "GET", "HEAD", "PUT", "DELETE", "TRACE", "OPTIONS", "PATCH", "PROPFIND", "BREW", "post",
    ] {
        for request in [trial.webhook().request(), sender::keyed("{}")] {
            let name = format!("{method} {}", request.path);
            let request = request.method(method);
            trial.refused(name, &request, 405, "method-not-allowed");
        }
    }
    let handshake = trial.webhook().request().method("OPTIONS");
    let handshake = handshake.with("webhook-request-origin", "eventemitter.example.com");
    trial.refused(
        "CloudEvents handshake",
        &handshake,
        405,
        "method-not-allowed",
    );
    Ok(())
}

/// A request whose body is not sent before it is asked for.
fn awaited(request: Request, length: usize) -> Request {
    let mut request = request
        .with("expect", "100-continue")
        .with("content-length", length.to_string());
    request.body.clear();
    request
}

fn expect_continue(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        let good = webhook.request();
        let large = awaited(good.clone(), 262_145);
        trial.refused("too large", &large, 413, "body-too-large");
        let text = awaited(good.clone().replacing("content-type", "text/plain"), 9);
        trial.refused("text", &text, 415, "unsupported-media-type");
        let unsigned = awaited(good.clone().without("webhook-signature"), 9);
        trial.refused("unsigned", &unsigned, 401, UNAUTHENTICATED);
        let odd = awaited(good.clone().replacing("webhook-id", "a.5"), 9);
        trial.refused("dotted id", &odd, 400, "malformed-id");
        let old = awaited(good.replacing("webhook-timestamp", "-1"), 9);
        trial.refused("no timestamp", &old, 401, UNAUTHENTICATED);
    }
    let elsewhere = trial.webhook().request().path("/v1/hooks/nobody-here");
    let elsewhere = awaited(elsewhere.without("webhook-signature"), 9);
    trial.refused("unknown source, unsigned", &elsewhere, 404, "not-found");
    let keyless = awaited(sender::keyed("").without("x-api-key"), 9);
    trial.refused("no API key", &keyless, 401, UNAUTHENTICATED);
    for webhook in trial.both() {
        let request = webhook.request();
        let head = awaited(request.clone(), request.body.len()).head();
        let seen = trial.around(|machine| {
            let mut stream = wire::connect(machine.address)?;
            stream.write_all(&head)?;
            let mut asked = [0; 25];
            stream.read_exact(&mut asked)?;
            if asked != *b"HTTP/1.1 100 Continue\r\n\r\n" {
                return Err(std::io::Error::other(wire::text(&asked)));
            }
            stream.write_all(&request.body)?;
            wire::read_all(stream)
        });
        let (_, verdict) = trial.judge("asked for, then sent", Expected::Accepted, seen);
        trial.verdicts.push(verdict);
    }
    Ok(())
}

fn spoofed(trial: &mut Trial<'_>) -> Result<()> {
    let evil = "evil.example";
    for (header, value) in [
        ("host", evil),
        ("x-forwarded-host", evil),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-real-ip", "127.0.0.1"),
        ("x-forwarded-proto", "gopher"),
        ("x-forwarded-prefix", "/evil.example"),
        ("forwarded", "for=127.0.0.1;host=evil.example;proto=https"),
        ("x-original-url", "/healthz"),
        ("x-rewrite-url", "/healthz"),
        ("x-tenant", "rival"),
    ] {
        let request = trial.webhook().request();
        let spoilt = request.clone().replacing("webhook-signature", "v1,AAAA");
        let name = format!("{header}, badly signed");
        trial.refused(name, &spoilt.replacing(header, value), 401, UNAUTHENTICATED);
        let answer = trial.accepted(header, &request.replacing(header, value));
        let Some(answer) = answer else { continue };
        let location = answer.header("location").unwrap_or_default().to_owned();
        let told = format!("{:?} {}", answer.headers, wire::text(&answer.body));
        let echoed = !location.starts_with("/v1/deliveries/") || told.contains(evil);
        let fault = echoed.then(|| told.clone());
        let name = format!("{header}, in the answer");
        trial.holds(name, "a Location without host", fault);
    }
    let absolute = "http://evil.example/v1/hooks/ci";
    let request = trial.webhook().request().path(absolute);
    trial.accepted("absolute form", &request);
    Ok(())
}

fn overridden(trial: &mut Trial<'_>) -> Result<()> {
    for header in [
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
    ] {
        let get = trial.webhook().request().method("GET").with(header, "POST");
        trial.refused(
            format!("GET, {header}: POST"),
            &get,
            405,
            "method-not-allowed",
        );
        let post = trial.webhook().request().with(header, "DELETE");
        trial.accepted(format!("POST, {header}: DELETE"), &post);
    }
    let get = trial
        .webhook()
        .request()
        .method("GET")
        .path("/v1/hooks/ci?_method=POST");
    trial.refused("GET ?_method=POST", &get, 405, "method-not-allowed");
    let post = trial
        .webhook()
        .request()
        .path("/v1/hooks/ci?_method=DELETE");
    trial.accepted("POST ?_method=DELETE", &post);
    Ok(())
}
