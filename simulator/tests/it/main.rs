//! The simulator through its doors: files, socket, NVML library and program.

mod concurrency;
mod errno;
mod faults;
mod files;
mod fixture;
mod nvml;
mod nvml_raw;
mod program;
mod removal;
