//! NVML's return codes (nvml.h), the newer ones that the wrapper crate has no names for included:
//! each with a stable code, what is to be done about it, and a sentence.

use events::Code;
use nvml_wrapper::error::NvmlError;

use crate::partitioner::{Class, PartitionError};

/// A call that NVML refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    /// The function, without its prefix.
    pub call: &'static str,
    /// Its return code.
    pub number: u32,
}

/// Somebody uses what was to be changed.
pub const IN_USE: u32 = 19;
/// The GPU must be reset before what was asked for takes effect.
pub const RESET_REQUIRED: u32 = 16;
/// The board, the driver or the mode does not have it.
pub const NOT_SUPPORTED: u32 = 3;
/// An argument that this library or this board does not know.
pub const INVALID_ARGUMENT: u32 = 2;
/// Nothing is there.
pub const NOT_FOUND: u32 = 6;
/// The symbol is missing from the library.
pub const FUNCTION_NOT_FOUND: u32 = 13;
/// The array is too small; the count needed was written.
pub const INSUFFICIENT_SIZE: u32 = 7;

/// What each return code means for an operation. Anything else is the driver's own affair.
const MEANINGS: &[(u32, Code, Class, &str)] = &[
    (1, Code::DriverError, Class::Retry, "the session has ended"),
    (
        2,
        Code::DriverError,
        Class::Refuse,
        "the driver does not take the argument",
    ),
    (
        3,
        Code::NotSupported,
        Class::Refuse,
        "not supported by this board, driver or mode",
    ),
    (
        4,
        Code::DriverError,
        Class::Refuse,
        "not permitted: the agent needs root",
    ),
    (6, Code::UnknownGpu, Class::Refuse, "not found"),
    (
        7,
        Code::DriverError,
        Class::Retry,
        "the list grew while it was read",
    ),
    (
        8,
        Code::DriverError,
        Class::Refuse,
        "a power cable is missing",
    ),
    (
        9,
        Code::DriverError,
        Class::Retry,
        "the driver is not loaded",
    ),
    (10, Code::DriverError, Class::Retry, "the driver timed out"),
    (
        11,
        Code::DriverError,
        Class::Refuse,
        "the GPU's interrupts do not work",
    ),
    (
        12,
        Code::DriverError,
        Class::Retry,
        "the library is missing",
    ),
    (
        13,
        Code::NotSupported,
        Class::Refuse,
        "this driver's library does not have the function",
    ),
    (
        14,
        Code::DriverError,
        Class::Refuse,
        "the infoROM is corrupt",
    ),
    (
        15,
        Code::GpuLost,
        Class::Refuse,
        "the GPU has fallen off the bus",
    ),
    (
        16,
        Code::DriverError,
        Class::Refuse,
        "the GPU needs a reset first",
    ),
    (
        17,
        Code::DriverError,
        Class::Refuse,
        "the operating system refuses: a control group, say",
    ),
    (
        18,
        Code::DriverError,
        Class::Refuse,
        "library and kernel module are of different versions",
    ),
    (19, Code::InUse, Class::Retry, "in use by another client"),
    (20, Code::DriverError, Class::Retry, "out of memory"),
    (21, Code::DriverError, Class::Retry, "no data"),
    (
        22,
        Code::DriverError,
        Class::Refuse,
        "vGPU does not go with ECC here: turn ECC off and reset",
    ),
    (
        23,
        Code::NoCapacity,
        Class::Refuse,
        "no resources left for it",
    ),
    (
        24,
        Code::DriverError,
        Class::Refuse,
        "the frequency is not supported",
    ),
    (
        25,
        Code::Internal,
        Class::Bug,
        "a structure has a version that the driver does not know",
    ),
    (26, Code::NotSupported, Class::Refuse, "deprecated and gone"),
    (
        27,
        Code::DriverError,
        Class::Retry,
        "the system is not ready",
    ),
    (28, Code::GpuLost, Class::Refuse, "no GPU was found"),
    (
        29,
        Code::DriverError,
        Class::Refuse,
        "the GPU is in a state that does not allow it",
    ),
    (
        30,
        Code::NotSupported,
        Class::Refuse,
        "this kind of reset is not supported",
    ),
];

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (_, _, text) = self.meaning();
        write!(f, "{}: {text} (NVML {})", self.call, self.number)
    }
}

impl std::error::Error for CallError {}

impl CallError {
    fn meaning(&self) -> (Code, Class, &'static str) {
        let found = MEANINGS.iter().find(|(number, ..)| *number == self.number);
        found.map_or(
            (Code::DriverError, Class::Refuse, "the driver failed"),
            |(_, code, class, text)| (*code, *class, *text),
        )
    }

    /// The wrapper's error as the number that it stands for.
    #[must_use]
    pub fn of(call: &'static str, error: &NvmlError) -> Self {
        let number = match error {
            NvmlError::Uninitialized => 1,
            NvmlError::InvalidArg => INVALID_ARGUMENT,
            NvmlError::NotSupported => NOT_SUPPORTED,
            NvmlError::NoPermission => 4,
            NvmlError::NotFound => NOT_FOUND,
            NvmlError::InsufficientSize(_) => INSUFFICIENT_SIZE,
            NvmlError::InsufficientPower => 8,
            NvmlError::DriverNotLoaded => 9,
            NvmlError::Timeout => 10,
            NvmlError::IrqIssue => 11,
            NvmlError::LibraryNotFound | NvmlError::LibloadingError(_) => 12,
            NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => FUNCTION_NOT_FOUND,
            NvmlError::CorruptedInfoROM => 14,
            NvmlError::GpuLost => 15,
            NvmlError::ResetRequired => RESET_REQUIRED,
            NvmlError::OperatingSystem => 17,
            NvmlError::LibRmVersionMismatch => 18,
            NvmlError::InUse => IN_USE,
            NvmlError::InsufficientMemory => 20,
            NvmlError::NoData => 21,
            NvmlError::VgpuEccNotSupported => 22,
            NvmlError::UnexpectedVariant(number) => *number,
            _ => 999,
        };
        Self { call, number }
    }

    /// As an operation's error, about `object`.
    #[must_use]
    pub fn about(&self, object: &str) -> PartitionError {
        let (code, class, _) = self.meaning();
        PartitionError {
            code,
            class,
            message: format!("{object}: {self}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_code_has_a_meaning_of_its_own() {
        for number in (1..=30).filter(|number| *number != 5) {
            let error = CallError { call: "x", number };
            assert_ne!(error.meaning().2, "the driver failed", "{number}");
        }
        let unknown = CallError {
            call: "Init",
            number: 999,
        };
        assert_eq!(unknown.to_string(), "Init: the driver failed (NVML 999)");
        let taken = CallError {
            call: "CreateGpuInstance",
            number: 23,
        };
        assert_eq!(taken.about("GPU 0000:3b:00.0").code, Code::NoCapacity);
    }

    /// The wrapper has no names for 23 to 30 (nvml-wrapper 0.13).
    #[test]
    fn codes_without_a_name_in_the_wrapper_keep_their_number() {
        for (error, number) in [
            (NvmlError::UnexpectedVariant(23), 23),
            (NvmlError::InUse, 19),
            (NvmlError::FailedToLoadSymbol(String::new()), 13),
        ] {
            assert_eq!(CallError::of("x", &error).number, number);
        }
    }
}
