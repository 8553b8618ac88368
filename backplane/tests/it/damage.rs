//! Every page of a backplane with one of everything, damaged in every way, at rest and while it runs:
//! everything that it tells is right, or an error. What was accepted is never accepted anew.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backplane::sqlite::{OpenError, SqliteBackplane};
use backplane::store::DueKinds;
use backplane::store::{Accepted, IdempotencyKeys};
use backplane::{QueueName, Reads, Receiver, Store, StoreError};
use events::TenantName;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::implementation::{ManualClock, START_MS};
use crate::sample::{delivery, host, new, release};

const PAGE: usize = 4096;
/// One of everything that a backplane holds, as version 1 left it.
const FULL: &str = include_str!("../data/old/backplane-1.sql");
/// When it was left, Unix milliseconds.
const LEFT_MS: i64 = 1_796_124_191_000;

fn clock() -> Arc<ManualClock> {
    let clock = ManualClock::start();
    clock.advance(Duration::from_millis((LEFT_MS - START_MS).unsigned_abs()));
    clock
}

fn full() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backplane.db");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(FULL).unwrap();
    connection.close().unwrap();
    (folder, path)
}

fn copied(from: &Path) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backplane.db");
    std::fs::copy(from, &path).unwrap();
    (folder, path)
}

/// The keys under which deliveries were accepted.
fn keys(path: &Path) -> Vec<IdempotencyKeys> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection
        .prepare("SELECT digest FROM idempotency_keys WHERE kind = 'id'")
        .unwrap();
    let digests = statement.query_map([], |row| row.get(0)).unwrap();
    let of = |id: Result<[u8; 32], _>| IdempotencyKeys {
        id: id.unwrap(),
        content: None,
    };
    digests.map(of).collect()
}

/// Everything that the front door can be told, in one text.
async fn told(store: &SqliteBackplane, keys: &[IdempotencyKeys]) -> Result<String, StoreError> {
    let acme: TenantName = "acme".parse().unwrap();
    let operations = store.operations(&acme, None, 1000).await?.items;
    let allocations = store.allocations(&acme, None, 1000).await?.items;
    let mut told = format!("{operations:?} {allocations:?} {:?}", store.hosts().await?);
    told += &format!("{:?}", store.holdings(&host("gpu-1")).await?);
    told += &format!("{:?}", store.dead_letters(1000).await?);
    for one in &operations {
        told += &format!("{:?}", store.operation(&acme, one.id).await?);
        told += &format!("{:?}", store.delivery(&acme, one.delivery).await?);
    }
    for one in &allocations {
        told += &format!("{:?}", store.allocation(&acme, one.id).await?);
    }
    for one in keys {
        told += &format!("{:?}", store.known_delivery(one, LEFT_MS).await?);
    }
    Ok(told)
}

/// Everything that it can be asked to do: what is due, a message, a known delivery and a new one.
async fn done(store: &SqliteBackplane, keys: &[IdempotencyKeys]) -> Result<String, String> {
    let failed = |error: StoreError| error.to_string();
    for known in keys {
        let mut again = delivery(1, LEFT_MS, vec![new(release("again"), "gpu-1")]);
        again.keys = known.clone();
        let accepted = store.accept(again).await.map_err(failed)?;
        let is_new = matches!(accepted, Accepted::New(_) | Accepted::CapacityMoved);
        assert!(!is_new, "a known delivery is {accepted:?}");
    }
    let due = store
        .claim_due(DueKinds::All, LEFT_MS + 3_600_000, 60_000, 100)
        .await;
    let mut done = format!("{:?}", due.map_err(failed)?);
    let commands = store.receiver(&QueueName::Commands(host("gpu-1")));
    let received = commands.receive(Duration::ZERO).await;
    let message = received.map_err(|error| error.to_string())?;
    done += &format!("{:?}", message.map(|message| message.body));
    let fresh = delivery(2, LEFT_MS, vec![new(release("fresh"), "gpu-1")]);
    let accepted = store.accept(fresh).await.map_err(failed)?;
    assert!(matches!(accepted, Accepted::New(_)), "{accepted:?}");
    Ok(done)
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

/// What may be written over a page; `None` cuts the file in the middle of it.
fn damages(page: usize) -> [Option<Vec<u8>>; 4] {
    [
        Some(vec![0; PAGE]),
        Some(vec![0xff; PAGE]),
        Some(noise(page)),
        None,
    ]
}

fn damage(path: &Path, page: usize, bytes: Option<Vec<u8>>) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let at = page * PAGE;
    match bytes {
        Some(bytes) => file.write_all_at(&bytes, at as u64).unwrap(),
        None => file.set_len((at + PAGE / 2) as u64).unwrap(),
    }
}

