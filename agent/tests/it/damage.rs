//! A ledger whose file or log was damaged, cut, replaced or half lost: what is read of it is right, or
//! an error that names it. What was recorded is never taken for unknown.

use std::error::Error;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use agent::ledger::{FileError, Ledger, LedgerError, Owner, rebuild};
use events::holdings::Holdings;
use events::{AllocationId, Command, GpuUuid, HostName};
use tempfile::TempDir;

const PAGE: usize = 4096;
/// One of everything that a ledger holds, as version 1 left it.
const FULL: &str = include_str!("../data/old/ledger-1.sql");

fn host() -> HostName {
    "gpu-1".parse().unwrap()
}

fn gpu(n: u32) -> GpuUuid {
    format!("GPU-00000000-0000-4000-9000-{n:012}")
        .parse()
        .unwrap()
}

/// A state folder with one of everything, written by today's program and closed in order.
fn full() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(FULL).unwrap();
    connection.close().unwrap();
    std::fs::write(folder.path().join("enrolled"), "").unwrap();
    drop(Ledger::open(folder.path(), &host()).unwrap());
    (folder, path)
}

/// What a killed agent leaves of `count` commits: its file, and its log beside it.
fn killed(count: u32) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(home.path(), &host()).unwrap();
    for n in 0..count {
        ledger.quarantine(&gpu(n), "kept").unwrap();
    }
    let left = copied(home.path());
    drop(ledger);
    left
}

fn copied(from: &Path) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    for name in ["ledger.db", "ledger.db-wal", "enrolled"] {
        if from.join(name).exists() {
            std::fs::copy(from.join(name), to.path().join(name)).unwrap();
        }
    }
    to
}

fn writable(path: PathBuf) -> std::fs::File {
    OpenOptions::new().write(true).open(path).unwrap()
}

/// An error with all its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Everything that a ledger tells, in one text, and one thing more written into it.
fn worked(ledger: &Ledger, asked: &[(AllocationId, Vec<Command>)]) -> Result<String, LedgerError> {
    let mut seen = format!(
        "{:?} {:?} {:?} {:?}",
        ledger.open_operations()?,
        ledger.allocations()?,
        ledger.unsent(1000)?,
        ledger.quarantines()?,
    );
    for (id, commands) in asked {
        seen += &format!(
            "{:?} {:?}",
            ledger.intents(&Owner::Allocation(*id))?,
            ledger.allocation(*id)?
        );
        for command in commands {
            let open = ledger.open_operation(command.op_id)?;
            seen += &format!("{:?} {open:?}", ledger.known(command, 1)?);
        }
    }
    ledger.dead_letter("one more", "to see that it can be written", 1)?;
    Ok(seen)
}

/// What to ask a full ledger about: its allocations, and those that its open operations are about.
fn questions(ledger: &Ledger) -> Vec<(AllocationId, Vec<Command>)> {
    let commands = ledger.open_operations().unwrap();
    let about = |command: &Command| command.operation.allocation(&command.tenant);
    let mut ids: Vec<_> = ledger
        .allocations()
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    ids.extend(commands.iter().filter_map(about));
    ids.into_iter().map(|id| (id, commands.clone())).collect()
}

/// Bytes that no pattern explains, the same in every run.
fn noise(seed: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (seed as u64 + 1);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(PAGE).collect()
}

