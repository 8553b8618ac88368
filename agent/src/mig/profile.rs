//! What MIG profiles are called. The driver tells names in newer libraries; in older ones the name is
//! made of what the profile has, as NVIDIA's own tools make it. Names drift between drivers (3g.39gb
//! and 3g.40gb, NVIDIA/mig-parted#31), so that they are looked up anew each time and never kept as ids.

use events::ProfileName;

use crate::nvml::raw::GpuInstanceProfile;

/// Variants of a profile, by its index in nvml.h.
const SUFFIXES: [(u32, &str); 9] = [
    (7, "+me"),
    (8, "+me"),
    (10, "+gfx"),
    (11, "+gfx"),
    (12, "+gfx"),
    (13, "-me"),
    (14, "-me"),
    (15, "+me.all"),
    (16, "+me.all"),
];

/// Profiles by name, on a board with `total_mib` of memory; one whose name cannot be told is left out.
pub(super) fn named(
    profiles: Vec<GpuInstanceProfile>,
    total_mib: Option<u64>,
) -> Vec<(ProfileName, GpuInstanceProfile)> {
    let largest = profiles.iter().map(|profile| profile.memory_mib).max();
    let total_mib = total_mib.or(largest).unwrap_or(0).max(1);
    let name = |profile: &GpuInstanceProfile| {
        let told = profile.name.as_deref();
        let told = told.map(|name| name.strip_prefix("MIG ").unwrap_or(name).to_owned());
        told.unwrap_or_else(|| made(profile, total_mib))
    };
    profiles
        .into_iter()
        .filter_map(|profile| Some((name(&profile).parse().ok()?, profile)))
        .collect()
}

/// `1g.10gb`: slices, and memory as eighths of the board's, rounded up, of its whole GB
/// (NVIDIA/go-nvlib `getMigMemorySizeGB`).
fn made(profile: &GpuInstanceProfile, total_mib: u64) -> String {
    let suffix = SUFFIXES
        .iter()
        .find(|(index, _)| *index == profile.index)
        .map_or("", |(_, suffix)| suffix);
    let eighths = (profile.memory_mib * 8).div_ceil(total_mib);
    let gb = (eighths * total_mib.div_ceil(1024) + 4) / 8;
    format!("{}g.{gb}gb{suffix}", profile.slices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(index: u32, slices: u32, memory_mib: u64) -> GpuInstanceProfile {
        GpuInstanceProfile {
            index,
            id: 0,
            slices,
            instances: 1,
            memory_mib,
            name: None,
        }
    }

    /// Memory as `nvidia-smi mig -lgip` prints it on A100 40 and 80, H100 80, A30.
    #[test]
    fn names_are_nvidia_s_own() {
        for (total, parts) in [
            (
                40960,
                &[
                    (0, 1, 4864, "1g.5gb"),
                    (7, 1, 4864, "1g.5gb+me"),
                    (9, 1, 9856, "1g.10gb"),
                    (1, 2, 9856, "2g.10gb"),
                    (2, 3, 19968, "3g.20gb"),
                    (3, 4, 19968, "4g.20gb"),
                    (4, 7, 40192, "7g.40gb"),
                ][..],
            ),
            (
                81920,
                &[
                    (0, 1, 9728, "1g.10gb"),
                    (1, 2, 19968, "2g.20gb"),
                    (2, 3, 40192, "3g.40gb"),
                    (4, 7, 80384, "7g.80gb"),
                ],
            ),
            (
                81559,
                &[
                    (0, 1, 9984, "1g.10gb"),
                    (9, 1, 20096, "1g.20gb"),
                    (2, 3, 40448, "3g.40gb"),
                    (4, 7, 81152, "7g.80gb"),
                ],
            ),
            (
                24576,
                &[
                    (0, 1, 5836, "1g.6gb"),
                    (1, 2, 11672, "2g.12gb"),
                    (3, 4, 24000, "4g.24gb"),
                ],
            ),
        ] {
            let all: Vec<_> = parts
                .iter()
                .map(|(index, slices, memory, _)| profile(*index, *slices, *memory))
                .collect();
            for ((name, _), (.., expect)) in named(all, Some(total)).iter().zip(parts) {
                assert_eq!(name.as_str(), *expect);
            }
        }
    }

    #[test]
    fn a_name_that_the_driver_tells_wins() {
        let mut told = profile(0, 1, 9984);
        told.name = Some("MIG 1g.12gb".to_owned());
        assert_eq!(named(vec![told], Some(81559))[0].0.as_str(), "1g.12gb");
    }
}
