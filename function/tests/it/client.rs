//! A client that sends exactly what it is told, byte for byte.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for an answer; every answer here comes at once.
const DEADLINE: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A request, built up.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: body.into(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self
    }

    pub(crate) fn replacing(self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.without(name).with(name, value)
    }

    /// The bytes on the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!(
            "{} {} HTTP/1.1\r\nhost: door\r\nconnection: close\r\n",
            self.method, self.path
        )
        .into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        let framed = self
            .headers
            .iter()
            .any(|(name, _)| name == "transfer-encoding" || name == "content-length");
        if !framed && (self.method == "POST" || !self.body.is_empty()) {
            bytes.extend_from_slice(format!("content-length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }

    pub(crate) async fn send(&self, to: SocketAddr) -> Answer {
        exchange(to, &self.bytes()).await
    }
}

/// Sends bytes and reads one answer.
pub(crate) async fn exchange(to: SocketAddr, bytes: &[u8]) -> Answer {
    tokio::time::timeout(DEADLINE, async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        // The door may answer, and close, before it has read everything.
        let _ = stream.write_all(bytes).await;
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text).await;
        parse(&text)
    })
    .await
    .unwrap_or_else(|_| {
        panic!(
            "no answer to {:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(80)])
        )
    })
}

fn parse(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|status| status.parse().ok());
    let header = |line: &str| {
        line.split_once(": ")
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    Answer {
        status: status.unwrap_or_else(|| panic!("no status line: {text:?}")),
        headers: lines.filter_map(header).collect(),
        text: body.to_owned(),
    }
}
