//! Row 26: where one request ends and the next begins. These requests leave it to the door to close.

use std::io::Write;
use std::net::Shutdown;

use anyhow::Result;

use super::{Row, row};
use crate::nasty::machine::Traces;
use crate::nasty::trial::Trial;
use crate::nasty::wire::{self, Exchange, Request};

/// The row.
pub(super) const ROWS: &[Row] = &[row(
    26,
    "Content-Length wrong, told twice, or beside Transfer-Encoding",
    "400, and the connection ends",
    framing,
)];

fn kept_open(trial: &Trial<'_>) -> Request {
    trial.webhook().request().without("connection")
}

fn framing(trial: &mut Trial<'_>) -> Result<()> {
    told_twice(trial);
    no_lengths(trial);
    no_heads(trial);
    other_protocol(trial);
    broken_chunks(trial);
    wrong_lengths(trial);
    Ok(())
}

/// What one reader takes for chunks and another for a length, with a webhook smuggled behind.
fn told_twice(trial: &mut Trial<'_>) {
    let (length, chunks) = (("content-length", "5"), ("transfer-encoding", "chunked"));
    for (name, [first, second]) in [
        ("length, then chunks", [length, chunks]),
        ("chunks, then length", [chunks, length]),
        ("the same length twice", [length, length]),
        ("chunks twice", [chunks, chunks]),
        (
            "compressed, then chunks",
            [("x", "y"), ("transfer-encoding", "gzip, chunked")],
        ),
    ] {
        let smuggled = kept_open(trial).bytes();
        let request = kept_open(trial).with(first.0, first.1);
        let mut request = request.with(second.0, second.1);
        request.body = [b"0\r\n\r\n".as_slice(), &smuggled].concat();
        trial.refused(name, &request, 400, "malformed-framing");
    }
    let differing = kept_open(trial).with("content-length", "5");
    let differing = differing.with("content-length", "6");
    trial.bare("two lengths", &differing.bytes(), 400);
}

fn no_lengths(trial: &mut Trial<'_>) {
    for length in [
        "five",
        "-5",
        "+5",
        "0x5",
        "5 5",
        "5,5",
        "5.0",
        "",
        "18446744073709551616",
    ] {
        let request = kept_open(trial).with("content-length", length);
        trial.bare(format!("Content-Length: {length}"), &request.bytes(), 400);
    }
    for coding in ["identity", "xchunked", "chunked, gzip", "", "chunked;x"] {
        let request = kept_open(trial).with("transfer-encoding", coding);
        trial.bare(
            format!("Transfer-Encoding: {coding}"),
            &request.bytes(),
            400,
        );
    }
}

fn no_heads(trial: &mut Trial<'_>) {
    for (name, line) in [
        ("space before the colon", "content-length : 5"),
        ("no colon", "content-length 5"),
        ("folded", "x: y\r\n content-length: 5"),
        ("NUL in a name", "a\0b: c"),
        ("no name", ": 5"),
    ] {
        let bytes = wire::text(&kept_open(trial).bytes());
        let with = format!("{line}\r\ncontent-length:");
        let broken = bytes.replacen("content-length:", &with, 1);
        trial.bare(name, broken.as_bytes(), 400);
    }
    let chunks = wire::text(&kept_open(trial).chunked(&[9]).bytes());
    let old = chunks.replacen("HTTP/1.1", "HTTP/1.0", 1);
    trial.bare("chunks in HTTP/1.0", old.as_bytes(), 400);
    for (name, bytes) in [
        ("HTTP/0.9", &b"GET /healthz\r\n\r\n"[..]),
        (
            "TLS",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        ),
        ("no HTTP", b"hello\r\n\r\n"),
    ] {
        trial.bare(name, bytes, 400);
    }
}

/// hyper knows HTTP/2 when it sees it, and hangs up.
fn other_protocol(trial: &mut Trial<'_>) {
    let seen = trial.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    ended(trial, "HTTP/2", seen, &[]);
}

fn broken_chunks(trial: &mut Trial<'_>) {
    for (name, body) in [
        ("size that is no number", "zz\r\nhello\r\n0\r\n\r\n"),
        ("negative size", "-5\r\nhello\r\n0\r\n\r\n"),
        (
            "size beyond 64 bits",
            "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        ),
        ("no end of a chunk", "5\r\nhelloXX0\r\n\r\n"),
        ("bare LF", "5\nhello\n0\n\n"),
    ] {
        let mut request = kept_open(trial).with("transfer-encoding", "chunked");
        request.body = body.into();
        trial.refused(name, &request, 400, "malformed-body");
    }
}

/// What is cut off fails as a signature, and the rest as a request; what never comes is not waited
/// for once the sender has closed.
fn wrong_lengths(trial: &mut Trial<'_>) {
    let short = kept_open(trial).with("content-length", "5").bytes();
    let seen = trial.send(&short);
    ended(trial, "too short", seen, &[401, 400]);
    let long = kept_open(trial).with("content-length", "5000").bytes();
    let seen = trial.around(|machine| {
        let mut stream = wire::connect(machine.address)?;
        stream.write_all(&long)?;
        stream.shutdown(Shutdown::Write)?;
        wire::read_all(stream)
    });
    ended(trial, "too long, then closed", seen, &[400]);
}

/// Expects these statuses, then the end of the connection, and no trace.
fn ended(trial: &mut Trial<'_>, name: &str, seen: Result<(Exchange, Traces)>, statuses: &[u16]) {
    let expected = format!("{statuses:?}, closed");
    let (told, left) = match seen {
        Ok((exchange, traces)) => {
            let seen: Vec<_> = exchange.answers.iter().map(|one| one.status).collect();
            let end = if exchange.closed { "closed" } else { "open" };
            (format!("{seen:?}, {end}"), traces)
        }
        Err(error) => (format!("{error:#}"), Traces::default()),
    };
    let mut faults = Vec::new();
    if told != expected {
        faults.push("ended otherwise".to_owned());
    }
    if left != Traces::default() {
        faults.push(format!("left {left:?}"));
    }
    trial.observed(name, expected, told, faults);
}
