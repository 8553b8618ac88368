//! How a GPU is named: UUID, PCI address in any spelling, or index; normalised at once.
//!
//! NVML prints `00000000:3D:00.0`, sysfs `0000:3d:00.0`; mixing them failed silently in other
//! products (field F02). Here the sysfs form is the only one that leaves [`PciAddress`].

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a text names no GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGpu {
    /// Not `[domain:]bus:device.function` in hexadecimal.
    #[error(
        "PCI address must be [domain:]bus:device.function in hexadecimal, such as 0000:3b:00.0"
    )]
    Pci,
    /// Not `GPU-` and a UUID.
    #[error("GPU UUID must be GPU- followed by a UUID")]
    Uuid,
    /// None of UUID, PCI address or index.
    #[error("gpu must be a GPU UUID, a PCI address or an index from 0 to 63")]
    Selector,
}

/// A PCI address; displays and serialises as sysfs spells it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// Domain, bus, device and function.
    #[must_use]
    pub fn parts(&self) -> (u32, u8, u8, u8) {
        (self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = InvalidGpu;

    fn from_str(text: &str) -> Result<Self, InvalidGpu> {
        let text = text.trim_matches([' ', '\t']);
        let mut parts = text.rsplit(':');
        let (slot, bus) = parts.next().zip(parts.next()).ok_or(InvalidGpu::Pci)?;
        let domain = parts.next().unwrap_or("0000");
        let (device, function) = slot.split_once('.').ok_or(InvalidGpu::Pci)?;
        if parts.next().is_some() || !(4..=8).contains(&domain.len()) {
            return Err(InvalidGpu::Pci);
        }
        let hex = |part: &str, digits: usize, most: u32| {
            let fits = part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
            let value = fits.then(|| u32::from_str_radix(part, 16).ok()).flatten();
            value.filter(|value| *value <= most).ok_or(InvalidGpu::Pci)
        };
        let byte = |value: u32| u8::try_from(value).map_err(|_| InvalidGpu::Pci);
        Ok(Self {
            domain: hex(domain, domain.len(), u32::MAX)?,
            bus: byte(hex(bus, 2, 0xff)?)?,
            device: byte(hex(device, 2, 0x1f)?)?,
            function: byte(hex(function, 1, 7)?)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

/// A GPU's UUID as NVML prints it, `GPU-` and a lower-case UUID.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct GpuUuid(String);

impl GpuUuid {
    /// The text, `GPU-…`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GpuUuid {
    type Err = InvalidGpu;

    fn from_str(text: &str) -> Result<Self, InvalidGpu> {
        let rest = text.strip_prefix("GPU-").ok_or(InvalidGpu::Uuid)?;
        let uuid = uuid::Uuid::try_parse(rest).map_err(|_| InvalidGpu::Uuid)?;
        if rest.len() == 36 {
            Ok(Self(format!("GPU-{uuid}")))
        } else {
            Err(InvalidGpu::Uuid)
        }
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a caller points at one GPU of a host. On the wire: a string, or an integer for the index.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RawSelector", into = "RawSelector")]
#[schemars(with = "RawSelector")]
pub enum GpuSelector {
    /// By UUID: the only form that survives a move to another slot.
    Uuid(GpuUuid),
    /// By PCI address.
    Pci(PciAddress),
    /// By NVML index, 0 to 63; indexes shift when a GPU drops out.
    Index(u8),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum RawSelector {
    Index(u8),
    Text(String),
}

impl FromStr for GpuSelector {
    type Err = InvalidGpu;

    fn from_str(text: &str) -> Result<Self, InvalidGpu> {
        if text.starts_with("GPU-") {
            return text.parse().map(Self::Uuid);
        }
        if text.contains(':') {
            return text.parse().map(Self::Pci);
        }
        let plain = !text.is_empty() && text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit());
        let index = plain
            .then(|| text.parse().ok())
            .flatten()
            .filter(|index| *index < 64);
        index.map(Self::Index).ok_or(InvalidGpu::Selector)
    }
}

impl TryFrom<RawSelector> for GpuSelector {
    type Error = InvalidGpu;

    fn try_from(raw: RawSelector) -> Result<Self, InvalidGpu> {
        match raw {
            RawSelector::Index(index) if index < 64 => Ok(Self::Index(index)),
            RawSelector::Index(_) => Err(InvalidGpu::Selector),
            RawSelector::Text(text) => text.parse(),
        }
    }
}

impl From<GpuSelector> for RawSelector {
    fn from(selector: GpuSelector) -> Self {
        match selector {
            GpuSelector::Uuid(uuid) => Self::Text(uuid.0),
            GpuSelector::Pci(pci) => Self::Text(pci.to_string()),
            GpuSelector::Index(index) => Self::Index(index),
        }
    }
}

macro_rules! text_form {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = InvalidGpu;

            fn try_from(text: String) -> Result<Self, InvalidGpu> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}
text_form!(PciAddress);
text_form!(GpuUuid);

#[cfg(test)]
mod tests {
    use super::*;

    /// field F02: every spelling reaches the same device; malformed ones never do.
    #[test]
    fn pci_addresses_normalise_to_the_sysfs_form() {
        for (text, expect) in [
            ("00000000:C1:00.0", Some("0000:c1:00.0")),
            ("0000:c1:00.0", Some("0000:c1:00.0")),
            ("C1:00.0", Some("0000:c1:00.0")),
            ("0000:C1:00.0 ", Some("0000:c1:00.0")),
            ("0000000F:01:00.0", Some("000f:01:00.0")),
            ("10000:01:00.0", Some("10000:01:00.0")),
            ("0000:c1:00.0/../0000:c2:00.0", None),
            ("0000:c1:20.0", None),
            ("0000:c1:00.8", None),
            ("000:c1:00.0", None),
            ("0:0:0:0.0", None),
            ("+000:c1:00.0", None),
            ("", None),
        ] {
            let parsed = text.parse::<PciAddress>().ok().map(|pci| pci.to_string());
            assert_eq!(parsed.as_deref(), expect, "{text:?}");
        }
    }

    #[test]
    fn selectors_tell_uuid_address_and_index_apart() {
        let uuid = "GPU-2A8B1D5E-0000-4000-8000-000000000001";
        assert!(matches!(uuid.parse(), Ok(GpuSelector::Uuid(_))));
        assert!(matches!("3b:00.0".parse(), Ok(GpuSelector::Pci(_))));
        assert_eq!("7".parse(), Ok(GpuSelector::Index(7)));
        for bad in ["64", "-1", "", "GPU-1", "+1", "0x1", "٣"] {
            assert!(bad.parse::<GpuSelector>().is_err(), "{bad:?}");
        }
    }
}
