//! The ledger's file: made on first enrolment only, recognised ever after, never replaced.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

/// `GPHL` in SQLite's header: this file is a gpuhook ledger.
const APPLICATION_ID: i32 = 0x4750_484c;
/// Version of `schema.sql`.
const SCHEMA_VERSION: i32 = 3;
/// What makes each version of the one before it, from version 1 on.
const UPGRADES: [&str; 2] = [
    "ALTER TABLE operations ADD COLUMN tries INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE gpus (uuid TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT",
];
/// How long another process may take to let go of the ledger.
const BUSY: Duration = Duration::from_millis(500);
/// Present once a ledger was made: a state folder that has it and no ledger has lost it.
const MARKER: &str = "enrolled";

/// Why a ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It was there once.
    #[error(
        "{path} is gone, though this host was enrolled: restore it, or rebuild it with `gpuhook-agent rebuild` from what `gpuhook host holdings` writes; only if the host holds nothing, remove the file 'enrolled' beside it to start with an empty ledger"
    )]
    Lost {
        /// Where it was.
        path: PathBuf,
    },
    /// It is gone and its log is not: what the log holds was confirmed, and SQLite would play it onto
    /// whatever file is made under this name.
    #[error(
        "{path} is gone but its log {path}-wal is there: restore the file, or move the log away too"
    )]
    Orphaned {
        /// Where it was.
        path: PathBuf,
    },
    /// It is there.
    #[error("{path} is there: a ledger is rebuilt only in the place of one that is gone")]
    Present {
        /// The file.
        path: PathBuf,
    },
    /// Another process has it.
    #[error("{path} is in use by another agent process: two of them would both own the hardware")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Not a SQLite file.
    #[error("{path} is not a SQLite database; it was left as it is")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// SQLite's reason.
        #[source]
        source: rusqlite::Error,
    },
    /// Its contents do not hold together.
    #[error(
        "{path} is damaged ({reason}): restore it from a copy, or move it and its log away and rebuild it; it was left as it is"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// It cannot be reached, read or written now: a full or read-only disk, a link to nowhere.
    #[error("{path} cannot be used now")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// SQLite's reason.
        #[source]
        source: rusqlite::Error,
    },
    /// Of another program.
    #[error("{path} is not a gpuhook ledger (application id {found:#x}); it was left as it is")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its application id.
        found: i32,
    },
    /// Made by a newer version.
    #[error(
        "{path} has schema version {found}, newer than this program's {SCHEMA_VERSION}: use the newer program"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema version.
        found: i32,
    },
    /// The file system refuses.
    #[error("cannot use {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        #[source]
        source: std::io::Error,
    },
}

/// Opens the ledger of a state folder; makes it in a folder that never had one.
pub(super) fn open(state_dir: &Path) -> Result<Connection, FileError> {
    let path = state_dir.join("ledger.db");
    let io = |source| FileError::Io {
        path: path.clone(),
        source,
    };
    let mut folder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.recursive(true).create(state_dir).map_err(io)?;
    let marker = state_dir.join(MARKER);
    if !is_there(&path)? {
        if is_there(&marker)? {
            return Err(FileError::Lost { path });
        }
        create(&path, |_| Ok(()))?;
    }
    if !is_there(&marker)? {
        std::fs::write(
            &marker,
            "the ledger beside this file belongs to an enrolled host\n",
        )
        .map_err(io)?;
    }
    check(&path)?;
    connect(&path).map_err(|source| refusal(&path, source))
}

