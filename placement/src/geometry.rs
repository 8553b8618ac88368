//! What still fits on one GPU: MIG instances by its map of slices; all vGPUs of a GPU have the same frame buffer size (vGPU user guide,
//! "homogeneous" mode), and how many of a type fit is the board's published number.

use std::collections::BTreeMap;

use events::inventory::{GpuInventory, ProfileInventory, Reservation};
use events::{AllocationId, ProfileName};

use crate::slices;

/// Room on one GPU for one profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// This many more, possibly none.
    For(u32),
    /// MIG is off: it is not cut into instances at all.
    MigOff,
    /// Held by partitions of another size.
    OtherSize(ProfileName),
}

/// How many more partitions of `profile` fit on `gpu`.
///
/// Foreign partitions count as ours do. A reservation counts for what its allocation does not have
/// yet, so that a partition is never counted both as promised and as existing.
#[must_use]
pub fn room(gpu: &GpuInventory, reserved: &[Reservation], profile: &ProfileInventory) -> Room {
    if let Some(placements) = &profile.placements {
        let nothing = gpu.partitions.is_empty();
        if nothing && gpu.profiles.iter().all(|offered| offered.available == 0) {
            return Room::MigOff;
        }
        let promised: Vec<_> = promises(gpu, reserved)
            .into_iter()
            .map(|((_, name), reservation)| (name, missing(gpu, reservation)))
            .filter(|(_, count)| *count > 0)
            .collect();
        return Room::For(slices::room(gpu, &promised, profile, placements));
    }
    let mut existing = 0_u32;
    for partition in &gpu.partitions {
        if !is_same_size(gpu, &partition.profile, profile) {
            return Room::OtherSize(partition.profile.clone());
        }
        existing = existing.saturating_add(1);
    }
    let mut promised = 0_u32;
    for (_, reservation) in promises(gpu, reserved) {
        let missing = missing(gpu, reservation);
        if missing > 0 && !is_same_size(gpu, &reservation.profile, profile) {
            return Room::OtherSize(reservation.profile.clone());
        }
        promised = promised.saturating_add(missing);
    }
    // The driver's own number, taken with the partitions, may be lower than the published one: a
    // mixed host, a virtual function already in use.
    let observed = profile
        .max_instances
        .saturating_sub(existing)
        .min(profile.available);
    Room::For(observed.saturating_sub(promised))
}

/// One reservation per allocation: a repeated `allocate` of the same key promises nothing more.
fn promises<'a>(
    gpu: &GpuInventory,
    reserved: &'a [Reservation],
) -> BTreeMap<(AllocationId, &'a ProfileName), &'a Reservation> {
    let mut found: BTreeMap<_, &Reservation> = BTreeMap::new();
    for reservation in reserved
        .iter()
        .filter(|reservation| reservation.gpu == gpu.uuid)
    {
        let entry = found
            .entry((reservation.allocation, &reservation.profile))
            .or_insert(reservation);
        if reservation.count > entry.count {
            *entry = reservation;
        }
    }
    found
}

/// What of a reservation is not in the inventory yet.
fn missing(gpu: &GpuInventory, reservation: &Reservation) -> u32 {
    let there = gpu.partitions.iter().filter(|partition| {
        let owner = partition.owner.as_ref();
        owner.is_some_and(|owner| owner.allocation == reservation.allocation)
            && partition.profile == reservation.profile
    });
    let there = u32::try_from(there.count()).unwrap_or(u32::MAX);
    reservation.count.saturating_sub(there)
}

/// Whether partitions of `name` may stand beside those of `profile`. A profile that the GPU does not
/// list is of unknown size, and unknown is never assumed to fit.
fn is_same_size(gpu: &GpuInventory, name: &ProfileName, profile: &ProfileInventory) -> bool {
    if *name == profile.profile {
        return true;
    }
    let listed = gpu.profiles.iter().find(|other| other.profile == *name);
    listed.is_some_and(|other| other.memory_mib == profile.memory_mib)
}
