//! The errno tables of mdev (gpu facts §1.3, §1.5; observed kernel in kernel facts §1), in words.

use std::io;

use events::Code;

use super::fail;
use super::sysfs::{Kind, Tree};
use crate::partitioner::{Class, PartitionError};

/// What a failed write to `create` means, judged with what the GPU holds now.
pub(super) fn create(error: &io::Error, path: &str, kind: &Kind, now: &Tree) -> PartitionError {
    let told =
        |code, class, text: &str| fail(code, class, format!("create at {path}: {text} ({error})"));
    match error.raw_os_error() {
        // NVIDIA answers EIO for capacity and for another size alike; sample drivers ENOSPC or EUSERS.
        Some(libc::EIO | libc::ENOSPC | libc::EUSERS) => {
            let size = |profile: &events::ProfileName| {
                now.profiles
                    .iter()
                    .find(|offer| offer.profile == *profile)
                    .map(|offer| offer.memory_mib)
            };
            let other = now
                .partitions
                .iter()
                .find(|seen| size(&seen.profile).is_some_and(|mib| mib != kind.memory_mib));
            let offer = now
                .profiles
                .iter()
                .find(|offer| offer.profile == kind.profile);
            match (other, offer) {
                (Some(other), _) => {
                    let text = format!(
                        "the GPU already holds {} ({} in use); all vGPUs of one GPU have the same size",
                        other.profile,
                        now.partitions.len()
                    );
                    told(Code::SizeMismatch, Class::Refuse, &text)
                }
                (None, Some(offer)) if offer.available == 0 => {
                    told(Code::NoCapacity, Class::Refuse, "the GPU is full")
                }
                _ => told(
                    Code::DriverError,
                    Class::Refuse,
                    "the driver refused, though there is room: see the kernel log (NVRM)",
                ),
            }
        }
        Some(libc::EEXIST) => told(
            Code::DriverError,
            Class::Refuse,
            "a device with this UUID exists already on this host",
        ),
        Some(libc::EINVAL) => told(
            Code::Internal,
            Class::Bug,
            "the kernel does not take the UUID",
        ),
        Some(libc::ENODEV | libc::ENOENT) => told(
            Code::DriverError,
            Class::Retry,
            "the GPU's vGPU types are going away: the driver is being unloaded",
        ),
        Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY | libc::EINTR) => told(
            Code::DriverError,
            Class::Retry,
            "the kernel is short of something for a moment",
        ),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => told(
            Code::DriverError,
            Class::Refuse,
            "not permitted: the agent needs root and a writable /sys",
        ),
        _ => told(Code::DriverError, Class::Refuse, "the write failed"),
    }
}

/// What a failed write to `remove` means.
pub(super) fn remove(error: &io::Error, path: &str) -> PartitionError {
    let told =
        |code, class, text: &str| fail(code, class, format!("remove at {path}: {text} ({error})"));
    match error.raw_os_error() {
        Some(libc::EPERM) => told(Code::InUse, Class::Refuse, "a VM holds the device"),
        Some(libc::EBUSY) => told(
            Code::InUse,
            Class::Retry,
            "the VM has gone, its plugin has not yet",
        ),
        Some(libc::EAGAIN) => told(
            Code::DriverError,
            Class::Retry,
            "another removal is under way",
        ),
        Some(libc::ENODEV | libc::ENOENT) => {
            told(Code::DriverError, Class::Retry, "it is already going")
        }
        Some(libc::EIO) => told(
            Code::DriverError,
            Class::Retry,
            "the driver could not delete the vGPU",
        ),
        Some(libc::EACCES | libc::EROFS) => told(
            Code::DriverError,
            Class::Refuse,
            "not permitted: the agent needs root and a writable /sys",
        ),
        _ => told(Code::DriverError, Class::Refuse, "the write failed"),
    }
}
