//! Tells waiting requests that the store may have something new. Level-triggered: a waiter re-reads
//! the store, so a poke too many costs a read and a poke missed costs a second at most.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// How often a waiter looks by itself, for changes that another process made.
const RECHECK: Duration = Duration::from_secs(1);

/// The notifier.
#[derive(Debug, Clone)]
pub struct Changes(watch::Sender<u64>);

impl Changes {
    /// A notifier that nobody waits on.
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Something changed.
    pub fn poke(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Begins to wait; to be called before the first read, so that no change is missed.
    pub(crate) fn wait(&self, longest: Duration) -> Wait {
        Wait {
            changed: self.0.subscribe(),
            deadline: Instant::now() + longest,
        }
    }
}

/// Somebody who reads until what it reads is final.
pub(crate) struct Wait {
    changed: watch::Receiver<u64>,
    deadline: Instant,
}

impl Wait {
    /// Returns true when it is worth reading again, and false once the time is over.
    pub(crate) async fn again(&mut self) -> bool {
        if Instant::now() >= self.deadline {
            return false;
        }
        let wake = self.deadline.min(Instant::now() + RECHECK);
        // A change since the last look returns at once.
        let _ = timeout_at(wake, self.changed.changed()).await;
        true
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_poke_wakes_at_once_even_if_it_came_before_the_wait() {
        let changes = Changes::new();
        let mut wait = changes.wait(Duration::from_secs(3600));
        let ready = async |wait: &mut Wait| {
            tokio::time::timeout(Duration::ZERO, wait.again())
                .await
                .ok()
        };
        assert_eq!(ready(&mut wait).await, None);
        changes.poke();
        assert_eq!(ready(&mut wait).await, Some(true));
        assert_eq!(ready(&mut wait).await, None);
        assert_eq!(ready(&mut changes.wait(Duration::ZERO)).await, Some(false));
    }
}
