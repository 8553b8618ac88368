//! Which places an allocation takes, decided before anything is touched.

use std::collections::BTreeSet;

use events::inventory::{Backend, Placements, ProfileInventory, Slices};
use events::operation::Mode;
use events::share::{MPS, MpsShare, TIMESLICE};
use events::{Code, PartitionId, PciAddress, ProfileName};

use super::allocation::Allocation;
use super::place::Place;
use super::sharing::is_shared;
use crate::partitioner::ObservedGpu;

/// What stands around an allocation that is being placed.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// Places that an earlier life of the same operation filled.
    pub ours: &'a [Place],
    /// Spare partitions of the profile wanted, which come before new ones.
    pub spare: &'a [Place],
    /// Places that other allocations have.
    pub taken: &'a BTreeSet<Place>,
}

impl Around<'_> {
    /// Whether what is at `place` was made by this agent.
    #[must_use]
    pub fn knows(&self, place: &Place) -> bool {
        self.ours.contains(place) || self.spare.contains(place) || self.taken.contains(place)
    }
}

/// Settles where `wanted` will be, and how many of its partitions are still to be made.
///
/// # Errors
/// As [`choose`].
pub fn settle(
    observed: &ObservedGpu,
    wanted: &Allocation,
    around: &Around<'_>,
) -> Result<(Vec<Place>, u32), (Code, String)> {
    let all: Vec<_> = wanted.partitions().collect();
    let Some(offered) = offer(observed, &wanted.profile).map(|offer| offer.mode) else {
        return Err(unknown(observed, &wanted.profile));
    };
    let is_meant = match wanted.spec.mode {
        // Never a mode without isolation.
        Mode::Any => !is_shared(offered),
        mode => mode == offered,
    };
    if !is_meant {
        let text = format!("{} is no profile of the mode asked for", wanted.profile);
        return Err((Code::UnknownProfile, text));
    }
    if is_shared(offered) {
        let places = choose(observed, &wanted.profile, &all, around.taken)?;
        let is_there = !places.is_empty() && places.iter().all(|place| around.ours.contains(place));
        return Ok((places, if is_there { 0 } else { wanted.spec.count }));
    }
    let mut places: Vec<Place> = around.ours.iter().chain(around.spare).cloned().collect();
    places.truncate(all.len());
    let is_own = |place: &&Place| place.uuid().is_some_and(|uuid| all.contains(&uuid));
    let borrowed = places.iter().filter(|place| !is_own(place)).count();
    let mut open = all.clone();
    open.retain(|id| !places.iter().any(|place| place.uuid() == Some(*id)));
    open.truncate(open.len().saturating_sub(borrowed));
    if open.is_empty() {
        return Ok((places, 0));
    }
    let taken = around.taken.iter().chain(&places).cloned().collect();
    places.extend(choose(observed, &wanted.profile, &open, &taken)?);
    Ok((places, u32::try_from(open.len()).unwrap_or(u32::MAX)))
}

/// Chooses a place for each of `partitions`, or one that they share, or none where the mode needs
/// none. Places in `taken` are promised to others, or this allocation's own already.
///
/// # Errors
/// There are not enough; the sentence says of what.
pub fn choose(
    observed: &ObservedGpu,
    profile: &ProfileName,
    partitions: &[PartitionId],
    taken: &BTreeSet<Place>,
) -> Result<Vec<Place>, (Code, String)> {
    let Some(offer) = offer(observed, profile) else {
        return Err(unknown(observed, profile));
    };
    match (offer.mode, observed.backend) {
        (Mode::Mig, _) => mig(observed, offer, partitions.len(), taken),
        (Mode::Mps, _) if taken.contains(&Place::Mps) => {
            let text = format!(
                "the MPS daemon of GPU {} serves another allocation",
                observed.pci
            );
            Err((Code::NoCapacity, text))
        }
        (Mode::Mps, _) => Ok(vec![Place::Mps]),
        (Mode::Timeslice, _) if profile.as_str() != TIMESLICE => Ok(vec![Place::Timeslice]),
        (Mode::Timeslice | Mode::Whole, _) => Ok(Vec::new()),
        (_, backend) => vgpu(observed, backend, partitions, taken),
    }
}

/// What of a GPU's offers `profile` means.
#[must_use]
pub fn offer<'a>(observed: &'a ObservedGpu, profile: &ProfileName) -> Option<&'a ProfileInventory> {
    let is_share = MpsShare::of(profile).is_ok();
    let name = if is_share { MPS } else { profile.as_str() };
    observed
        .profiles
        .iter()
        .find(|offer| offer.profile.as_str() == name)
}

