//! The whole layout of one GPU: what of it is there already and stays, what goes, what is to be made,
//! and where. Pure; everything is decided before anything is touched.

use std::collections::BTreeSet;

use events::inventory::ProfileInventory;
use events::operation::{IfBusy, LayoutEntry, Mode, Partition};
use events::{AllocationId, Code, ProfileName};

use super::choice::{offer, pack, unknown};
use super::place::Place;
use crate::partitioner::{ObservedGpu, ObservedPartition};

/// Whose the partitions of a GPU are.
#[derive(Debug, Clone, Default)]
pub struct Holdings {
    /// Places of allocations.
    pub allocated: Vec<(Place, AllocationId)>,
    /// Places of this GPU's layout, and those that this operation has filled already.
    pub own: BTreeSet<Place>,
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayoutPlan {
    /// There and stays.
    pub kept: Vec<(Place, ProfileName)>,
    /// To be made.
    pub created: Vec<(Place, ProfileName)>,
    /// To go.
    pub removed: Vec<(Place, ProfileName)>,
    /// Allocations that lose a partition.
    pub lost: BTreeSet<AllocationId>,
}

/// What stands in the way of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It will not do, however long one waits.
    Refused(Code, String),
    /// These allocations would have to go first.
    Busy(BTreeSet<AllocationId>, String),
}

/// Plans the layout that `asked` wants of a GPU whose mode is already the one wanted.
///
/// # Errors
/// What stands in the way.
pub fn plan_layout(
    observed: &ObservedGpu,
    asked: &Partition,
    holdings: &Holdings,
    name: impl Fn(usize) -> Place,
) -> Result<LayoutPlan, Obstacle> {
    let refused = |(code, text)| Obstacle::Refused(code, text);
    for entry in &asked.layout {
        let offered = offer(observed, &entry.profile)
            .ok_or_else(|| refused(unknown(observed, &entry.profile)))?;
        if offered.mode != asked.mode {
            let text = format!(
                "{} is no profile of mode {}",
                entry.profile,
                format!("{:?}", asked.mode).to_lowercase()
            );
            return Err(Obstacle::Refused(Code::UnknownProfile, text));
        }
    }
    refuse_foreign(observed, asked, holdings)?;
    let wanted = expand(&asked.layout);
    let (matched, missing) = match_existing(observed, holdings, wanted);
    let idle: Vec<_> = matched
        .iter()
        .copied()
        .filter(|seen| holder_of(holdings, seen).is_none() && seen.holders.is_empty())
        .collect();
    // As few as possible of the idle ones that match are made anew elsewhere.
    for dropped in subsets(idle.len().min(MOST_MOVED)) {
        let moved: Vec<_> = dropped.iter().map(|index| idle[*index]).collect();
        let kept: Vec<_> = matched
            .iter()
            .copied()
            .filter(|seen| !moved.contains(seen))
            .collect();
        let again = moved.iter().map(|seen| seen.profile.clone());
        let missing: Vec<_> = missing.iter().cloned().chain(again).collect();
        let Some(created) = place(observed, asked.mode, &kept, &missing, &name) else {
            continue;
        };
        return finish(observed, asked, holdings, &kept, created);
    }
    let text = format!(
        "the layout does not fit GPU {}: {}",
        observed.pci,
        describe(&asked.layout)
    );
    Err(Obstacle::Refused(Code::NoCapacity, text))
}

/// Idle partitions that are tried elsewhere: a seven-slice GPU has seven.
const MOST_MOVED: usize = 8;

/// Who made what is there is not known: it is touched only when that is said.
fn refuse_foreign(
    observed: &ObservedGpu,
    asked: &Partition,
    holdings: &Holdings,
) -> Result<(), Obstacle> {
    let is_foreign = |seen: &&ObservedPartition| {
        !holdings.own.contains(&seen.place) && holder_of(holdings, seen).is_none()
    };
    let mut foreign = observed.partitions.iter().filter(is_foreign);
    match foreign.next() {
        Some(seen) if asked.if_busy != IfBusy::Force => {
            let text = format!(
                "GPU {} has {} at {}, which this agent did not make; if_busy force takes it over",
                observed.pci, seen.profile, seen.place
            );
            Err(Obstacle::Refused(Code::InUse, text))
        }
        _ => Ok(()),
    }
}

fn holder_of(holdings: &Holdings, seen: &ObservedPartition) -> Option<AllocationId> {
    let mut allocated = holdings.allocated.iter();
    allocated
        .find(|(place, _)| *place == seen.place)
        .map(|(_, id)| *id)
}