#[test]
fn any_page_damaged_in_any_way_is_refused_by_name_or_does_no_harm() {
    let (origin, path) = full();
    let ledger = Ledger::open(origin.path(), &host()).unwrap();
    let asked = questions(&ledger);
    let expect = worked(&ledger, &asked).unwrap();
    drop(ledger);
    let whole = std::fs::read(&path).unwrap();
    let pages = whole.len() / PAGE;
    assert!(pages > 10, "{pages}");
    let (mut harmless, mut noticed) = (0, 0);
    for page in 0..pages {
        let at = page * PAGE;
        for (damage, bytes) in [
            ("zeros", Some(vec![0; PAGE])),
            ("ones", Some(vec![0xff; PAGE])),
            ("noise", Some(noise(page))),
            ("cut", None),
        ] {
            let folder = copied(origin.path());
            let file = writable(folder.path().join("ledger.db"));
            match bytes {
                Some(bytes) => file.write_all_at(&bytes, at as u64).unwrap(),
                None => file.set_len((at + PAGE / 2) as u64).unwrap(),
            }
            match Ledger::open(folder.path(), &host()) {
                Ok(ledger) => match worked(&ledger, &asked) {
                    Ok(seen) => {
                        assert_eq!(seen, expect, "page {page} of {damage} changed the answer");
                        harmless += 1;
                    }
                    Err(error) => panic!("page {page} of {damage}: found late: {}", chain(&error)),
                },
                Err(error) => {
                    let name = folder.path().join("ledger.db");
                    let text = error.to_string();
                    assert!(text.contains(name.to_str().unwrap()), "{text}");
                    noticed += 1;
                }
            }
        }
    }
    assert!(noticed > harmless, "{noticed} noticed, {harmless} harmless");
}

/// A page that goes bad under a running agent: what it held is an error, never "not known", which would
/// do an operation twice.
#[test]
fn what_a_page_held_that_went_bad_while_running_is_not_unknown() {
    let (origin, path) = full();
    let ledger = Ledger::open(origin.path(), &host()).unwrap();
    let asked = questions(&ledger);
    let expect = worked(&ledger, &asked).unwrap();
    drop(ledger);
    let pages = std::fs::metadata(path).unwrap().len() as usize / PAGE;
    let mut errors = 0;
    for page in 1..pages {
        for bytes in [vec![0; PAGE], vec![0xff; PAGE], noise(page)] {
            let folder = copied(origin.path());
            let ledger = Ledger::open(folder.path(), &host()).unwrap();
            let file = writable(folder.path().join("ledger.db"));
            file.write_all_at(&bytes, (page * PAGE) as u64).unwrap();
            for (_, commands) in &asked {
                for command in commands {
                    match ledger.known(command, 1) {
                        Ok(known) => assert!(known.operation.is_some(), "page {page}: forgotten"),
                        Err(_) => errors += 1,
                    }
                }
            }
            if let Ok(seen) = worked(&ledger, &asked) {
                assert_eq!(seen, expect, "page {page} changed the answer");
            }
        }
    }
    assert!(errors > 0, "nothing was read from the disk");
}

#[test]
fn a_log_cut_anywhere_gives_a_prefix_of_what_was_committed() {
    let origin = killed(12);
    let log = std::fs::metadata(origin.path().join("ledger.db-wal"))
        .unwrap()
        .len();
    let mut counts = Vec::new();
    // A prime step meets every place within a frame.
    for length in (0..log).step_by(1409) {
        let folder = copied(origin.path());
        let file = writable(folder.path().join("ledger.db-wal"));
        file.set_len(length).unwrap();
        counts.push(kept(&folder, &format!("cut at {length}")));
    }
    assert!(counts.is_sorted(), "a longer log holds as much or more");
    assert!(counts.last().unwrap() > &6, "{counts:?}");
}

#[test]
fn a_log_torn_in_the_middle_ends_there() {
    let origin = killed(12);
    let log = std::fs::metadata(origin.path().join("ledger.db-wal"))
        .unwrap()
        .len();
    let mut counts = Vec::new();
    for at in (0..log - 512).step_by(1409) {
        let folder = copied(origin.path());
        let file = writable(folder.path().join("ledger.db-wal"));
        file.write_all_at(&[0xa5; 512], at).unwrap();
        counts.push(kept(&folder, &format!("torn at {at}")));
    }
    assert!(counts.is_sorted(), "what lies before the tear is kept");
    assert!(counts.last().unwrap() > &6, "{counts:?}");
}

/// How many of [`killed`]'s commits a start finds, which are its first ones.
fn kept(folder: &TempDir, what: &str) -> usize {
    let ledger = Ledger::open(folder.path(), &host()).expect(what);
    let seen = ledger.quarantines().expect(what);
    for (n, (uuid, reason)) in (0..).zip(&seen) {
        assert_eq!(
            (uuid.as_str(), reason.as_str()),
            (gpu(n).as_str(), "kept"),
            "{what}"
        );
    }
    seen.len()
}

