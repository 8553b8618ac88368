//! The GPU host's agent: signed commands in, partitions and results out.
//!
//! This file names the tasks, their channels and who owns what; see DESIGN in `ARCHITECTURE.md`.

pub mod partitioner;

pub mod limiter;
