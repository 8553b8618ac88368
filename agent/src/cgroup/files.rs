//! One control file at a time: written whole, read back, and named when it fails.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::failed;
use crate::limiter::LimitError;

/// Writes `value` in one write(2).
pub(super) fn write(path: &Path, value: &str) -> Result<(), LimitError> {
    // An empty write means 0 to some files (field F35); nothing here ever sends one.
    let written = fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|error| failed(format!("write {value} to {}: {error}", path.display())))
}

/// Reads a file's text, trimmed.
pub(super) fn read(path: &Path) -> Result<String, LimitError> {
    let text = fs::read_to_string(path)
        .map_err(|error| failed(format!("read {}: {error}", path.display())))?;
    Ok(text.trim().to_owned())
}

/// Makes a directory that may be there.
pub(super) fn ensure_directory(path: &Path) -> Result<(), LimitError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed(format!("make group {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}
