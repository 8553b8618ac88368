//! HTTP as bytes: a client library would refuse to send most of what is sent here, and would mend
//! what it reads.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest silence of the door that is waited out; it closes idle connections after 5 s.
const SILENCE: Duration = Duration::from_secs(12);

/// A request, built up header by header.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn new(method: &str, path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: vec![
                ("host".to_owned(), b"door".to_vec()),
                ("connection".to_owned(), b"close".to_vec()),
            ],
            body: body.into(),
        }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self
    }

    pub(super) fn replacing(self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.without(name).with(name, value)
    }

    pub(super) fn method(mut self, method: &str) -> Self {
        method.clone_into(&mut self.method);
        self
    }

    pub(super) fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// Whether it leaves it to the door to close.
    pub(super) fn is_kept_open(&self) -> bool {
        !self.headers.iter().any(|(name, _)| name == "connection")
    }

    /// The body in chunks of these sizes; `body` must be as long as they are together.
    pub(super) fn chunked(mut self, sizes: &[usize]) -> Self {
        let (mut left, mut framed) = (self.body.as_slice(), Vec::new());
        for size in sizes {
            let (chunk, rest) = left.split_at((*size).min(left.len()));
            framed.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            framed.extend_from_slice(chunk);
            framed.extend_from_slice(b"\r\n");
            left = rest;
        }
        framed.extend_from_slice(b"0\r\n\r\n");
        self.body = framed;
        self.with("transfer-encoding", "chunked")
    }

    /// Line and headers, with the empty line after them.
    pub(super) fn head(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        let mut framed = false;
        for (name, value) in &self.headers {
            framed |= name == "transfer-encoding" || name == "content-length";
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                bytes.extend_from_slice(part);
            }
        }
        if !framed {
            bytes.extend_from_slice(format!("content-length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    /// The bytes on the wire.
    pub(super) fn bytes(&self) -> Vec<u8> {
        [self.head(), self.body.clone()].concat()
    }
}

/// One answer of the door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether it says that the connection ends.
    pub(super) fn is_last(&self) -> bool {
        self.header("connection") == Some("close")
    }

    /// The body as JSON; `null` if it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The problem's code, or nothing.
    pub(super) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// All that came back on one connection.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) answers: Vec<Answer>,
    /// Whether the door closed the connection; it may also have reset it.
    pub(super) closed: bool,
    pub(super) took: Duration,
}

/// Sends bytes and reads until the door closes.
pub(super) fn exchange(door: SocketAddr, bytes: &[u8]) -> io::Result<Exchange> {
    let mut stream = connect(door)?;
    // The door may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    read_all(stream)
}

/// Opens a connection whose reads and writes do not wait for ever.
pub(super) fn connect(door: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(door)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// Reads what is left to read.
pub(super) fn read_all(mut stream: TcpStream) -> io::Result<Exchange> {
    let (start, mut bytes, mut chunk) = (Instant::now(), Vec::new(), [0; 16 * 1024]);
    let closed = loop {
        match stream.read(&mut chunk) {
            Ok(0) => break true,
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error) => break error.kind() == io::ErrorKind::ConnectionReset,
        }
    };
    Ok(Exchange {
        answers: answers(&bytes)?,
        closed,
        took: start.elapsed(),
    })
}

/// The answers in some bytes.
pub(super) fn answers(mut bytes: &[u8]) -> io::Result<Vec<Answer>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (answer, rest) = first_answer(bytes)
            .ok_or_else(|| io::Error::other(format!("no answer: {:?}", text(bytes))))?;
        found.push(answer);
        bytes = rest;
    }
    Ok(found)
}

fn first_answer(bytes: &[u8]) -> Option<(Answer, &[u8])> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = text(&bytes[..end]);
    let rest = &bytes[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?;
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut answer = Answer {
        status: status.parse().ok()?,
        headers,
        body: Vec::new(),
    };
    // The answer to HEAD tells a length and has no body.
    let length = answer.header("content-length").map_or(Ok(0), str::parse);
    let (body, rest) = rest.split_at(length.ok()?.min(rest.len()));
    answer.body = body.to_vec();
    Some((answer, rest))
}

/// Bytes for people.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
