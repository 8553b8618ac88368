//! Room on a MIG GPU: its memory slices are a map, and a profile lies only where its board lets it.
//! Which slices an instance gets is the host's to decide; here it counts whether there is a way.

use events::ProfileName;
use events::inventory::{GpuInventory, PartitionInventory, Placements, ProfileInventory};

/// Slices of any board, and more than it can hold.
const SLICES: u32 = 32;

/// How many more partitions of `profile` fit beside what is on `gpu` and what is `promised` beyond it.
/// An instance of the layout that nobody has is given before another is made.
pub(crate) fn room(
    gpu: &GpuInventory,
    promised: &[(&ProfileName, u32)],
    profile: &ProfileInventory,
    placements: &Placements,
) -> u32 {
    let mut spare = spares(gpu, &profile.profile);
    let mut same = 0_u32;
    let mut wanted = Vec::new();
    for (name, count) in promised {
        let offered = gpu.profiles.iter().find(|other| other.profile == **name);
        // Of unknown size: it is never assumed to fit.
        let Some(of) = offered.and_then(|offered| offered.placements.as_ref()) else {
            return 0;
        };
        let ready = if **name == profile.profile {
            let ready = spare.min(*count);
            spare -= ready;
            same = same.saturating_add(count - ready);
            ready
        } else {
            spares(gpu, name).min(*count)
        };
        wanted.extend((ready..*count).take(SLICES as usize).map(|_| of));
    }
    let existing = gpu
        .partitions
        .iter()
        .filter(|seen| seen.profile == profile.profile);
    let existing = u32::try_from(existing.count()).unwrap_or(u32::MAX);
    let most = profile
        .max_instances
        .saturating_sub(existing)
        .min(profile.available);
    let most = most.saturating_sub(same).min(SLICES);
    let map = gpu.partitions.iter().filter_map(|seen| seen.slices);
    let map = map.fold(0, |map, slices| {
        map | bits(slices.start, slices.size).unwrap_or(u32::MAX)
    });
    let mut new = 0;
    while new < most {
        wanted.push(placements);
        let mut order = wanted.clone();
        order.sort_by_key(|of| (std::cmp::Reverse(of.size), &of.starts));
        if !fits(map, &order, 0) {
            break;
        }
        new += 1;
    }
    spare + new
}

fn spares(gpu: &GpuInventory, profile: &ProfileName) -> u32 {
    let is_spare = |seen: &&PartitionInventory| {
        seen.spare && seen.owner.is_none() && !seen.in_use && seen.profile == *profile
    };
    u32::try_from(gpu.partitions.iter().filter(is_spare).count()).unwrap_or(u32::MAX)
}

/// Whether there is a place for each of `wanted`; equal ones follow each other, and the next of equals
/// never lies before `from`.
fn fits(map: u32, wanted: &[&Placements], from: u8) -> bool {
    let Some((first, rest)) = wanted.split_first() else {
        return true;
    };
    // No board has so many slices.
    if wanted.len() > SLICES as usize {
        return false;
    }
    first
        .starts
        .iter()
        .filter(|start| **start >= from)
        .any(|start| {
            let is_free = bits(*start, first.size).filter(|bits| map & bits == 0);
            let next = if rest.first() == Some(first) {
                *start
            } else {
                0
            };
            is_free.is_some_and(|bits| fits(map | bits, rest, next))
        })
}

/// Of a place that no board can have: nothing.
fn bits(start: u8, size: u8) -> Option<u32> {
    let (start, size) = (u32::from(start), u32::from(size));
    if size == 0 || start + size > SLICES {
        return None;
    }
    Some((u32::MAX >> (SLICES - size)) << start)
}
