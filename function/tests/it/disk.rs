//! A full disk under the front door: 503 until there is room, and no 202 is ever taken back.

use std::path::Path;
use std::process::Command;

use backplane::sqlite::SqliteBackplane;
use serde_json::json;

use crate::machine::{Machine, TOKEN, op_id};

/// Room for a backplane and a few hundred deliveries.
const SIZE: &str = "size=4m";

/// A file system of 4 MiB, unmounted when dropped; `None` where nothing may be mounted.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn at(path: &'a Path) -> Option<Self> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", SIZE, "tmpfs"])
            .arg(path)
            .output();
        let mounted = mount.is_ok_and(|done| done.status.success());
        mounted.then_some(Self(path))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_503_until_there_is_room_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::at(folder.path()) else {
        println!("skipped: only root can mount the small file system that this test fills");
        return;
    };
    let path = folder.path().join("backplane.db");
    let machine = Machine::with(|config| config.store_path = Some(path.clone())).await;
    // Deliveries with long keys and sixteen operations fill it soon.
    let body = |n: usize| {
        let release =
            |m: usize| json!({"op": "release", "key": format!("{n}-{m}-{}", "k".repeat(100))});
        json!({"operations": (0..16).map(release).collect::<Vec<_>>()}).to_string()
    };
    let mut accepted = Vec::new();
    let refused = loop {
        let n = accepted.len();
        assert!(n < 2000, "it is never full");
        let answer = machine.post(&format!("m{n}"), &body(n)).await;
        if answer.status != 202 {
            break answer;
        }
        accepted.push(answer);
    };
    assert_eq!(
        (refused.status, refused.code()),
        (503, "store-unavailable".to_owned())
    );
    assert!(refused.header("retry-after").is_some());
    assert!(accepted.len() > 10, "{}", accepted.len());
    for (n, answer) in accepted.iter().enumerate() {
        let status = format!("/v1/operations/{}", op_id(answer, 0));
        assert_eq!(machine.get(TOKEN, &status).await.status, 200, "m{n}");
    }
    // Room is made as operators make it, and the door goes on by itself.
    let remount = Command::new("mount")
        .args(["-o", "remount,size=32m"])
        .arg(folder.path())
        .status();
    assert!(remount.unwrap().success());
    let n = accepted.len();
    let healed = machine.post(&format!("m{n}"), &body(n)).await;
    assert_eq!(healed.status, 202, "{healed:?}");
    machine.stop().await;
    let again = Machine::with(|config| config.store_path = Some(path.clone())).await;
    for (n, answer) in accepted.iter().chain([&healed]).enumerate() {
        let known = again
            .get(TOKEN, &format!("/v1/operations/{}", op_id(answer, 15)))
            .await;
        assert_eq!(known.status, 200, "m{n} was answered 202");
    }
    again.stop().await;
}

#[tokio::test]
async fn a_read_only_disk_is_refused_at_start_with_the_files_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::at(folder.path()) else {
        println!("skipped: only root can mount the file system that this test makes read-only");
        return;
    };
    let path = folder.path().join("backplane.db");
    let machine = Machine::with(|config| config.store_path = Some(path.clone())).await;
    let clock = machine.clock.clone();
    let release = r#"{"op":"release","key":"k"}"#;
    assert_eq!(machine.post("before", release).await.status, 202);
    machine.stop().await;
    let read_only = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(folder.path())
        .status();
    assert!(read_only.unwrap().success());
    let refused = SqliteBackplane::create_or_open(&path, clock).err().unwrap();
    let text = refused.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
}
