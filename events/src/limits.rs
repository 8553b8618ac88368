//! What the processes around one partition may use of the host: the `limits` of an allocation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of one partition's control group. Absent means unlimited by us.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory in MiB, 4 to 16,777,216.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 4, max = 16_777_216))]
    pub memory_mib: Option<u64>,
    /// Swap in MiB *on top of* memory; needs `memory_mib` (field F03: v1 counts both together).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 16_777_216))]
    pub swap_mib: Option<u64>,
    /// CPU time as a number of CPUs, fractions allowed, 0.01 to 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Which CPUs (and, with `auto`, which memory node).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<Cpuset>,
    /// Number of tasks, 1 to 4,194,304.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4_194_304))]
    pub pids: Option<u64>,
    /// Block IO bandwidth; vocabulary only, answered `not_supported` by agents without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoLimits>,
}

/// Block IO bandwidth of a group, in bytes per second.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IoLimits {
    /// Reads, bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_s: Option<u64>,
    /// Writes, bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_s: Option<u64>,
}

/// A CPU share held in thousandths, so that equality and hashing are exact.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "f64", into = "f64")]
#[schemars(with = "f64")]
pub struct Cpus {
    /// Thousandths of one CPU, 10 to 1,024,000.
    pub milli: u32,
}

impl TryFrom<f64> for Cpus {
    type Error = String;

    fn try_from(cpus: f64) -> Result<Self, String> {
        let milli = (cpus * 1000.0).round();
        if !(10.0..=1_024_000.0).contains(&milli) {
            return Err("cpus must be from 0.01 to 1024".to_owned());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "range checked above"
        )]
        Ok(Self {
            milli: milli as u32,
        })
    }
}

impl From<Cpus> for f64 {
    fn from(cpus: Cpus) -> Self {
        Self::from(cpus.milli) / 1000.0
    }
}

/// Which CPUs a group may run on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Cpuset {
    /// The CPUs and the memory node next to the GPU.
    Auto,
    /// A kernel CPU list, kept normalised: `0-1,4`.
    List(CpuList),
}

impl TryFrom<String> for Cpuset {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "auto" {
            Ok(Self::Auto)
        } else {
            text.parse().map(Self::List)
        }
    }
}

impl From<Cpuset> for String {
    fn from(cpuset: Cpuset) -> Self {
        match cpuset {
            Cpuset::Auto => "auto".to_owned(),
            Cpuset::List(list) => list.to_string(),
        }
    }
}

/// A non-empty set of CPU (or memory node) numbers below 8192, in the kernel's list format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(std::collections::BTreeSet<u16>);

impl CpuList {
    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().copied()
    }

    /// Whether every number of `other` is in this list.
    #[must_use]
    pub fn contains_all(&self, other: &Self) -> bool {
        other.0.is_subset(&self.0)
    }
}

impl std::str::FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || "cpuset must be 'auto' or a list such as 0-3,8 of numbers below 8192".to_owned();
        let number = |part: &str| {
            let plain = (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
            plain
                .then(|| part.parse::<u16>().ok())
                .flatten()
                .filter(|n| *n < 8192)
                .ok_or_else(bad)
        };
        let mut set = std::collections::BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad());
            }
            set.extend(first..=last);
        }
        Ok(Self(set))
    }
}

impl std::fmt::Display for CpuList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut numbers = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = numbers.next() {
            let mut last = first;
            while let Some(next) = numbers.next_if(|next| *next == last + 1) {
                last = next;
            }
            if first == last {
                write!(f, "{comma}{first}")?
            } else {
                write!(f, "{comma}{first}-{last}")?
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_normalise_and_refuse_nonsense() {
        for (text, expect) in [
            ("0-1", Some("0-1")),
            ("1,0", Some("0-1")),
            ("4,0-1", Some("0-1,4")),
            ("3", Some("3")),
            ("", None),
            ("1-0", None),
            ("x", None),
            ("0-", None),
            ("8192", None),
            ("0,,1", None),
            ("+1", None),
            (" 1", None),
        ] {
            assert_eq!(
                text.parse::<CpuList>()
                    .ok()
                    .map(|list| list.to_string())
                    .as_deref(),
                expect,
                "{text:?}"
            );
        }
    }

    #[test]
    fn cpus_keep_thousandths() {
        let limits: Limits = serde_json::from_str(r#"{"cpus":1.5,"cpuset":"auto"}"#).unwrap();
        assert_eq!(limits.cpus.unwrap().milli, 1500);
        for bad in [
            r#"{"cpus":0}"#,
            r#"{"cpus":-1}"#,
            r#"{"cpus":1e9}"#,
            r#"{"cpuz":1}"#,
            r#"{"cpuset":"0-x"}"#,
        ] {
            assert!(serde_json::from_str::<Limits>(bad).is_err(), "{bad}");
        }
    }
}
