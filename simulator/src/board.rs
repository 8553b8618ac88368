//! A board model as the driver knows it: identity, memory, and the vGPU types that it publishes.
//! Boards are data (`simulator/boards/*.toml`, each field with its source); no rule about how types combine lives here.

use serde::{Deserialize, Serialize};

/// The boards that this build knows. A new board is a new file and a line here.
const BUILTIN: &[&str] = &[
    include_str!("../boards/t4.toml"),
    include_str!("../boards/v100.toml"),
    include_str!("../boards/v100d.toml"),
    include_str!("../boards/a30.toml"),
    include_str!("../boards/a100-40.toml"),
    include_str!("../boards/a100-80.toml"),
    include_str!("../boards/h100-80.toml"),
    include_str!("../boards/h200.toml"),
];

/// One board model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// Model as vGPU type names spell it, `T4`.
    pub name: String,
    /// Product name as NVML prints it, `Tesla T4`.
    pub product: String,
    /// NVML's architecture number; 6 is Turing.
    pub architecture: u32,
    /// CUDA compute capability, major and minor.
    pub compute_capability: [i32; 2],
    /// PCI vendor, always NVIDIA's 0x10de.
    pub pci_vendor: u16,
    /// PCI device id.
    pub pci_device: u16,
    /// PCI subsystem vendor.
    pub pci_subsystem_vendor: u16,
    /// PCI subsystem device.
    pub pci_subsystem_device: u16,
    /// PCI class, 24 bits.
    pub pci_class: u32,
    /// PCI revision.
    pub pci_revision: u8,
    /// Video BIOS version.
    pub vbios: String,
    /// Frame buffer that NVML reports as total, in MiB.
    pub memory_mib: u64,
    /// Part of it that the driver keeps, in MiB.
    pub reserved_mib: u64,
    /// BAR1 aperture in MiB.
    pub bar1_mib: u64,
    /// Default and maximum power limit in mW.
    pub power_limit_mw: u32,
    /// Lowest power limit in mW.
    pub power_limit_min_mw: u32,
    /// Power draw of the idle board in mW.
    pub idle_power_mw: u32,
    /// Temperature of the idle board in degrees Celsius.
    pub idle_temperature_c: u32,
    /// Highest SM clock in MHz.
    pub max_sm_clock_mhz: u32,
    /// Highest memory clock in MHz.
    pub max_memory_clock_mhz: u32,
    /// Every published vGPU type, in id order or not.
    #[serde(default)]
    pub vgpu_types: Vec<VgpuType>,
    /// How it is cut into GPU instances; absent where it cannot be.
    #[serde(default)]
    pub mig: Option<MigBoard>,
}

/// How a board is cut into GPU instances.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigBoard {
    /// Memory slices that placements are counted in.
    pub memory_slices: u32,
    /// Whether the mode is kept in the InfoROM.
    pub mode_survives_reboot: bool,
    /// Every GPU instance profile.
    pub profiles: Vec<MigProfile>,
}

/// One GPU instance profile of a board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigProfile {
    /// Index in nvml.h.
    pub index: u32,
    /// What calls other than the profile's own take.
    pub id: u32,
    /// Name without `MIG `.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// Instances on one board.
    pub instances: u32,
    /// Memory of one instance in MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors of one instance.
    pub multiprocessors: u32,
    /// Its other engines.
    pub engines: Engines,
    /// First memory slices that it may lie at, in the order in which the driver prefers them.
    pub starts: Vec<u32>,
    /// Memory slices that it takes.
    pub size: u32,
}

/// Engines of a GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engines {
    /// Copy engines.
    pub copy: u32,
    /// Video decoders.
    pub decoder: u32,
    /// Video encoders.
    pub encoder: u32,
    /// JPEG decoders.
    pub jpeg: u32,
    /// Optical flow accelerators.
    pub ofa: u32,
}

