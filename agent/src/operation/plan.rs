//! The next step towards a set of partitions on one GPU, from observation alone.

use std::collections::BTreeMap;

use events::operation::Mode;
use events::{Code, ProfileName};

use super::choice::{offer, unknown};
use super::place::Place;
use crate::partitioner::ObservedGpu;

/// What should be on one GPU as far as we are concerned; everything else is foreign or another
/// allocation's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    /// Partitions that should exist.
    pub present: BTreeMap<Place, ProfileName>,
    /// Partitions of ours that should not.
    pub absent: Vec<Place>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// This effect, then look again.
    Next(Step),
    /// It is as it should be.
    Converged,
    /// Somebody holds a partition that should go.
    Wait {
        /// Which.
        place: Place,
        /// Who, for people.
        holders: Vec<String>,
    },
    /// It cannot be reached, and nothing should be touched for it.
    Impossible(Code, String),
}

/// One effect on one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create the partition.
    Create(Place, ProfileName),
    /// Remove it.
    Destroy(Place),
}

/// Plans one step. Removal comes first: it makes the room that creation needs.
#[must_use]
pub fn plan(observed: &ObservedGpu, target: &Target) -> Plan {
    if let Some(reason) = &observed.unavailable {
        return Plan::Impossible(
            observed.unavailable_code(),
            format!("GPU {} takes no partitions: {reason}", observed.pci),
        );
    }
    for place in &target.absent {
        let wanted = target.present.get(place);
        match observed.at(place) {
            // Another one had to go from here, and has.
            Some(seen) if wanted == Some(&seen.profile) => {}
            Some(seen) if seen.holders.is_empty() => {
                return Plan::Next(Step::Destroy(place.clone()));
            }
            Some(seen) => {
                return Plan::Wait {
                    place: place.clone(),
                    holders: seen.holders.clone(),
                };
            }
            None => {}
        }
    }
    for (place, profile) in &target.present {
        match observed.at(place) {
            None => return Plan::Next(Step::Create(place.clone(), profile.clone())),
            Some(seen) if seen.profile == *profile && seen.is_complete => {}
            Some(seen) if seen.profile == *profile => {
                return Plan::Next(Step::Create(place.clone(), profile.clone()));
            }
            Some(seen) => {
                let text = format!(
                    "{place} exists with profile {} instead of {profile}",
                    seen.profile
                );
                return Plan::Impossible(Code::DriverError, text);
            }
        }
    }
    Plan::Converged
}

/// Why `count` more partitions of `profile` do not fit, judged before anything is touched.
#[must_use]
pub fn refuse_before_start(
    observed: &ObservedGpu,
    profile: &ProfileName,
    count: u32,
) -> Option<(Code, String)> {
    if let Some(reason) = &observed.unavailable {
        return Some((
            observed.unavailable_code(),
            format!("GPU {} takes no partitions: {reason}", observed.pci),
        ));
    }
    let Some(offer) = offer(observed, profile) else {
        return Some(unknown(observed, profile));
    };
    if offer.available >= count {
        return None;
    }
    let other = observed
        .partitions
        .iter()
        .filter(|_| offer.mode == Mode::Vgpu);
    let other = other.into_iter().find(|partition| {
        let size = observed
            .profiles
            .iter()
            .find(|offer| offer.profile == partition.profile)
            .map(|offer| offer.memory_mib);
        size.is_some_and(|size| size != offer.memory_mib)
    });
    let holds = observed.partitions.len();
    Some(match other {
        Some(partition) => (
            Code::SizeMismatch,
            format!(
                "GPU {} already holds {} ({holds} in use): all vGPUs of one GPU have the same size",
                observed.pci, partition.profile
            ),
        ),
        None => (
            Code::NoCapacity,
            format!(
                "GPU {} has room for {} more {profile}, {count} are needed ({holds} in use)",
                observed.pci, offer.available
            ),
        ),
    })
}

#[cfg(test)]
mod tests {
    use events::inventory::{Backend, ProfileInventory};
    use proptest::prelude::*;

    use super::*;
    use crate::partitioner::{Access, ObservedPartition};

    fn id(n: u128) -> Place {
        Place::mdev(events::PartitionId(uuid::Uuid::from_u128(n)))
    }

    fn gpu(partitions: &[(u128, &str, bool)], available: u32) -> ObservedGpu {
        let offer = |profile: &str, memory_mib| {
            ProfileInventory::vgpu(profile.parse().unwrap(), memory_mib, 4, available)
        };
        ObservedGpu {
            uuid: "GPU-2a8b1d5e-0000-4000-8000-000000000001".parse().unwrap(),
            pci: "0000:3b:00.0".parse().unwrap(),
            index: 0,
            name: "Tesla T4".to_owned(),
            memory_mib: Some(15360),
            backend: Some(Backend::Mdev),
            unavailable: None,
            numa_node: None,
            free_vfs: None,
            mig: None,
            holders: Vec::new(),
            profiles: vec![offer("T4-4Q", 4096), offer("T4-8Q", 8192)],
            partitions: partitions
                .iter()
                .map(|(n, profile, held)| ObservedPartition {
                    place: id(*n),
                    is_complete: true,
                    profile: profile.parse().unwrap(),
                    access: Access::default(),
                    holders: if *held {
                        vec!["vm1".to_owned()]
                    } else {
                        Vec::new()
                    },
                })
                .collect(),
        }
    }

