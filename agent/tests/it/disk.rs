//! The ledger's file and the disk under it: what cannot be read or written is refused by name or
//! waited for, never taken for empty.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use agent::ledger::{FileError, Ledger};
use events::HostName;
use events::result::EventKind;

use crate::machine::{Machine, allocate};

fn host() -> HostName {
    "gpu-1".parse().unwrap()
}

/// A state folder with a ledger that was used.
fn used() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(folder.path(), &host()).unwrap();
    let gpu = crate::fake::GPU.parse().unwrap();
    ledger.quarantine(&gpu, "kept").unwrap();
    drop(ledger);
    let path = folder.path().join("ledger.db");
    (folder, path)
}

/// It is refused with its name, and left as it was.
fn refused(folder: &Path, expect: impl Fn(&FileError) -> bool) {
    let path = folder.join("ledger.db");
    let before = std::fs::read(&path).ok();
    let error = Ledger::open(folder, &host()).err().expect("it was opened");
    assert!(expect(&error), "{error:?}");
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).ok(), before, "it was changed");
}

/// field F47: a ledger that was there once is never replaced by an empty one.
#[test]
fn a_ledger_that_is_gone_is_not_made_again() {
    let (folder, path) = used();
    std::fs::remove_file(path).unwrap();
    refused(folder.path(), |error| {
        matches!(error, FileError::Lost { .. })
    });
}

/// field F73: a file of another version or program is refused by name.
#[test]
fn another_version_or_program_is_refused() {
    for (pragma, is_newer) in [("user_version = 99", true), ("application_id = 7", false)] {
        let (folder, path) = used();
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection
            .execute_batch(&format!("PRAGMA {pragma}"))
            .unwrap();
        connection.close().unwrap();
        refused(folder.path(), |error| match error {
            FileError::Newer { found: 99, .. } => is_newer,
            FileError::Foreign { found: 7, .. } => !is_newer,
            _ => false,
        });
    }
}

/// What a disk or a person did to the file.
type Damage = fn(&Path);

#[test]
fn what_is_no_ledger_is_refused() {
    let damaged: [(&str, Damage); 4] = [
        ("text", |path| {
            std::fs::write(path, "not a database").unwrap()
        }),
        ("empty", |path| std::fs::write(path, "").unwrap()),
        ("header", |path| {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[..100].fill(0xa5);
            std::fs::write(path, bytes).unwrap();
        }),
        ("folder", |path| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        }),
    ];
    for (name, damage) in damaged {
        let (folder, path) = used();
        damage(&path);
        refused(folder.path(), |error| {
            assert!(
                matches!(
                    error,
                    FileError::Unreadable { .. }
                        | FileError::Foreign { .. }
                        | FileError::Unusable { .. }
                ),
                "{name}: {error:?}"
            );
            true
        });
    }
}

/// A page that was damaged is an error when the ledger is opened, wherever it lies.
#[test]
fn a_damaged_page_is_refused_or_does_no_harm() {
    let (origin, path) = used();
    let whole = std::fs::read(&path).unwrap();
    let gpu = crate::fake::GPU.parse().unwrap();
    for page in 0..whole.len() / 4096 {
        for fill in [0x00, 0xff] {
            let mut bytes = whole.clone();
            bytes[page * 4096..(page + 1) * 4096].fill(fill);
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("ledger.db"), bytes).unwrap();
            std::fs::write(folder.path().join("enrolled"), "").unwrap();
            if let Ok(ledger) = Ledger::open(folder.path(), &host()) {
                let read = ledger.quarantined(&gpu);
                assert!(
                    read.is_err()
                        || read
                            .as_ref()
                            .is_ok_and(|kept| kept.as_deref() == Some("kept")),
                    "page {page} filled with {fill:#x}: {read:?}"
                );
            }
        }
    }
    drop(origin);
}

/// A ledger on a file system of its own; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(path: &Path) -> Option<Self> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(path)
            .output();
        let mounted = mount.is_ok_and(|done| done.status.success());
        mounted.then(|| Self(path.to_owned()))
    }

    fn remount(&self, option: &str) {
        let mount = Command::new("mount")
            .args(["-o", &format!("remount,{option}")])
            .arg(&self.0)
            .status();
        assert!(mount.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// On a full disk nothing is done that could not be recorded: the message stays with the queue, and
/// everything goes on by itself once there is room.
#[tokio::test]
async fn a_full_disk_stops_effects_and_nothing_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::at(home.path()) else {
        println!("skipped: only root can mount the small file system that this test fills");
        return;
    };
    let machine = Machine::start_in(home).await;
    let made = machine.done(1, 1, &allocate("")).await;
    assert_eq!(made.kind, EventKind::OperationSucceeded);
    let filler = machine.folder().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let effects = machine.effects();
    let release = machine.command(2, 2, r#"{"op":"release","key":"k"}"#);
    machine.send(&release);
    machine.looked().await;
    machine.looked().await;
    assert_eq!(
        (machine.effects(), machine.partitions().len()),
        (effects, 1),
        "an effect without its record"
    );
    assert!(machine.ends_of(&release).is_empty());
    let put_off = machine.queues.put_off.lock().unwrap().clone();
    assert_eq!(put_off, [Duration::from_secs(1)]);
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    // What was not acknowledged comes again, as queues have it.
    machine.send(&release);
    let gone = machine.end_of(&release).await;
    assert_eq!(gone.kind, EventKind::OperationSucceeded);
    assert_eq!(machine.partitions(), []);
}

/// A full disk makes no half ledger, and the sentence does not call it damaged.
#[test]
fn a_ledger_that_finds_no_room_is_made_once_there_is_some() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::at(home.path()) else {
        println!("skipped: only root can mount the small file system that this test fills");
        return;
    };
    let filler = home.path().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    refused(home.path(), |error| {
        matches!(error, FileError::Unusable { .. } | FileError::Io { .. })
    });
    assert!(!home.path().join("ledger.db").exists());
    drop(file);
    std::fs::remove_file(filler).unwrap();
    drop(Ledger::open(home.path(), &host()).unwrap());
    drop(disk);
}

/// A disk that went read-only is named as that: nobody is sent to restore or rebuild a good ledger.
#[test]
fn a_read_only_disk_is_refused_and_not_called_damage() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::at(home.path()) else {
        println!("skipped: only root can mount the file system that this test makes read-only");
        return;
    };
    drop(Ledger::open(home.path(), &host()).unwrap());
    disk.remount("ro");
    refused(home.path(), |error| {
        matches!(error, FileError::Unusable { .. } | FileError::Io { .. })
    });
    disk.remount("rw");
    drop(Ledger::open(home.path(), &host()).unwrap());
}
