//! Faults on demand: which calls and writes they hit, how often, and what they do. Pure; `host` carries them out.

use serde::{Deserialize, Serialize};

/// A fault to arm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// An NVML function returns a code.
    Nvml {
        /// Symbol; without version suffix it means every version; `*` means every function.
        function: String,
        /// `nvmlReturn_t`; 19 is IN_USE.
        code: u32,
        /// Which calls.
        #[serde(flatten)]
        window: Window,
    },
    /// An NVML function takes its time.
    NvmlDelay {
        /// As for `nvml`.
        function: String,
        /// Delay in ms.
        ms: u64,
        /// Which calls.
        #[serde(flatten)]
        window: Window,
    },
    /// A write returns an errno.
    Write {
        /// End of the path as written, `create` or `nvidia-232/create` or `<uuid>/remove`.
        path_suffix: String,
        /// The errno.
        errno: i32,
        /// `after`: what was asked for has happened all the same.
        #[serde(default)]
        effect: Effect,
        /// Which writes.
        #[serde(flatten)]
        window: Window,
    },
    /// A write takes its time.
    WriteDelay {
        /// As for `write`.
        path_suffix: String,
        /// Delay in ms.
        ms: u64,
        /// On which side of the effect.
        #[serde(default)]
        effect: Effect,
        /// Which writes.
        #[serde(flatten)]
        window: Window,
    },
    /// A write does not go on until `release`: the place to kill the writer.
    WriteHold {
        /// As for `write`.
        path_suffix: String,
        /// On which side of the effect.
        #[serde(default)]
        effect: Effect,
        /// Which writes.
        #[serde(flatten)]
        window: Window,
    },
    /// A GPU falls off the bus until the reboot.
    GpuLost {
        /// UUID, PCI address or index.
        gpu: String,
    },
    /// Disarms everything, and brings lost GPUs back.
    Clear {},
}

/// On which side of its effect a fault hits a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing has happened.
    #[default]
    Before,
    /// It has happened.
    After,
}

/// Which of the matching calls a fault hits, counted from when it was armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The first one hit, from 1.
    #[serde(default = "one")]
    pub nth: u64,
    /// How many from there on; 0 for all.
    #[serde(default = "one")]
    pub times: u64,
}

fn one() -> u64 {
    1
}

impl Default for Window {
    /// The next one.
    fn default() -> Self {
        Self { nth: 1, times: 1 }
    }
}

impl Window {
    /// The call with this number.
    #[must_use]
    pub fn nth(nth: u64) -> Self {
        Self { nth, times: 1 }
    }

    /// The next `times` calls.
    #[must_use]
    pub fn times(times: u64) -> Self {
        Self { nth: 1, times }
    }

    /// Every call.
    #[must_use]
    pub fn always() -> Self {
        Self { nth: 1, times: 0 }
    }

    fn hits(self, count: u64) -> bool {
        count >= self.nth && (self.times == 0 || count - self.nth < self.times)
    }
}

/// The armed faults with their counts.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<(Fault, u64)>,
}

/// What a fault does to a write on one side of its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFault {
    Errno(i32),
    Delay(u64),
    Hold,
}

/// What faults do to an NVML call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NvmlFaults {
    pub(crate) delay_ms: u64,
    pub(crate) code: Option<u32>,
}

impl Faults {
    /// Arms a fault of calls or writes; the others are the host's.
    pub(crate) fn arm(&mut self, fault: Fault) {
        self.armed.push((fault, 0));
    }

    pub(crate) fn clear(&mut self) {
        self.armed.clear();
    }

    /// Forgets the faults that hold writes.
    pub(crate) fn drop_holds(&mut self) {
        self.armed
            .retain(|(fault, _)| !matches!(fault, Fault::WriteHold { .. }));
    }

    /// Counts an NVML call and says what becomes of it.
    pub(crate) fn on_nvml(&mut self, function: &str) -> NvmlFaults {
        let mut faults = NvmlFaults::default();
        for (fault, count) in &mut self.armed {
            let (Fault::Nvml {
                function: wanted,
                window,
                ..
            }
            | Fault::NvmlDelay {
                function: wanted,
                window,
                ..
            }) = &*fault
            else {
                continue;
            };
            if !names(wanted, function) {
                continue;
            }
            *count += 1;
            if window.hits(*count) {
                match fault {
                    Fault::Nvml { code, .. } => faults.code = faults.code.or(Some(*code)),
                    Fault::NvmlDelay { ms, .. } => faults.delay_ms += *ms,
                    _ => {}
                }
            }
        }
        faults
    }

