//! The hardware side on a simulated host and on this machine's own control groups.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

mod daemon;
mod frozen;
mod groups;
mod mdev;
mod mig;
mod stuck;
mod writing;

use std::time::Duration;

/// The installed program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_gpuhook-agent");

/// Longest wait for anything here.
const DEADLINE: Duration = Duration::from_secs(30);
