//! The SQLite file: what is refused at start, with a sentence that names it, and left as it was.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backplane::sqlite::{OpenError, SqliteBackplane};
use backplane::{QueueName, Reads, Receiver, Sender, Store, SystemClock};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::implementation::open;
use crate::sample::{delivery, id_of, message, placed, tenant};

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backplane.db");
    (folder, path)
}

/// A closed file with a message in it, and a few hundred pages.
async fn filled(path: &Path) {
    let backplane = open(path, Arc::new(SystemClock));
    let mut message = message("a", "1");
    message.body = "x".repeat(200_000);
    backplane.send(&QueueName::Results, message).await.unwrap();
    drop(backplane);
}

/// Both ways to open it refuse, name the file, and change nothing.
fn refused(path: &Path, expect: impl Fn(&OpenError) -> bool) {
    let before = std::fs::read(path).ok();
    let refusals = [
        SqliteBackplane::open(path, Arc::new(SystemClock)),
        SqliteBackplane::create_or_open(path, Arc::new(SystemClock)),
    ];
    for refusal in refusals {
        let error = refusal.err().expect("it was opened");
        assert!(expect(&error), "{error:?}");
        let sentence = error.to_string();
        assert!(sentence.contains(path.to_str().unwrap()), "{sentence}");
    }
    assert_eq!(
        std::fs::read(path).ok(),
        before,
        "the refused file was changed"
    );
}

#[test]
fn a_missing_file_is_an_error_unless_it_is_to_be_made() {
    let (_folder, path) = folder();
    let error = SqliteBackplane::open(&path, Arc::new(SystemClock))
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::Missing { .. }), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
    assert!(!path.exists(), "a look made the file");
    drop(open(&path, Arc::new(SystemClock)));
    drop(SqliteBackplane::open(&path, Arc::new(SystemClock)).unwrap());
}

#[tokio::test]
async fn every_file_of_a_backplane_is_its_owners_alone() {
    let (folder, path) = folder();
    let backplane = open(&path, Arc::new(SystemClock));
    backplane
        .send(&QueueName::Results, message("a", "1"))
        .await
        .unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    let expect = [
        "backplane.db",
        "backplane.db-shm",
        "backplane.db-wal",
        "backplane.db.wake",
    ];
    assert_eq!(names, expect);
}

#[test]
fn what_is_no_backplane_is_refused() {
    let foreign = |error: &OpenError| matches!(error, OpenError::Foreign { .. });
    for contents in [
        "",
        "just some text",
        &"not a database, but long enough for a header ".repeat(9),
    ] {
        let (_folder, path) = folder();
        std::fs::write(&path, contents).unwrap();
        refused(&path, foreign);
    }
    let (_folder, path) = folder();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("PRAGMA application_id = 7; CREATE TABLE precious (x)")
        .unwrap();
    other.close().unwrap();
    refused(&path, foreign);
}

#[tokio::test]
async fn a_newer_file_is_refused() {
    let (_folder, path) = folder();
    filled(&path).await;
    let later = Connection::open(&path).unwrap();
    later.execute_batch("PRAGMA user_version = 2").unwrap();
    later.close().unwrap();
    refused(&path, |error| {
        matches!(
            error,
            OpenError::Newer {
                found: 2,
                known: 1,
                ..
            }
        )
    });
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let (_folder, path) = folder();
    filled(&path).await;
    let mut bytes = std::fs::read(&path).unwrap();
    // The header stays good; the page after the schema's does not.
    bytes[4096..8192].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    refused(&path, |error| matches!(error, OpenError::Damaged { .. }));
}

#[tokio::test]
async fn a_file_cut_short_is_refused() {
    let (_folder, path) = folder();
    filled(&path).await;
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    refused(&path, |error| matches!(error, OpenError::Damaged { .. }));
}

/// What the log holds was confirmed; a fresh file beside it would bury that.
#[test]
fn a_log_without_its_file_is_refused() {
    let (folder, path) = folder();
    std::fs::write(folder.path().join("backplane.db-wal"), "log").unwrap();
    let error = SqliteBackplane::create_or_open(&path, Arc::new(SystemClock))
        .err()
        .unwrap();
    assert!(matches!(error, OpenError::Orphaned { .. }), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
    assert!(!path.exists());
}

#[tokio::test]
async fn those_who_make_the_file_at_the_same_time_share_it() {
    let (folder, path) = folder();
    let makers: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || open(&path, Arc::new(SystemClock)))
        })
        .collect();
    let backplanes: Vec<_> = makers
        .into_iter()
        .map(|maker| maker.join().unwrap())
        .collect();
    for (number, backplane) in backplanes.iter().enumerate() {
        let sent = backplane.send(
            &QueueName::Results,
            message(&format!("g{number}"), &format!("{number}")),
        );
        sent.await.unwrap();
    }
    let receiver = backplanes[0].receiver(&QueueName::Results);
    for number in 0..8 {
        let received = receiver.receive(std::time::Duration::ZERO).await.unwrap();
        assert_eq!(received.unwrap().group, format!("g{number}"));
    }
    let leftovers = std::fs::read_dir(folder.path()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains(".new-")
    });
    assert_eq!(leftovers.count(), 0);
}

/// A row that cannot be read is an outage, never an absence: a delivery would run twice.
#[tokio::test]
async fn a_row_of_a_later_version_is_an_error_and_not_an_absence() {
    let (_folder, path) = folder();
    let backplane = open(&path, Arc::new(SystemClock));
    let record = backplane::store::HostRecord {
        host: "t4".parse().unwrap(),
        pools: Vec::new(),
        public_key: "whpk_test".to_owned(),
    };
    backplane.put_host(record).await.unwrap();
    let acceptance = delivery(1, 1, vec![placed("one", "t4", 1)]);
    let id = acceptance.operations[0].id;
    backplane.accept(acceptance.clone()).await.unwrap();
    let later = Connection::open(&path).unwrap();
    let tables = ["operations", "allocations"];
    for table in tables {
        let sql = format!(r#"UPDATE {table} SET doc = '{{"v":2,"doc":{{"shape":"unknown"}}}}'"#);
        assert_eq!(later.execute(&sql, []).unwrap(), 1);
    }
    backplane.operation(&tenant(), id).await.unwrap_err();
    backplane
        .allocation(&tenant(), id_of("one"))
        .await
        .unwrap_err();
    backplane.operations(&tenant(), None, 10).await.unwrap_err();
    backplane
        .known_delivery(&acceptance.keys, 1)
        .await
        .unwrap_err();
    let again = delivery(2, 1, vec![placed("one", "t4", 2)]);
    backplane.accept(again).await.unwrap_err();
}
