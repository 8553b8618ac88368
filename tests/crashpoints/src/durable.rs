//! What is on the disk for certain: the contents of each database file as of its last sync.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

static SYNCED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
static DYING: AtomicBool = AtomicBool::new(false);

/// Remembers a file as it is: it has just been synced. Another thread's later bytes may be among
/// them, which is as true: unsynced bytes may reach a disk.
pub(crate) fn remember(path: &str, fd: i32) {
    let mut bytes = Vec::new();
    let mut chunk = vec![0_u8; 1 << 16];
    loop {
        // SAFETY: reads into a buffer of the given length, at an offset of its own.
        let read = unsafe {
            libc::syscall(
                libc::SYS_pread64,
                fd,
                chunk.as_mut_ptr(),
                chunk.len(),
                bytes.len() as i64,
            )
        };
        match usize::try_from(read) {
            Ok(0) | Err(_) => break,
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
        }
    }
    held().insert(path.to_owned(), bytes);
}

/// Puts every known file back to what was synced; other threads' writes stop.
pub(crate) fn take_back_what_is_not_synced() {
    DYING.store(true, SeqCst);
    for (path, bytes) in held().iter() {
        let Ok(path) = CString::new(path.as_str()) else {
            continue;
        };
        // SAFETY: NUL-terminated path, a buffer of the given length, a descriptor of our own.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if fd < 0 {
                continue;
            }
            let mut written = 0;
            while written < bytes.len() {
                let count = libc::syscall(
                    libc::SYS_pwrite64,
                    fd,
                    bytes.as_ptr().add(written),
                    bytes.len() - written,
                    written as i64,
                );
                match usize::try_from(count) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => written += count,
                }
            }
            libc::syscall(libc::SYS_ftruncate, fd, bytes.len() as i64);
        }
    }
}

/// Stops the caller for good once the process is dying.
pub(crate) fn stop_if_dying() {
    while DYING.load(SeqCst) {
        // SAFETY: waits for the SIGKILL that is on its way.
        unsafe { libc::pause() };
    }
}

fn held() -> std::sync::MutexGuard<'static, BTreeMap<String, Vec<u8>>> {
    SYNCED.lock().unwrap_or_else(PoisonError::into_inner)
}
