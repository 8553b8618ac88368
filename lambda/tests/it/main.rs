//! Lambda's events, good and bad, as the adapters read them.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

mod gateway;

mod records;

mod samples;
