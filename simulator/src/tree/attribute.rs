//! From a path in the simulated host to the attribute that a writer means, with the errno of an `open` that fails.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rustix::io::Errno;
use uuid::Uuid;

use crate::pci::PciAddress;

/// An attribute that takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attribute {
    /// `mdev_supported_types/nvidia-<id>/create`
    Create { parent: PciAddress, type_id: u32 },
    /// `<uuid>/remove`
    Remove { uuid: Uuid },
    /// `<uuid>/nvidia/vgpu_params`
    Params { uuid: Uuid },
    /// Writable on hardware, without a meaning here.
    Inert,
}

/// Opens `path` for writing.
pub(super) fn open(root: &Path, path: &str) -> Result<Attribute, Errno> {
    // A NUL cannot come from an `open`, and `canonicalize` would answer EINVAL for it.
    let path = path.strip_prefix('/').ok_or(Errno::NOENT)?;
    let real = root
        .join(path)
        .canonicalize()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?;
    // Links of the tree are relative and stay inside; `..` may lead out.
    let inside = real.strip_prefix(root).map_err(|_| Errno::NOENT)?;
    let metadata = fs::metadata(&real)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT))?;
    if metadata.is_dir() {
        return Err(Errno::ISDIR);
    }
    // sysfs refuses to open a read-only attribute for writing, for root too.
    if metadata.permissions().mode() & 0o222 == 0 {
        return Err(Errno::ACCESS);
    }
    let names: Vec<&str> = inside.iter().filter_map(|each| each.to_str()).collect();
    Ok(classify(&names).unwrap_or(Attribute::Inert))
}

fn classify(names: &[&str]) -> Option<Attribute> {
    let ["sys", "devices", _, parent, rest @ ..] = names else {
        return None;
    };
    match rest {
        ["mdev_supported_types", vgpu_type, "create"] => Some(Attribute::Create {
            parent: parent.parse().ok()?,
            type_id: vgpu_type.strip_prefix("nvidia-")?.parse().ok()?,
        }),
        [uuid, "remove"] => Some(Attribute::Remove {
            uuid: uuid.parse().ok()?,
        }),
        [uuid, "nvidia", "vgpu_params"] => Some(Attribute::Params {
            uuid: uuid.parse().ok()?,
        }),
        _ => None,
    }
}
