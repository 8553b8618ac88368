//! How polling goes: what `intake` notes and `server` shows. A poll that fails is counted and made again;
//! one that hangs ends as a failed one at its deadline (field F14).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Polls are answered within 20 s; three missed ones are a fault.
const STALE_MS: i64 = 60_000;
/// A host's clock that is further off than this from the queue's is a fault: expiries are judged by it.
const SKEW_MS: i64 = 60_000;

/// Counts and times of polls.
#[derive(Debug)]
pub struct Polls {
    /// Unix milliseconds of the last one that the queue answered.
    answered_at_ms: AtomicI64,
    failed: AtomicU64,
    lost_receipts: AtomicU64,
    /// Why the last one failed, if it did.
    error: Mutex<Option<String>>,
    /// By how much the queue's clock is ahead of this host's.
    ahead_ms: Mutex<Option<i64>>,
}

impl Polls {
    /// None yet; the start counts as an answer.
    #[must_use]
    pub fn new(now_ms: i64) -> Self {
        Self {
            answered_at_ms: AtomicI64::new(now_ms),
            failed: AtomicU64::new(0),
            lost_receipts: AtomicU64::new(0),
            error: Mutex::default(),
            ahead_ms: Mutex::default(),
        }
    }

    /// The queue answered.
    pub fn note_answer(&self, now_ms: i64, queue_ahead_ms: Option<i64>) {
        self.answered_at_ms.store(now_ms, Ordering::Relaxed);
        *lock(&self.error) = None;
        *lock(&self.ahead_ms) = queue_ahead_ms;
    }

    /// It did not, or refused. Its clock is heard all the same: to a host whose clock is far off it answers
    /// nothing but refusals.
    pub fn note_failure(&self, error: &str, queue_ahead_ms: Option<i64>) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        *lock(&self.error) = Some(error.to_owned());
        *lock(&self.ahead_ms) = queue_ahead_ms;
    }

    /// A receipt had run out before it was used: the queue delivers again what the ledger knows.
    pub fn note_lost_receipt(&self) {
        self.lost_receipts.fetch_add(1, Ordering::Relaxed);
    }

    /// Whole seconds since the queue last answered.
    #[must_use]
    pub fn silent_s(&self, now_ms: i64) -> i64 {
        (now_ms - self.answered_at_ms.load(Ordering::Relaxed)).div_euclid(1000)
    }

    /// Polls that failed or hung.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Receipts that had run out.
    #[must_use]
    pub fn lost_receipts(&self) -> u64 {
        self.lost_receipts.load(Ordering::Relaxed)
    }

    /// By how many seconds the queue's clock is ahead of this host's, if the queue tells.
    #[must_use]
    pub fn ahead_s(&self) -> Option<i64> {
        lock(&self.ahead_ms).map(|ahead_ms| ahead_ms / 1000)
    }

    /// What is wrong, for people.
    #[must_use]
    pub fn faults(&self, now_ms: i64) -> Vec<String> {
        let mut faults = Vec::new();
        let silent_s = self.silent_s(now_ms);
        if silent_s * 1000 > STALE_MS {
            let reason = lock(&self.error).clone();
            let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            faults.push(format!(
                "the command queue has not answered for {silent_s} s{reason}"
            ));
        }
        let ahead_ms = *lock(&self.ahead_ms);
        if let Some(ahead_ms) = ahead_ms.filter(|ahead_ms| ahead_ms.abs() > SKEW_MS) {
            let way = if ahead_ms > 0 { "behind" } else { "ahead of" };
            faults.push(format!(
                "clock_skew: this host's clock is {} s {way} the queue's; set it right, since expiries are judged by it",
                ahead_ms.abs() / 1000
            ));
        }
        faults
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_and_skew_are_faults_and_pass() {
        let polls = Polls::new(0);
        polls.note_failure("no route to host", None);
        assert_eq!(polls.faults(60_000), Vec::<String>::new());
        assert_eq!(
            polls.faults(75_000),
            ["the command queue has not answered for 75 s: no route to host"]
        );
        polls.note_answer(80_000, Some(-60_000));
        assert_eq!(polls.faults(80_000), Vec::<String>::new());
        polls.note_answer(80_000, Some(-1_200_000));
        let faults = polls.faults(80_000);
        assert!(
            faults.len() == 1
                && faults[0].starts_with("clock_skew: this host's clock is 1200 s ahead of"),
            "{faults:?}"
        );
        assert_eq!((polls.failed(), polls.silent_s(81_500)), (1, 1));
        let polls = Polls::new(0);
        polls.note_failure("InvalidSignatureException", Some(1_200_000));
        let faults = polls.faults(1000);
        assert!(
            faults.len() == 1 && faults[0].starts_with("clock_skew:"),
            "{faults:?}"
        );
    }
}
