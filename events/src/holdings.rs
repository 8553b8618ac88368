//! What the front door knows a host to hold: the statement that a lost ledger is rebuilt from,
//! together with what the hardware shows. Signed like a command, and for one host alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::gpu::GpuUuid;
use crate::id::OperationId;
use crate::name::{HostName, ProfileName, TenantName};
use crate::operation::Allocate;

/// DSSE payload type of [`Holdings`].
pub const HOLDINGS_TYPE: &str = "application/vnd.gpuhook.holdings.v1+json";

/// What one host holds, as far as the front door was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Holdings {
    /// Version of this shape: 1.
    pub v: u32,
    /// The only host that may use it.
    pub aud: HostName,
    /// When it was written, Unix seconds.
    pub iat: i64,
    /// The last sequence that the host was heard under; it goes on above.
    pub sequence: u64,
    /// Its allocations.
    pub allocations: Vec<Holding>,
    /// Operations that it took and did not end: it is asked for them again.
    pub operations: Vec<Command>,
}

/// One allocation of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Holding {
    /// Whose.
    pub tenant: TenantName,
    /// The allocate that made it.
    pub operation: OperationId,
    /// As it was asked for, placement decided.
    pub spec: Allocate,
    /// The GPU it is on.
    pub gpu: GpuUuid,
    /// Its profile.
    pub profile: ProfileName,
    /// End of its lease, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// The highest revision given out for it: older commands are refused.
    pub revision: u64,
}
