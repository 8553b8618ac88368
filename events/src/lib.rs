//! The contract between webhook, function and agent: operations, signed commands, results.
//!
//! Everything that travels or is stored in more than one room is defined here, once. No IO, no
//! clock, no async runtime and no cloud: what is here can be read by both sides of every wire.

pub mod name;

pub mod id;

pub mod gpu;

pub mod limits;

pub mod operation;

pub mod tuning;

pub mod share;

pub mod command;

pub mod inventory;

pub mod outcome;

pub mod result;

pub mod status;

pub mod holdings;

pub mod keyset;

pub mod json;

pub mod key;

pub mod envelope;

pub mod schema;

pub use command::Command;
pub use envelope::Envelope;
pub use gpu::{GpuSelector, GpuUuid, PciAddress};
pub use holdings::Holdings;
pub use id::{AllocationId, DeliveryId, OperationId, PartitionId};
pub use inventory::HostInventory;
pub use limits::Limits;
pub use name::{AllocationKey, HostName, PoolName, ProfileName, SourceName, TenantName};
pub use operation::Operation;
pub use outcome::{Code, Failure, Outcome};
pub use result::{HostEvent, ResultEvent};
pub use status::OperationState;