/// The GPU does not offer the profile, and says what it offers.
#[must_use]
pub fn unknown(observed: &ObservedGpu, profile: &ProfileName) -> (Code, String) {
    let names: Vec<_> = observed
        .profiles
        .iter()
        .map(|offer| offer.profile.as_str())
        .collect();
    (
        Code::UnknownProfile,
        format!(
            "GPU {} offers no {profile}; it offers {}",
            observed.pci,
            names.join(", ")
        ),
    )
}

fn vgpu(
    observed: &ObservedGpu,
    backend: Option<Backend>,
    partitions: &[PartitionId],
    taken: &BTreeSet<Place>,
) -> Result<Vec<Place>, (Code, String)> {
    let Some(free) = &observed.free_vfs else {
        return Ok(partitions.iter().copied().map(Place::mdev).collect());
    };
    let is_taken = |vf: &PciAddress| {
        let mut functions = taken.iter().filter_map(Place::function);
        functions.any(|other| other == *vf)
    };
    let free: Vec<_> = free.iter().filter(|vf| !is_taken(vf)).collect();
    if free.len() < partitions.len() {
        let text = format!(
            "GPU {} has {} free virtual functions, {} are needed",
            observed.pci,
            free.len(),
            partitions.len()
        );
        return Err((Code::NoCapacity, text));
    }
    let place = |(vf, uuid): (&&_, &PartitionId)| match backend {
        Some(Backend::Mdev) => Place::Mdev {
            uuid: *uuid,
            parent: Some(**vf),
        },
        _ => Place::Vf(**vf),
    };
    Ok(free.iter().zip(partitions).map(place).collect())
}

fn mig(
    observed: &ObservedGpu,
    offer: &ProfileInventory,
    count: usize,
    taken: &BTreeSet<Place>,
) -> Result<Vec<Place>, (Code, String)> {
    if observed.mig.is_some_and(|mode| !mode.current) {
        let text = format!(
            "MIG is off on GPU {}: `partition` it with mode mig first",
            observed.pci
        );
        return Err((Code::NoCapacity, text));
    }
    let seen = observed.partitions.iter().map(|seen| &seen.place);
    let occupied: Vec<_> = seen.chain(taken).filter_map(Place::slices).collect();
    let wanted: Vec<_> = offer.placements.iter().cycle().take(count).collect();
    let offers = observed
        .profiles
        .iter()
        .filter_map(|offer| offer.placements.as_ref());
    let packed = if wanted.len() == count {
        pack(&occupied, &wanted, &offers.collect::<Vec<_>>())
    } else {
        None
    };
    let packed = packed.ok_or_else(|| {
        let held: Vec<_> = occupied
            .iter()
            .map(|slices| format!("{}+{}", slices.start, slices.size))
            .collect();
        let text = format!(
            "GPU {} has no place for {count} more {}: its memory slices {} are taken",
            observed.pci,
            offer.profile,
            held.join(", ")
        );
        (Code::NoCapacity, text)
    })?;
    Ok(packed.into_iter().map(Place::Mig).collect())
}

/// Places for `wanted` beside what is `occupied`, in the order wanted: of all that fit, those that
/// leave most room for `offers`. The order in which instances are made decides what fits when the
/// driver chooses (NVIDIA/mig-parted tries permutations); planned places do not depend on it.
#[must_use]
pub fn pack(
    occupied: &[Slices],
    wanted: &[&Placements],
    offers: &[&Placements],
) -> Option<Vec<Slices>> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse((wanted[*index].size, &wanted[*index].starts)));
    let mut search = Search {
        wanted: order.iter().map(|index| wanted[*index]).collect(),
        offers,
        best: None,
    };
    let map = occupied.iter().fold(0, |map, slices| map | bits(*slices));
    search.go(map, &mut Vec::new());
    let (_, found) = search.best?;
    let mut placed: Vec<_> = order.into_iter().zip(found).collect();
    placed.sort_by_key(|(index, _)| *index);
    Some(placed.into_iter().map(|(_, slices)| slices).collect())
}

struct Search<'a> {
    wanted: Vec<&'a Placements>,
    offers: &'a [&'a Placements],
    best: Option<(u32, Vec<Slices>)>,
}

impl Search<'_> {
    fn go(&mut self, map: u32, placed: &mut Vec<Slices>) {
        let Some(next) = self.wanted.get(placed.len()).copied() else {
            let room = room(map, self.offers);
            if self.best.as_ref().is_none_or(|(best, _)| room > *best) {
                self.best = Some((room, placed.clone()));
            }
            return;
        };
        // Equal ones are interchangeable: the later never lies before the earlier.
        let is_equal = placed
            .len()
            .checked_sub(1)
            .is_some_and(|before| self.wanted[before] == next);
        let from = placed.last().filter(|_| is_equal).map(|last| last.start);
        for start in &next.starts {
            let slices = Slices {
                start: *start,
                size: next.size,
            };
            if map & bits(slices) != 0 || from.is_some_and(|from| *start < from) {
                continue;
            }
            placed.push(slices);
            self.go(map | bits(slices), placed);
            placed.pop();
        }
    }
}