#[tokio::test]
async fn any_page_damaged_in_any_way_is_refused_by_name_or_does_no_harm() {
    let (_origin, path) = full();
    let keys = keys(&path);
    let (expect, expect_done) = {
        let (_folder, path) = copied(&path);
        let store = SqliteBackplane::open(&path, clock()).unwrap();
        let told = told(&store, &keys).await.unwrap();
        (told, done(&store, &keys).await.unwrap())
    };
    let pages = std::fs::metadata(&path).unwrap().len() as usize / PAGE;
    assert!(pages > 30, "{pages}");
    let (mut harmless, mut noticed, mut late) = (0, 0, 0);
    for page in 0..pages {
        for bytes in damages(page) {
            let (_folder, path) = copied(&path);
            damage(&path, page, bytes);
            match SqliteBackplane::open(&path, clock()) {
                // SQLite has no checksums: text that was changed within a row is for our parsers to refuse.
                Ok(store) => match (told(&store, &keys).await, done(&store, &keys).await) {
                    (Ok(seen), Ok(work)) => {
                        assert_eq!(seen, expect, "page {page} changed the answer");
                        assert_eq!(work, expect_done, "page {page} changed the work");
                        harmless += 1;
                    }
                    (Ok(seen), Err(_)) => {
                        assert_eq!(seen, expect, "page {page} changed the answer");
                        late += 1;
                    }
                    (Err(_), _) => late += 1,
                },
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(path.to_str().unwrap()), "{text}");
                    noticed += 1;
                }
            }
        }
    }
    println!("{noticed} refused at start, {late} when read, {harmless} harmless");
    assert!(
        noticed > 10 * (harmless + late),
        "{noticed}, {late}, {harmless}"
    );
}

/// A page that goes bad under a running front door: what it held is an error (503 there), never
/// unknown, which would be a 404, or a delivery that runs twice.
#[tokio::test]
async fn what_a_page_held_that_went_bad_while_running_is_not_unknown() {
    let (_origin, path) = full();
    let keys = keys(&path);
    let expect = {
        let (_folder, path) = copied(&path);
        let store = SqliteBackplane::open(&path, clock()).unwrap();
        told(&store, &keys).await.unwrap()
    };
    let pages = std::fs::metadata(&path).unwrap().len() as usize / PAGE;
    let (mut untold, mut undone) = (0, 0);
    for page in 1..pages {
        for bytes in damages(page).into_iter().flatten() {
            let (_folder, path) = copied(&path);
            let store = SqliteBackplane::open(&path, clock()).unwrap();
            // Another process's commit, after which nobody trusts pages in memory.
            let other = Connection::open(&path).unwrap();
            other.execute_batch("PRAGMA user_version = 1").unwrap();
            damage(&path, page, Some(bytes));
            match told(&store, &keys).await {
                Ok(seen) => assert_eq!(seen, expect, "page {page} changed the answer"),
                Err(_) => untold += 1,
            }
            let acme: TenantName = "acme".parse().unwrap();
            for one in &keys {
                match store.known_delivery(one, LEFT_MS).await {
                    Ok(None) => panic!("page {page}: a delivery was forgotten"),
                    Ok(Some(known)) => {
                        let kept = store.delivery(&acme, known.delivery).await;
                        let forgot = kept.is_ok_and(|kept| kept.is_none_or(|all| all.is_empty()));
                        assert!(!forgot, "page {page}: operations were forgotten");
                    }
                    Err(_) => untold += 1,
                }
            }
            undone += usize::from(done(&store, &keys).await.is_err());
        }
    }
    assert!(untold > 0 && undone > 0, "{untold} untold, {undone} undone");
}

/// A link to a volume that is not mounted yet, and a folder, are nothing to start afresh on.
#[test]
fn a_link_to_nowhere_or_a_folder_is_refused_and_left() {
    type Lay = fn(&Path);
    let lays: [Lay; 3] = [
        |path| std::fs::create_dir(path).unwrap(),
        |path| std::os::unix::fs::symlink("/nowhere/backplane.db", path).unwrap(),
        |path| std::os::unix::fs::symlink(path.file_name().unwrap(), path).unwrap(),
    ];
    for lay in lays {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("backplane.db");
        lay(&path);
        let kind = path.symlink_metadata().unwrap().file_type();
        for open in [SqliteBackplane::open, SqliteBackplane::create_or_open] {
            let error: OpenError = open(&path, clock()).err().expect("it was opened");
            let text = error.to_string();
            assert!(text.contains(path.to_str().unwrap()), "{text}");
        }
        assert_eq!(path.symlink_metadata().unwrap().file_type(), kind);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

/// Pools, inventory and reservation of a host, as a later program may write them.
#[tokio::test]
async fn a_hosts_record_of_a_later_version_is_an_error_and_not_an_absence() {
    for (table, column) in [
        ("hosts", "pools"),
        ("hosts", "inventory"),
        ("reservations", "doc"),
    ] {
        let (_folder, path) = full();
        let later = Connection::open(&path).unwrap();
        let sql = format!(r#"UPDATE {table} SET {column} = '{{"v":7,"shape":"unknown"}}'"#);
        assert!(later.execute(&sql, []).unwrap() > 0, "{table}");
        later.close().unwrap();
        let store = SqliteBackplane::open(&path, clock()).unwrap();
        for error in [
            store.host(&host("gpu-1")).await.unwrap_err(),
            store.hosts().await.unwrap_err(),
        ] {
            let cause = error.source.unwrap().to_string();
            assert!(cause.contains("version 7"), "{table}.{column}: {cause}");
        }
    }
}
