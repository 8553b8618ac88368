//! Profiles of the modes that share a GPU in software: their names say what was asked for, since no
//! driver publishes them.

use std::fmt;

use crate::name::{InvalidName, ProfileName};

/// The profile of [`crate::operation::Mode::Whole`].
pub const WHOLE: &str = "whole";
/// The profile of [`crate::operation::Mode::Timeslice`] with the driver's default slice;
/// `timeslice-short`, `-medium` and `-long` ask for another.
pub const TIMESLICE: &str = "timeslice";
/// How [`crate::operation::Mode::Mps`] is offered; what is allocated is an [`MpsShare`].
pub const MPS: &str = "mps";

/// What one MPS client may use: `mps-8192mib-25pct`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MpsShare {
    /// Pinned device memory of one client process in MiB.
    pub memory_mib: u64,
    /// Active threads of one client process in percent, from 1 to 100.
    pub compute_percent: u8,
}

impl MpsShare {
    /// Its profile.
    #[must_use]
    pub fn profile(self) -> ProfileName {
        self.to_string()
            .parse()
            .expect("digits, letters and dashes make a profile name")
    }

    /// The share that a profile names.
    ///
    /// # Errors
    /// It names none.
    pub fn of(profile: &ProfileName) -> Result<Self, InvalidName> {
        let parse = || {
            let (memory, percent) = profile.as_str().strip_prefix("mps-")?.split_once('-')?;
            let share = Self {
                memory_mib: memory.strip_suffix("mib")?.parse().ok()?,
                compute_percent: percent.strip_suffix("pct")?.parse().ok()?,
            };
            // One spelling of one share: profiles are compared as texts.
            let is_share = share.memory_mib > 0
                && (1..=100).contains(&share.compute_percent)
                && share.to_string() == profile.as_str();
            is_share.then_some(share)
        };
        parse().ok_or(InvalidName {
            kind: "a share of MPS",
            rule: "mps-<MiB>mib-<1 to 100>pct",
        })
    }
}

impl fmt::Display for MpsShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mps-{}mib-{}pct", self.memory_mib, self.compute_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_and_its_profile_are_one() {
        let share = MpsShare {
            memory_mib: 8192,
            compute_percent: 25,
        };
        assert_eq!(share.profile().as_str(), "mps-8192mib-25pct");
        assert_eq!(MpsShare::of(&share.profile()), Ok(share));
        for other in [
            "mps",
            "mps-8192mib",
            "mps-0mib-25pct",
            "mps-1mib-0pct",
            "mps-1mib-101pct",
            "mps-08mib-25pct",
            "T4-4Q",
        ] {
            assert!(MpsShare::of(&other.parse().unwrap()).is_err(), "{other}");
        }
    }
}
