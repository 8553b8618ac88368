//! What a simulated host is: boards, driver, kernel, and which of the uncertain beliefs about them holds (`Quirks`).
//! Descriptions are data (`simulator/hosts/*.toml`); nothing here runs.

use std::{collections::BTreeSet, fs, io, path::Path, path::PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{board::Board, pci::PciAddress};

/// Hosts that ship with this build, by name.
const BUILTIN: &[(&str, &str)] = &[
    ("t4", include_str!("../hosts/t4.toml")),
    ("two-t4", include_str!("../hosts/two-t4.toml")),
    ("t4-legacy", include_str!("../hosts/t4-legacy.toml")),
    ("v100", include_str!("../hosts/v100.toml")),
    ("mixed", include_str!("../hosts/mixed.toml")),
    ("a30", include_str!("../hosts/a30.toml")),
    ("a100-40", include_str!("../hosts/a100-40.toml")),
    ("a100-80", include_str!("../hosts/a100-80.toml")),
    ("h100", include_str!("../hosts/h100.toml")),
    ("h200", include_str!("../hosts/h200.toml")),
];

/// Why a host description cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionError {
    /// No builtin host of that name.
    #[error("no builtin host is called `{name}`; there are {known}")]
    UnknownHost {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read the host description {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not TOML, or not this TOML.
    #[error("the host description {origin} is not valid")]
    Malformed {
        /// File or builtin name.
        origin: String,
        /// Where and why.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A board that this build has no data for.
    #[error("host `{host}`: no data for board `{board}`")]
    UnknownBoard {
        /// Host name.
        host: String,
        /// Board name.
        board: String,
    },
    /// A foreign device that the host cannot have.
    #[error("host `{host}`: no {vgpu_type} fits at {pci} for the foreign device {uuid}")]
    Foreign {
        /// Host name.
        host: String,
        /// Where.
        pci: PciAddress,
        /// Its type.
        vgpu_type: String,
        /// Its UUID.
        uuid: Uuid,
    },
    /// Two boards in one slot.
    #[error("host `{host}`: two boards at {pci}")]
    SharedSlot {
        /// Host name.
        host: String,
        /// The slot.
        pci: PciAddress,
    },
}

/// One host, as `simulator/hosts/*.toml` writes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostDescription {
    /// Name of the host; GPU UUIDs derive from it.
    pub name: String,
    /// Driver version, `535.161.05`. Type names carry the brand `GRID` before 525 and `NVIDIA` from there on.
    pub driver_version: String,
    /// Highest CUDA version of the driver, `12.2`.
    pub cuda_version: String,
    /// What `uname -r` prints.
    pub kernel_release: String,
    /// Which driver package is installed.
    pub flavour: Flavour,
    /// How the kernel's mdev core behaves.
    pub kernel: KernelKind,
    /// GPUs in NVML's index order.
    #[serde(default)]
    pub boards: Vec<BoardSlot>,
    /// Mediated devices that somebody else makes at every boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<ForeignMdev>,
    /// Uncertain beliefs; what is left out follows `kernel`.
    #[serde(default)]
    pub quirks: Quirks,
}

/// A mediated device of another manager, as one that autostarts leaves it after every boot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignMdev {
    /// The GPU's PCI address.
    pub pci: PciAddress,
    /// Type name without brand, `T4-4Q`.
    pub vgpu_type: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// A VM that has it open, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
}

/// Which driver package is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// The vGPU host driver: types are published, the GPU can be divided.
    VgpuHost,
    /// The data centre driver: no vGPU at all.
    DataCentre,
}

/// How the kernel's mdev core behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelKind {
    /// The vfio core owns the reference count (observed on 6.1).
    VfioCore,
    /// The parent driver destroys the device and may refuse.
    Legacy,
}

/// A board in its slot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardSlot {
    /// Board name, `T4`.
    pub board: String,
    /// PCI address, `0000:3b:00.0`.
    pub pci: PciAddress,
    /// NUMA node of the slot.
    #[serde(default)]
    pub numa_node: u32,
}

/// Beliefs about hardware that no source settles. The crash suites run under each value.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quirks {
    /// What removing an mdev does while a VM has it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_in_use: Option<RemoveInUse>,
    /// What a second remover is told while the first is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_remover: Option<SecondRemover>,
    /// How long `remove_in_use = "ebusy"` waits for the VM to go, in ms. The driver's 5 s unless a test is in a hurry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebusy_after_ms: Option<u64>,
    /// What has to be the same for all vGPUs of one GPU.
    #[serde(default)]
    pub same_size: SameSize,
    /// errno of a create that the driver refuses for capacity or size; EIO unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_errno: Option<i32>,
    /// When a change of MIG mode takes effect on a GPU that nobody holds.
    #[serde(default)]
    pub mig_activation: MigActivation,
}

/// When a change of MIG mode takes effect on a GPU that nobody holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigActivation {
    /// With the call.
    #[default]
    AtOnce,
    /// At the next reset or reboot.
    ResetRequired,
}

/// What removing an mdev does while a VM has it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoveInUse {
    /// The write waits until the VM has closed the device.
    Block,
    /// Refused at once with EPERM.
    Eperm,
    /// Refused with EBUSY, after `ebusy_after_ms`.
    Ebusy,
}

