//! Clocks that jump.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use backplane::{Clock, SystemClock};

/// The wall clock of one machine: the system's, shifted.
#[derive(Clone, Default)]
pub(super) struct ShiftedClock(Arc<AtomicI64>);

impl ShiftedClock {
    /// Jumps.
    pub(super) fn jump_s(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    /// How far it is from the system's.
    pub(super) fn shift_s(&self) -> i64 {
        self.0.load(Ordering::SeqCst) / 1000
    }
}

impl Clock for ShiftedClock {
    fn now_ms(&self) -> i64 {
        SystemClock.now_ms() + self.0.load(Ordering::SeqCst)
    }
}
