//! Where the built `libnvidia-ml.so.1` lies. Cargo puts a cdylib that was asked for (`-p gpuhook-simulator-nvml`,
//! `--workspace`) beside the binaries, and one that is only a dependency (of `gpuhook`, of a test) in `deps` beside them.

use std::path::{Path, PathBuf};

/// File name of the cdylib as Cargo builds it.
const BUILT: &str = "libgpuhook_simulator_nvml.so";

/// Folders where the library is looked for, beside the executable at `exe`, in order.
fn folders(exe: &Path) -> Vec<PathBuf> {
    let Some(folder) = exe.parent() else {
        return Vec::new();
    };
    // A test binary is in `deps` itself; its library is beside it or one up.
    ["", "deps", ".."]
        .iter()
        .map(|each| folder.join(each))
        .collect()
}

/// The newest build of the library beside the current executable, or every place where it is not.
pub(crate) fn find() -> Result<PathBuf, Vec<PathBuf>> {
    let exe = std::env::current_exe().unwrap_or_default();
    let places: Vec<PathBuf> = folders(&exe)
        .into_iter()
        .map(|folder| folder.join(BUILT))
        .collect();
    // The two copies go stale independently: `cargo test` renews the one in `deps` only.
    let newest = places
        .iter()
        .filter_map(|place| place.metadata().ok()?.modified().ok().map(|at| (at, place)))
        .max();
    newest.map(|(_, place)| place.clone()).ok_or(places)
}
