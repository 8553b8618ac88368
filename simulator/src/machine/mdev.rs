//! One mediated device, and how the kernel reads what is written to its attributes.

use rustix::io::Errno;
use uuid::Uuid;

use crate::board::VgpuType;

/// Length of a UUID in text; the mdev core accepts one byte more and does not look at it (observed on 6.1: `uuid` + `x`
/// is created).
const UUID_LEN: usize = 36;

/// Longest `vgpu_params` in bytes. No source gives the number; it is below a page.
const PARAMS_LEN: usize = 1024;

/// One mediated device.
#[derive(Debug, Clone)]
pub(crate) struct Mdev {
    pub(crate) uuid: Uuid,
    pub(crate) gpu: usize,
    pub(crate) type_id: u32,
    pub(crate) framebuffer_mib: u64,
    pub(crate) iommu_group: u32,
    pub(crate) params: String,
    pub(crate) vm: Option<Vm>,
    pub(crate) removal: Removal,
}

/// A VM that has the device open.
#[derive(Debug, Clone)]
pub(crate) struct Vm {
    pub(crate) name: String,
    /// NVML's vGPU instance id.
    pub(crate) instance: u32,
    /// The client whose end is the VM's end; `None` for a VM that outlives its opener.
    pub(crate) connection: Option<u64>,
}

/// Whether a remover is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    None,
    UnderWay,
}

impl Mdev {
    pub(crate) fn new(uuid: Uuid, gpu: usize, vgpu_type: &VgpuType, iommu_group: u32) -> Self {
        Self {
            uuid,
            gpu,
            type_id: vgpu_type.id,
            framebuffer_mib: vgpu_type.framebuffer_mib,
            iommu_group,
            params: String::new(),
            vm: None,
            removal: Removal::None,
        }
    }
}

/// Reads what is written to `create`; `None` for an empty write, which succeeds and creates nothing (observed on 6.1).
pub(crate) fn parse_create(bytes: &[u8]) -> Result<Option<Uuid>, Errno> {
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() < UUID_LEN || bytes.len() > UUID_LEN + 1 {
        return Err(Errno::INVAL);
    }
    let text = std::str::from_utf8(&bytes[..UUID_LEN]).map_err(|_| Errno::INVAL)?;
    // `try_parse` also reads other spellings, but none of them has 36 characters.
    Uuid::try_parse(text).map(Some).map_err(|_| Errno::INVAL)
}

/// The kernel's base-0 unsigned conversion: decimal, 0x hexadecimal or 0 octal, one `+` before and one newline after.
pub(crate) fn parse_unsigned(bytes: &[u8]) -> Result<u64, Errno> {
    let text = std::str::from_utf8(bytes).map_err(|_| Errno::INVAL)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let digits = text.strip_prefix('+').unwrap_or(text);
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(rest) => (rest, 16),
        None if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        None => (lower.as_str(), 10),
    };
    // Rust would accept a sign of its own.
    if !digits.bytes().all(|each| each.is_ascii_hexdigit()) {
        return Err(Errno::INVAL);
    }
    u64::from_str_radix(digits, radix).map_err(|error| match error.kind() {
        std::num::IntErrorKind::PosOverflow => Errno::RANGE,
        _ => Errno::INVAL,
    })
}

/// Reads what is written to `vgpu_params`: any text, verbatim.
pub(crate) fn parse_params(bytes: &[u8]) -> Result<String, Errno> {
    if bytes.len() > PARAMS_LEN {
        return Err(Errno::TOOBIG);
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_reads_exactly_what_the_mdev_core_reads() {
        let uuid = "5be6c0a4-1d9f-4c6e-9d1c-000000000001";
        for text in [
            uuid.to_owned(),
            format!("{uuid}\n"),
            format!("{uuid}x"),
            uuid.to_uppercase(),
        ] {
            assert_eq!(
                parse_create(text.as_bytes()),
                Ok(Some(Uuid::try_parse(uuid).unwrap())),
                "{text:?}"
            );
        }
        assert_eq!(parse_create(b""), Ok(None));
        for text in [
            "\n".to_owned(),
            "not-a-uuid".to_owned(),
            uuid[..35].to_owned(),
            format!("{{{uuid}}}"),
            format!("{uuid}\n\n"),
            uuid.replace('-', ""),
            uuid.replace('5', "g"),
            uuid.replace('-', "0"),
            format!(" {}", &uuid[1..]),
        ] {
            assert_eq!(parse_create(text.as_bytes()), Err(Errno::INVAL), "{text:?}");
        }
        assert_eq!(parse_create(&[0xff; 36]), Err(Errno::INVAL));
    }

    #[test]
    fn remove_reads_numbers_as_the_kernel_does() {
        for (text, expect) in [
            ("0", Ok(0)),
            ("1", Ok(1)),
            ("1\n", Ok(1)),
            ("+1", Ok(1)),
            ("0x10", Ok(16)),
            ("0X1f", Ok(31)),
            ("010", Ok(8)),
            ("00", Ok(0)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(Errno::RANGE)),
            ("abc", Err(Errno::INVAL)),
            ("-1", Err(Errno::INVAL)),
            ("++1", Err(Errno::INVAL)),
            ("09", Err(Errno::INVAL)),
            ("1 ", Err(Errno::INVAL)),
            ("1\n\n", Err(Errno::INVAL)),
            ("\n", Err(Errno::INVAL)),
            ("0x", Err(Errno::INVAL)),
        ] {
            assert_eq!(parse_unsigned(text.as_bytes()), expect, "{text:?}");
        }
    }
}
