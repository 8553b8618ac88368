//! A GPU that is shared in software, or had by one allocation alone: who may be beside whom. What
//! stands on it shows in no driver; the ledger's allocations are the whole truth.

use events::inventory::ProfileInventory;
use events::operation::Mode;
use events::share::MpsShare;
use events::{Code, ProfileName};

use super::allocation::Allocation;
use super::choice::offer;
use crate::partitioner::ObservedGpu;

/// Whether a mode shares a GPU in software or takes it whole.
#[must_use]
pub fn is_shared(mode: Mode) -> bool {
    matches!(mode, Mode::Mps | Mode::Timeslice | Mode::Whole)
}

/// Why `wanted` may not stand beside `others` on a GPU without partitions.
#[must_use]
pub fn refuse(
    observed: &ObservedGpu,
    wanted: &Allocation,
    others: &[Allocation],
) -> Option<(Code, String)> {
    let offered = offer(observed, &wanted.profile)?;
    if !is_shared(offered.mode) {
        return None;
    }
    let held = others
        .iter()
        .map(|other| (&other.profile, other.spec.count))
        .collect::<Vec<_>>();
    let free = available(observed, offered, &wanted.profile, &held);
    if free >= wanted.spec.count {
        return None;
    }
    let by: Vec<_> = held
        .iter()
        .map(|(profile, count)| format!("{count} {profile}"))
        .collect();
    let holds = if by.is_empty() {
        "nothing".to_owned()
    } else {
        by.join(", ")
    };
    let text = format!(
        "GPU {} has room for {free} more {}, {} are needed (it holds {holds})",
        observed.pci, wanted.profile, wanted.spec.count
    );
    Some((Code::NoCapacity, text))
}

/// How many more `profile` fit beside what is `held`.
///
/// One tenant has a GPU whole. An MPS daemon serves one allocation: its limits are the daemon's, and
/// a fault of one client ends them all. Time slices are shared with time slices of the same length.
#[must_use]
pub fn available(
    observed: &ObservedGpu,
    offered: &ProfileInventory,
    profile: &ProfileName,
    held: &[(&ProfileName, u32)],
) -> u32 {
    let mode_of = |profile: &ProfileName| offer(observed, profile).map(|offer| offer.mode);
    match offered.mode {
        Mode::Whole if held.is_empty() => 1,
        Mode::Mps if held.is_empty() => {
            MpsShare::of(profile).map_or(offered.max_instances, |share| {
                let by_memory = offered.memory_mib / share.memory_mib;
                let by_threads = 100 / u32::from(share.compute_percent);
                u32::try_from(by_memory)
                    .unwrap_or(u32::MAX)
                    .min(by_threads)
                    .min(offered.max_instances)
            })
        }
        Mode::Timeslice
            if held.iter().all(|(other, _)| {
                mode_of(other) == Some(Mode::Timeslice) && **other == *profile
            }) =>
        {
            let seats: u32 = held.iter().map(|(_, count)| count).sum();
            offered.max_instances.saturating_sub(seats)
        }
        _ => 0,
    }
}
