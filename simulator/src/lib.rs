//! A simulated NVIDIA host: one process that plays kernel and driver. It renders `/sys`, `/proc` and `/dev` as plain
//! files, takes attribute writes and NVML calls over a Unix socket, and keeps the rules that real hardware keeps.
//! Depends on no other crate of the house: shared geometry would share its mistakes.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use simulator::{Client, HostDescription, Simulator};
//! let host = Simulator::start(HostDescription::builtin("t4")?, "/tmp/t4".as_ref())?;
//! let mut client = Client::connect(host.dir())?;
//! client.write(
//!     "/sys/bus/pci/devices/0000:3b:00.0/mdev_supported_types/nvidia-232/create",
//!     b"5be6c0a4-1d9f-4c6e-9d1c-000000000001",
//! )?;
//! assert_eq!(client.state()?.mdevs.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! Where plain files fall short of sysfs: root can read a write-only attribute and write into a file directly (use the
//! socket), there are no uevents, and `/dev` nodes are files without a device behind them.
//!
//! From the outside in: [`Simulator`] (a directory), `server` (a socket), [`protocol`] (a language), `host` (one lock
//! around everything), `machine` (the rules), `tree` (the files). Beliefs that no source settles are [`Quirks`].

mod board;
mod client;
mod code;
mod command;
mod description;
mod facts;
mod fault;
mod host;
mod library;
mod machine;
mod pci;
pub mod protocol;
mod server;
mod simulator;
mod state;
mod tree;

pub use crate::{
    board::{Board, Engines, MigBoard, MigProfile, VgpuType},
    client::{Client, ClientError},
    command::{Arguments, CommandError, run_command},
    description::{
        BoardSlot, DescriptionError, Flavour, ForeignMdev, HostDescription, KernelKind,
        MigActivation, Quirks, RemoveInUse, SameSize, SecondRemover,
    },
    facts::VgpuFacts,
    fault::{Effect, Fault, Window},
    pci::{NotPciAddress, PciAddress},
    simulator::{Simulator, StartError},
    state::{
        FinishedWrite, GpuState, HolderKind, HolderState, MdevState, State, WaitCause,
        WaitingWrite, WriteCounters,
    },
    tree::TreeError,
};