    /// Counts a write and says what hits it, on which side, in the order of arming.
    pub(crate) fn on_write(&mut self, path: &str) -> Vec<(Effect, WriteFault)> {
        let mut hits = Vec::new();
        for (fault, count) in &mut self.armed {
            let (suffix, window, effect, what) = match fault {
                Fault::Write {
                    path_suffix,
                    errno,
                    effect,
                    window,
                } => (path_suffix, window, effect, WriteFault::Errno(*errno)),
                Fault::WriteDelay {
                    path_suffix,
                    ms,
                    effect,
                    window,
                } => (path_suffix, window, effect, WriteFault::Delay(*ms)),
                Fault::WriteHold {
                    path_suffix,
                    effect,
                    window,
                } => (path_suffix, window, effect, WriteFault::Hold),
                _ => continue,
            };
            if path.ends_with(suffix.as_str()) {
                *count += 1;
                if window.hits(*count) {
                    hits.push((*effect, what));
                }
            }
        }
        hits
    }
}

/// Whether `wanted` means `function`, its version suffix aside.
fn names(wanted: &str, function: &str) -> bool {
    let base = |name: &str| -> String {
        match name.rsplit_once("_v") {
            Some((base, digits)) if digits.bytes().all(|each| each.is_ascii_digit()) => {
                base.to_owned()
            }
            _ => name.to_owned(),
        }
    };
    wanted == "*" || wanted == function || wanted == base(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_counts_from_one_and_zero_times_is_for_ever() {
        for (window, expect) in [
            (Window::default(), vec![1]),
            (Window::nth(3), vec![3]),
            (Window::times(2), vec![1, 2]),
            (Window { nth: 2, times: 2 }, vec![2, 3]),
            (Window { nth: 3, times: 0 }, vec![3, 4, 5]),
        ] {
            let hit: Vec<u64> = (1..=5).filter(|count| window.hits(*count)).collect();
            assert_eq!(hit, expect, "{window:?}");
        }
    }

    #[test]
    fn function_names_match_with_and_without_version() {
        for (wanted, function, expect) in [
            ("nvmlDeviceGetName", "nvmlDeviceGetName", true),
            (
                "nvmlDeviceGetMemoryInfo",
                "nvmlDeviceGetMemoryInfo_v2",
                true,
            ),
            (
                "nvmlDeviceGetMemoryInfo_v2",
                "nvmlDeviceGetMemoryInfo",
                false,
            ),
            (
                "nvmlDeviceGetMemoryInfo_v2",
                "nvmlDeviceGetMemoryInfo_v2",
                true,
            ),
            ("*", "nvmlInit_v2", true),
            ("nvmlDeviceGet", "nvmlDeviceGetName", false),
        ] {
            assert_eq!(names(wanted, function), expect, "{wanted} {function}");
        }
    }

    #[test]
    fn writes_are_hit_by_path_suffix_in_order_of_arming() {
        let mut faults = Faults::default();
        faults.arm(Fault::WriteHold {
            path_suffix: "create".into(),
            effect: Effect::Before,
            window: Window::nth(2),
        });
        faults.arm(Fault::Write {
            path_suffix: "nvidia-232/create".into(),
            errno: 5,
            effect: Effect::After,
            window: Window::always(),
        });
        assert_eq!(faults.on_write("/x/nvidia-230/create"), []);
        assert_eq!(
            faults.on_write("/x/nvidia-232/create"),
            [
                (Effect::Before, WriteFault::Hold),
                (Effect::After, WriteFault::Errno(5))
            ]
        );
        faults.drop_holds();
        assert_eq!(
            faults.on_write("/x/nvidia-232/create"),
            [(Effect::After, WriteFault::Errno(5))]
        );
        faults.clear();
        assert_eq!(faults.on_write("/x/nvidia-232/create"), []);
    }

    #[test]
    fn fault_reads_from_the_shortest_json_that_says_it() {
        let fault: Fault =
            serde_json::from_str(r#"{"write":{"path_suffix":"create","errno":5}}"#).unwrap();
        assert_eq!(
            fault,
            Fault::Write {
                path_suffix: "create".into(),
                errno: 5,
                effect: Effect::Before,
                window: Window::default()
            }
        );
    }
}