/// One vGPU type of a board.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VgpuType {
    /// Type id, the number in `nvidia-<id>`.
    pub id: u32,
    /// Name without the brand, `T4-4Q`.
    pub name: String,
    /// NVML class: `Quadro`, `NVS` or `Compute`.
    pub class: String,
    /// Frame buffer of one instance in MiB.
    pub framebuffer_mib: u64,
    /// Instances that fit on one board, from the published table.
    pub max_instances: u32,
    /// Display heads.
    pub heads: u32,
    /// Frame rate limit in frames per second.
    pub frame_rate_limit: u32,
    /// Largest resolution of one head, width and height.
    pub max_resolution: [u32; 2],
    /// PCI subsystem id that the guest sees.
    pub subsystem_id: u16,
    /// Licence features, `name,version` separated by semicolons.
    pub license: String,
}

impl Board {
    /// The board called `name`, if this build knows it.
    #[must_use]
    pub fn builtin(name: &str) -> Option<Self> {
        BUILTIN
            .iter()
            .map(|text| {
                toml::from_str::<Self>(text).expect("shipped boards parse: a unit test reads each")
            })
            .find(|board| board.name == name)
    }

    /// The vGPU type with this id.
    #[must_use]
    pub fn vgpu_type(&self, id: u32) -> Option<&VgpuType> {
        self.vgpu_types.iter().find(|each| each.id == id)
    }
}

impl VgpuType {
    /// Directory of the type under `mdev_supported_types`.
    #[must_use]
    pub fn directory(&self) -> String {
        format!("nvidia-{}", self.id)
    }

    /// The `description` attribute, one line.
    #[must_use]
    pub fn description(&self) -> String {
        let [width, height] = self.max_resolution;
        format!(
            "num_heads={}, frl_config={}, framebuffer={}M, max_resolution={width}x{height}, max_instance={}",
            self.heads, self.frame_rate_limit, self.framebuffer_mib, self.max_instances
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_board_parses_and_its_type_ids_are_unique() {
        for text in BUILTIN {
            let board: Board = toml::from_str(text).unwrap();
            let mut ids: Vec<u32> = board.vgpu_types.iter().map(|each| each.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), board.vgpu_types.len(), "{}", board.name);
        }
    }

    #[test]
    fn t4_publishes_seventeen_types_with_the_table_of_maxima() {
        let t4 = Board::builtin("T4").unwrap();
        assert_eq!(t4.vgpu_types.len(), 17);
        for (name, id, framebuffer_mib, max) in [
            ("T4-1Q", 230, 1024, 16),
            ("T4-2B4", 224, 2048, 8),
            ("T4-4Q", 232, 4096, 4),
            ("T4-8C", 320, 8192, 2),
            ("T4-16A", 229, 16384, 1),
        ] {
            let found = t4.vgpu_type(id).unwrap();
            assert_eq!(
                (
                    found.name.as_str(),
                    found.framebuffer_mib,
                    found.max_instances
                ),
                (name, framebuffer_mib, max)
            );
        }
    }

    #[test]
    fn both_v100_publish_their_own_ids_and_maxima() {
        let (small, large) = (
            Board::builtin("V100").unwrap(),
            Board::builtin("V100D").unwrap(),
        );
        assert_eq!((small.vgpu_types.len(), large.vgpu_types.len()), (17, 20));
        for (board, name, id, max) in [
            (&small, "V100-1Q", 105, 16),
            (&small, "V100-8Q", 108, 2),
            (&small, "V100-2B", 163, 8),
            (&small, "V100-16C", 301, 1),
            (&large, "V100D-1Q", 180, 32),
            (&large, "V100D-4Q", 182, 8),
            (&large, "V100D-32Q", 185, 1),
            (&large, "V100D-16C", 313, 2),
        ] {
            let found = board.vgpu_type(id).unwrap();
            assert_eq!((found.name.as_str(), found.max_instances), (name, max));
            assert!(
                found.framebuffer_mib * u64::from(max) <= board.memory_mib,
                "{name}: what the table says fits its board"
            );
        }
    }

    #[test]
    fn description_is_the_line_that_a_real_t4_prints() {
        let t4 = Board::builtin("T4").unwrap();
        assert_eq!(
            t4.vgpu_type(222).unwrap().description(),
            "num_heads=4, frl_config=45, framebuffer=1024M, max_resolution=5120x2880, max_instance=16"
        );
    }
}