/// Whether anything has this name, a link to nowhere too. What cannot be told is an error: it is no
/// reason to make a ledger.
fn is_there(path: &Path) -> Result<bool, FileError> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(FileError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// What SQLite's refusal says about the file.
fn refusal(path: &Path, source: rusqlite::Error) -> FileError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FileError::Locked { path },
        Some(ErrorCode::NotADatabase) => FileError::Unreadable { path, source },
        Some(ErrorCode::DatabaseCorrupt) => FileError::Damaged {
            path,
            reason: source.to_string(),
        },
        _ => FileError::Unusable { path, source },
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    // Two agents over one ledger would both own the hardware: the second fails here, at once.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The lock is taken by the first access, not by asking for it.
    connection.execute_batch("BEGIN IMMEDIATE; COMMIT")?;
    upgrade(&connection)?;
    Ok(connection)
}

/// Brings an older ledger to this program's version, one step and one transaction at a time.
fn upgrade(connection: &Connection) -> rusqlite::Result<()> {
    let version =
        connection.pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0))?;
    for (from, step) in (1..).zip(UPGRADES).filter(|(from, _)| *from >= version) {
        let next = from + 1;
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; {step}; PRAGMA user_version = {next}; COMMIT"
        ))?;
    }
    Ok(())
}

/// Makes the ledger of a state folder with what `fill` puts into it, all or nothing; there must be none.
pub(super) fn build(
    state_dir: &Path,
    fill: impl FnOnce(&mut Connection) -> rusqlite::Result<()>,
) -> Result<(), FileError> {
    let path = state_dir.join("ledger.db");
    if is_there(&path)? {
        return Err(FileError::Present { path });
    }
    create(&path, fill)
}

fn create(
    path: &Path,
    fill: impl FnOnce(&mut Connection) -> rusqlite::Result<()>,
) -> Result<(), FileError> {
    let io = |source| FileError::Io {
        path: path.to_owned(),
        source,
    };
    let refused = |source| refusal(path, source);
    if is_there(&path.with_extension("db-wal"))? {
        return Err(FileError::Orphaned {
            path: path.to_owned(),
        });
    }
    let building = path.with_extension("building");
    match std::fs::remove_file(&building) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let mut connection = Connection::open(&building).map_err(refused)?;
    connection
        .execute_batch(include_str!("schema.sql"))
        .map_err(refused)?;
    connection
        .execute(
            "INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox', ?1)",
            [first_sequence()],
        )
        .map_err(refused)?;
    connection
        .pragma_update(None, "application_id", APPLICATION_ID)
        .map_err(refused)?;
    connection
        .pragma_update(None, "user_version", SCHEMA_VERSION)
        .map_err(refused)?;
    fill(&mut connection).map_err(refused)?;
    connection.close().map_err(|(_, error)| refused(error))?;
    std::fs::File::open(&building)
        .and_then(|file| file.sync_all())
        .map_err(io)?;
    std::fs::rename(&building, path).map_err(io)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io)
}

/// Where a new ledger's sequence starts: at the time in milliseconds, so that a host whose ledger was
/// lost goes on above everything it ever said (an event takes longer than a millisecond to write),
/// and the store does not take its word for old.
fn first_sequence() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Looks without changing anything.
pub(super) fn check(path: &Path) -> Result<(), FileError> {
    let failed = |source| refusal(path, source);
    let damaged = |reason| FileError::Damaged {
        path: path.to_owned(),
        reason,
    };
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    let pragma = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i32>(0))
            .map_err(failed)
    };
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    if application != APPLICATION_ID {
        return Err(FileError::Foreign {
            path: path.to_owned(),
            found: application,
        });
    }
    if version > SCHEMA_VERSION {
        return Err(FileError::Newer {
            path: path.to_owned(),
            found: version,
        });
    }
    if version < 1 {
        return Err(damaged(format!("schema version {version} never existed")));
    }
    // A page that went bad must not wait until an operation needs it. It costs a
    // read of the file and about 0.6 ms of work per MiB; 20 000 operations are 11 MiB.
    let verdict: String = connection
        .pragma_query_value(None, "quick_check", |row| row.get(0))
        .map_err(failed)?;
    if verdict == "ok" {
        Ok(())
    } else {
        Err(damaged(verdict))
    }
}
