//! What this thread logs, at every level, for reading back.
//!
//! One subscriber for the process and one buffer per thread. A subscriber per thread loses lines:
//! whichever thread meets a log statement first decides for all whether it is of interest.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Once;

thread_local! {
    static LINES: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// A log that ends when dropped.
pub(crate) struct Log;

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.iter_mut().for_each(|lines| lines.extend(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn start() -> Self {
        static SUBSCRIBED: Once = Once::new();
        SUBSCRIBED.call_once(|| {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_ansi(false)
                .with_writer(|| Lines)
                .init();
        });
        LINES.set(Some(Vec::new()));
        Self
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(LINES.with_borrow(|lines| lines.clone().unwrap())).unwrap()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        LINES.set(None);
    }
}