fn expand(layout: &[LayoutEntry]) -> Vec<ProfileName> {
    let each = |entry: &LayoutEntry| {
        std::iter::repeat_n(
            entry.profile.clone(),
            usize::try_from(entry.count).unwrap_or(0),
        )
    };
    layout.iter().flat_map(each).collect()
}

/// Which of what exists is wanted, allocated ones first, and what of the wanted is missing.
fn match_existing<'a>(
    observed: &'a ObservedGpu,
    holdings: &Holdings,
    mut wanted: Vec<ProfileName>,
) -> (Vec<&'a ObservedPartition>, Vec<ProfileName>) {
    let mut existing: Vec<_> = observed.partitions.iter().collect();
    existing.sort_by_key(|seen| holder_of(holdings, seen).is_none() && seen.holders.is_empty());
    let mut matched = Vec::new();
    for seen in existing {
        if let Some(index) = wanted.iter().position(|profile| *profile == seen.profile) {
            wanted.swap_remove(index);
            matched.push(seen);
        }
    }
    (matched, wanted)
}

/// Places for what is missing; `None` when there are not enough.
fn place(
    observed: &ObservedGpu,
    mode: Mode,
    kept: &[&ObservedPartition],
    missing: &[ProfileName],
    name: &impl Fn(usize) -> Place,
) -> Option<Vec<(Place, ProfileName)>> {
    let offers: Vec<&ProfileInventory> = missing
        .iter()
        .filter_map(|profile| offer(observed, profile))
        .collect();
    if !counts_allow(observed, kept, missing) {
        return None;
    }
    let places: Vec<Place> = if mode == Mode::Mig {
        let occupied: Vec<_> = kept.iter().filter_map(|seen| seen.place.slices()).collect();
        let wanted: Vec<_> = offers
            .iter()
            .filter_map(|offer| offer.placements.as_ref())
            .collect();
        let all: Vec<_> = observed
            .profiles
            .iter()
            .filter_map(|offer| offer.placements.as_ref())
            .collect();
        let packed = pack(&occupied, &wanted, &all)?;
        packed.into_iter().map(Place::Mig).collect()
    } else {
        let sizes: BTreeSet<_> = kept
            .iter()
            .filter_map(|seen| offer(observed, &seen.profile))
            .chain(offers.iter().copied())
            .map(|offer| offer.memory_mib)
            .collect();
        if sizes.len() > 1 {
            return None;
        }
        on_functions(observed, kept, missing.len(), name)?
    };
    Some(places.into_iter().zip(missing.iter().cloned()).collect())
}

/// No profile more often than the board has it (`+me` once, say).
fn counts_allow(
    observed: &ObservedGpu,
    kept: &[&ObservedPartition],
    missing: &[ProfileName],
) -> bool {
    missing.iter().all(|profile| {
        let is_same = |other: &&ProfileName| **other == *profile;
        let kept = kept.iter().map(|seen| &seen.profile);
        let count = kept.chain(missing).filter(is_same).count();
        offer(observed, profile)
            .is_some_and(|offer| count <= usize::try_from(offer.max_instances).unwrap_or(0))
    })
}

fn on_functions(
    observed: &ObservedGpu,
    kept: &[&ObservedPartition],
    count: usize,
    name: &impl Fn(usize) -> Place,
) -> Option<Vec<Place>> {
    let Some(free) = &observed.free_vfs else {
        return Some((0..count).map(name).collect());
    };
    // Functions of what goes are free again.
    let leaving = observed
        .partitions
        .iter()
        .filter(|seen| !kept.contains(seen))
        .filter_map(|seen| seen.place.function());
    let functions: BTreeSet<_> = free.iter().copied().chain(leaving).collect();
    let place = |(index, vf)| match name(index) {
        Place::Mdev { uuid, .. } if observed.backend == Some(events::inventory::Backend::Mdev) => {
            Place::Mdev {
                uuid,
                parent: Some(vf),
            }
        }
        _ => Place::Vf(vf),
    };
    (functions.len() >= count).then(|| {
        let mut functions = functions.into_iter();
        (0..count)
            .filter_map(|index| functions.next().map(|vf| (index, vf)))
            .map(place)
            .collect()
    })
}

