//! What is told about the host: observation joined with ownership.

use events::inventory::{
    GpuInventory, HostInventory, PartitionInventory, PartitionOwner, ProfileInventory,
};
use events::{HostName, ProfileName};

use crate::ledger::{Ledger, LedgerError, Planned};
use crate::operation::allocation::Allocation;
use crate::operation::place::Place;
use crate::operation::sharing::{available, is_shared};
use crate::partitioner::{Observation, ObservedGpu, ObservedPartition};

/// Joins an observation with the ledger's allocations.
pub(super) fn inventory(
    host: &HostName,
    ledger: &Ledger,
    observation: &Observation,
    allocations: &[Allocation],
    now_ms: i64,
) -> Result<HostInventory, LedgerError> {
    let gpu = |gpu: &ObservedGpu| -> Result<GpuInventory, LedgerError> {
        let quarantine = ledger
            .quarantined(&gpu.uuid)?
            .map(|reason| format!("quarantined: {reason}"));
        let here: Vec<_> = allocations
            .iter()
            .filter(|allocation| allocation.gpu == gpu.uuid)
            .collect();
        let layout = ledger.gpu(&gpu.uuid)?.layout;
        Ok(GpuInventory {
            uuid: gpu.uuid.clone(),
            pci: gpu.pci,
            index: gpu.index,
            name: gpu.name.clone(),
            memory_mib: gpu.memory_mib,
            backend: gpu.backend,
            unavailable: quarantine.or_else(|| gpu.unavailable.clone()),
            numa_node: gpu.numa_node,
            profiles: offers(gpu, &here),
            partitions: partitions(gpu, &here, &layout),
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

/// What fits now. What stands on a GPU that is shared in software shows in no driver.
fn offers(gpu: &ObservedGpu, here: &[&Allocation]) -> Vec<ProfileInventory> {
    let held: Vec<_> = here
        .iter()
        .map(|allocation| (&allocation.profile, allocation.spec.count))
        .collect();
    let mut offers = gpu.profiles.clone();
    for offer in &mut offers {
        if is_shared(offer.mode) {
            offer.available = available(gpu, offer, &offer.profile, &held);
        }
    }
    offers
}

/// What stands on it, each with its owner: what is seen, and what only the ledger knows of.
fn partitions(
    gpu: &ObservedGpu,
    here: &[&Allocation],
    layout: &[Planned],
) -> Vec<PartitionInventory> {
    let owned: Vec<_> = here
        .iter()
        .flat_map(|owner| {
            let placed = owner.partitions_placed();
            placed.map(move |(id, place)| (id, place, *owner))
        })
        .collect();
    let entry = |id, profile: &ProfileName, place: Option<&Place>, owner: Option<&Allocation>| {
        PartitionInventory {
            slices: place.and_then(Place::slices),
            owner: owner.map(|owner| PartitionOwner {
                tenant: owner.tenant.clone(),
                allocation: owner.id,
            }),
            since: owner.and_then(|owner| owner.since),
            until: owner.and_then(|owner| owner.expires_at),
            ..PartitionInventory::foreign(id, profile.clone())
        }
    };
    let is_at =
        |place: &Option<Place>, seen: &ObservedPartition| place.as_ref() == Some(&seen.place);
    let mut found: Vec<_> = Vec::new();
    for seen in &gpu.partitions {
        let in_use = !seen.holders.is_empty();
        let mut is_owned = false;
        for (id, place, owner) in owned.iter().filter(|(_, place, _)| is_at(place, seen)) {
            is_owned = true;
            found.push(PartitionInventory {
                in_use,
                ..entry(*id, &owner.profile, place.as_ref(), Some(owner))
            });
        }
        if !is_owned {
            let id = seen.place.id(&gpu.uuid);
            found.push(PartitionInventory {
                in_use,
                spare: layout.iter().any(|planned| planned.place == seen.place),
                ..entry(id, &seen.profile, Some(&seen.place), None)
            });
        }
    }
    // A partition whose removal the kernel has not ended has lost its type and its name, and still
    // takes its room: it counts as used. So does one that shows in no driver.
    let unseen = owned.iter().filter(|(_, place, _)| match place {
        Some(place) => gpu.at(place).is_none() && gpu.is_stuck(),
        None => true,
    });
    found.extend(unseen.map(|(id, place, owner)| PartitionInventory {
        in_use: place.is_some(),
        ..entry(*id, &owner.profile, place.as_ref(), Some(owner))
    }));
    found
}
