//! Requests whose head tells the body's length more than once, or in more than chunks.
//!
//! RFC 9112 §6.1 lets a server take the chunks and drop the length, and hyper does; whoever stands
//! in front may have believed the length, so that a body could be smuggled as the next request. What
//! hyper drops no service can see, hence this layer under it: it finds every head in the bytes read,
//! with hyper's own parser, and marks the request that is to be answered `400` and hung up on.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use httparse::{EMPTY_HEADER, Request, Status};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Headers of the largest head; hyper's own bound, beyond which it answers `431`.
const MAX_HEADERS: usize = 100;

/// Marks a request, in its extensions, whose framing can be read in two ways.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ambiguous;

/// A stream whose request heads are looked at in passing. `max_head` bounds what is kept of one.
pub(crate) fn watch<S>(stream: S, max_head: usize) -> (Watched<S>, Verdicts) {
    let ambiguous = Arc::new(AtomicUsize::new(NONE));
    let watched = Watched {
        stream,
        place: Place::Head(Vec::new()),
        heads: 0,
        max_head,
        ambiguous: Arc::clone(&ambiguous),
    };
    let served = AtomicUsize::new(0);
    (watched, Verdicts { served, ambiguous })
}

/// No head yet; nothing is read after the first that is ambiguous.
const NONE: usize = usize::MAX;

/// Tells the service what was seen of each request; requests come in the order of their heads.
pub(crate) struct Verdicts {
    served: AtomicUsize,
    ambiguous: Arc<AtomicUsize>,
}

impl Verdicts {
    /// Whether the next request is ambiguous; to be asked once per request.
    pub(crate) fn next_is_ambiguous(&self) -> bool {
        let position = self.served.fetch_add(1, Ordering::Relaxed);
        self.ambiguous.load(Ordering::Relaxed) == position
    }
}

/// See [`watch`].
pub(crate) struct Watched<S> {
    stream: S,
    place: Place,
    /// Whole heads so far.
    heads: usize,
    max_head: usize,
    /// Position of the ambiguous head.
    ambiguous: Arc<AtomicUsize>,
}

/// Where in the stream of requests the next byte belongs.
enum Place {
    /// In a head that began with these bytes.
    Head(Vec<u8>),
    /// In a body, with this many bytes left of it.
    Body(u64),
    /// Nothing more is served: after chunks, ambiguity or what is no head, the connection ends.
    Over,
}

/// What a head says of its body.
#[derive(Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    Ambiguous,
}

impl<S> Watched<S> {
    fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.place {
                Place::Over => return,
                Place::Body(left) => {
                    let here = bytes
                        .len()
                        .min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= here as u64;
                    bytes = &bytes[here..];
                    if *left == 0 {
                        self.place = Place::Head(Vec::new());
                    }
                }
                Place::Head(head) => {
                    let before = head.len();
                    head.extend_from_slice(bytes);
                    let read = if may_end(head, before) {
                        read_head(head)
                    } else {
                        Ok(Status::Partial)
                    };
                    match read {
                        Ok(Status::Complete((length, framing))) => {
                            bytes = &bytes[length - before..];
                            self.begin(framing);
                        }
                        Ok(Status::Partial) if head.len() < self.max_head => return,
                        // hyper answers and closes.
                        Ok(Status::Partial) | Err(_) => self.place = Place::Over,
                    }
                }
            }
        }
    }

    /// A whole head has been read.
    fn begin(&mut self, framing: Framing) {
        self.place = match framing {
            Framing::Length(0) => Place::Head(Vec::new()),
            Framing::Length(length) => Place::Body(length),
            // The envelope closes after chunks.
            Framing::Chunked => Place::Over,
            Framing::Ambiguous => {
                self.ambiguous.store(self.heads, Ordering::Relaxed);
                Place::Over
            }
        };
        self.heads += 1;
    }
}

/// Whether an empty line ends somewhere after `before`; spares slow senders' heads being parsed for
/// every byte of theirs.
fn may_end(head: &[u8], before: usize) -> bool {
    let new = &head[before.saturating_sub(3)..];
    let after_line = |at: usize| matches!(new[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]);
    let mut lines = new.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    lines.any(|(at, _)| after_line(at))
}

fn read_head(head: &[u8]) -> Result<Status<(usize, Framing)>, httparse::Error> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = Request::new(&mut headers);
    let length = match request.parse(head)? {
        Status::Complete(length) => length,
        Status::Partial => return Ok(Status::Partial),
    };
    let (mut framing, mut said) = (Framing::Length(0), 0);
    for header in request.headers {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            // Chunks of something compressed are one body to hyper and another to who inflates it.
            let plain = header.value.eq_ignore_ascii_case(b"chunked");
            (framing, said) = (Framing::Chunked, said + if plain { 1 } else { 2 });
        } else if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default();
            let length = text.parse().map_err(|_| httparse::Error::HeaderValue)?;
            (framing, said) = (Framing::Length(length), said + 1);
        }
    }
    let framing = if said > 1 {
        Framing::Ambiguous
    } else {
        framing
    };
    Ok(Status::Complete((length, framing)))
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.see(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions of ambiguous heads among those seen, and how many were seen.
    fn seen(bytes: &[u8], step: usize) -> (Option<usize>, usize) {
        let (mut watched, verdicts) = watch((), 1024);
        bytes.chunks(step).for_each(|chunk| watched.see(chunk));
        let found = (0..watched.heads).find(|_| verdicts.next_is_ambiguous());
        (found, watched.heads)
    }

    fn check(text: &str, expect: (Option<usize>, usize)) {
        for step in [1, 2, 3, 7, text.len()] {
            assert_eq!(seen(text.as_bytes(), step), expect, "by {step}: {text:?}");
        }
    }

    #[test]
    fn a_body_whose_length_is_told_twice_is_found_at_its_place() {
        const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        const POST: &str = "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\r\n\r\n";
        for both in [
            "content-length: 4\r\ntransfer-encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 4",
            "content-length: 4\r\nx: y\r\ncontent-length: 4",
            "content-length: 4\r\ncontent-length: 5",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
        ] {
            let bad = format!("POST / HTTP/1.1\r\n{both}\r\n\r\n0\r\n\r\n");
            check(&bad, (Some(0), 1));
            check(&format!("{GET}{POST}{GET}{bad}{GET}"), (Some(3), 4));
            check(&bad.replace("\r\n", "\n"), (Some(0), 1));
            check(&format!("\r\n\r\n{bad}"), (Some(0), 1));
        }
        check(&format!("{GET}{POST}{POST}{GET}"), (None, 4));
    }

    #[test]
    fn bodies_are_not_read_as_heads() {
        let bad = "POST / HTTP/1.1\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n";
        let whole = format!(
            "POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{bad}",
            bad.len()
        );
        check(&whole, (None, 1));
        check(&format!("{whole}{bad}"), (Some(1), 2));
        // After chunks the connection ends.
        let chunked = format!("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{bad}");
        check(&chunked, (None, 1));
    }

    #[test]
    fn what_is_no_head_ends_the_watch_and_nothing_is_kept_beyond_the_bound() {
        check("hello\r\n\r\nGET / HTTP/1.1\r\n\r\n", (None, 0));
        check(
            "POST / HTTP/1.1\r\ncontent-length: x\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            (None, 0),
        );
        let endless = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(4096));
        let (mut watched, _) = watch((), 1024);
        endless
            .as_bytes()
            .chunks(100)
            .for_each(|chunk| watched.see(chunk));
        assert!(matches!(watched.place, Place::Over));
    }
}
