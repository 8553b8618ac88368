//! `libnvidia-ml.so.1` of the simulated host: NVML's C ABI as a thin client of the simulator. Struct layouts, versions,
//! buffers and the two-call protocol are here; every fact and every rule is the simulator's. What is not exported, a
//! caller finds missing, as in an older driver.
//!
//! The simulator's socket is named by `GPUHOOK_SIM`; without it, it is `../sim.sock` seen from this library's own file,
//! which is where `simulator::Simulator` puts both. A process is one client: its connection opens with the first
//! `nvmlInit` and closes with the last `nvmlShutdown`, or when the process ends.
#![expect(
    unsafe_code,
    reason = "a C ABI: exported symbols and the caller's pointers"
)]

mod call;
mod connection;
pub mod device;
pub mod memory;
pub mod mig;
mod pointer;
pub mod processes;
pub mod system;
pub mod vgpu;
pub mod vgpu_instance;
pub mod vgpu_type;
