//! Why a request was placed nowhere: a class for the program, and each GPU's reason for a person.

use std::fmt;

use events::inventory::Backend;
use events::operation::Mode;
use events::{GpuUuid, HostName, ProfileName};

/// What follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// It never fits on these hosts: change the request.
    Impossible,
    /// It does not fit now: ask again when something was released.
    NoCapacity,
    /// No host has reported yet: ask again shortly.
    NoHost,
}

/// A request that was placed nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Unplaceable {
    /// The best class that any GPU gives: one that may free up makes it `NoCapacity`.
    pub class: Class,
    /// Each GPU that was looked at, in order; empty when there was none.
    pub gpus: Vec<GpuRefusal>,
    /// Profiles that would do as far as names go, for a request that named none of them.
    pub valid_profiles: Vec<ProfileName>,
}

/// One GPU's reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuRefusal {
    /// Its host.
    pub host: HostName,
    /// The GPU; `None` when the host has no such GPU or none at all.
    pub gpu: Option<GpuUuid>,
    /// Why not.
    pub why: Refusal,
}

/// Why not on this GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No GPU of the host is the one asked for.
    UnknownGpu,
    /// The host has no GPU at all.
    NoGpu,
    /// Nothing can be placed on it now; the host says why.
    Unavailable(String),
    /// No back-end that makes the kind of partition asked for.
    NoBackend {
        /// What it has.
        makes: Option<Backend>,
        /// What was asked for.
        asked: Mode,
    },
    /// Its MIG is off.
    MigOff,
    /// It does not offer the profile.
    UnknownProfile(ProfileName),
    /// No profile holds that much memory.
    NoProfileHolds {
        /// MiB asked for.
        memory_mib: u64,
    },
    /// More than the GPU holds when empty.
    TooMany {
        /// The profile.
        profile: ProfileName,
        /// Asked for.
        count: u32,
        /// How many fit on an empty GPU.
        max: u32,
    },
    /// It holds partitions of another size.
    OtherSize {
        /// Whose profile that is.
        holds: ProfileName,
    },
    /// Some room, too little.
    Full {
        /// The profile.
        profile: ProfileName,
        /// How many more fit.
        free: u32,
        /// Of how many.
        max: u32,
    },
}

impl Refusal {
    /// What follows from it, for this GPU alone.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Unavailable(_) | Self::OtherSize { .. } | Self::Full { .. } | Self::MigOff => {
                Class::NoCapacity
            }
            Self::UnknownGpu
            | Self::NoGpu
            | Self::NoBackend { .. }
            | Self::UnknownProfile(_)
            | Self::NoProfileHolds { .. }
            | Self::TooMany { .. } => Class::Impossible,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownGpu => f.write_str("the host has no such GPU"),
            Self::NoGpu => f.write_str("the host has no GPU"),
            Self::Unavailable(why) => write!(f, "unavailable: {why}"),
            Self::NoBackend { makes, asked } => f.write_str(match (makes, asked) {
                (Some(Backend::Mig), Mode::Vgpu) => {
                    "makes no vGPUs: it serves containers with MIG instances"
                }
                (Some(Backend::Mdev | Backend::Vfio), Mode::Mig) => {
                    "makes no MIG instances: it serves virtual machines with vGPUs"
                }
                (_, Mode::Mig) => "makes no MIG instances",
                _ => "makes no vGPUs",
            }),
            Self::MigOff => f.write_str("its MIG is off: `partition` it with mode mig first"),
            Self::UnknownProfile(profile) => write!(f, "does not offer {profile}"),
            Self::NoProfileHolds { memory_mib } => write!(f, "no profile holds {memory_mib} MiB"),
            Self::TooMany {
                profile,
                count,
                max,
            } => write!(f, "{count} of {profile} never fit, at most {max} do"),
            Self::OtherSize { holds } => {
                write!(f, "holds {holds}; all vGPUs of a GPU have one size")
            }
            Self::Full { profile, free, max } => write!(f, "{free} of {max} {profile} are free"),
        }
    }
}

impl fmt::Display for GpuRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.gpu {
            Some(gpu) => write!(f, "{}/{gpu}: {}", self.host, self.why),
            None => write!(f, "{}: {}", self.host, self.why),
        }
    }
}

impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.class {
            Class::Impossible => "the request never fits",
            Class::NoCapacity => "there is no room for the request now",
            Class::NoHost => "no host has reported what it has",
        })
    }
}
