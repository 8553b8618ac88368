//! The agent at its door: signed commands in, hardware and results out, over fakes of its ends.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

mod booting;
mod budget;
mod configuring;
mod crashing;
mod damage;
mod deciding;
mod disk;
mod ending;
mod fake;
mod leases;
mod machine;
mod ordering;
mod performing;
mod receiving;
mod upgrading;
