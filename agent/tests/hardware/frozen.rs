//! A process that nothing can end, as one that the kernel keeps in a write: the v1 freezer holds it
//! uninterruptibly, SIGKILL included, until it is thawed.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::DEADLINE;

/// A frozen process. Thawed when dropped, its group removed once it has ended.
pub(crate) struct Frozen(PathBuf);

impl Frozen {
    /// Freezes `pid`, which must be about to end once it is thawed; `None` where there is no freezer.
    pub(crate) fn new(pid: u32) -> Option<Self> {
        let freezer = Path::new("/sys/fs/cgroup/freezer");
        if !freezer.join("cgroup.procs").exists() {
            println!("not frozen: there is no v1 freezer here");
            return None;
        }
        let frozen = Self(freezer.join(format!("gpuhook-test-{}", uuid::Uuid::now_v7())));
        std::fs::create_dir(&frozen.0).unwrap();
        std::fs::write(frozen.0.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(frozen.0.join("freezer.state"), "FROZEN").unwrap();
        let state = || std::fs::read_to_string(frozen.0.join("freezer.state")).unwrap();
        until("the process to freeze", || state().trim() == "FROZEN");
        Some(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
        until("the process to end", || {
            std::fs::remove_dir(&self.0).is_ok()
        });
    }
}

fn until(what: &str, look: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !look() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::yield_now();
    }
}
