//! The mdev tree of one GPU, parsed by key and strictly: what cannot be parsed is an error, not 0.

use std::path::Path;

use events::inventory::ProfileInventory;
use events::{Code, PartitionId, PciAddress, ProfileName};

use super::fail;
use super::holders::{self, OpenGroups};
use crate::operation::place::Place;
use crate::partitioner::{Access, Class, ObservedPartition, PartitionError};
use crate::probe::HostRoot;

/// One vGPU type of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kind {
    /// Its directory, absolute.
    pub(super) path: String,
    /// The last token of its name: `GRID T4-4Q` and `NVIDIA T4-4Q` are the same.
    pub(super) profile: ProfileName,
    /// Frame buffer.
    pub(super) memory_mib: u64,
    max_instances: u32,
    available: u32,
}

/// A device's place in the host's one list of mediated devices.
pub(super) fn device(id: PartitionId) -> String {
    format!("/sys/bus/mdev/devices/{id}")
}

/// What the tree of one GPU shows.
pub(super) struct Tree {
    /// Types with what fits now.
    pub(super) profiles: Vec<ProfileInventory>,
    /// Devices.
    pub(super) partitions: Vec<ObservedPartition>,
    /// Devices whose removal has begun and not ended: something still holds them, and they take
    /// room. They have lost their type and left the host's list (kernel facts §1).
    pub(super) leaving: Vec<PartitionId>,
}

/// Reads the tree of the GPU at `pci`.
pub(super) fn read(root: &HostRoot, proc: &Path, pci: PciAddress) -> Result<Tree, String> {
    let kinds = kinds(root, pci)?;
    let (partitions, leaving) = partitions(root, proc, pci, &kinds)?;
    let mut profiles: Vec<_> = kinds
        .into_iter()
        .map(|kind| {
            let (max, available) = (kind.max_instances, kind.available);
            ProfileInventory::vgpu(kind.profile, kind.memory_mib, max, available)
        })
        .collect();
    profiles.sort_by(|a, b| (a.memory_mib, &a.profile).cmp(&(b.memory_mib, &b.profile)));
    Ok(Tree {
        profiles,
        partitions,
        leaving,
    })
}

/// The type that a profile name means on one GPU, with what it has room for now.
pub(super) fn type_of(
    root: &HostRoot,
    pci: PciAddress,
    profile: &ProfileName,
) -> Result<Kind, PartitionError> {
    let kinds = kinds(root, pci).map_err(|text| fail(Code::DriverError, Class::Retry, text))?;
    let names: Vec<_> = kinds.iter().map(|kind| kind.profile.to_string()).collect();
    let mut found = kinds.into_iter().filter(|kind| kind.profile == *profile);
    match (found.next(), found.next()) {
        (Some(kind), None) => Ok(kind),
        (Some(_), Some(_)) => Err(fail(
            Code::UnknownProfile,
            Class::Refuse,
            format!("GPU {pci} has {profile} under two type ids"),
        )),
        (None, _) => {
            let text = format!(
                "GPU {pci} offers no {profile}; it offers {}",
                names.join(", ")
            );
            Err(fail(Code::UnknownProfile, Class::Refuse, text))
        }
    }
}

fn kinds(root: &HostRoot, pci: PciAddress) -> Result<Vec<Kind>, String> {
    let folder = format!("{}/mdev_supported_types", HostRoot::device(pci));
    let failed = |error: std::io::Error| format!("read {folder}: {error}");
    let mut kinds = Vec::new();
    for entry in std::fs::read_dir(root.at(&folder)).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with("nvidia-")) else {
            continue;
        };
        kinds.push(kind(root, format!("{folder}/{name}"))?);
    }
    Ok(kinds)
}

fn kind(root: &HostRoot, path: String) -> Result<Kind, String> {
    let text = |file: &str| {
        root.read(&format!("{path}/{file}"))
            .map_err(|error| format!("read {path}/{file}: {error}"))
    };
    let number = |file: &str, text: &str| {
        text.parse::<u32>()
            .map_err(|_| format!("{path}/{file} holds no number: {text:?}"))
    };
    let name = text("name")?;
    let profile = name
        .rsplit(' ')
        .next()
        .unwrap_or_default()
        .parse()
        .map_err(|error| format!("{path}/name: {error}"))?;
    let available = text("available_instances")?;
    let available = number("available_instances", &available)?;
    let description = text("description")?;
    let field = |key: &str| {
        let fields = description
            .split(',')
            .filter_map(|field| field.trim().split_once('='));
        let value = fields
            .filter(|(name, _)| *name == key)
            .map(|(_, value)| value)
            .next();
        value.ok_or_else(|| format!("{path}/description has no {key}: {description:?}"))
    };
    let memory = field("framebuffer")?;
    let memory_mib = u64::from(number("description", memory.trim_end_matches('M'))?);
    let max_instances = number("description", field("max_instance")?)?;
    Ok(Kind {
        profile,
        memory_mib,
        max_instances,
        available,
        path,
    })
}

/// Devices of this GPU, and those that are leaving: children of its directory with and without an
/// `mdev_type`. The host-wide list would not show the latter.
fn partitions(
    root: &HostRoot,
    proc: &Path,
    pci: PciAddress,
    kinds: &[Kind],
) -> Result<(Vec<ObservedPartition>, Vec<PartitionId>), String> {
    let folder = HostRoot::device(pci);
    let failed = |error: std::io::Error| format!("read {folder}: {error}");
    let (mut partitions, mut leaving) = (Vec::new(), Vec::new());
    let mut open = None;
    for entry in std::fs::read_dir(root.at(&folder)).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(id) = name
            .to_str()
            .filter(|name| name.len() == 36)
            .and_then(|name| name.parse::<PartitionId>().ok())
        else {
            continue;
        };
        let path = format!("{folder}/{id}");
        let kind = std::fs::read_link(root.at(&format!("{path}/mdev_type"))).ok();
        let kind = kind
            .as_deref()
            .and_then(Path::file_name)
            .and_then(|name| name.to_str().map(str::to_owned));
        let Some(kind) = kind else {
            // Unless it has gone between listing and looking.
            if root.at(&path).is_dir() {
                leaving.push(id);
            }
            continue;
        };
        let known = kinds
            .iter()
            .find(|known| known.path.ends_with(&format!("/{kind}")));
        let known = known
            .ok_or_else(|| format!("{path} is of type {kind}, which the GPU does not list"))?;
        partitions.push(ObservedPartition {
            place: Place::mdev(id),
            is_complete: true,
            profile: known.profile.clone(),
            holders: holders::of(
                root,
                open.get_or_insert_with(|| OpenGroups::read(root, proc)),
                &path,
            ),
            access: Access {
                sysfs_path: device(id),
                ..Access::default()
            },
        });
    }
    partitions.sort_by(|a, b| a.place.cmp(&b.place));
    Ok((partitions, leaving))
}
