//! The command that the function signs and one host's agent executes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{DeliveryId, OperationId};
use crate::name::{HostName, SourceName, TenantName};
use crate::operation::Operation;

/// DSSE payload type of a [`Command`].
pub const COMMAND_TYPE: &str = "application/vnd.gpuhook.command.v1+json";

/// Seconds that a command may wait before it is refused as expired.
pub const DEFAULT_EXPIRY_S: i64 = 900;

/// One operation bound to one host. Unknown fields are ignored, so that an older agent can read a
/// newer function's command; `v` grows only with an incompatible change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    /// Version of this shape: 1.
    pub v: u32,
    /// The operation's id; the ledger's key.
    pub op_id: OperationId,
    /// The webhook that asked for it.
    pub delivery_id: DeliveryId,
    /// On whose behalf.
    pub tenant: TenantName,
    /// Through which source.
    pub source: SourceName,
    /// The only host that may execute it.
    pub aud: HostName,
    /// Grows per allocation (per GPU for GPU-wide operations); gaps are normal.
    pub revision: u64,
    /// Issued at, Unix seconds.
    pub iat: i64,
    /// Expires at, Unix seconds.
    pub exp: i64,
    /// What to do; `allocate` carries the placement decided (`target` = host and GPU UUID, `profile` set).
    pub operation: Operation,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}
