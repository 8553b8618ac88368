//! The calls that are passed through here. The real work is done by raw system calls, which set
//! `errno` as the C library's own functions do.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

use libc::{msghdr, ssize_t, timespec};

use crate::control::control;
use crate::durable;
use crate::point::{Side, armed, pass};

/// Control groups live here on every layout.
const CGROUP: &str = "/sys/fs/cgroup/";

/// What a descriptor stands for, as far as points go.
enum Target {
    /// A file of the data folder, by its path.
    Data(String),
    /// A control-group file.
    Group(String),
    /// A TCP connection.
    Network,
    /// The simulated kernel's socket.
    Kernel,
}

fn data_folder() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| std::env::var("GPUHOOK_CRASH_DATA").unwrap_or_else(|_| "?".to_owned()))
}

fn target(fd: c_int) -> Option<Target> {
    let mut link = [0_u8; 512];
    let name = format!("/proc/self/fd/{fd}\0");
    // SAFETY: NUL-terminated path, a buffer of the given length.
    let length = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            name.as_ptr(),
            link.as_mut_ptr(),
            link.len(),
        )
    };
    let path = std::str::from_utf8(&link[..usize::try_from(length).ok()?]).ok()?;
    if path.starts_with("socket:") {
        return match domain(fd) {
            libc::AF_INET | libc::AF_INET6 => Some(Target::Network),
            libc::AF_UNIX => Some(Target::Kernel),
            _ => None,
        };
    }
    if path.starts_with(CGROUP) {
        return Some(Target::Group(path.to_owned()));
    }
    path.starts_with(data_folder())
        .then(|| Target::Data(path.to_owned()))
}

fn domain(fd: c_int) -> c_int {
    let mut domain: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: out-parameters of the right size.
    unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            (&raw mut domain).cast(),
            &raw mut length,
        );
    }
    domain
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn sync(fd: c_int, call: libc::c_long) -> c_int {
    let Some(Target::Data(path)) = control().and_then(|_| target(fd)) else {
        // SAFETY: as called.
        return unsafe { libc::syscall(call, fd) as c_int };
    };
    durable::stop_if_dying();
    pass(Side::Before, "sync", file_name(&path));
    let swallowed = armed().is_some_and(|control| control.swallow_syncs.load(SeqCst) != 0);
    if swallowed {
        return 0;
    }
    // SAFETY: as called.
    let done = unsafe { libc::syscall(call, fd) as c_int };
    durable::remember(&path, fd);
    pass(Side::After, "sync", file_name(&path));
    done
}

/// A write of any kind, `bytes` its first ones.
fn written(fd: c_int, bytes: &[u8], real: impl FnOnce() -> ssize_t) -> ssize_t {
    durable::stop_if_dying();
    if armed().is_none() {
        return real();
    }
    let (what, subject) = match target(fd) {
        Some(Target::Network) => ("send", "network".to_owned()),
        Some(Target::Group(path)) => ("write", file_name(&path).to_owned()),
        // NVML's questions change nothing; an attribute write does.
        Some(Target::Kernel) if contains(bytes, b"attribute_write") => {
            ("write", "kernel attribute".to_owned())
        }
        _ => return real(),
    };
    pass(Side::Before, what, &subject);
    let done = real();
    pass(Side::After, what, &subject);
    done
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

fn group_folder(what: &str, path: *const c_char, real: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's path is NUL-terminated.
    let path = unsafe { CStr::from_ptr(path) };
    let path = std::str::from_utf8(std::ffi::OsStr::from_bytes(path.to_bytes()).as_bytes());
    match path {
        Ok(path) if armed().is_some() && path.starts_with(CGROUP) => {
            let subject = path.split('/').nth(4).unwrap_or("group").to_owned();
            pass(Side::Before, what, &subject);
            let done = real();
            pass(Side::After, what, &subject);
            done
        }
        _ => real(),
    }
}

/// See fdatasync(2).
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd, libc::SYS_fdatasync)
}

/// See fsync(2).
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd, libc::SYS_fsync)
}

/// See write(2).
///
/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, count: usize) -> ssize_t {
    // SAFETY: the caller's buffer has `count` bytes.
    unsafe {
        written(fd, slice(buffer, count), || {
            libc::syscall(libc::SYS_write, fd, buffer, count) as ssize_t
        })
    }
}

/// See send(2).
///
/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    buffer: *const c_void,
    count: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's buffer has `count` bytes.
    unsafe {
        written(fd, slice(buffer, count), || {
            let nobody = std::ptr::null::<c_void>();
            libc::syscall(libc::SYS_sendto, fd, buffer, count, flags, nobody, 0) as ssize_t
        })
    }
}

/// See writev(2).
///
/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's array has `count` parts.
    unsafe {
        written(fd, first(parts, count as usize), || {
            libc::syscall(libc::SYS_writev, fd, parts, count) as ssize_t
        })
    }
}

/// See sendmsg(2).
///
/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's message is valid.
    unsafe {
        let bytes = first((*message).msg_iov, (*message).msg_iovlen);
        written(fd, bytes, || {
            libc::syscall(libc::SYS_sendmsg, fd, message, flags) as ssize_t
        })
    }
}

/// See mkdir(2).
///
/// # Safety
/// As mkdir(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mkdir(path: *const c_char, mode: libc::mode_t) -> c_int {
    group_folder("mkdir", path, || {
        // SAFETY: as called.
        unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path, mode) as c_int }
    })
}

/// See rmdir(2).
///
/// # Safety
/// As rmdir(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    group_folder("rmdir", path, || {
        let flags = libc::AT_REMOVEDIR;
        // SAFETY: as called.
        unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, flags) as c_int }
    })
}

/// See clock_gettime(2): the wall clock is shifted by what the driver says.
///
/// # Safety
/// As clock_gettime(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: as called.
    unsafe {
        let done = libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int;
        if clock == libc::CLOCK_REALTIME
            && done == 0
            && let Some(control) = control()
        {
            (*time).tv_sec += control.wall_offset_s.load(SeqCst);
        }
        done
    }
}

unsafe fn slice<'a>(buffer: *const c_void, count: usize) -> &'a [u8] {
    if buffer.is_null() {
        return &[];
    }
    // SAFETY: the caller's buffer has `count` bytes.
    unsafe { std::slice::from_raw_parts(buffer.cast(), count) }
}

unsafe fn first<'a>(parts: *const libc::iovec, count: usize) -> &'a [u8] {
    if parts.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's array has at least one part, of its own length.
    unsafe { slice((*parts).iov_base, (*parts).iov_len) }
}
