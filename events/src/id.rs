//! Identifiers. Operation and delivery ids are UUIDv7 made once at acceptance; allocation and
//! partition ids are UUIDv5, so that a retried create yields the same mdev UUID.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::name::{AllocationKey, TenantName};

/// Fixed for ever: changing it would give every live allocation another id.
const ALLOCATIONS: Uuid = Uuid::from_u128(0x6f2d_5c1e_0c1a_5b7e_9a3d_67b0_9f70_0001);
/// Fixed for ever: mdev UUIDs on hosts derive from it.
const PARTITIONS: Uuid = Uuid::from_u128(0x6f2d_5c1e_0c1a_5b7e_9a3d_67b0_9f70_0002);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::try_parse(text).map(Self)
            }
        }
    };
}

id!(
    /// One accepted operation (UUIDv7); the agent's ledger is keyed by it.
    OperationId
);
id!(
    /// One accepted webhook (UUIDv7).
    DeliveryId
);
id!(
    /// What a tenant holds under a key (UUIDv5 of both).
    AllocationId
);
id!(
    /// One partition of an allocation (UUIDv5 of allocation and ordinal); the mdev UUID.
    PartitionId
);

impl AllocationId {
    /// The id of `key` in `tenant`. The length prefix keeps (`a`, `b:c`) and (`a:b`, `c`) apart.
    #[must_use]
    pub fn of(tenant: &TenantName, key: &AllocationKey) -> Self {
        let name = format!("{}:{}{}", tenant.as_str().len(), tenant, key);
        Self(Uuid::new_v5(&ALLOCATIONS, name.as_bytes()))
    }

    /// The id of this allocation's partition number `ordinal`, counted from 0.
    #[must_use]
    pub fn partition(self, ordinal: u32) -> PartitionId {
        let mut name = self.0.as_bytes().to_vec();
        name.extend_from_slice(&ordinal.to_be_bytes());
        PartitionId(Uuid::new_v5(&PARTITIONS, &name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_depend_on_tenant_and_key_and_never_change() {
        let tenant: TenantName = "acme".parse().unwrap();
        let id = AllocationId::of(&tenant, &"job-7".parse().unwrap());
        assert_eq!(id, AllocationId::of(&tenant, &"job-7".parse().unwrap()));
        assert_ne!(
            id,
            AllocationId::of(&"acm".parse().unwrap(), &"ejob-7".parse().unwrap())
        );
        assert_ne!(id.partition(0), id.partition(1));
        // Golden values: a change here would orphan every mdev in the field.
        assert_eq!(id.to_string(), "f1c9b6ee-c786-5219-9d4d-41f096da2630");
        assert_eq!(
            id.partition(0).to_string(),
            "2fb112ee-7d1a-5ecd-abf1-7e4d357a4a9b"
        );
    }
}
