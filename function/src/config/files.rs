//! Where the files of a configuration are: in a folder of this machine, or in a bundle of texts that a
//! secret store gave.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use zeroize::Zeroizing;

use super::reference::shown;
use crate::signature::secret::in_file;

/// Bytes of the longest secret file; keys and secrets have about a hundred.
const MAX_BYTES: u64 = 4096;

/// Reads the files that a configuration names, by paths that are already resolved.
pub trait Files {
    /// A file that is no secret.
    ///
    /// # Errors
    /// Why not, for people.
    fn text(&self, path: &Path) -> Result<String, String>;

    /// A file that holds a secret; one line break at its end does not count.
    ///
    /// # Errors
    /// Why not, for people; never what it holds.
    fn private(&self, path: &Path) -> Result<Zeroizing<String>, String>;
}

/// Files of this machine. Those that hold secrets must be readable by their owner alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Files for Disk {
    fn text(&self, path: &Path) -> Result<String, String> {
        std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))
    }

    fn private(&self, path: &Path) -> Result<Zeroizing<String>, String> {
        let name = path.display().to_string();
        let name = shown(&name);
        let failed = |what: &str, error: &std::io::Error| format!("{what} {name}: {error}");
        let file = std::fs::File::open(path).map_err(|error| failed("cannot open", &error))?;
        let about = file
            .metadata()
            .map_err(|error| failed("cannot look at", &error))?;
        let mode = about.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(format!(
                "{name} may be read by others (mode {mode:04o}): chmod 600 it"
            ));
        }
        let mut text = Zeroizing::new(String::new());
        file.take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| failed("cannot read", &error))?;
        secret(name, &text)
    }
}

/// Files of a folder as one text each, by their paths relative to it.
#[derive(Default)]
pub struct Bundle {
    files: BTreeMap<String, Zeroizing<String>>,
}

impl Bundle {
    /// Adds a file.
    pub fn insert(&mut self, path: impl Into<String>, text: Zeroizing<String>) {
        self.files.insert(path.into(), text);
    }

    /// Whether there is such a file.
    #[must_use]
    pub fn contains(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    fn get(&self, path: &Path) -> Result<&Zeroizing<String>, String> {
        let name = path.display().to_string();
        let found = path.to_str().and_then(|path| self.files.get(path));
        found.ok_or_else(|| format!("there is no file {} in the secrets given", shown(&name)))
    }
}

impl Files for Bundle {
    fn text(&self, path: &Path) -> Result<String, String> {
        self.get(path).map(|text| text.to_string())
    }

    fn private(&self, path: &Path) -> Result<Zeroizing<String>, String> {
        let name = path.display().to_string();
        secret(shown(&name), self.get(path)?)
    }
}

impl std::fmt::Debug for Bundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

fn secret(name: &str, text: &str) -> Result<Zeroizing<String>, String> {
    if text.len() as u64 > MAX_BYTES {
        return Err(format!(
            "{name} is larger than {MAX_BYTES} bytes: not a secret"
        ));
    }
    Ok(Zeroizing::new(in_file(text).to_owned()))
}
