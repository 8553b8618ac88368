//! The file itself: how it comes to be, and why one is refused. Nothing here reads a row.
//!
//! A file appears under its name complete or not at all, so an empty or half-made one is always
//! somebody's accident and never a fresh start.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

/// `gpuh`, in the header of every backplane file.
const APPLICATION_ID: i32 = 0x6770_7568;
/// The schema that this program writes.
const SCHEMA: i32 = 1;
/// How long a connection waits for another process's transaction.
const BUSY: Duration = Duration::from_secs(5);
/// SQLite's own schedule backs off to 100 ms, twice what a message may take to another process; a
/// commit here is over in a few.
const BUSY_STEP: Duration = Duration::from_millis(1);

/// Why a backplane file cannot be used; the sentence names the file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none, and none was to be made.
    #[error("backplane file {} does not exist", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is gone and its write-ahead log is not: starting afresh would lose or mix what it holds.
    #[error("backplane file {0} does not exist but its log {0}-wal does: restore the file, or move the log away", path.display())]
    Orphaned {
        /// The file.
        path: PathBuf,
    },
    /// Something else lies under this name.
    #[error("{} is not a gpuhook backplane file ({reason}); it was left as it is", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// How that was seen.
        reason: String,
    },
    /// A later gpuhook wrote it.
    #[error("backplane file {} has schema {found} and this gpuhook knows up to {known}: upgrade gpuhook, or restore an older file", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i32,
        /// The highest that this program knows.
        known: i32,
    },
    /// Its contents do not hold together.
    #[error("backplane file {} is damaged ({reason}): restore it from a copy, or move it away to start afresh", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot {doing} backplane file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// SQLite could not open it.
    #[error("backplane file {} cannot be opened", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rusqlite::Error,
    },
}

/// Makes the file unless there is one. Safe against another process that does the same.
pub(super) fn ensure_file(path: &Path) -> Result<(), OpenError> {
    if exists(path)? {
        return Ok(());
    }
    if exists(&beside(path, "-wal"))? {
        return Err(OpenError::Orphaned {
            path: path.to_owned(),
        });
    }
    let fresh = beside(path, &format!(".new-{}", uuid::Uuid::now_v7()));
    let made = create_schema(&fresh).and_then(|()| {
        // A hard link, unlike a rename, never replaces what another process put there first.
        match std::fs::hard_link(&fresh, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(io_error(path, "create", error))
            }
            _ => Ok(()),
        }
    });
    let removed =
        std::fs::remove_file(&fresh).map_err(|error| io_error(&fresh, "remove temporary", error));
    made.and(removed)?;
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| io_error(path, "make durable", error))
}

/// The writing connection, once the file has proven to be ours, whole and not newer than us.
pub(super) fn open_writer(path: &Path) -> Result<Connection, OpenError> {
    if !exists(path)? {
        return Err(OpenError::Missing {
            path: path.to_owned(),
        });
    }
    let conn =
        connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|source| refusal(path, source))?;
    assert_ours(path, &conn)?;
    // SQLite falls back to read-only in silence where the file's mode forbids writing.
    if conn
        .is_readonly("main")
        .map_err(|source| refusal(path, source))?
    {
        return Err(io_error(
            path,
            "write to",
            io::ErrorKind::PermissionDenied.into(),
        ));
    }
    Ok(conn)
}

/// A connection that cannot write; only for a file that [`open_writer`] has accepted.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// The name of a file that belongs to `path`.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn exists(path: &Path) -> Result<bool, OpenError> {
    path.try_exists()
        .map_err(|source| io_error(path, "look for", source))
}

fn io_error(path: &Path, doing: &'static str, source: io::Error) -> OpenError {
    OpenError::Io {
        path: path.to_owned(),
        doing,
        source,
    }
}

fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    // No mutex: each connection stays with the one thread or task that holds it.
    let mut conn = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    let most = i32::try_from(BUSY.as_millis() / BUSY_STEP.as_millis()).unwrap_or(i32::MAX);
    conn.busy_handler(Some(move |waits| {
        std::thread::sleep(BUSY_STEP);
        waits < most
    }))?;
    // FULL is what makes a commit in WAL mode wait for the disk.
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    Ok(conn)
}

fn create_schema(fresh: &Path) -> Result<(), OpenError> {
    // Made here rather than by SQLite for its mode; SQLite gives the same to its side files.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(fresh)
        .map_err(|error| io_error(fresh, "create", error))?;
    let build = || -> rusqlite::Result<()> {
        let conn = connect(fresh, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        conn.execute_batch(concat!("BEGIN;", include_str!("schema.sql"), "COMMIT;"))?;
        conn.pragma_update(None, "application_id", APPLICATION_ID)?;
        conn.pragma_update(None, "user_version", SCHEMA)?;
        conn.close().map_err(|(_, error)| error)
    };
    build().map_err(|source| OpenError::Sqlite {
        path: fresh.to_owned(),
        source,
    })?;
    file.sync_all()
        .map_err(|error| io_error(fresh, "make durable", error))
}

fn assert_ours(path: &Path, conn: &Connection) -> Result<(), OpenError> {
    let number = |pragma: &str| {
        conn.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0))
            .map_err(|source| refusal(path, source))
    };
    let application = number("application_id")?;
    if application != APPLICATION_ID {
        let reason = format!("its application id is {application:#x}, not {APPLICATION_ID:#x}");
        return Err(OpenError::Foreign {
            path: path.to_owned(),
            reason,
        });
    }
    let found = number("user_version")?;
    if found > SCHEMA {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found,
            known: SCHEMA,
        });
    }
    let damaged = |reason: String| OpenError::Damaged {
        path: path.to_owned(),
        reason,
    };
    if found < SCHEMA {
        return Err(damaged(format!("schema {found} never existed")));
    }
    let verdict: String = conn
        .pragma_query_value(None, "quick_check", |row| row.get(0))
        .map_err(|source| refusal(path, source))?;
    if verdict == "ok" {
        Ok(())
    } else {
        Err(damaged(verdict))
    }
}

/// What SQLite's refusal says about the file.
fn refusal(path: &Path, source: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::Foreign {
            path,
            reason: "it is no SQLite database".to_owned(),
        },
        Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged {
            path,
            reason: source.to_string(),
        },
        _ => OpenError::Sqlite { path, source },
    }
}
