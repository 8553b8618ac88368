//! Settling and callbacks at the crate's door: a real TLS receiver on one side, a store in memory on
//! the other, a clock that tests turn by hand.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

mod receiver;

mod store;

mod log;

mod delivery;

mod reach;

mod bounds;

mod sweep;

mod results;

mod field;
