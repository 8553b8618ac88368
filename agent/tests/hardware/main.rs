//! The hardware side on a simulated host and on this machine's own control groups.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

mod groups;
mod mdev;
