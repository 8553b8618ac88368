//! What a host reports: CloudEvents 1.0 in structured JSON, signed by the host.
//!
//! A [`ResultEvent`] is about one operation or allocation; `host.observed` carries inventory alone,
//! so that a host can be placed on before its first operation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{AllocationId, OperationId};
use crate::inventory::HostInventory;
use crate::name::{HostName, TenantName};
use crate::outcome::{Failure, Outcome};
use crate::status::OperationState;

/// DSSE payload type of a [`ResultEvent`].
pub const RESULT_TYPE: &str = "application/vnd.gpuhook.result.v1+json";

/// One CloudEvent from a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResultEvent {
    /// Always `1.0`.
    pub specversion: String,
    /// `<subject>.<sequence>`: the same on every redelivery.
    pub id: String,
    /// `/hosts/<host>`.
    pub source: String,
    /// `dev.gpuhook.….v1`.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// The operation's or allocation's id, or the host's name.
    pub subject: String,
    /// RFC 3339, by the host's clock.
    pub time: String,
    /// Always `application/json`.
    pub datacontenttype: String,
    /// Grows with every event of a host's ledger; receivers drop what is lower (extension).
    pub sequence: u64,
    /// The tenant concerned; absent for host events (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
    /// The payload.
    pub data: EventData,
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EventKind {
    /// The operation is in the host's ledger.
    #[serde(rename = "dev.gpuhook.operation.accepted.v1")]
    OperationAccepted,
    /// Done, read back.
    #[serde(rename = "dev.gpuhook.operation.succeeded.v1")]
    OperationSucceeded,
    /// Tried and given up.
    #[serde(rename = "dev.gpuhook.operation.failed.v1")]
    OperationFailed,
    /// Never started.
    #[serde(rename = "dev.gpuhook.operation.refused.v1")]
    OperationRefused,
    /// Not started in time.
    #[serde(rename = "dev.gpuhook.operation.expired.v1")]
    OperationExpired,
    /// The allocation was removed after its operations had ended: its lease ran out, or a release
    /// that failed could be finished.
    #[serde(rename = "dev.gpuhook.allocation.expired.v1")]
    AllocationExpired,
    /// The allocation disappeared and could not be restored.
    #[serde(rename = "dev.gpuhook.allocation.lost.v1")]
    AllocationLost,
    /// Its handles changed.
    #[serde(rename = "dev.gpuhook.allocation.changed.v1")]
    AllocationChanged,
    /// Inventory alone.
    #[serde(rename = "dev.gpuhook.host.observed.v1")]
    HostObserved,
}

impl EventKind {
    /// The state that the event moves its operation to, for events about operations.
    #[must_use]
    pub fn state(self) -> Option<OperationState> {
        match self {
            Self::OperationAccepted => Some(OperationState::Running),
            Self::OperationSucceeded => Some(OperationState::Succeeded),
            Self::OperationFailed => Some(OperationState::Failed),
            Self::OperationRefused => Some(OperationState::Refused),
            Self::OperationExpired => Some(OperationState::Expired),
            Self::AllocationExpired
            | Self::AllocationLost
            | Self::AllocationChanged
            | Self::HostObserved => None,
        }
    }
}

/// The payload of an event. Unknown fields are ignored, so that an older reader accepts a newer host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventData {
    /// The operation, for `operation.*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OperationId>,
    /// The allocation, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationId>,
    /// Revision of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// What came of it, on success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why not, otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The host's inventory, taken after the operation; absent in `accepted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<HostInventory>,
}

/// An event whose signature was checked against the key of the host it names.
///
/// The only way to make one is [`HostEvent::new`], called by whoever verified the envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEvent {
    /// The host whose key signed it.
    pub host: HostName,
    /// What it said.
    pub event: ResultEvent,
}

/// An event that does not belong to the host whose key signed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event source is not /hosts/{host}")]
pub struct ForeignEvent {
    /// The host whose key signed.
    pub host: HostName,
}

impl HostEvent {
    /// Binds an event to the host whose key verified it.
    ///
    /// # Errors
    /// The event names another host as its source, or carries another host's inventory.
    pub fn new(host: HostName, event: ResultEvent) -> Result<Self, ForeignEvent> {
        let inventory_fits = event
            .data
            .inventory
            .as_ref()
            .is_none_or(|inventory| inventory.host == host);
        if event.source == format!("/hosts/{host}") && inventory_fits {
            Ok(Self { host, event })
        } else {
            Err(ForeignEvent { host })
        }
    }
}
