//! The contract held against files: schemas, samples, and published vectors.

#![expect(
    clippy::unwrap_used,
    reason = "a panic in a test is its failure report"
)]

mod samples;
mod schemas;
mod vectors;

use std::path::{Path, PathBuf};

/// A path below this crate.
fn here(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}
