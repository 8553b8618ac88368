//! Row 28: connections that trickle, against the door's real deadlines.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Row, row};
use crate::nasty::trial::Trial;
use crate::nasty::wire::{self, Exchange};

/// The row.
pub(super) const ROWS: &[Row] = &[Row {
    is_slow: true,
    ..row(
        28,
        "slow loris: heads and bodies that trickle",
        "closed after 5 s, 408 after 10 s",
        slow,
    )
}];

/// Seconds that a head, and a body, may take.
const HEAD_S: f64 = 5.0;
const BODY_S: f64 = 10.0;
/// What the machine may be late by.
const LATE_S: f64 = 4.0;
/// Pause between two bytes.
const PAUSE: Duration = Duration::from_millis(200);
/// A connection that is still open then is held for as long as its peer likes.
const HELD: Duration = Duration::from_secs(20);

const HEAD: &str = "POST /v1/hooks/ci HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

/// How one slow connection ended.
struct End {
    name: &'static str,
    seen: io::Result<Exchange>,
}

fn slow(trial: &mut Trial<'_>) -> Result<()> {
    let door = trial.machine.address;
    let sized = format!("{HEAD}content-length: 900\r\n\r\n{{");
    let streamed = format!("{HEAD}transfer-encoding: chunked\r\n\r\n384\r\n{{");
    let keyed = sized.replace("/v1/hooks/ci", "/vgpu");
    let fast = trial.webhook().request();
    let before = trial.machine.traces()?;
    let (heads, bodies) = std::thread::scope(|scope| {
        let start = |name, beginning: &str, drip| start(scope, door, name, beginning, drip);
        let heads = [
            start("nothing at all", "", None),
            start("half a request line", "POST /v1/ho", None),
            start("a head without its end", HEAD, None),
            start("a head by the byte", &format!("{HEAD}x: "), Some(b'y')),
        ];
        let bodies = [
            start("a body that stops", &sized, None),
            start("a body by the byte", &sized, Some(b' ')),
            start("chunks by the byte", &streamed, Some(b' ')),
            start("the API-key door's body by the byte", &keyed, Some(b' ')),
        ];
        trial.accepted("a good webhook meanwhile", &fast);
        let end = |thread: ScopedJoinHandle<'_, End>| {
            thread.join().expect("a trickle records its failures")
        };
        (heads.map(end), bodies.map(end))
    });
    for end in heads {
        judge(trial, end, HEAD_S, "closed");
    }
    for end in bodies {
        judge(trial, end, BODY_S, "408 body-too-slow");
    }
    let left = trial.machine.traces()? - before;
    let fault = (left.deliveries != 1).then(|| format!("left {left:?}"));
    trial.holds("what all of them left", "the good webhook alone", fault);
    Ok(())
}

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    door: SocketAddr,
    name: &'static str,
    beginning: &str,
    drip: Option<u8>,
) -> ScopedJoinHandle<'scope, End> {
    let beginning = beginning.as_bytes().to_vec();
    scope.spawn(move || End {
        name,
        seen: trickle(door, &beginning, drip),
    })
}

/// Sends the beginning at once, then one byte of the drip at a time, until the door has had enough.
fn trickle(door: SocketAddr, beginning: &[u8], drip: Option<u8>) -> io::Result<Exchange> {
    let mut stream = wire::connect(door)?;
    stream.write_all(beginning)?;
    match drip {
        None => wire::read_all(stream),
        Some(drip) => read_while_dripping(stream, drip),
    }
}

fn read_while_dripping(mut stream: TcpStream, drip: u8) -> io::Result<Exchange> {
    // The pause between two bytes is spent waiting for the answer.
    stream.set_read_timeout(Some(PAUSE))?;
    let (start, mut bytes, mut chunk) = (Instant::now(), Vec::new(), [0; 4096]);
    let closed = loop {
        // Fails once the door has closed, which the read then tells.
        let _ = stream.write_all(&[drip]);
        match stream.read(&mut chunk) {
            Ok(0) => break true,
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break true,
            Err(_) if start.elapsed() > HELD => break false,
            Err(_) => {}
        }
    };
    Ok(Exchange {
        answers: wire::answers(&bytes)?,
        closed,
        took: start.elapsed(),
    })
}

/// Not before its time, so that a slow line is no crime, and not long after it.
fn judge(trial: &mut Trial<'_>, end: End, after_s: f64, expected: &str) {
    let mut silent = false;
    let (seen, took_s) = match end.seen {
        Ok(exchange) => {
            let answer = exchange.answers.first();
            silent = answer.is_some_and(|answer| !answer.is_last());
            let answer = answer.map(|answer| format!("{} {}", answer.status, answer.code()));
            let closed = if exchange.closed {
                "closed"
            } else {
                "held open"
            };
            (
                answer.unwrap_or_else(|| closed.to_owned()),
                exchange.took.as_secs_f64(),
            )
        }
        Err(error) => (error.to_string(), 0.0),
    };
    let mut faults = Vec::new();
    if silent {
        faults.push("no Connection: close".to_owned());
    }
    if seen != expected {
        faults.push("ended otherwise".to_owned());
    }
    if took_s < after_s - 1.0 || took_s > after_s + LATE_S {
        faults.push("at another time".to_owned());
    }
    let expected = format!("{expected} after {after_s:.0} s");
    trial.observed(
        end.name,
        expected,
        format!("{seen} after {took_s:.0} s"),
        faults,
    );
}
