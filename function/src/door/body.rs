//! Bytes of a request: what carries them is checked first, then they are read up to the cap, whole
//! and as received. Nothing is decoded: signatures are over these bytes.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::problem::Problem;

/// A sender that takes longer for a body of this size is stuck or hostile (webhook facts §10.28).
const READ: Duration = Duration::from_secs(10);
/// What is read and dropped of a body that is too large, so that the sender reads the answer instead
/// of a reset connection.
const DRAIN: usize = 8 * 1024 * 1024;
/// Longest time spent on that.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Media types of JSON bodies.
const JSON: [&str; 2] = ["application/json", "application/cloudevents+json"];

/// Checks what carries the body, and its length where that is told.
pub(super) async fn check(headers: &HeaderMap, body: &mut Body, max: usize) -> Result<(), Problem> {
    if declared_length(headers)?.is_some_and(|length| length > max as u64) {
        // Reading would ask for the very body that is refused.
        if !is_awaited(headers) {
            drain(body).await;
        }
        return Err(too_large(max));
    }
    check_carrier(headers)
}

/// Reads the body, which asks for it where it is awaited.
pub(super) async fn read(mut body: Body, max: usize) -> Result<Bytes, Problem> {
    let deadline = Instant::now() + READ;
    let mut read = Vec::new();
    loop {
        let frame = timeout_at(deadline, body.frame())
            .await
            .map_err(|_| too_slow())?;
        let Some(frame) = frame else {
            return Ok(Bytes::from(read));
        };
        let frame = frame.map_err(|_| {
            Problem::malformed(
                "malformed-body",
                "The body ended early or its framing is broken",
            )
        })?;
        // Trailers mean nothing here.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if read.len() + data.len() > max {
            drain(&mut body).await;
            return Err(too_large(max));
        }
        read.extend_from_slice(&data);
    }
}

/// Whether the sender keeps its body until it is asked for it, which the first read does (RFC 9110
/// §10.1.1). What the head alone decides is then answered without.
pub(super) fn is_awaited(headers: &HeaderMap) -> bool {
    let mut expectations = headers.get_all(header::EXPECT).iter();
    expectations.any(|expectation| expectation.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// `Content-Length`, and nothing that contradicts it.
fn declared_length(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let framing = |detail| Problem::malformed("malformed-framing", detail);
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let (first, second) = (lengths.next(), lengths.next());
    if second.is_some() {
        return Err(framing("The body's length is given twice"));
    }
    let Some(length) = first else { return Ok(None) };
    let length = length.to_str().ok().and_then(|text| text.parse().ok());
    length
        .map(Some)
        .ok_or_else(|| framing("Content-Length is not a number"))
}

/// JSON in UTF-8, not compressed: anything else is refused by name instead of failing as JSON
/// (field F26).
fn check_carrier(headers: &HeaderMap) -> Result<(), Problem> {
    let unsupported = |detail: &str| {
        Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            "Unsupported media type",
            detail,
        )
    };
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    if encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(unsupported("Send the body without Content-Encoding"));
    }
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(media), None) = (types.next(), types.next()) else {
        return Err(unsupported("Send one Content-Type: application/json"));
    };
    if is_json(media.to_str().unwrap_or_default()) {
        Ok(())
    } else {
        Err(unsupported(
            "Send Content-Type: application/json or application/cloudevents+json, in UTF-8",
        ))
    }
}

fn is_json(media: &str) -> bool {
    let mut parts = media.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    JSON.iter().any(|json| essence.eq_ignore_ascii_case(json)) && parts.all(utf8)
}

async fn drain(body: &mut Body) {
    let deadline = Instant::now() + DRAIN_TIME;
    let mut dropped = 0;
    while let Ok(Some(Ok(frame))) = timeout_at(deadline, body.frame()).await {
        dropped += frame.data_ref().map_or(0, Bytes::len);
        if dropped > DRAIN {
            return;
        }
    }
}

fn too_large(max: usize) -> Problem {
    let detail = format!("The body is larger than {max} bytes");
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body-too-large",
        "Body too large",
        detail,
    )
    .with_header(
        header::CONNECTION,
        axum::http::HeaderValue::from_static("close"),
    )
}

fn too_slow() -> Problem {
    let detail = format!("The body did not arrive within {} s", READ.as_secs());
    Problem::new(
        StatusCode::REQUEST_TIMEOUT,
        "body-too-slow",
        "Request timeout",
        detail,
    )
    .with_header(
        header::CONNECTION,
        axum::http::HeaderValue::from_static("close"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_json_in_utf8() {
        for (media, expect) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;charset=\"utf-8\"", true),
            ("application/cloudevents+json; charset=utf-8", true),
            ("application/json; charset=utf-16", false),
            ("application/json; charset=latin1; charset=utf-8", false),
            ("text/json", false),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("multipart/form-data; boundary=x", false),
            ("", false),
        ] {
            assert_eq!(is_json(media), expect, "{media:?}");
        }
    }
}