/// How many placements stay open, larger ones weighing more.
fn room(map: u32, offers: &[&Placements]) -> u32 {
    let open = |offer: &&Placements| {
        let size = u32::from(offer.size);
        let free = offer.starts.iter().filter(|start| {
            map & bits(Slices {
                start: **start,
                size: offer.size,
            }) == 0
        });
        u32::try_from(free.count()).unwrap_or(0) * size * size
    };
    offers.iter().map(open).sum()
}

fn bits(slices: Slices) -> u32 {
    let size = u32::from(slices.size.min(16));
    ((1 << size) - 1) << slices.start.min(16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(starts: &[u8], size: u8) -> Placements {
        Placements {
            starts: starts.to_vec(),
            size,
        }
    }

    /// The placements of every seven-slice board (`nvidia-smi mig -lgipp` on A100 and H100).
    fn seven() -> [Placements; 6] {
        [
            at(&[0, 1, 2, 3, 4, 5, 6], 1),
            at(&[0, 2, 4, 6], 2),
            at(&[0, 2, 4], 2),
            at(&[0, 4], 4),
            at(&[0], 4),
            at(&[0], 8),
        ]
    }

    fn packed(occupied: &[(u8, u8)], wanted: &[usize]) -> Option<Vec<(u8, u8)>> {
        let board = seven();
        let occupied: Vec<_> = occupied
            .iter()
            .map(|(start, size)| Slices {
                start: *start,
                size: *size,
            })
            .collect();
        let wanted: Vec<_> = wanted.iter().map(|index| &board[*index]).collect();
        let offers: Vec<_> = board.iter().collect();
        let found = pack(&occupied, &wanted, &offers)?;
        Some(
            found
                .iter()
                .map(|slices| (slices.start, slices.size))
                .collect(),
        )
    }

    const ONE: usize = 0;
    const TWO: usize = 2;
    const THREE: usize = 3;
    const FOUR: usize = 4;
    const SEVEN: usize = 5;

    #[test]
    fn known_full_layouts_fit_in_any_order() {
        for wanted in [
            &[ONE, ONE, TWO, THREE][..],
            &[THREE, TWO, ONE, ONE],
            &[ONE, THREE, ONE, TWO],
            &[ONE; 7],
            &[TWO, TWO, TWO, ONE],
            &[THREE, THREE],
            &[THREE, FOUR],
            &[1; 4],
            &[SEVEN],
        ] {
            assert!(packed(&[], wanted).is_some(), "{wanted:?}");
        }
        for wanted in [
            &[FOUR, FOUR][..],
            &[SEVEN, ONE],
            &[THREE, THREE, ONE],
            &[ONE; 8],
        ] {
            assert_eq!(packed(&[], wanted), None, "{wanted:?}");
        }
    }

    /// The driver puts the first 1g at slice 6, which leaves 3g@0; any other place but 4 and 5 would not.
    #[test]
    fn what_is_left_over_stays_useful() {
        let one = packed(&[], &[ONE]).unwrap()[0];
        assert!(packed(&[one], &[FOUR]).is_some(), "{one:?} breaks 4g");
        let ones = packed(&[], &[ONE, ONE]).unwrap();
        assert!(packed(&ones, &[FOUR]).is_some(), "{ones:?} break 4g");
        assert_eq!(packed(&[(0, 4)], &[THREE]), Some(vec![(4, 4)]));
        assert_eq!(packed(&[(6, 1)], &[SEVEN]), None);
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_everything_is_where_it_may_be(
            wanted in proptest::collection::vec(0_usize..6, 1..5),
            held in proptest::collection::vec(0_u8..7, 0..4),
        ) {
            let board = seven();
            let occupied: Vec<_> = held.iter().map(|start| (*start, 1)).collect();
            if let Some(found) = packed(&occupied, &wanted) {
                let mut map = occupied.iter().fold(0, |map, (start, size)| map | bits(Slices { start: *start, size: *size }));
                for ((start, size), index) in found.into_iter().zip(&wanted) {
                    prop_assert!(board[*index].starts.contains(&start) && board[*index].size == size);
                    let slices = bits(Slices { start, size });
                    prop_assert_eq!(map & slices, 0);
                    map |= slices;
                }
            }
        }
    }
}
