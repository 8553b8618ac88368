//! The data folder: where configuration, keys, secrets, ledger and backplane of one machine live.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One data folder. Secrets in it are files of mode 0600; nothing else holds them.
#[derive(Debug, Clone)]
pub(crate) struct Data {
    root: PathBuf,
}

impl Data {
    /// The folder given, or the user's own: `$XDG_DATA_HOME/gpuhook`, `~/.local/share/gpuhook`.
    /// The simulated machine lives apart, so that it never answers for a real one.
    pub(crate) fn locate(given: Option<PathBuf>, simulated: bool) -> Result<Self> {
        if let Some(root) = given {
            return Ok(Self {
                root: std::path::absolute(root)?,
            });
        }
        let base = std::env::var_os("XDG_DATA_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share")));
        let base =
            base.context("neither XDG_DATA_HOME nor HOME is set: name a folder with --data")?;
        Ok(Self {
            root: base.join(if simulated {
                "gpuhook/simulated"
            } else {
                "gpuhook/local"
            }),
        })
    }

    /// A path in the folder.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// The folder itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The configuration of the function; its presence means that the folder is set up.
    pub(crate) fn config(&self) -> PathBuf {
        self.path("gpuhook.toml")
    }

    /// The backplane's file of a configuration of this machine.
    pub(crate) fn store_path<'a>(&self, config: &'a function::Config) -> Result<&'a Path> {
        let path = config.store_path.as_deref();
        path.with_context(|| {
            format!(
                "{} has no [store]: nothing is kept on this machine",
                self.config().display()
            )
        })
    }

    /// Reads a one-line secret.
    pub(crate) fn secret(&self, relative: &str) -> Result<zeroize::Zeroizing<String>> {
        let path = self.path(relative);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(zeroize::Zeroizing::new(text.trim_end().to_owned()))
    }

    /// Writes a file that must not exist yet, readable by its owner alone.
    pub(crate) fn write_new(&self, relative: &str, text: &str) -> Result<()> {
        let path = self.path(relative);
        if let Some(folder) = path.parent() {
            create_private(folder)?;
        }
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("create {}", path.display()))?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .with_context(|| format!("write {}", path.display()))
    }
}

impl Data {
    /// Writes a file, readable by its owner alone, in place of what was there.
    pub(crate) fn replace(&self, relative: &str, text: &str) -> Result<()> {
        let path = self.path(relative);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("replace {}", path.display()))
            }
            _ => self.write_new(relative, text),
        }
    }
}

/// Makes a folder that only its owner can enter.
pub(crate) fn create_private(folder: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("create {}", folder.display()))
}