fn finish(
    observed: &ObservedGpu,
    asked: &Partition,
    holdings: &Holdings,
    kept: &[&ObservedPartition],
    created: Vec<(Place, ProfileName)>,
) -> Result<LayoutPlan, Obstacle> {
    let part = |seen: &ObservedPartition| (seen.place.clone(), seen.profile.clone());
    // What would be made anew where it is already stays as it is.
    let stands = |(place, profile): &(Place, ProfileName)| {
        let seen = observed.at(place);
        seen.filter(|seen| seen.profile == *profile && seen.is_complete)
    };
    let again = created.iter().filter_map(stands);
    let kept: Vec<_> = kept.iter().copied().chain(again).collect();
    let created = created.into_iter().filter(|each| stands(each).is_none());
    let created: Vec<_> = created.collect();
    let goes: Vec<_> = observed
        .partitions
        .iter()
        .filter(|seen| !kept.contains(seen))
        .collect();
    let lost: BTreeSet<_> = goes
        .iter()
        .filter_map(|seen| holder_of(holdings, seen))
        .collect();
    if !lost.is_empty() && asked.if_busy != IfBusy::Force {
        let names: Vec<_> = goes
            .iter()
            .filter(|seen| holder_of(holdings, seen).is_some())
            .map(|seen| format!("{} at {}", seen.profile, seen.place))
            .collect();
        let text = format!("allocations hold {}", names.join(", "));
        return Err(Obstacle::Busy(lost, text));
    }
    Ok(LayoutPlan {
        kept: kept.iter().map(|seen| part(seen)).collect(),
        created,
        removed: goes.into_iter().map(part).collect(),
        lost,
    })
}

/// Subsets of `0..count`, smaller ones first.
fn subsets(count: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = (0..1_usize << count)
        .map(|bits| (0..count).filter(|index| bits >> index & 1 == 1).collect())
        .collect();
    all.sort_by_key(Vec::len);
    all
}

