//! A disk that loses or changes what was written: the answer is right, or an error; never another one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backplane::sqlite::SqliteBackplane;
use backplane::store::OperationRecord;
use backplane::{Reads, Store, StoreError, SystemClock};
use tempfile::TempDir;

use crate::implementation::open;
use crate::sample::{delivery, new, release, tenant};

const PAGE: u64 = 4096;

/// A backplane with `count` deliveries of one operation each, never closed in order: its log is beside it.
async fn written(path: &Path, count: u8) -> Vec<OperationRecord> {
    let backplane = open(path, Arc::new(SystemClock));
    for n in 0..count {
        let operation = new(release(&format!("key-{n}")), "t4");
        let delivery = delivery(n, 1_780_000_000_000, vec![operation]);
        backplane.accept(delivery).await.unwrap();
    }
    let known = listed(&backplane).await.unwrap();
    // A process that is killed does not tidy up.
    std::mem::forget(backplane);
    known
}

async fn listed(backplane: &SqliteBackplane) -> Result<Vec<OperationRecord>, StoreError> {
    let page = backplane.operations(&tenant(), None, 1000).await?;
    let mut items = page.items;
    items.reverse();
    Ok(items)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The files as they lie on the disk, for a machine that starts anew: without the index in memory.
fn copy(from: &Path, folder: &TempDir) -> PathBuf {
    let to = folder.path().join("backplane.db");
    for suffix in ["", "-wal"] {
        std::fs::copy(beside(from, suffix), beside(&to, suffix)).unwrap();
    }
    to
}

/// What a restart makes of the files: everything that was there, or an error. Never less, never a panic.
async fn after_restart(path: &Path) -> Result<Vec<OperationRecord>, String> {
    let path = path.to_owned();
    let opened = SqliteBackplane::open(&path, Arc::new(SystemClock));
    let backplane = opened.map_err(|error| error.to_string())?;
    let listed = listed(&backplane)
        .await
        .map_err(|error| error.to_string())?;
    let operation = new(release("one-more"), "t4");
    let accepted = backplane
        .accept(delivery(250, 1_780_000_001_000, vec![operation]))
        .await;
    accepted.map_err(|error| error.to_string())?;
    Ok(listed)
}

#[tokio::test]
async fn a_damaged_page_is_an_error_or_does_no_harm() {
    let home = tempfile::tempdir().unwrap();
    let origin = home.path().join("backplane.db");
    {
        // Everything into the file itself: a log would mend what is damaged under it.
        let backplane = open(&origin, Arc::new(SystemClock));
        for n in 0..40 {
            let operation = new(release(&format!("key-{n}")), "t4");
            let delivery = delivery(n, 1_780_000_000_000, vec![operation]);
            backplane.accept(delivery).await.unwrap();
        }
    }
    let expect = {
        let backplane = open(&origin, Arc::new(SystemClock));
        listed(&backplane).await.unwrap()
    };
    let pages = std::fs::metadata(&origin).unwrap().len() / PAGE;
    assert!(pages > 20, "{pages}");
    let (mut harmless, mut noticed) = (0, 0);
    for page in 0..pages {
        for damage in ["zeros", "ones", "text", "cut"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("backplane.db");
            std::fs::copy(&origin, &path).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let bytes = match damage {
                "zeros" => vec![0; PAGE as usize],
                "ones" => vec![0xff; PAGE as usize],
                _ => b"garbage ".repeat(PAGE as usize / 8),
            };
            if damage == "cut" {
                file.set_len(page * PAGE + PAGE / 2).unwrap();
            } else {
                file.write_all_at(&bytes, page * PAGE).unwrap();
            }
            match after_restart(&path).await {
                Ok(seen) => {
                    assert_eq!(seen, expect, "page {page} of {damage} gave another answer");
                    harmless += 1;
                }
                Err(_) => noticed += 1,
            }
        }
    }
    // Pages of indexes that nothing here reads are the harmless ones.
    assert!(noticed > harmless, "{noticed} noticed, {harmless} harmless");
}

#[tokio::test]
async fn a_log_cut_anywhere_gives_a_prefix_of_what_was_committed() {
    let home = tempfile::tempdir().unwrap();
    let origin = home.path().join("backplane.db");
    let expect = written(&origin, 12).await;
    let log = std::fs::metadata(beside(&origin, "-wal")).unwrap().len();
    let mut seen_counts = Vec::new();
    // A prime step meets every place within a frame.
    for length in (0..log).step_by(1409) {
        let folder = tempfile::tempdir().unwrap();
        let path = copy(&origin, &folder);
        let file = OpenOptions::new()
            .write(true)
            .open(beside(&path, "-wal"))
            .unwrap();
        file.set_len(length).unwrap();
        let seen = after_restart(&path).await.unwrap();
        assert_eq!(seen, expect[..seen.len()], "cut at {length}");
        seen_counts.push(seen.len());
    }
    assert!(
        seen_counts.is_sorted(),
        "a longer log holds as much or more"
    );
    assert!(seen_counts.last().unwrap() > &6, "{seen_counts:?}");
}

#[tokio::test]
async fn a_log_torn_in_the_middle_ends_there() {
    let home = tempfile::tempdir().unwrap();
    let origin = home.path().join("backplane.db");
    let expect = written(&origin, 12).await;
    let log = std::fs::metadata(beside(&origin, "-wal")).unwrap().len();
    for at in (0..log).step_by(4999) {
        let folder = tempfile::tempdir().unwrap();
        let path = copy(&origin, &folder);
        let file = File::options()
            .write(true)
            .open(beside(&path, "-wal"))
            .unwrap();
        file.write_all_at(&[0xa5; 512], at.min(log - 512)).unwrap();
        match after_restart(&path).await {
            Ok(seen) => assert_eq!(seen, expect[..seen.len()], "torn at {at}"),
            Err(text) => assert!(text.contains("backplane.db"), "torn at {at}: {text}"),
        }
    }
}
