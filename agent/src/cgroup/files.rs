//! One control file at a time: written whole, read back, and named when it fails.

use std::fmt::Debug;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use events::Code;

use super::failed;
use crate::limiter::LimitError;
use crate::partitioner::Class;

/// `rmdir` of a group is refused for a moment after its last process has gone (field F51).
const REMOVALS: u32 = 20;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(25);

/// The few things that are done to a control-group file system. On a host it is the kernel's; a test's
/// has to keep the kernel's rules itself, since plain files do not.
pub(super) trait GroupFiles: Debug + Send + Sync {
    /// A file's text.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Writes a file in one write(2).
    fn write(&self, path: &Path, value: &str) -> io::Result<()>;
    /// Makes a group.
    fn make(&self, path: &Path) -> io::Result<()>;
    /// Removes a group: only `rmdir`, never `unlink`, since control files go with their directory.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Whether a file or group is there.
    fn exists(&self, path: &Path) -> bool;
}

/// The kernel's own.
#[derive(Debug)]
pub(super) struct Kernel;

impl GroupFiles for Kernel {
    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(path)
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        // An empty write means 0 to some files (field F35); nothing here ever sends one.
        let mut file = fs::OpenOptions::new().write(true).open(path)?;
        file.write_all(value.as_bytes())
    }

    fn make(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }
}

/// Writes `value`.
pub(super) fn write(files: &dyn GroupFiles, path: &Path, value: &str) -> Result<(), LimitError> {
    files
        .write(path, value)
        .map_err(|error| failed(format!("write {value} to {}: {error}", path.display())))
}

/// Reads a file's text, trimmed.
pub(super) fn read(files: &dyn GroupFiles, path: &Path) -> Result<String, LimitError> {
    let text = files
        .read(path)
        .map_err(|error| failed(format!("read {}: {error}", path.display())))?;
    Ok(text.trim().to_owned())
}

/// Makes a group that may be there. Whether it was not.
pub(super) fn ensure_group(files: &dyn GroupFiles, path: &Path) -> Result<bool, LimitError> {
    match files.make(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed(format!("make group {}: {error}", path.display()))),
    }
}

/// Removes a group; absent is success, and what holds it is named.
pub(super) fn remove(files: &dyn GroupFiles, group: &Path) -> Result<(), LimitError> {
    for attempt in 1..=REMOVALS {
        match files.remove(group) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                let processes = read(files, &group.join("cgroup.procs")).unwrap_or_default();
                if !processes.is_empty() || attempt == REMOVALS {
                    let held = if processes.is_empty() {
                        "child groups or exiting tasks".to_owned()
                    } else {
                        format!("processes {}", processes.replace('\n', ", "))
                    };
                    let message = format!("group {} is in use by {held}", group.display());
                    return Err(LimitError {
                        code: Code::InUse,
                        class: Class::Retry,
                        message,
                    });
                }
                std::thread::sleep(BETWEEN_REMOVALS);
            }
            Err(error) => return Err(failed(format!("remove group {}: {error}", group.display()))),
        }
    }
    Ok(())
}
