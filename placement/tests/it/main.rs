//! Placement at its door: tables of cases, and first fit against a brute-force model.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

mod board;

mod model;

mod mig;
mod table;
