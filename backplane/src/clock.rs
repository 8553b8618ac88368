//! The injected clock. Wall time decides expiry, schedules and windows, and nothing else.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells the time; tests hold it still.
pub trait Clock: Send + Sync + 'static {
    /// Unix milliseconds.
    fn now_ms(&self) -> i64;

    /// Milliseconds since some moment of this process's life: what passes, whatever the wall clock is set
    /// to. A clock that is never set may tell both by one.
    fn elapsed_ms(&self) -> i64 {
        self.now_ms()
    }

    /// Unix seconds.
    fn now_s(&self) -> i64 {
        self.now_ms().div_euclid(1000)
    }
}

/// The system's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn elapsed_ms(&self) -> i64 {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        let elapsed = BEGAN.get_or_init(Instant::now).elapsed();
        i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
    }
}
