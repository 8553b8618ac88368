//! Chance that can be repeated: a number from the seed, the place and how often the place was here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// splitmix64 (Steele, Lea, Flood 2014): good enough to choose by, and the same everywhere.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Dice with one sequence per place, so that threads do not disturb each other's.
pub(super) struct Dice {
    seed: u64,
    thrown: Mutex<BTreeMap<&'static str, u64>>,
    faults: AtomicBool,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            thrown: Mutex::default(),
            faults: AtomicBool::new(true),
        }
    }

    /// A number below `sides`.
    pub(super) fn throw(&self, place: &'static str, sides: u64) -> u64 {
        let mut thrown = self.thrown.lock().unwrap_or_else(PoisonError::into_inner);
        let count = thrown.entry(place).or_insert(0);
        *count += 1;
        let name = place.bytes().fold(0_u64, |sum, byte| {
            sum.wrapping_mul(131).wrapping_add(byte.into())
        });
        mix(mix(self.seed ^ mix(name)).wrapping_add(*count)) % sides
    }

    /// Which fault a place has now, of `faults` kinds, in about `percent` of the throws.
    pub(super) fn fault(&self, place: &'static str, percent: u64, faults: u64) -> Option<u64> {
        if !self.faults.load(Ordering::SeqCst) {
            return None;
        }
        let thrown = self.throw(place, 100 * faults);
        (thrown < percent * faults).then_some(thrown % faults)
    }

    /// No fault any more.
    pub(super) fn heal(&self) {
        self.faults.store(false, Ordering::SeqCst);
    }
}
