//! The simulator through its doors: files, socket, NVML library and program.

#![expect(
    clippy::unwrap_used,
    reason = "test support panics like the tests it serves"
)]

mod boards;
mod concurrency;
mod errno;
mod faults;
mod files;
mod fixture;
mod nvml;
mod nvml_raw;
mod program;
mod removal;
