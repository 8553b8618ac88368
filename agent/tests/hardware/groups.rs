//! Control groups v1 on this machine, under ids that nobody else has, always removed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use agent::cgroup::{CgroupLimiter, Layout};
use agent::limiter::{Enforcement, GroupName, Limiter};
use agent::probe::HostRoot;
use events::{AllocationId, Code, Limits};

/// The limiter of this machine, or why it cannot be tried here.
fn limiter() -> Option<CgroupLimiter> {
    let limiter = CgroupLimiter::new(
        "/sys/fs/cgroup".into(),
        Path::new("/proc"),
        HostRoot::new("/".into()),
    );
    if matches!(limiter.layout(), Layout::V1(_)) {
        return Some(limiter);
    }
    println!("skipped: {}", limiter.describe());
    None
}

/// A group that is gone when the test is, however it ends.
struct Group<'a>(&'a CgroupLimiter, GroupName);

impl<'a> Group<'a> {
    fn new(limiter: &'a CgroupLimiter) -> Self {
        Self(
            limiter,
            GroupName {
                allocation: AllocationId(uuid::Uuid::now_v7()),
                ordinal: 0,
            },
        )
    }

    fn file(&self, controller: &str, file: &str) -> PathBuf {
        Path::new("/sys/fs/cgroup")
            .join(controller)
            .join("gpuhook")
            .join(self.1.allocation.to_string())
            .join("0")
            .join(file)
    }

    fn holds(&self, controller: &str, file: &str) -> String {
        std::fs::read_to_string(self.file(controller, file))
            .unwrap()
            .trim()
            .to_owned()
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        self.0.remove(&self.1).unwrap();
    }
}

/// A process that is ended with the test.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn limits(text: &str) -> Limits {
    serde_json::from_str(text).unwrap()
}

#[test]
fn limits_are_in_the_kernels_own_files() {
    let Some(limiter) = limiter() else { return };
    let group = Group::new(&limiter);
    let wanted = limits(r#"{"memory_mib":64,"cpus":0.5,"cpuset":"0","pids":32}"#);
    limiter.check(&wanted, None).unwrap();
    let enforced = limiter.ensure(&group.1, &wanted, None).unwrap();
    assert_eq!(
        enforced,
        Enforcement::Applied {
            cgroup_path: format!("/gpuhook/{}/0", group.1.allocation)
        }
    );
    assert_eq!(
        group.holds("memory", "memory.limit_in_bytes"),
        (64 << 20).to_string()
    );
    assert_eq!(group.holds("cpu", "cpu.cfs_quota_us"), "50000");
    assert_eq!(
        (
            group.holds("cpuset", "cpuset.cpus"),
            group.holds("pids", "pids.max")
        ),
        ("0".to_owned(), "32".to_owned())
    );
    assert_ne!(
        group.holds("cpuset", "cpuset.mems"),
        "",
        "a group without memory nodes takes no process"
    );
    assert_eq!(
        limiter.drift(&group.1, &wanted, None).unwrap(),
        Vec::<String>::new()
    );
}

/// field F13: what was changed behind our back is noticed and put right.
#[test]
fn drift_is_noticed_and_repaired_up_and_down() {
    let Some(limiter) = limiter() else { return };
    let group = Group::new(&limiter);
    let small = limits(r#"{"memory_mib":64,"pids":32}"#);
    limiter.ensure(&group.1, &small, None).unwrap();
    std::fs::write(group.file("pids", "pids.max"), "max").unwrap();
    let drift = limiter.drift(&group.1, &small, None).unwrap();
    assert!(
        drift.len() == 1 && drift[0].contains("pids.max"),
        "{drift:?}"
    );
    limiter.ensure(&group.1, &small, None).unwrap();
    assert_eq!(group.holds("pids", "pids.max"), "32");
    for text in [r#"{"memory_mib":128}"#, r#"{"memory_mib":32}"#] {
        limiter.ensure(&group.1, &limits(text), None).unwrap();
        assert_eq!(
            limiter.drift(&group.1, &limits(text), None).unwrap(),
            Vec::<String>::new()
        );
    }
}

/// field F03: v1 counts memory and swap together; the contract counts swap alone.
#[test]
fn swap_is_translated_honestly_or_refused() {
    let Some(limiter) = limiter() else { return };
    let group = Group::new(&limiter);
    let wanted = limits(r#"{"memory_mib":64,"swap_mib":16}"#);
    if let Err(error) = limiter.check(&wanted, None) {
        assert_eq!(error.code, Code::LimitRefused);
        println!("swap is not counted here: {}", error.message);
        return;
    }
    for (text, sum) in [
        (r#"{"memory_mib":64,"swap_mib":16}"#, 80_u64),
        (r#"{"memory_mib":256,"swap_mib":0}"#, 256),
        (r#"{"memory_mib":32,"swap_mib":8}"#, 40),
    ] {
        limiter.ensure(&group.1, &limits(text), None).unwrap();
        assert_eq!(
            group.holds("memory", "memory.memsw.limit_in_bytes"),
            (sum << 20).to_string(),
            "{text}"
        );
    }
}

#[test]
fn cpus_that_the_host_does_not_have_are_refused_with_its_own() {
    let Some(limiter) = limiter() else { return };
    let error = limiter
        .check(&limits(r#"{"cpuset":"8000"}"#), None)
        .unwrap_err();
    assert_eq!(error.code, Code::LimitRefused);
    assert!(
        error.message.contains("8000") && error.message.contains("0-"),
        "{}",
        error.message
    );
    let auto = limits(r#"{"cpuset":"auto"}"#);
    limiter.check(&auto, None).unwrap();
    limiter.check(&auto, Some(0)).unwrap();
}

/// field F51: a group with a process in it is not removed, and says which process.
#[test]
fn a_group_in_use_is_not_removed_and_names_its_processes() {
    let Some(limiter) = limiter() else { return };
    let group = Group::new(&limiter);
    limiter
        .ensure(
            &group.1,
            &limits(r#"{"memory_mib":64,"cpuset":"auto"}"#),
            None,
        )
        .unwrap();
    let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
    for controller in ["memory", "cpuset"] {
        std::fs::write(
            group.file(controller, "cgroup.procs"),
            sleeper.0.id().to_string(),
        )
        .unwrap();
    }
    let error = limiter.remove(&group.1).unwrap_err();
    assert_eq!(error.code, Code::InUse);
    assert!(
        error.message.contains(&sleeper.0.id().to_string()),
        "{}",
        error.message
    );
    drop(sleeper);
    limiter.remove(&group.1).unwrap();
    limiter.remove(&group.1).unwrap();
    assert!(!group.file("memory", "").exists());
}
