//! The backplane through its traits. Queue, accept, settle, due and reads are one conformance suite:
//! a second implementation is one more line in `implementation.rs`. The rest is about the file.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

#[macro_use]
mod implementation;

mod sample;

mod queue;

mod accept;

mod settle;

mod allocation;

mod due;

mod overdue;

mod reads;

mod model;

mod damage;

mod disk;

mod file;

mod processes;

mod upgrading;
