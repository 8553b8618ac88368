//! Rows 24, 25, 27 and 29 to 31: what carries the body, and how much of it there is.

use anyhow::Result;

use super::{Row, row};
use crate::nasty::sender::{self, GOOD};
use crate::nasty::trial::{Trial, UNAUTHENTICATED};

/// The rows.
pub(super) const ROWS: &[Row] = &[
    row(
        24,
        "empty body, signed",
        "400 empty-body, after the signature",
        empty,
    ),
    row(
        25,
        "body larger than 256 KiB",
        "413 before the signature, by length and by counting",
        too_large,
    ),
    row(
        27,
        "chunked, without a length",
        "accepted up to the cap",
        chunked,
    ),
    row(29, "Content-Encoding gzip, br, …", "415", compressed),
    row(
        30,
        "Content-Type missing, text/plain, charset=utf-16",
        "415",
        media,
    ),
    row(31, "form or multipart for a JSON source", "415", form),
];

/// The default of `max_body_bytes`.
const MAX_BODY: usize = 256 * 1024;

const MEDIA: &str = "unsupported-media-type";

fn empty(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        let empty = webhook.clone().body("").request();
        trial.refused("signed", &empty, 400, "empty-body");
        let blank = webhook.clone().body(" \r\n\t").request();
        trial.refused("blank", &blank, 400, "empty-body");
        let unsigned = empty.replacing("webhook-signature", webhook.entry());
        let name = "under the signature of another body";
        trial.refused(name, &unsigned, 401, UNAUTHENTICATED);
    }
    trial.refused("API key", &sender::keyed(""), 400, "empty-body");
    Ok(())
}

/// The good body with spaces up to that size.
fn padded(size: usize) -> Vec<u8> {
    let mut body = GOOD.as_bytes().to_vec();
    body.resize(size, b' ');
    body
}

fn too_large(trial: &mut Trial<'_>) -> Result<()> {
    let code = "body-too-large";
    for webhook in trial.both() {
        let fits = webhook.clone().body(padded(MAX_BODY)).request();
        trial.accepted("exactly the cap", &fits);
        let webhook = webhook.body(padded(MAX_BODY + 1));
        trial.refused("one byte more", &webhook.request(), 413, code);
        let unsigned = webhook.request().without("webhook-signature");
        trial.refused("one byte more, unsigned", &unsigned, 413, code);
        let streamed = webhook.request().chunked(&[MAX_BODY, 1]);
        trial.refused("one byte more, in chunks", &streamed, 413, code);
    }
    let declared = |length: &str| {
        let mut request = trial.webhook().request().with("content-length", length);
        request.body.clear();
        request
    };
    let [gib, most] = ["1073741824", "9223372036854775807"].map(declared);
    trial.refused("a GiB that is never sent", &gib, 413, code);
    trial.refused("2^63 - 1 that are never sent", &most, 413, code);
    let keyed = sender::keyed("").replacing("x-api-key", "wrong");
    let keyed = keyed.with("content-length", "1073741824");
    trial.refused("a GiB for a wrong API key", &keyed, 413, code);
    Ok(())
}

fn chunked(trial: &mut Trial<'_>) -> Result<()> {
    for webhook in trial.both() {
        let length = webhook.body.len();
        let whole = webhook.clone().request().chunked(&[length]);
        trial.accepted("one chunk", &whole);
    }
    for webhook in trial.both() {
        let ones = vec![1; webhook.body.len()];
        trial.accepted("byte by byte", &webhook.request().chunked(&ones));
    }
    let in_trailer = |trailer: String| {
        let size = GOOD.len();
        format!("0{size:X};a=b;c\r\n{GOOD}\r\n0\r\n{trailer}\r\n\r\n")
    };
    let mut request = trial
        .webhook()
        .request()
        .with("transfer-encoding", "chunked");
    request.body = in_trailer("webhook-id: other".to_owned()).into();
    trial.accepted("with an extension and a trailer", &request);
    let webhook = trial.webhook();
    let request = webhook.request().without("webhook-signature");
    let mut request = request.with("transfer-encoding", "chunked");
    request.body = in_trailer(format!("webhook-signature: {}", webhook.entry())).into();
    trial.refused("the signature in a trailer", &request, 401, UNAUTHENTICATED);
    Ok(())
}

fn compressed(trial: &mut Trial<'_>) -> Result<()> {
    let codings = [
        "gzip",
        "GZIP",
        "x-gzip",
        "br",
        "deflate",
        "zstd",
        "gzip, identity",
        "identity, gzip",
    ];
    for coding in codings {
        for webhook in trial.both() {
            let request = webhook.body(*b"\x1f\x8b\x08\x00").request();
            let request = request.with("content-encoding", coding);
            trial.refused(coding, &request, 415, MEDIA);
        }
    }
    let keyed = sender::keyed(GOOD).with("content-encoding", "gzip");
    trial.refused("gzip, API key", &keyed, 415, MEDIA);
    let plain = trial
        .webhook()
        .request()
        .with("content-encoding", "identity");
    trial.accepted("identity", &plain);
    Ok(())
}

fn media(trial: &mut Trial<'_>) -> Result<()> {
    let missing = trial.webhook().request().without("content-type");
    trial.refused("none", &missing, 415, MEDIA);
    let twice = trial
        .webhook()
        .request()
        .with("content-type", "application/json");
    trial.refused("two", &twice, 415, MEDIA);
    for media in [
        "text/plain",
        "text/json",
        "application/json; charset=utf-16",
        "application/json;charset=latin1",
        "application/json, text/plain",
        "application/json-patch+json",
        "application/xml",
        "json",
        "*/*",
        "",
    ] {
        for webhook in trial.both() {
            let request = webhook.request().replacing("content-type", media);
            trial.refused(format!("{media:?}"), &request, 415, MEDIA);
        }
    }
    let taken = [
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/cloudevents+json",
    ];
    for media in taken {
        let request = trial.webhook().request().replacing("content-type", media);
        trial.accepted(media, &request);
    }
    Ok(())
}

fn form(trial: &mut Trial<'_>) -> Result<()> {
    for media in [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ] {
        for webhook in trial.both() {
            let request = webhook.body("payload=%7B%7D").request();
            let request = request.replacing("content-type", media);
            trial.refused(media, &request, 415, MEDIA);
        }
    }
    Ok(())
}