fn nothing_held() -> Holdings {
    Holdings {
        v: 1,
        aud: host(),
        iat: 1,
        sequence: 1,
        allocations: Vec::new(),
        operations: Vec::new(),
    }
}

/// What the log holds was confirmed, and SQLite plays a log onto whatever file has its name.
#[test]
fn the_log_of_a_lost_ledger_is_never_played_onto_another() {
    let left = killed(3);
    let path = left.path().join("ledger.db");
    std::fs::remove_file(&path).unwrap();
    let orphaned = |error: &FileError| matches!(error, FileError::Orphaned { .. });
    let error = rebuild(left.path(), &nothing_held()).expect_err("rebuilt");
    assert!(orphaned(&error), "{error:?}");
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    std::fs::remove_file(left.path().join("enrolled")).unwrap();
    let error = Ledger::open(left.path(), &host()).err().expect("opened");
    assert!(orphaned(&error), "{error:?}");
    assert!(!path.exists(), "one was made beside the log");
    let aside = left.path().join("aside");
    std::fs::rename(left.path().join("ledger.db-wal"), aside).unwrap();
    rebuild(left.path(), &nothing_held()).unwrap();
    let ledger = Ledger::open(left.path(), &host()).unwrap();
    assert_eq!(ledger.quarantines().unwrap(), []);
}

/// A link to a volume that is not mounted yet is a ledger that cannot be reached, not a new host.
#[test]
fn a_link_to_nowhere_is_refused_and_left() {
    for target in ["/nowhere/ledger.db", "ledger.db"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        std::os::unix::fs::symlink(target, &path).unwrap();
        let error = Ledger::open(folder.path(), &host()).err().expect("opened");
        assert!(matches!(error, FileError::Unusable { .. }), "{error:?}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(std::fs::read_link(&path).unwrap(), Path::new(target));
    }
}

#[test]
fn a_version_that_never_was_is_refused() {
    for version in [0, -1] {
        let (folder, path) = full();
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection
            .pragma_update(None, "user_version", version)
            .unwrap();
        connection.close().unwrap();
        let error = Ledger::open(folder.path(), &host()).err().expect("opened");
        assert!(matches!(error, FileError::Damaged { .. }), "{error:?}");
    }
}

/// A record of a later version, whatever its shape, is an error that says so; never an absence.
#[test]
fn a_record_of_a_later_version_is_an_error_that_names_it() {
    let (folder, path) = full();
    let ledger = Ledger::open(folder.path(), &host()).unwrap();
    let asked = questions(&ledger);
    drop(ledger);
    let connection = rusqlite::Connection::open(&path).unwrap();
    for (table, column) in [
        ("operations", "command"),
        ("allocations", "record"),
        ("intents", "record"),
        ("outbox", "event"),
    ] {
        let later = r#"{"v":7,"shape":"unknown"}"#;
        let sql = format!("UPDATE {table} SET {column} = ?1");
        assert!(connection.execute(&sql, [later]).unwrap() > 0, "{table}");
    }
    connection.close().unwrap();
    let ledger = Ledger::open(folder.path(), &host()).unwrap();
    let mut errors = vec![
        ledger.open_operations().unwrap_err(),
        ledger.allocations().unwrap_err(),
        ledger.unsent(10).unwrap_err(),
    ];
    let commands = &asked[0].1;
    errors.extend(
        commands
            .iter()
            .map(|one| ledger.open_operation(one.op_id).unwrap_err()),
    );
    let held = asked
        .iter()
        .filter_map(|(id, _)| ledger.intents(&Owner::Allocation(*id)).err());
    let before = errors.len();
    errors.extend(held);
    assert!(errors.len() > before, "no intent was read");
    errors.extend(
        asked
            .iter()
            .filter_map(|(id, _)| ledger.allocation(*id).err()),
    );
    for error in errors {
        let text = chain(&error);
        assert!(text.contains("version 7"), "{text}");
    }
}
