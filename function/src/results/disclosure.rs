//! What one tenant may read of an outcome: other tenants' partitions only as occupied.

use events::inventory::HostInventory;
use events::{Outcome, PartitionId, TenantName};

/// `outcome` as `tenant` may read it.
#[must_use]
pub fn for_tenant(mut outcome: Outcome, tenant: &TenantName) -> Outcome {
    if let Outcome::Inspected(inspected) = &mut outcome {
        hide_others(&mut inspected.inventory, tenant);
    }
    outcome
}

/// Leaves of others' partitions only that they exist: an id names a device, and an owner a customer.
pub fn hide_others(inventory: &mut HostInventory, tenant: &TenantName) {
    let partitions = inventory
        .gpus
        .iter_mut()
        .flat_map(|gpu| &mut gpu.partitions);
    for partition in partitions {
        let own = partition
            .owner
            .as_ref()
            .is_some_and(|owner| owner.tenant == *tenant);
        if !own {
            partition.owner = None;
            (partition.since, partition.until) = (None, None);
            partition.id = PartitionId(uuid::Uuid::nil());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_partitions_are_only_occupied() {
        let inventory = |id: &str, owner: &str| {
            let text = format!(
                r#"{{"kind":"inspected","checks":[],"drift":[],"inventory":{{"host":"h","taken_at_ms":1,"epoch":"e",
                "driver_version":"","gpus":[{{"uuid":"GPU-00000000-0000-0000-0000-000000000001","pci":"0000:3b:00.0",
                "index":0,"name":"T4","profiles":[],"partitions":[{{"id":"{id}","profile":"T4-4Q","in_use":true{owner}}}]}}]}}}}"#
            );
            serde_json::from_str::<Outcome>(&text).unwrap()
        };
        let id = "2fb112ee-7d1a-5ecd-abf1-7e4d357a4a9b";
        let nil = "00000000-0000-0000-0000-000000000000";
        let owner = |tenant: &str| {
            format!(
                r#","owner":{{"tenant":"{tenant}","allocation":"f1c9b6ee-c786-5219-9d4d-41f096da2630"}}"#
            )
        };
        let acme = "acme".parse().unwrap();
        for (before, after) in [
            (inventory(id, &owner("acme")), inventory(id, &owner("acme"))),
            (inventory(id, &owner("rival")), inventory(nil, "")),
            (inventory(id, ""), inventory(nil, "")),
        ] {
            assert_eq!(for_tenant(before, &acme), after);
        }
    }
}
