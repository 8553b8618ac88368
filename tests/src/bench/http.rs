//! Just enough HTTP/1.1 to stand in for a server: one request at a time, kept-open connections.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};

/// A request.
pub(super) struct Request {
    pub(super) line: String,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The next request of a connection; `None` once the other side is done.
pub(super) fn read(stream: &mut impl Read) -> Result<Option<Request>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
        if head.len() > 64 * 1024 {
            bail!("a request's head is too long");
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let line = lines.next().unwrap_or_default().to_owned();
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut request = Request {
        line,
        headers,
        body: Vec::new(),
    };
    if request.header("transfer-encoding") == Some("chunked") {
        request.body = chunks(stream)?;
    } else if let Some(length) = request.header("content-length") {
        let mut body = vec![0; length.parse().context("content-length")?];
        stream.read_exact(&mut body)?;
        request.body = body;
    }
    Ok(Some(request))
}

fn chunks(stream: &mut impl Read) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut size = Vec::new();
        let mut byte = [0];
        while !size.ends_with(b"\r\n") {
            stream.read_exact(&mut byte)?;
            size.push(byte[0]);
        }
        let size = usize::from_str_radix(String::from_utf8_lossy(&size).trim(), 16)?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk)?;
        body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Answers, in one write: a second segment would wait for an acknowledgement.
pub(super) fn answer(
    stream: &mut impl Write,
    status: u16,
    headers: &str,
    body: &[u8],
) -> Result<()> {
    let mut text = format!(
        "HTTP/1.1 {status} x\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    text.extend_from_slice(body);
    stream.write_all(&text)?;
    Ok(stream.flush()?)
}
