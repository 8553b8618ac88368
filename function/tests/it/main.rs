//! The front door on a real socket, over the embedded backplane, under a clock that stands still.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

mod machine;

mod spy;

mod client;

mod board;

mod disk;
mod log;

mod vectors;

mod bad_input;

mod accepting;

mod repeating;

mod placing;

mod outage;

mod reading;

mod waiting;

mod vgpu;

mod canary;

mod bounds;

mod field;
