//! Primary keys, and the partition keys of the indexes.

use events::{AllocationId, DeliveryId, HostName, OperationId, TenantName};

use crate::store::Digest;

/// The sort key of what is alone in its partition.
const ALONE: &str = "-";

/// Index of a tenant's lists.
pub(super) const BY_TENANT: &str = "by_tenant";
/// Index of what concerns a host.
pub(super) const BY_HOST: &str = "by_host";
/// Index of what is due.
pub(super) const DUE: &str = "due";

/// The partition that lists hosts.
pub(super) const HOSTS: &str = "HOSTS";

/// Partitions of index [`DUE`], in the order in which they are served: callers wait for callbacks, and
/// the overdue may stay so for as long as their host is silent.
pub(super) const DUE_PARTITIONS: [&str; 3] = [DUE_CALLBACKS, DUE_UNSENT, DUE_OVERDUE];
/// Callbacks to attempt.
pub(super) const DUE_CALLBACKS: &str = "CALLBACK";
/// Operations that were not sent.
pub(super) const DUE_UNSENT: &str = "UNSENT";
/// Operations past their expiry.
pub(super) const DUE_OVERDUE: &str = "OVERDUE";

/// A primary key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) pk: String,
    pub(super) sk: String,
}

impl Key {
    fn alone(pk: String) -> Self {
        Self {
            pk,
            sk: ALONE.to_owned(),
        }
    }

    pub(super) fn idempotency(kind: &str, digest: &Digest) -> Self {
        Self::alone(format!("KEY#{kind}#{}", hex(digest)))
    }

    pub(super) fn delivery(id: DeliveryId) -> Self {
        Self::alone(format!("DELIVERY#{id}"))
    }

    pub(super) fn operation(id: OperationId) -> Self {
        Self::alone(format!("OPERATION#{id}"))
    }

    pub(super) fn allocation(id: AllocationId) -> Self {
        Self::alone(format!("ALLOCATION#{id}"))
    }

    pub(super) fn group(group: &str) -> Self {
        Self::alone(format!("GROUP#{group}"))
    }

    pub(super) fn head(host: &HostName) -> Self {
        Self::alone(format!("HOST#{host}"))
    }

    pub(super) fn inventory(host: &HostName) -> Self {
        Self {
            pk: format!("HOST#{host}"),
            sk: "INVENTORY".to_owned(),
        }
    }

    pub(super) fn heard(host: &HostName) -> Self {
        Self {
            pk: format!("HOST#{host}"),
            sk: "HEARD".to_owned(),
        }
    }

    pub(super) fn listed(host: &HostName) -> Self {
        Self {
            pk: HOSTS.to_owned(),
            sk: host.to_string(),
        }
    }

    /// Endpoint and id, the first with its length: no two pairs read the same.
    pub(super) fn callback(endpoint: &str, webhook_id: &str) -> Self {
        Self::alone(format!(
            "CALLBACK#{}#{endpoint}#{webhook_id}",
            endpoint.len()
        ))
    }
}

/// The partition of a tenant's operations.
pub(super) fn operations_of(tenant: &TenantName) -> String {
    format!("TENANT#{tenant}#OPERATION")
}

/// The partition of a tenant's allocations.
pub(super) fn allocations_of(tenant: &TenantName) -> String {
    format!("TENANT#{tenant}#ALLOCATION")
}

/// The partition of operations that a host has not ended.
pub(super) fn operations_at(host: &HostName) -> String {
    format!("HOST#{host}#OPERATION")
}

/// The partition of allocations that live on a host.
pub(super) fn allocations_at(host: &HostName) -> String {
    format!("HOST#{host}#ALLOCATION")
}

/// Where a row stands in lists: by the time of acceptance, then by the operation's id, which is a UUIDv7
/// and grows within one delivery.
pub(super) fn place(accepted_at_ms: i64, operation: OperationId) -> String {
    format!("{accepted_at_ms:015}.{operation}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
