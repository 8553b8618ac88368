//! v2 limits on a kernel that keeps the rules (field F38).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use events::{Code, Limits};
use proptest::prelude::*;

use super::Unified;
use super::fake::Fake;
use crate::cgroup::cpus::Cpus;
use crate::cgroup::files::GroupFiles;

const PATH: &str = "gpuhook/a/0";
const ALL: [&str; 5] = ["cpuset", "cpu", "io", "memory", "pids"];

fn limits(text: &str) -> Limits {
    serde_json::from_str(text).unwrap()
}

fn whole() -> Limits {
    limits(r#"{"memory_mib":512,"swap_mib":512,"cpus":1.5,"cpuset":"0-1","pids":64}"#)
}

fn cpus() -> Cpus {
    Cpus {
        cpus: "0-1".parse().unwrap(),
        mems: "0".parse().unwrap(),
    }
}

fn unified(fake: &Arc<Fake>) -> Unified {
    Unified {
        at: "/".into(),
        files: fake.clone(),
    }
}

fn apply(fake: &Arc<Fake>, limits: &Limits) -> Result<(), (Code, String)> {
    let cpus = limits.cpuset.is_some().then(cpus);
    let written = unified(fake).write(PATH, limits, cpus.as_ref());
    written.map_err(|error| (error.code, error.message))
}

/// field F38, F03: controllers one at a time from the root, values as v2 means them, each read back.
#[test]
fn a_group_is_made_level_by_level_and_filled() {
    let fake = Arc::new(Fake::with(&ALL));
    apply(&fake, &whole()).unwrap();
    for (file, value) in [
        ("memory.max", "536870912"),
        ("memory.swap.max", "536870912"),
        ("cpu.max", "150000 100000"),
        ("cpuset.cpus", "0-1"),
        ("cpuset.mems", "0"),
        ("pids.max", "64"),
    ] {
        let path = Path::new("/").join(PATH).join(file);
        assert_eq!(fake.read(&path).unwrap(), value, "{file}");
    }
    let writes = fake.writes.lock().unwrap().clone();
    let enabled: Vec<_> = writes
        .iter()
        .filter(|(path, _)| path.ends_with("cgroup.subtree_control"))
        .map(|(path, value)| (path.parent().unwrap().to_owned(), value.clone()))
        .collect();
    let levels = ["/", "/gpuhook", "/gpuhook/a"];
    let expect: Vec<_> = levels
        .iter()
        .flat_map(|level| {
            ["+cpuset", "+memory", "+cpu", "+pids"]
                .map(|one| (PathBuf::from(level), one.to_owned()))
        })
        .collect();
    assert_eq!(
        enabled, expect,
        "nothing that was not asked for, one by one"
    );
    let before = writes.len();
    apply(&fake, &whole()).unwrap();
    assert_eq!(fake.writes.lock().unwrap().len(), before, "nothing to do");
    assert_eq!(
        unified(&fake).drift(PATH, &whole(), Some(&cpus())).unwrap(),
        Vec::<String>::new()
    );
}

/// field F38: what is missing is listed, and nothing is left.
#[test]
fn missing_controllers_are_listed_and_leave_nothing() {
    let fake = Arc::new(Fake::with(&["cpu", "pids"]));
    let (code, message) = apply(&fake, &whole()).unwrap_err();
    assert_eq!(code, Code::LimitRefused);
    assert!(message.contains("cpuset, memory"), "{message}");
    assert_eq!(fake.list(), Vec::<PathBuf>::new());
    assert!(unified(&fake).check(&whole()).is_err());
    apply(&fake, &limits(r#"{"pids":64}"#)).unwrap();
}

/// field F38: the internal-process rule is told, and no process is moved behind anyone's back.
#[test]
fn a_group_with_processes_of_its_own_is_named_and_left_alone() {
    let fake = Arc::new(Fake::with(&ALL));
    fake.make(Path::new("/gpuhook")).unwrap();
    fake.change("/gpuhook", |group| group.processes = vec![41, 42]);
    let (code, message) = apply(&fake, &limits(r#"{"memory_mib":64}"#)).unwrap_err();
    assert_eq!(code, Code::LimitRefused);
    assert!(
        message.contains("/gpuhook/cgroup.subtree_control") && message.contains("processes run"),
        "{message}"
    );
    let groups = fake.groups.lock().unwrap();
    assert_eq!(groups[Path::new("/gpuhook")].processes, [41, 42]);
    assert_eq!(groups.len(), 2, "nothing was made");
}

/// field F38: a threaded group, and one below it, take no memory limit.
#[test]
fn threaded_groups_are_refused_memory() {
    for kind in ["threaded", "domain invalid"] {
        let fake = Arc::new(Fake::with(&ALL));
        fake.make(Path::new("/gpuhook")).unwrap();
        fake.change("/gpuhook", |group| group.kind = Some(kind));
        let (code, message) = apply(&fake, &limits(r#"{"memory_mib":64}"#)).unwrap_err();
        assert_eq!(code, Code::LimitRefused);
        assert!(message.contains(kind), "{message}");
        assert_eq!(fake.list(), [PathBuf::from("/gpuhook")]);
    }
}

/// field F51: leaf first, absent is success, and who is in it is named.
#[test]
fn a_group_is_removed_unless_somebody_is_in_it() {
    let fake = Arc::new(Fake::with(&ALL));
    apply(&fake, &whole()).unwrap();
    fake.change("/gpuhook/a/0", |group| group.processes = vec![7]);
    let error = unified(&fake).remove(PATH).unwrap_err();
    assert!(error.message.contains("processes 7"), "{}", error.message);
    fake.change("/gpuhook/a/0", |group| group.processes.clear());
    unified(&fake).remove(PATH).unwrap();
    unified(&fake).remove(PATH).unwrap();
    unified(&fake).remove_if_empty("gpuhook/a");
    assert_eq!(fake.list(), [PathBuf::from("/gpuhook")]);
}

proptest! {
    /// Whatever fails, a group is complete and read back, or it is not there.
    #[test]
    fn there_is_no_half_made_group(
        controllers in proptest::sample::subsequence(ALL.to_vec(), 0..=5),
        broken in proptest::sample::select(vec![
            "memory.max", "memory.swap.max", "cpu.max", "cpuset.cpus", "cpuset.mems", "pids.max",
            "cgroup.subtree_control", "none",
        ]),
        code in proptest::sample::select(vec![libc::EINVAL, libc::EBUSY, libc::ENOSPC, libc::EROFS]),
    ) {
        let fake = Arc::new(Fake::with(&controllers));
        *fake.broken.lock().unwrap() = Some((broken.to_owned(), code));
        match apply(&fake, &whole()) {
            Ok(()) => {
                let drift = unified(&fake).drift(PATH, &whole(), Some(&cpus())).unwrap();
                prop_assert_eq!(drift, Vec::<String>::new());
            }
            Err(_) => prop_assert_eq!(fake.list(), Vec::<PathBuf>::new()),
        }
    }
}
