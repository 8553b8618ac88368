//! Settings of one GPU: what `tune` asks for, and what was read back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::{object, optional_object};
use crate::operation::HostTarget;

/// `tune`: settings of one GPU. What is not named stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tune {
    /// The host and its GPU.
    #[serde(deserialize_with = "object")]
    pub target: HostTarget,
    /// Power limit in milliwatts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_mw: Option<u64>,
    /// Policy of the vGPU scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerPolicy>,
    /// Time slice of the vGPU scheduler in microseconds (NVML has nanoseconds), for `equal_share` and
    /// `fixed_share`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeslice_us: Option<u64>,
    /// Range that the GPU clock is locked to.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_object"
    )]
    pub gpu_clock_mhz: Option<ClockRange>,
    /// Range that the memory clock is locked to.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_object"
    )]
    pub memory_clock_mhz: Option<ClockRange>,
    /// Error correction; takes effect at the GPU's next reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc: Option<Switch>,
    /// Persistence mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Switch>,
    /// Restore what was found before the first `tune`, instead of setting anything.
    #[serde(default)]
    pub defaults: bool,
}

/// Policies of the vGPU scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerPolicy {
    /// Whoever has work runs.
    BestEffort,
    /// Equal shares among the vGPUs that run.
    EqualShare,
    /// A share fixed by the vGPU's size, whether others run or not.
    FixedShare,
}

/// A range of clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClockRange {
    /// Lowest, in MHz.
    pub min: u32,
    /// Highest, in MHz.
    pub max: u32,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// Settings of a GPU as read; what it does not have is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// Power limit in milliwatts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_mw: Option<u64>,
    /// Policy of the vGPU scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerPolicy>,
    /// Time slice of the vGPU scheduler in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeslice_us: Option<u64>,
    /// Range that the GPU clock is locked to; absent when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_clock_mhz: Option<ClockRange>,
    /// Range that the memory clock is locked to; absent when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<ClockRange>,
    /// Error correction as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc: Option<Switch>,
    /// Error correction after the next reset, where that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_pending: Option<Switch>,
    /// Persistence mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Switch>,
}

impl Tune {
    /// Where its fields contradict each other or a unit cannot be meant, as pointer and sentence. What
    /// a GPU takes is judged on its host, by its own constraints.
    #[must_use]
    pub fn problems(&self) -> Vec<(&'static str, &'static str)> {
        let names_something = self.power_limit_mw.is_some()
            || self.scheduler.is_some()
            || self.timeslice_us.is_some()
            || self.gpu_clock_mhz.is_some()
            || self.memory_clock_mhz.is_some()
            || self.ecc.is_some()
            || self.persistence.is_some();
        let is_range = |range: Option<ClockRange>| {
            range.is_none_or(|range| 0 < range.min && range.min <= range.max)
        };
        let has_slices = |policy| policy != SchedulerPolicy::BestEffort;
        [
            (
                names_something != self.defaults,
                "/defaults",
                "name settings, or set defaults to true",
            ),
            (
                self.target.gpu.is_some(),
                "/target/gpu",
                "name the GPU: settings are one GPU's",
            ),
            (
                // A watt, and more than any board draws: beyond it the unit was another.
                self.power_limit_mw
                    .is_none_or(|mw| (1_000..=10_000_000).contains(&mw)),
                "/power_limit_mw",
                "must be from 1000 to 10000000 milliwatts",
            ),
            (
                // RmPVMRL has one to thirty milliseconds (vGPU user guide).
                self.timeslice_us
                    .is_none_or(|us| (1_000..=30_000).contains(&us)),
                "/timeslice_us",
                "must be from 1000 to 30000 microseconds",
            ),
            (
                self.timeslice_us.is_none() || self.scheduler.is_none_or(has_slices),
                "/timeslice_us",
                "best_effort has no time slice",
            ),
            (
                is_range(self.gpu_clock_mhz),
                "/gpu_clock_mhz",
                "min must be above 0 and not above max",
            ),
            (
                is_range(self.memory_clock_mhz),
                "/memory_clock_mhz",
                "min must be above 0 and not above max",
            ),
        ]
        .into_iter()
        .filter(|(good, ..)| !good)
        .map(|(_, pointer, detail)| (pointer, detail))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<&'static str> {
        let tune: Tune = serde_json::from_str(text).unwrap();
        tune.problems()
            .into_iter()
            .map(|(pointer, _)| pointer)
            .collect()
    }

    #[test]
    fn contradictions_and_wrong_units_are_told_by_field() {
        for (fields, expect) in [
            (r#""power_limit_mw":250000"#, &[][..]),
            (r#""defaults":true"#, &[]),
            (r#""defaults":false"#, &["/defaults"]),
            (r#""defaults":true,"ecc":"off""#, &["/defaults"]),
            (r#""power_limit_mw":250"#, &["/power_limit_mw"]),
            (r#""timeslice_us":2000000"#, &["/timeslice_us"]),
            (
                r#""scheduler":"best_effort","timeslice_us":2000"#,
                &["/timeslice_us"],
            ),
            (
                r#""gpu_clock_mhz":{"min":900,"max":800}"#,
                &["/gpu_clock_mhz"],
            ),
        ] {
            let text = format!(r#"{{"target":{{"host":"gpu-1","gpu":0}},{fields}}}"#);
            assert_eq!(problems(&text), expect, "{fields}");
        }
        assert_eq!(
            problems(r#"{"target":{"host":"gpu-1"},"defaults":true}"#),
            ["/target/gpu"]
        );
    }
}
