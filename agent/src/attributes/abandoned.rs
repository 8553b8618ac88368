//! Writes that were given up: children that the kernel keeps. They cannot be ended, so they are
//! remembered, and reaped by whoever looks at the host next (the reconciler does each second).

use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A GPU with one of these takes no more work, and no host has as many GPUs: beyond it something else
/// is wrong, and no more processes are started.
const MOST: usize = 64;

/// Writes that have not come back.
#[derive(Debug, Default)]
pub(super) struct Abandoned(Mutex<Vec<(String, Child)>>);

impl Abandoned {
    /// Paths of those that are still there; what has ended is reaped.
    pub(super) fn paths(&self) -> Vec<String> {
        let there = self.those_still_there();
        there.iter().map(|(path, _)| path.clone()).collect()
    }

    /// Whether one more could be kept.
    pub(super) fn has_room(&self) -> bool {
        self.those_still_there().len() < MOST
    }

    /// Keeps one more.
    pub(super) fn keep(&self, path: &str, child: Child) {
        self.those_still_there().push((path.to_owned(), child));
    }

    fn those_still_there(&self) -> MutexGuard<'_, Vec<(String, Child)>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A child that cannot be waited for is not ours any more: it has ended.
        all.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
        all
    }
}
