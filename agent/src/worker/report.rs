//! What is told about the host: observation joined with ownership.

use std::collections::BTreeMap;

use events::HostName;
use events::inventory::{GpuInventory, HostInventory, PartitionInventory, PartitionOwner};

use crate::ledger::{Ledger, LedgerError};
use crate::operation::allocation::Allocation;
use crate::partitioner::{Observation, ObservedGpu};

/// Joins an observation with the ledger's allocations.
pub(super) fn inventory(
    host: &HostName,
    ledger: &Ledger,
    observation: &Observation,
    allocations: &[Allocation],
    now_ms: i64,
) -> Result<HostInventory, LedgerError> {
    let owners: BTreeMap<_, _> = allocations
        .iter()
        .flat_map(|allocation| allocation.partitions().map(move |id| (id, allocation)))
        .collect();
    let gpu = |gpu: &ObservedGpu| -> Result<GpuInventory, LedgerError> {
        let quarantine = ledger
            .quarantined(&gpu.uuid)?
            .map(|reason| format!("quarantined: {reason}"));
        let owned_by = |owner: &Allocation| PartitionOwner {
            tenant: owner.tenant.clone(),
            allocation: owner.id,
        };
        let seen = gpu.partitions.iter().map(|partition| PartitionInventory {
            id: partition.id,
            profile: partition.profile.clone(),
            owner: owners.get(&partition.id).map(|owner| owned_by(owner)),
            in_use: !partition.holders.is_empty(),
            slices: None,
            spare: false,
            since: None,
            until: None,
        });
        // A partition whose removal the kernel has not ended has lost its type and its name, and
        // still takes its room: it counts as used.
        let unseen = owners.iter().filter(|(id, owner)| {
            owner.gpu == gpu.uuid && !gpu.partitions.iter().any(|seen| seen.id == **id)
        });
        let leaving = unseen
            .filter(|_| gpu.is_stuck())
            .map(|(id, owner)| PartitionInventory {
                id: *id,
                profile: owner.profile.clone(),
                owner: Some(owned_by(owner)),
                in_use: true,
                slices: None,
                spare: false,
                since: None,
                until: None,
            });
        Ok(GpuInventory {
            uuid: gpu.uuid.clone(),
            pci: gpu.pci,
            index: gpu.index,
            name: gpu.name.clone(),
            memory_mib: gpu.memory_mib,
            backend: gpu.backend,
            unavailable: quarantine.or_else(|| gpu.unavailable.clone()),
            numa_node: gpu.numa_node,
            profiles: gpu.profiles.clone(),
            partitions: seen.chain(leaving).collect(),
        })
    };
    Ok(HostInventory {
        host: host.clone(),
        taken_at_ms: now_ms,
        epoch: observation.epoch.clone(),
        driver_version: observation.driver_version.clone(),
        gpus: observation.gpus.iter().map(gpu).collect::<Result<_, _>>()?,
    })
}