    fn target(present: &[(u128, &str)], absent: &[u128]) -> Target {
        Target {
            present: present
                .iter()
                .map(|(n, profile)| (id(*n), profile.parse().unwrap()))
                .collect(),
            absent: absent.iter().map(|n| id(*n)).collect(),
        }
    }

    /// 4g where 3g was (found by the trials on simulated boards): what stands in its place goes once.
    #[test]
    fn another_profile_at_the_same_place_goes_and_what_comes_stays() {
        let target = target(&[(1, "T4-8Q")], &[1]);
        for (observed, expect) in [
            (
                gpu(&[(1, "T4-4Q", false)], 3),
                Plan::Next(Step::Destroy(id(1))),
            ),
            (
                gpu(&[], 4),
                Plan::Next(Step::Create(id(1), "T4-8Q".parse().unwrap())),
            ),
            (gpu(&[(1, "T4-8Q", false)], 1), Plan::Converged),
        ] {
            assert_eq!(plan(&observed, &target), expect);
        }
    }

    #[test]
    fn one_step_at_a_time_and_foreign_partitions_never() {
        let four = "T4-4Q".parse::<ProfileName>().unwrap();
        for (observed, target, expect) in [
            (
                gpu(&[], 4),
                target(&[(1, "T4-4Q"), (2, "T4-4Q")], &[]),
                Plan::Next(Step::Create(id(1), four.clone())),
            ),
            (
                gpu(&[(1, "T4-4Q", true)], 3),
                target(&[(1, "T4-4Q"), (2, "T4-4Q")], &[]),
                Plan::Next(Step::Create(id(2), four.clone())),
            ),
            (
                gpu(&[(1, "T4-4Q", false), (9, "T4-4Q", false)], 2),
                target(&[(1, "T4-4Q")], &[]),
                Plan::Converged,
            ),
            (
                gpu(&[(9, "T4-4Q", false)], 3),
                target(&[], &[1]),
                Plan::Converged,
            ),
            (
                gpu(&[(1, "T4-4Q", false)], 3),
                target(&[(2, "T4-4Q")], &[1]),
                Plan::Next(Step::Destroy(id(1))),
            ),
            (
                gpu(&[(1, "T4-4Q", true)], 3),
                target(&[], &[1]),
                Plan::Wait {
                    place: id(1),
                    holders: vec!["vm1".to_owned()],
                },
            ),
        ] {
            assert_eq!(plan(&observed, &target), expect);
        }
        assert!(matches!(
            plan(
                &gpu(&[(1, "T4-8Q", false)], 0),
                &target(&[(1, "T4-4Q")], &[])
            ),
            Plan::Impossible(..)
        ));
    }

    /// field F57: another size in use is not a fault of the card, and says so.
    #[test]
    fn refusals_tell_full_from_other_size_from_unknown() {
        let profile = |text: &str| text.parse::<ProfileName>().unwrap();
        let code = |observed: &ObservedGpu, text: &str, count| {
            refuse_before_start(observed, &profile(text), count).map(|(code, _)| code)
        };
        assert_eq!(code(&gpu(&[], 4), "T4-4Q", 4), None);
        assert_eq!(
            code(&gpu(&[(9, "T4-4Q", false)], 1), "T4-4Q", 2),
            Some(Code::NoCapacity)
        );
        assert_eq!(
            code(&gpu(&[(9, "T4-8Q", false)], 0), "T4-4Q", 1),
            Some(Code::SizeMismatch)
        );
        assert_eq!(code(&gpu(&[], 4), "T4-3Q", 1), Some(Code::UnknownProfile));
    }

    proptest! {
        /// Carrying out what is planned reaches the target and ends, whatever was there before, and
        /// leaves every foreign partition alone.
        #[test]
        fn planning_converges_and_spares_foreign_partitions(
            before in proptest::collection::btree_set(0_u128..12, 0..6),
            present in proptest::collection::btree_set(0_u128..6, 0..4),
        ) {
            let absent: Vec<u128> = (0..6).filter(|n| !present.contains(n)).collect();
            let target = target(&present.iter().map(|n| (*n, "T4-4Q")).collect::<Vec<_>>(), &absent);
            let mut there = before.clone();
            for _ in 0..20 {
                let listed: Vec<_> = there.iter().map(|n| (*n, "T4-4Q", false)).collect();
                match plan(&gpu(&listed, 9), &target) {
                    Plan::Next(Step::Create(id, _)) => prop_assert!(there.insert(id.uuid().unwrap().0.as_u128())),
                    Plan::Next(Step::Destroy(id)) => prop_assert!(there.remove(&id.uuid().unwrap().0.as_u128())),
                    Plan::Converged => break,
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            let ours: Vec<_> = there.iter().filter(|n| **n < 6).copied().collect();
            prop_assert_eq!(ours, present.into_iter().collect::<Vec<_>>());
            let foreign = |set: &std::collections::BTreeSet<u128>| set.iter().filter(|n| **n >= 6).copied().collect::<Vec<_>>();
            prop_assert_eq!(foreign(&there), foreign(&before));
        }
    }
}
