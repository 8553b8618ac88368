//! What the whole process logs, at every level. Doors log from worker threads, so lines cannot be
//! told apart by thread: tests look for canaries of their own.

use std::io::{self, Write};
use std::sync::{Mutex, Once};

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to log, once for the process.
pub(crate) fn start() {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(|| Lines)
            .init();
    });
}

/// Everything logged so far.
pub(crate) fn text() -> String {
    String::from_utf8_lossy(&LINES.lock().unwrap()).into_owned()
}

/// The line about the refusal of a body, by its hash: bodies of a test are its own.
pub(crate) fn refusal(body: &[u8]) -> String {
    let hash = hex::encode(ring::digest::digest(&ring::digest::SHA256, body));
    let text = text();
    let line = text.lines().rfind(|line| line.contains(&hash));
    line.unwrap_or_else(|| panic!("nothing is logged about {hash}"))
        .to_owned()
}