fn describe(layout: &[LayoutEntry]) -> String {
    let parts: Vec<_> = layout
        .iter()
        .map(|entry| format!("{}×{}", entry.count, entry.profile))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use events::inventory::{Backend, Placements, Slices};

    use super::*;
    use crate::partitioner::Access;

    fn offered(profile: &str, starts: &[u8], size: u8, max: u32) -> ProfileInventory {
        ProfileInventory {
            mode: Mode::Mig,
            placements: Some(Placements {
                starts: starts.to_vec(),
                size,
            }),
            ..ProfileInventory::vgpu(profile.parse().unwrap(), 1, max, max)
        }
    }

    fn at(start: u8, size: u8) -> Place {
        Place::Mig(Slices { start, size })
    }

    /// An H100 with these instances.
    fn gpu(instances: &[(u8, u8, &str)]) -> ObservedGpu {
        let partition = |(start, size, profile): &(u8, u8, &str)| ObservedPartition {
            place: at(*start, *size),
            profile: profile.parse().unwrap(),
            is_complete: true,
            holders: Vec::new(),
            access: Access::default(),
        };
        ObservedGpu {
            uuid: "GPU-2a8b1d5e-0000-4000-8000-000000000001".parse().unwrap(),
            pci: "0000:3b:00.0".parse().unwrap(),
            index: 0,
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_mib: Some(81559),
            backend: Some(Backend::Mig),
            mig: None,
            holders: Vec::new(),
            unavailable: None,
            numa_node: None,
            profiles: vec![
                offered("1g.10gb", &[0, 1, 2, 3, 4, 5, 6], 1, 7),
                offered("1g.10gb+me", &[0, 1, 2, 3, 4, 5, 6], 1, 1),
                offered("2g.20gb", &[0, 2, 4], 2, 3),
                offered("3g.40gb", &[0, 4], 4, 2),
                offered("4g.40gb", &[0], 4, 1),
                offered("7g.80gb", &[0], 8, 1),
            ],
            free_vfs: None,
            partitions: instances.iter().map(partition).collect(),
        }
    }

    fn ask(layout: &[(&str, u32)], if_busy: IfBusy) -> Partition {
        Partition {
            target: serde_json::from_str(r#"{"host":"gpu-1","gpu":0}"#).unwrap(),
            mode: Mode::Mig,
            layout: layout
                .iter()
                .map(|(profile, count)| LayoutEntry {
                    profile: profile.parse().unwrap(),
                    count: *count,
                })
                .collect(),
            if_busy,
            deadline_s: None,
            dry_run: false,
        }
    }

    fn own(places: &[Place]) -> Holdings {
        Holdings {
            own: places.iter().cloned().collect(),
            ..Holdings::default()
        }
    }

    fn planned(
        observed: &ObservedGpu,
        asked: &Partition,
        holdings: &Holdings,
    ) -> Result<LayoutPlan, Obstacle> {
        plan_layout(observed, asked, holdings, |_| {
            unreachable!("instances have no names")
        })
    }

    /// Found by the trials on simulated boards: an instance that was removed and made again at its own
    /// place never came to rest.
    #[test]
    fn nothing_is_made_again_where_it_stands() {
        let ones: Vec<_> = (0..7).map(|start| (start, 1, "1g.10gb")).collect();
        let places: Vec<_> = (0..7).map(|start| at(start, 1)).collect();
        let asked = ask(&[("2g.20gb", 3), ("1g.10gb", 1)], IfBusy::Refuse);
        let plan = planned(&gpu(&ones), &asked, &own(&places)).unwrap();
        assert!(
            plan.created.iter().all(|each| !plan.removed.contains(each)),
            "{plan:?}"
        );
        assert_eq!((plan.kept.len(), plan.created.len()), (1, 3));
    }

    #[test]
    fn what_matches_stays_and_only_the_rest_changes() {
        let seen = gpu(&[(4, 4, "3g.40gb"), (0, 2, "2g.20gb")]);
        let holdings = own(&[at(4, 4), at(0, 2)]);
        let plan = planned(
            &seen,
            &ask(
                &[("1g.10gb", 2), ("3g.40gb", 1), ("2g.20gb", 1)],
                IfBusy::Refuse,
            ),
            &holdings,
        )
        .unwrap();
        assert_eq!(
            (plan.kept.len(), plan.created.len(), plan.removed.len()),
            (2, 2, 0)
        );
        let plan = planned(&seen, &ask(&[("3g.40gb", 2)], IfBusy::Refuse), &holdings).unwrap();
        assert_eq!(plan.kept, [(at(4, 4), "3g.40gb".parse().unwrap())]);
        assert_eq!(plan.removed, [(at(0, 2), "2g.20gb".parse().unwrap())]);
        assert_eq!(plan.created, [(at(0, 4), "3g.40gb".parse().unwrap())]);
    }

    /// An idle 1g at slice 2 is in the way of a 4g: it is made anew elsewhere, and nothing else is.
    #[test]
    fn idle_ones_move_only_when_they_must() {
        let seen = gpu(&[(2, 1, "1g.10gb"), (5, 1, "1g.10gb")]);
        let holdings = own(&[at(2, 1), at(5, 1)]);
        let plan = planned(
            &seen,
            &ask(&[("4g.40gb", 1), ("1g.10gb", 2)], IfBusy::Refuse),
            &holdings,
        )
        .unwrap();
        assert_eq!(plan.removed, [(at(2, 1), "1g.10gb".parse().unwrap())]);
        assert_eq!(plan.kept, [(at(5, 1), "1g.10gb".parse().unwrap())]);
        assert_eq!(plan.created.len(), 2);
    }

    #[test]
    fn allocated_and_foreign_instances_are_in_the_way_unless_force_says_so() {
        let seen = gpu(&[(0, 1, "1g.10gb")]);
        let id = AllocationId(uuid::Uuid::from_u128(1));
        let allocated = Holdings {
            allocated: vec![(at(0, 1), id)],
            ..Holdings::default()
        };
        let whole = |if_busy| ask(&[("7g.80gb", 1)], if_busy);
        assert!(matches!(
            planned(&seen, &whole(IfBusy::Refuse), &allocated),
            Err(Obstacle::Busy(..))
        ));
        let plan = planned(&seen, &whole(IfBusy::Force), &allocated).unwrap();
        assert_eq!(plan.lost, [id].into());
        let foreign = Holdings::default();
        assert!(matches!(
            planned(&seen, &whole(IfBusy::Drain), &foreign),
            Err(Obstacle::Refused(Code::InUse, _))
        ));
        assert_eq!(
            planned(&seen, &whole(IfBusy::Force), &foreign)
                .unwrap()
                .removed
                .len(),
            1
        );
        // Beside an allocation that stays, the rest is laid out.
        let beside = planned(
            &seen,
            &ask(&[("3g.40gb", 1), ("1g.10gb", 1)], IfBusy::Refuse),
            &allocated,
        )
        .unwrap();
        assert_eq!(beside.kept, [(at(0, 1), "1g.10gb".parse().unwrap())]);
        assert_eq!(beside.created, [(at(4, 4), "3g.40gb".parse().unwrap())]);
    }

    #[test]
    fn impossible_layouts_are_refused_before_anything_is_touched() {
        for layout in [
            &[("1g.10gb", 8)][..],
            &[("4g.40gb", 2)],
            &[("1g.10gb+me", 2)],
            &[("7g.80gb", 1), ("1g.10gb", 1)],
            &[("3g.40gb", 2), ("1g.10gb", 1)],
        ] {
            let refused = planned(&gpu(&[]), &ask(layout, IfBusy::Force), &Holdings::default());
            assert!(
                matches!(refused, Err(Obstacle::Refused(Code::NoCapacity, _))),
                "{layout:?}"
            );
        }
        let refused = planned(
            &gpu(&[]),
            &ask(&[("5g.50gb", 1)], IfBusy::Force),
            &Holdings::default(),
        );
        assert!(matches!(
            refused,
            Err(Obstacle::Refused(Code::UnknownProfile, _))
        ));
    }
}
