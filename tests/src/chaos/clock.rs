//! Clocks that jump.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use backplane::{Clock, SystemClock};

/// The clock of one machine: the system's, shifted. Its wall clock can be set apart from the time that
/// passes.
#[derive(Clone, Default)]
pub(super) struct ShiftedClock {
    wall_ms: Arc<AtomicI64>,
    elapsed_ms: Arc<AtomicI64>,
}

impl ShiftedClock {
    /// Time passes at once.
    pub(super) fn pass_s(&self, seconds: i64) {
        self.set_by_s(seconds);
        self.elapsed_ms.fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    /// Somebody sets the wall clock.
    pub(super) fn set_by_s(&self, seconds: i64) {
        self.wall_ms.fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    /// How far the wall clock is from the system's.
    pub(super) fn shift_s(&self) -> i64 {
        self.wall_ms.load(Ordering::SeqCst) / 1000
    }
}

impl Clock for ShiftedClock {
    fn now_ms(&self) -> i64 {
        SystemClock.now_ms() + self.wall_ms.load(Ordering::SeqCst)
    }

    fn elapsed_ms(&self) -> i64 {
        SystemClock.elapsed_ms() + self.elapsed_ms.load(Ordering::SeqCst)
    }
}
