//! Writes to kernel attributes: the one seam between a real kernel and a served one.
//!
//! ```text
//! worker ── ChildAttributes ──▶ a process of its own: write-attribute ──┬─▶ FileAttributes
//!              │                                                        └─▶ SocketAttributes
//!              └─ past its deadline ─▶ Abandoned: remembered until it ends
//! ```

mod direct;

mod child;

mod abandoned;

mod command;

use std::io;
use std::time::Duration;

pub use child::ChildAttributes;
pub use command::WriteArguments;
pub use direct::{FileAttributes, SocketAttributes};

/// Writes attributes. Paths are absolute as the kernel has them, made from validated parts only.
pub trait Attributes: Send + Sync {
    /// One `open`, one `write` of all bytes, one `close`.
    ///
    /// # Errors
    /// See [`WriteError`].
    fn write(&self, path: &str, bytes: &[u8]) -> Result<(), WriteError>;

    /// Paths of writes that were given up and have not come back yet.
    fn abandoned(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Why a write did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The kernel's answer, errno included.
    #[error("the kernel refused the write")]
    Refused(#[from] io::Error),
    /// The kernel has not answered. The write may still take effect, at any time.
    #[error(
        "the kernel has not come back within {} s; something still holds the device",
        deadline.as_secs_f64()
    )]
    Stuck {
        /// How long it was given.
        deadline: Duration,
    },
    /// The process that writes ended, or never began, without saying what the kernel answered. The
    /// write may have taken effect.
    #[error("the process that writes gave no answer: {reason}")]
    NoAnswer {
        /// How it ended, for people.
        reason: String,
    },
}
