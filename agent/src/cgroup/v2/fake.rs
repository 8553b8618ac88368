//! A kernel's cgroup2 file system for tests: files that come and go with controllers, all-or-nothing
//! writes, the internal-process rule, threaded groups (cgroup-v2.rst; errno as observed on 6.1).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::cgroup::files::GroupFiles;

/// One group.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) controllers: BTreeSet<String>,
    pub(super) subtree: BTreeSet<String>,
    pub(super) processes: Vec<u32>,
    pub(super) kind: Option<&'static str>,
    values: BTreeMap<String, String>,
}

/// The mounted hierarchy at `/`.
#[derive(Debug, Default)]
pub(super) struct Fake {
    pub(super) groups: Mutex<BTreeMap<PathBuf, Group>>,
    /// Every write in order.
    pub(super) writes: Mutex<Vec<(PathBuf, String)>>,
    /// Writes to files of this name fail.
    pub(super) broken: Mutex<Option<(String, i32)>>,
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

fn files_of(controller: &str) -> &'static [&'static str] {
    match controller {
        "memory" => &["memory.max", "memory.swap.max"],
        "cpu" => &["cpu.max"],
        "cpuset" => &["cpuset.cpus", "cpuset.mems"],
        "pids" => &["pids.max"],
        _ => &[],
    }
}

impl Fake {
    /// A root group with these controllers.
    pub(super) fn with(controllers: &[&str]) -> Self {
        let root = Group {
            controllers: controllers.iter().map(|one| (*one).to_owned()).collect(),
            ..Group::default()
        };
        Self {
            groups: Mutex::new(BTreeMap::from([(PathBuf::from("/"), root)])),
            ..Self::default()
        }
    }

    /// Changes a group.
    pub(super) fn change(&self, path: &str, change: impl FnOnce(&mut Group)) {
        change(
            self.groups
                .lock()
                .unwrap()
                .get_mut(Path::new(path))
                .unwrap(),
        );
    }

    /// Groups but the root.
    pub(super) fn list(&self) -> Vec<PathBuf> {
        let groups = self.groups.lock().unwrap();
        groups.keys().skip(1).cloned().collect()
    }

    fn control(group: &mut Group, is_root: bool, value: &str) -> io::Result<()> {
        let mut wanted = group.subtree.clone();
        for word in value.split_whitespace() {
            match word.strip_prefix('+') {
                Some(name) if group.controllers.contains(name) => wanted.insert(name.to_owned()),
                _ => return Err(errno(libc::ENOENT)),
            };
        }
        if group.kind.is_some_and(|kind| kind != "domain") {
            return Err(errno(libc::ENOTSUP));
        }
        if !is_root && !group.processes.is_empty() {
            return Err(errno(libc::EBUSY));
        }
        group.subtree = wanted;
        Ok(())
    }
}

fn split(path: &Path) -> (PathBuf, String) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    (path.parent().unwrap().to_owned(), name)
}

impl GroupFiles for Fake {
    fn read(&self, path: &Path) -> io::Result<String> {
        let (group, name) = split(path);
        let groups = self.groups.lock().unwrap();
        let found = groups.get(&group).ok_or_else(|| errno(libc::ENOENT))?;
        let words = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        match name.as_str() {
            "cgroup.controllers" => Ok(words(&found.controllers)),
            "cgroup.subtree_control" => Ok(words(&found.subtree)),
            "cgroup.procs" => Ok(found
                .processes
                .iter()
                .map(|pid| format!("{pid}\n"))
                .collect()),
            "cgroup.type" if group != Path::new("/") => {
                Ok(found.kind.unwrap_or("domain").to_owned())
            }
            "cpuset.cpus.effective" => Ok("0-3".to_owned()),
            "cpuset.mems.effective" => Ok("0".to_owned()),
            _ if self.has(&groups, path) => Ok(found
                .values
                .get(&name)
                .cloned()
                .unwrap_or_else(|| "max".to_owned())),
            _ => Err(errno(libc::ENOENT)),
        }
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let (group, name) = split(path);
        let broken = self.broken.lock().unwrap().clone();
        if let Some((_, code)) = broken.filter(|(file, _)| *file == name) {
            return Err(errno(code));
        }
        let mut groups = self.groups.lock().unwrap();
        if name != "cgroup.subtree_control" && !self.has(&groups, path) {
            return Err(errno(libc::ENOENT));
        }
        let is_root = group == Path::new("/");
        let found = groups.get_mut(&group).ok_or_else(|| errno(libc::ENOENT))?;
        if name == "cgroup.subtree_control" {
            Self::control(found, is_root, value)?;
            let enabled = found.subtree.clone();
            let children = groups.iter_mut();
            for (_, child) in children.filter(|(path, _)| path.parent() == Some(&*group)) {
                child.controllers.clone_from(&enabled);
            }
        } else {
            found.values.insert(name, value.to_owned());
        }
        let mut writes = self.writes.lock().unwrap();
        writes.push((path.to_owned(), value.to_owned()));
        Ok(())
    }

    fn make(&self, path: &Path) -> io::Result<()> {
        let mut groups = self.groups.lock().unwrap();
        if groups.contains_key(path) {
            return Err(errno(libc::EEXIST));
        }
        let parent = groups.get(path.parent().unwrap());
        let parent = parent.ok_or_else(|| errno(libc::ENOENT))?;
        let group = Group {
            controllers: parent.subtree.clone(),
            // Below a threaded group everything is invalid until it is made threaded as well.
            kind: parent.kind.and(Some("domain invalid")),
            ..Group::default()
        };
        groups.insert(path.to_owned(), group);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut groups = self.groups.lock().unwrap();
        let found = groups.get(path).ok_or_else(|| errno(libc::ENOENT))?;
        let is_parent = groups.keys().any(|other| other.parent() == Some(path));
        if !found.processes.is_empty() || is_parent {
            return Err(errno(libc::EBUSY));
        }
        groups.remove(path);
        Ok(())
    }

    fn exists(&self, path: &Path) -> bool {
        let groups = self.groups.lock().unwrap();
        groups.contains_key(path) || self.has(&groups, path) || path.ends_with("cgroup.type")
    }
}

impl Fake {
    fn has(&self, groups: &BTreeMap<PathBuf, Group>, path: &Path) -> bool {
        let (group, name) = split(path);
        let found = groups.get(&group);
        found.is_some_and(|found| {
            let mut files = found.controllers.iter().flat_map(|one| files_of(one));
            group != Path::new("/") && files.any(|file| *file == name)
        })
    }
}
