//! Keys that commands may be signed with: fixed by the configuration, or a keyset that an offline root
//! has signed. A newer keyset comes through the command queue, is stored before it counts, and counts at
//! once; an older one never comes back.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use events::key::PublicKey;
use events::keyset::{KeysetError, TrustedKeyset};

/// The newest keyset in the state folder.
const STORED: &str = "keyset.json";
/// Present once a keyset was stored: a state folder that has it and no keyset has lost it.
const MARKER: &str = "keyset.stored";

/// What commands are trusted by, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// These keys.
    Fixed(Vec<PublicKey>),
    /// The newest keyset of this root.
    Rooted {
        /// The offline root's public key.
        root: PublicKey,
        /// The keyset of the enrolment.
        keyset: PathBuf,
    },
}

/// Why there are no keys, or a keyset was not taken.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A file cannot be read or written.
    #[error("cannot {doing} {path}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file is no keyset of this root.
    #[error("{path} is no keyset of this host's root; it was left as it is")]
    Stored {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: KeysetError,
    },
    /// A keyset was stored and is gone: the one of the enrolment may trust keys that were retired.
    #[error(
        "{path} is gone, though a keyset was stored: restore it, or put the newest keyset there"
    )]
    Lost {
        /// The file.
        path: PathBuf,
    },
    /// What came is not taken.
    #[error(transparent)]
    Refused(#[from] KeysetError),
    /// No keyset can come where keys are fixed.
    #[error("this host's keys are fixed by its configuration (keys.functions), not by a root")]
    Fixed,
}

/// The keys in use.
#[derive(Debug)]
pub struct Keys {
    /// Of rooted keys: the root, and where the newest keyset is stored.
    rooted: Option<(PublicKey, PathBuf)>,
    current: RwLock<TrustedKeyset>,
}

impl Keys {
    /// The keys as configured, and as told since.
    ///
    /// # Errors
    /// A keyset that cannot be read or trusted, or one that was lost. Never an older one instead.
    pub fn open(trust: &Trust, state_dir: &Path) -> Result<Self, KeysError> {
        let (root, first) = match trust {
            Trust::Fixed(keys) => {
                let fixed = TrustedKeyset {
                    version: 0,
                    keys: keys.clone(),
                };
                return Ok(Self {
                    rooted: None,
                    current: RwLock::new(fixed),
                });
            }
            Trust::Rooted { root, keyset } => (*root, read(keyset, root)?),
        };
        let stored = state_dir.join(STORED);
        let current = match (stored.exists(), state_dir.join(MARKER).exists()) {
            (false, true) => return Err(KeysError::Lost { path: stored }),
            (false, false) => first,
            // An enrolment that is repeated may bring a newer one than was ever told.
            (true, _) => match read(&stored, &root)? {
                known if known.version < first.version => first,
                known => known,
            },
        };
        Ok(Self {
            rooted: Some((root, stored)),
            current: RwLock::new(current),
        })
    }

