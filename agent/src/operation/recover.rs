//! What an interrupted step left: done, to be done again, or something else.

use events::{PartitionId, ProfileName};
use serde::{Deserialize, Serialize};

use super::place::Place;
use crate::partitioner::ObservedGpu;

/// A step as it was recorded before its effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Intent {
    /// The place that it is about.
    pub place: Place,
    /// The epoch it was recorded in.
    pub epoch: String,
    /// What the slot held.
    pub before: Option<ProfileName>,
    /// What it is to hold.
    pub want: Option<ProfileName>,
}

impl Intent {
    /// Whether what it made can still be what is seen in `epoch`. Only a mediated device bears a name
    /// that nobody else gives; after a reboot another manager may have put its own where ours was.
    #[must_use]
    pub fn still_stands(&self, epoch: &str) -> bool {
        self.epoch == epoch || matches!(self.place, Place::Mdev { .. })
    }
}

/// As it is stored: a mediated device on the GPU itself by its UUID alone, as it always was.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition: Option<PartitionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
    epoch: String,
    before: Option<ProfileName>,
    want: Option<ProfileName>,
}

impl TryFrom<Stored> for Intent {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let named = stored.place.or(stored.partition.map(Place::mdev));
        Ok(Self {
            place: named.ok_or("an intent names no place")?,
            epoch: stored.epoch,
            before: stored.before,
            want: stored.want,
        })
    }
}

impl From<Intent> for Stored {
    fn from(intent: Intent) -> Self {
        let (partition, place) = match intent.place {
            Place::Mdev { uuid, parent: None } => (Some(uuid), None),
            other => (None, Some(other)),
        };
        Self {
            partition,
            place,
            epoch: intent.epoch,
            before: intent.before,
            want: intent.want,
        }
    }
}

/// What to make of an open intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// The effect happened.
    Done,
    /// It did in part: what is there is ours, and is to be completed or removed.
    Half,
    /// It did not: do it again.
    Redo,
    /// The slot holds neither: stop, and tell.
    Residue(String),
}

/// Judges an open intent by what is seen now. In another epoch runtime state was lost, so a slot
/// that is empty proves nothing about the effect and is simply to be done again.
#[must_use]
pub fn recover(intent: &Intent, observed: &ObservedGpu, epoch: &str) -> Recovery {
    let profile = observed.at(&intent.place).map(|seen| &seen.profile);
    if let Some(profile) = profile.filter(|_| !intent.still_stands(epoch)) {
        return Recovery::Residue(format!(
            "{} holds {profile}, made since the GPU lost what this step had made",
            intent.place
        ));
    }
    let is_half = observed
        .at(&intent.place)
        .is_some_and(|seen| !seen.is_complete);
    if is_half && profile == intent.want.as_ref() {
        Recovery::Half
    } else if profile == intent.want.as_ref() {
        Recovery::Done
    } else if profile == intent.before.as_ref() || (intent.epoch != epoch && profile.is_none()) {
        Recovery::Redo
    } else {
        let holds = profile.map_or("nothing", ProfileName::as_str);
        Recovery::Residue(format!(
            "{} holds {holds}, neither what was there nor what was wanted",
            intent.place
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitioner::{Access, ObservedPartition};

    #[test]
    fn open_intents_are_judged_by_what_is_seen() {
        let place = Place::mdev(PartitionId(uuid::Uuid::from_u128(1)));
        let name = |text: &str| text.parse::<ProfileName>().unwrap();
        let observed = |profile: Option<&str>| ObservedGpu {
            uuid: "GPU-2a8b1d5e-0000-4000-8000-000000000001".parse().unwrap(),
            pci: "0000:3b:00.0".parse().unwrap(),
            index: 0,
            name: String::new(),
            memory_mib: None,
            backend: None,
            unavailable: None,
            numa_node: None,
            profiles: Vec::new(),
            free_vfs: None,
            mig: None,
            holders: Vec::new(),
            partitions: profile
                .map(|profile| ObservedPartition {
                    place: place.clone(),
                    is_complete: true,
                    profile: name(profile),
                    holders: Vec::new(),
                    access: Access::default(),
                })
                .into_iter()
                .collect(),
        };
        let create = |epoch: &str| Intent {
            place: place.clone(),
            epoch: epoch.to_owned(),
            before: None,
            want: Some(name("T4-4Q")),
        };
        let destroy = Intent {
            place: place.clone(),
            epoch: "a".to_owned(),
            before: Some(name("T4-4Q")),
            want: None,
        };
        for (intent, seen, expect) in [
            (create("a"), Some("T4-4Q"), Recovery::Done),
            (create("a"), None, Recovery::Redo),
            (destroy.clone(), None, Recovery::Done),
            (destroy.clone(), Some("T4-4Q"), Recovery::Redo),
        ] {
            assert_eq!(recover(&intent, &observed(seen), "a"), expect);
        }
        assert!(matches!(
            recover(&create("a"), &observed(Some("T4-8Q")), "a"),
            Recovery::Residue(_)
        ));
        assert!(matches!(
            recover(&destroy, &observed(Some("T4-8Q")), "b"),
            Recovery::Residue(_)
        ));
    }
}
