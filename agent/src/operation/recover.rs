//! What an interrupted step left: done, to be done again, or something else.

use events::{PartitionId, ProfileName};
use serde::{Deserialize, Serialize};

use crate::partitioner::ObservedGpu;

/// A step as it was recorded before its effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch it was recorded in.
    pub epoch: String,
    /// What the slot held.
    pub before: Option<ProfileName>,
    /// What it is to hold.
    pub want: Option<ProfileName>,
}

/// What to make of an open intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// The effect happened.
    Done,
    /// It did not: do it again.
    Redo,
    /// The slot holds neither: stop, and tell.
    Residue(String),
}

/// Judges an open intent by what is seen now. In another epoch runtime state was lost, so a slot
/// that is empty proves nothing about the effect and is simply to be done again.
#[must_use]
pub fn recover(intent: &Intent, observed: &ObservedGpu, epoch: &str) -> Recovery {
    let seen = observed
        .partitions
        .iter()
        .find(|partition| partition.id == intent.partition);
    let profile = seen.map(|partition| &partition.profile);
    if profile == intent.want.as_ref() {
        Recovery::Done
    } else if profile == intent.before.as_ref() || (intent.epoch != epoch && profile.is_none()) {
        Recovery::Redo
    } else {
        let holds = profile.map_or("nothing", ProfileName::as_str);
        Recovery::Residue(format!(
            "partition {} holds {holds}, neither what was there nor what was wanted",
            intent.partition
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitioner::ObservedPartition;

    #[test]
    fn open_intents_are_judged_by_what_is_seen() {
        let id = PartitionId(uuid::Uuid::from_u128(1));
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
            partitions: profile
                .map(|profile| ObservedPartition {
                    id,
                    profile: name(profile),
                    sysfs_path: String::new(),
                    holders: Vec::new(),
                })
                .into_iter()
                .collect(),
        };
        let create = |epoch: &str| Intent {
            partition: id,
            epoch: epoch.to_owned(),
            before: None,
            want: Some(name("T4-4Q")),
        };
        let destroy = Intent {
            partition: id,
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
