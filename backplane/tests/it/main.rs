//! The backplane through its traits. Queue, accept, settle, due and reads are one conformance suite that
//! each implementation passes; with feature `aws` also SQS and DynamoDB, as `aws.rs` has them stood in
//! for. The rest is about the file.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

#[macro_use]
mod implementation;

mod sample;

#[cfg(feature = "aws")]
mod aws;

#[cfg(feature = "aws")]
mod aws_faults;

#[cfg(feature = "aws")]
mod aws_removal;

#[cfg(feature = "aws")]
mod aws_races;

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