    /// The keys that commands are verified with now.
    #[must_use]
    pub fn now(&self) -> TrustedKeyset {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether newer keysets may come.
    #[must_use]
    pub fn is_rooted(&self) -> bool {
        self.rooted.is_some()
    }

    /// Takes a keyset that came through the queue. Whether it changed anything.
    ///
    /// # Errors
    /// Not this root's, not newer, or not stored.
    pub fn take(&self, text: &str) -> Result<bool, KeysError> {
        let (root, path) = self.rooted.as_ref().ok_or(KeysError::Fixed)?;
        let offered = TrustedKeyset::open(text, root)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !offered.succeeds(&current)? {
            return Ok(false);
        }
        store(path, text)?;
        *current = offered;
        Ok(true)
    }
}

fn read(path: &Path, root: &PublicKey) -> Result<TrustedKeyset, KeysError> {
    let text = std::fs::read_to_string(path).map_err(failed("read", path))?;
    TrustedKeyset::open(text.trim_end(), root).map_err(|source| KeysError::Stored {
        path: path.to_owned(),
        source,
    })
}

/// Writes a keyset so that after a power cut it is the new one or the old one, whole.
fn store(path: &Path, text: &str) -> Result<(), KeysError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let (fresh, marker) = (folder.join("keyset.new"), folder.join(MARKER));
    let mut file = File::create(&fresh).map_err(failed("create", &fresh))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed("write", &fresh))?;
    std::fs::rename(&fresh, path).map_err(failed("replace", path))?;
    File::create(&marker)
        .and_then(|file| file.sync_all())
        .map_err(failed("create", &marker))?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed("sync", folder))
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> KeysError {
    let path = path.to_owned();
    move |source| KeysError::File {
        doing,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use events::key::SecretKey;
    use events::keyset::seal;

    use super::*;

    struct Trial {
        folder: tempfile::TempDir,
        root: SecretKey,
        keys: [PublicKey; 3],
    }

    impl Trial {
        fn new() -> Self {
            let key = || SecretKey::generate().unwrap();
            let trial = Self {
                folder: tempfile::tempdir().unwrap(),
                root: key(),
                keys: [key().public(), key().public(), key().public()],
            };
            std::fs::write(
                trial.folder.path().join("first.json"),
                trial.keyset(1, &[0]),
            )
            .unwrap();
            trial
        }

        fn keyset(&self, version: u64, of: &[usize]) -> String {
            let keys: Vec<_> = of.iter().map(|of| self.keys[*of]).collect();
            seal(version, 0, &keys, &self.root).unwrap()
        }

        fn open(&self) -> Result<Keys, KeysError> {
            let trust = Trust::Rooted {
                root: self.root.public(),
                keyset: self.folder.path().join("first.json"),
            };
            Keys::open(&trust, self.folder.path())
        }
    }

    #[test]
    fn a_newer_keyset_counts_at_once_and_after_a_restart() {
        let trial = Trial::new();
        let keys = trial.open().unwrap();
        assert_eq!(keys.now().keys, [trial.keys[0]]);
        assert!(keys.take(&trial.keyset(2, &[0, 1])).unwrap());
        assert_eq!(keys.now().keys, [trial.keys[0], trial.keys[1]]);
        assert!(!keys.take(&trial.keyset(2, &[0, 1])).unwrap(), "told again");
        assert!(keys.take(&trial.keyset(3, &[1])).unwrap());
        assert_eq!(trial.open().unwrap().now().keys, [trial.keys[1]]);
    }

    #[test]
    fn nobody_brings_back_an_older_one() {
        let trial = Trial::new();
        let keys = trial.open().unwrap();
        keys.take(&trial.keyset(3, &[1])).unwrap();
        for old in [
            trial.keyset(2, &[0, 1]),
            trial.keyset(3, &[0]),
            trial.keyset(1, &[0]),
        ] {
            assert!(matches!(keys.take(&old), Err(KeysError::Refused(_))));
        }
        let forged = seal(9, 0, &[trial.keys[2]], &SecretKey::generate().unwrap()).unwrap();
        assert!(matches!(keys.take(&forged), Err(KeysError::Refused(_))));
        assert_eq!(keys.now().keys, [trial.keys[1]]);
        let stored = trial.folder.path().join(STORED);
        std::fs::remove_file(&stored).unwrap();
        assert!(matches!(trial.open(), Err(KeysError::Lost { .. })));
        std::fs::write(&stored, "{}").unwrap();
        assert!(matches!(trial.open(), Err(KeysError::Stored { .. })));
    }

    #[test]
    fn fixed_keys_take_no_keyset() {
        let trial = Trial::new();
        let keys = Keys::open(&Trust::Fixed(vec![trial.keys[0]]), trial.folder.path()).unwrap();
        assert!(matches!(
            keys.take(&trial.keyset(2, &[1])),
            Err(KeysError::Fixed)
        ));
        assert_eq!(keys.now().keys, [trial.keys[0]]);
    }
}
