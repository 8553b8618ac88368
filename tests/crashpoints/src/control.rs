//! The mapped file that driver and program share. Its layout is written down once more in the driver
//! (`tests/src/crash/control.rs`): a cdylib cannot be linked to.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64};

/// Bytes of the mapping.
const SIZE: usize = 1 << 18;

/// What is shared. All zero means: count nothing, kill nothing.
#[repr(C)]
pub(crate) struct Control {
    /// Not zero: points are counted.
    pub(crate) armed: AtomicU64,
    /// Points passed since.
    pub(crate) count: AtomicU64,
    /// The point that kills, counted from 1; 0 is never.
    pub(crate) kill_at: AtomicU64,
    /// Process id of the program; a helper process of it kills the program, not itself.
    pub(crate) main: AtomicU64,
    /// Not zero: syncs are swallowed, which a sound trial must notice.
    pub(crate) swallow_syncs: AtomicU64,
    /// Added to the wall clock, in seconds.
    pub(crate) wall_offset_s: AtomicI64,
    /// Bytes of text used.
    pub(crate) used: AtomicU64,
    /// Names of the points passed, one per line.
    pub(crate) text: [std::sync::atomic::AtomicU8; SIZE - 56],
}

/// The mapping, if the environment names one.
pub(crate) fn control() -> Option<&'static Control> {
    static MAPPED: OnceLock<Option<&'static Control>> = OnceLock::new();
    *MAPPED.get_or_init(|| {
        let path = std::env::var_os("GPUHOOK_CRASH_CONTROL")?;
        map(
            std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
                .ok()?,
        )
    })
}

fn map(path: std::ffi::CString) -> Option<&'static Control> {
    // SAFETY: the path is NUL-terminated; the descriptor is ours and closed here.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let at = libc::mmap(
            std::ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        );
        libc::syscall(libc::SYS_close, fd);
        // SAFETY: the driver made the file of SIZE bytes; all fields are atomics and valid for any bits.
        (at != libc::MAP_FAILED).then(|| &*at.cast::<Control>())
    }
}