/// What a second remover is told while the first is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondRemover {
    /// The attribute is gone as soon as the first remover has begun.
    Enoent,
    /// The attribute is there and answers EAGAIN.
    Eagain,
    /// The attribute is there and answers ENODEV.
    Enodev,
}

/// What has to be the same for all vGPUs of one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SameSize {
    /// The frame buffer; the series may differ.
    #[default]
    Framebuffer,
    /// The type.
    Type,
}

impl HostDescription {
    /// The host that ships under this name.
    ///
    /// # Errors
    /// [`DescriptionError::UnknownHost`] names the hosts that there are.
    pub fn builtin(name: &str) -> Result<Self, DescriptionError> {
        let Some((_, text)) = BUILTIN.iter().find(|(each, _)| *each == name) else {
            let known = BUILTIN
                .iter()
                .map(|(each, _)| format!("`{each}`"))
                .collect::<Vec<_>>()
                .join(", ");
            return Err(DescriptionError::UnknownHost {
                name: name.to_owned(),
                known,
            });
        };
        Self::parse(text, name)
    }

    /// Reads a description from a file.
    ///
    /// # Errors
    /// The file is unreadable, malformed, or names a board that this build has no data for.
    pub fn load(path: &Path) -> Result<Self, DescriptionError> {
        let text = fs::read_to_string(path).map_err(|source| DescriptionError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// A path if `host` looks like one or exists, else a builtin name: what `--host` accepts.
    ///
    /// # Errors
    /// As [`Self::builtin`] and [`Self::load`].
    pub fn find(host: &str) -> Result<Self, DescriptionError> {
        let path = Path::new(host);
        if host.contains('/') || path.extension().is_some_and(|each| each == "toml") {
            Self::load(path)
        } else {
            Self::builtin(host)
        }
    }

    fn parse(text: &str, origin: &str) -> Result<Self, DescriptionError> {
        let host: Self = toml::from_str(text).map_err(|source| DescriptionError::Malformed {
            origin: origin.to_owned(),
            source: Box::new(source),
        })?;
        host.resolve_boards()?;
        Ok(host)
    }

    /// Each slot with its board's data, in index order.
    pub(crate) fn resolve_boards(&self) -> Result<Vec<(BoardSlot, Board)>, DescriptionError> {
        let mut slots = BTreeSet::new();
        self.boards
            .iter()
            .map(|slot| {
                if !slots.insert(slot.pci) {
                    return Err(DescriptionError::SharedSlot {
                        host: self.name.clone(),
                        pci: slot.pci,
                    });
                }
                let board =
                    Board::builtin(&slot.board).ok_or_else(|| DescriptionError::UnknownBoard {
                        host: self.name.clone(),
                        board: slot.board.clone(),
                    })?;
                Ok((slot.clone(), board))
            })
            .collect()
    }

    /// Name of a vGPU type as this driver prints it: `NVIDIA T4-4Q` from R525 on, `GRID T4-4Q` before.
    pub(crate) fn type_name(&self, name: &str) -> String {
        let major: u32 = self
            .driver_version
            .split('.')
            .next()
            .and_then(|each| each.parse().ok())
            .unwrap_or(0);
        format!("{} {name}", if major >= 525 { "NVIDIA" } else { "GRID" })
    }

    pub(crate) fn remove_in_use(&self) -> RemoveInUse {
        self.quirks.remove_in_use.unwrap_or(match self.kernel {
            KernelKind::VfioCore => RemoveInUse::Block,
            KernelKind::Legacy => RemoveInUse::Eperm,
        })
    }

    pub(crate) fn second_remover(&self) -> SecondRemover {
        self.quirks.second_remover.unwrap_or(match self.kernel {
            KernelKind::VfioCore => SecondRemover::Enoent,
            KernelKind::Legacy => SecondRemover::Eagain,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_host_parses_under_its_own_name() {
        for (name, _) in BUILTIN {
            assert_eq!(&HostDescription::builtin(name).unwrap().name, name);
        }
    }

    #[test]
    fn faulty_descriptions_say_what_is_wrong() {
        let valid = BUILTIN[0].1;
        for (broken, expect) in [
            (
                valid.replace("\"T4\"", "\"T5\""),
                "host `t4`: no data for board `T5`",
            ),
            (
                valid.replace("0000:3b:00.0", "3b"),
                "the host description test is not valid",
            ),
            (
                valid.replace("driver_version", "driver"),
                "the host description test is not valid",
            ),
            (
                valid.replace("\"block\"", "\"shrug\""),
                "the host description test is not valid",
            ),
        ] {
            assert_eq!(
                HostDescription::parse(&broken, "test")
                    .unwrap_err()
                    .to_string(),
                expect
            );
        }
        assert_eq!(
            HostDescription::builtin("b200").unwrap_err().to_string(),
            "no builtin host is called `b200`; there are `t4`, `two-t4`, `t4-legacy`, `v100`, `mixed`, `a30`, `a100-40`, `a100-80`, `h100`, `h200`"
        );
    }

    #[test]
    fn type_names_change_their_brand_at_r525() {
        for (driver, expect) in [
            ("510.47.03", "GRID T4-4Q"),
            ("525.60.13", "NVIDIA T4-4Q"),
            ("535.161.05", "NVIDIA T4-4Q"),
        ] {
            let host = HostDescription {
                driver_version: driver.to_owned(),
                ..HostDescription::builtin("t4").unwrap()
            };
            assert_eq!(host.type_name("T4-4Q"), expect);
        }
    }
}
