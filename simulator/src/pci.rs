//! PCI addresses in the two spellings that Linux and NVML use.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A PCI function: domain, bus, device, function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

/// Not a PCI address.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a PCI address such as 0000:3b:00.0")]
pub struct NotPciAddress(String);

impl PciAddress {
    /// NVML's spelling: eight digits of domain, capitals (`00000000:3B:00.0`).
    #[must_use]
    pub fn nvml(self) -> String {
        format!(
            "{:08X}:{:02X}:{:02X}.{:X}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl fmt::Display for PciAddress {
    /// sysfs' spelling: four digits of domain, lower case (`0000:3b:00.0`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl FromStr for PciAddress {
    type Err = NotPciAddress;

    /// Accepts every spelling that NVML accepts: any case, domain of any length or none.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut parts = rest.rsplit(':');
            let device = u8::from_str_radix(parts.next()?, 16).ok()?;
            let bus = u8::from_str_radix(parts.next()?, 16).ok()?;
            let domain = parts
                .next()
                .map_or(Some(0), |each| u32::from_str_radix(each, 16).ok())?;
            let function = u8::from_str_radix(function, 16).ok()?;
            (parts.next().is_none() && device < 32 && function < 8).then_some(Self {
                domain,
                bus,
                device,
                function,
            })
        };
        parse().ok_or_else(|| NotPciAddress(text.to_owned()))
    }
}

impl TryFrom<String> for PciAddress {
    type Error = NotPciAddress;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_spelling_and_written_in_two() {
        for text in ["0000:3b:00.0", "00000000:3B:00.0", "3b:00.0", "0:3B:0.0"] {
            let address: PciAddress = text.parse().unwrap();
            assert_eq!(
                (address.to_string(), address.nvml()),
                ("0000:3b:00.0".into(), "00000000:3B:00.0".into()),
                "{text}"
            );
        }
        for text in [
            "",
            "3b",
            "3b:00",
            "3b:20.0",
            "3b:00.8",
            "a:b:c:00.0",
            "zz:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
