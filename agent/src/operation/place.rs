//! Where a partition is: the name that its effect has before it happens. A mediated device can be
//! told its name; a virtual function and a GPU instance are named by their place on the GPU, and whose
//! they are only the ledger knows.

use std::fmt;

use events::inventory::Slices;
use events::{GpuUuid, PartitionId, PciAddress};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Namespace of the ids of partitions that no allocation has named.
const FOREIGN: Uuid = Uuid::from_u128(0x6b0f_3a58_91d2_5e07_8c44_f1a9_2d7e_0003);

/// A place on one GPU that holds one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A mediated device.
    Mdev {
        /// Its UUID.
        uuid: PartitionId,
        /// The virtual function that it is on; absent where the GPU itself is the parent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<PciAddress>,
    },
    /// A virtual function with a vGPU type of its own.
    Vf(PciAddress),
    /// A GPU instance with one compute instance that has all of it.
    Mig(Slices),
    /// The GPU's MPS daemon.
    Mps,
    /// The GPU's time slice.
    Timeslice,
    /// The GPU's MIG mode: a setting, which holds no partition.
    MigMode,
}

impl Place {
    /// The mediated device `uuid` on the GPU itself.
    #[must_use]
    pub fn mdev(uuid: PartitionId) -> Self {
        Self::Mdev { uuid, parent: None }
    }

    /// The id of what is here while no allocation has named it.
    #[must_use]
    pub fn id(&self, gpu: &GpuUuid) -> PartitionId {
        match self {
            Self::Mdev { uuid, .. } => *uuid,
            other => PartitionId(Uuid::new_v5(&FOREIGN, format!("{gpu} {other}").as_bytes())),
        }
    }

    /// The mediated device's UUID.
    #[must_use]
    pub fn uuid(&self) -> Option<PartitionId> {
        match self {
            Self::Mdev { uuid, .. } => Some(*uuid),
            _ => None,
        }
    }

    /// The virtual function that it is, or is on.
    #[must_use]
    pub fn function(&self) -> Option<PciAddress> {
        match self {
            Self::Vf(vf) => Some(*vf),
            Self::Mdev { parent, .. } => *parent,
            _ => None,
        }
    }

    /// The memory slices, for MIG.
    #[must_use]
    pub fn slices(&self) -> Option<Slices> {
        match self {
            Self::Mig(slices) => Some(*slices),
            _ => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mdev { uuid, parent: None } => write!(f, "mediated device {uuid}"),
            Self::Mdev {
                uuid,
                parent: Some(parent),
            } => write!(f, "mediated device {uuid} on virtual function {parent}"),
            Self::Vf(vf) => write!(f, "virtual function {vf}"),
            Self::Mig(Slices { start, size }) => {
                write!(f, "GPU instance at memory slices {start}+{size}")
            }
            Self::Mps => f.write_str("MPS daemon"),
            Self::Timeslice => f.write_str("time slice"),
            Self::MigMode => f.write_str("MIG mode"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is stored names places: the texts never change.
    #[test]
    fn places_are_stored_as_they_always_were() {
        for text in [
            r#"{"mdev":{"uuid":"2fb112ee-7d1a-5ecd-abf1-7e4d357a4a9b"}}"#,
            r#"{"mdev":{"uuid":"2fb112ee-7d1a-5ecd-abf1-7e4d357a4a9b","parent":"0000:3d:00.4"}}"#,
            r#"{"vf":"0000:3d:00.4"}"#,
            r#"{"mig":{"start":4,"size":4}}"#,
            r#""mps""#,
            r#""timeslice""#,
            r#""mig_mode""#,
        ] {
            let place: Place = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&place).unwrap(), text);
        }
    }

    #[test]
    fn ids_of_unnamed_partitions_differ_by_place_and_gpu() {
        let gpu = |n: u8| {
            format!("GPU-2a8b1d5e-0000-4000-8000-00000000000{n}")
                .parse::<GpuUuid>()
                .unwrap()
        };
        let at = |start| Place::Mig(Slices { start, size: 1 });
        assert_eq!(at(1).id(&gpu(1)), at(1).id(&gpu(1)));
        assert_ne!(at(1).id(&gpu(1)), at(2).id(&gpu(1)));
        assert_ne!(at(1).id(&gpu(1)), at(1).id(&gpu(2)));
    }
}
