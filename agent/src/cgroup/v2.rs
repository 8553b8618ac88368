//! cgroup v2: one hierarchy, whose controllers are enabled level by level.
//!
//! A controller's files appear in a group when its parent has the controller in
//! `cgroup.subtree_control`; what may be put there is what the parent has in `cgroup.controllers`
//! (cgroup-v2.rst, "Enabling and Disabling"). Names are written one at a time: one bad name fails a
//! whole write (field F38). No process is ever moved.

#[cfg(test)]
mod fake;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use events::Limits;
use events::limits::CpuList;

use super::cpus::Cpus;
use super::files::{GroupFiles, ensure_group, read, remove, write};
use super::{failed, refused};
use crate::limiter::LimitError;

/// CFS period, the kernel's default.
const PERIOD_US: u64 = 100_000;
/// Smallest quota that the kernel takes.
const LEAST_QUOTA_US: u64 = 1000;

/// The unified hierarchy.
#[derive(Debug, Clone)]
pub struct Unified {
    pub(super) at: PathBuf,
    pub(super) files: Arc<dyn GroupFiles>,
}

/// One file of a group with the value it is to hold.
struct Value {
    controller: &'static str,
    file: &'static str,
    value: String,
}

impl Unified {
    /// CPUs and memory nodes that groups can have at all.
    pub(super) fn host_cpus(&self) -> Result<Cpus, LimitError> {
        let list = |file: &str| {
            let path = self.at.join(file);
            let text = read(&*self.files, &path)?;
            text.parse()
                .map_err(|_| failed(format!("{} holds no list: {text:?}", path.display())))
        };
        Ok(Cpus {
            cpus: list("cpuset.cpus.effective")?,
            mems: list("cpuset.mems.effective")?,
        })
    }

    /// Whether the host has the controllers that these limits need.
    pub(super) fn check(&self, limits: &Limits) -> Result<(), LimitError> {
        let missing = self.missing(&self.at, &needed(limits))?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(lacks(&self.at, &missing))
    }

    /// Values in the order in which they are written: where a process may run before how much it may use.
    fn values(limits: &Limits, cpus: Option<&Cpus>) -> Vec<Value> {
        let value = |controller, file, value: String| Value {
            controller,
            file,
            value,
        };
        let bytes = |mib: u64| (mib * 1024 * 1024).to_string();
        let mut values = Vec::new();
        if let Some(cpus) = cpus {
            values.push(value("cpuset", "cpuset.cpus", cpus.cpus.to_string()));
            values.push(value("cpuset", "cpuset.mems", cpus.mems.to_string()));
        }
        if let Some(memory) = limits.memory_mib {
            // v2 counts swap alone (field F03).
            let swap = limits.swap_mib.map(bytes);
            values.extend(swap.map(|swap| value("memory", "memory.swap.max", swap)));
            values.push(value("memory", "memory.max", bytes(memory)));
        }
        if let Some(cpus) = limits.cpus {
            let quota = (u64::from(cpus.milli) * PERIOD_US / 1000).max(LEAST_QUOTA_US);
            values.push(value("cpu", "cpu.max", format!("{quota} {PERIOD_US}")));
        }
        let pids = limits.pids.map(|pids| pids.to_string());
        values.extend(pids.map(|pids| value("pids", "pids.max", pids)));
        values
    }

    /// Makes the group and brings it to these limits, each file read back. What was made on the way is
    /// removed again when that fails.
    pub(super) fn write(
        &self,
        path: &str,
        limits: &Limits,
        cpus: Option<&Cpus>,
    ) -> Result<(), LimitError> {
        let mut made = Vec::new();
        let written = self
            .make(path, &needed(limits), &mut made)
            .and_then(|()| self.fill(path, limits, cpus));
        if written.is_err() {
            for group in made.iter().rev() {
                // It is new and empty; a refusal would only repeat what is told already.
                let _ = self.files.remove(group);
            }
        }
        written
    }

    fn fill(&self, path: &str, limits: &Limits, cpus: Option<&Cpus>) -> Result<(), LimitError> {
        let group = self.at.join(path);
        for value in Self::values(limits, cpus) {
            let file = group.join(value.file);
            if !self.files.exists(&file) {
                return Err(refused(format!(
                    "this kernel has no {} (its {} controller counts no such thing)",
                    file.display(),
                    value.controller
                )));
            }
            if !same(value.file, &read(&*self.files, &file)?, &value.value) {
                write(&*self.files, &file, &value.value)?;
            }
        }
        match self.drift(path, limits, cpus)?.first() {
            None => Ok(()),
            Some(drift) => Err(failed(format!("after writing, {drift}"))),
        }
    }

    /// The groups from the mount point down, with the needed controllers enabled in each but the last.
    fn make(
        &self,
        path: &str,
        needed: &[&'static str],
        made: &mut Vec<PathBuf>,
    ) -> Result<(), LimitError> {
        let mut parent = self.at.clone();
        for part in path.split('/') {
            self.enable(&parent, needed)?;
            let child = parent.join(part);
            if ensure_group(&*self.files, &child)? {
                made.push(child.clone());
            }
            self.refuse_threaded(&child, needed)?;
            parent = child;
        }
        Ok(())
    }

    /// Enables controllers for the children of a group, one at a time.
    fn enable(&self, group: &Path, needed: &[&'static str]) -> Result<(), LimitError> {
        let missing = self.missing(group, needed)?;
        if !missing.is_empty() {
            return Err(lacks(group, &missing));
        }
        let control = group.join("cgroup.subtree_control");
        let enabled = read(&*self.files, &control)?;
        for controller in needed {
            if enabled.split_whitespace().any(|one| one == *controller) {
                continue;
            }
            let text = format!("+{controller}");
            self.files.write(&control, &text).map_err(|error| {
                let why = match error.raw_os_error() {
                    Some(libc::EBUSY) => {
                        "processes run in that very group; move them to a child of it first"
                    }
                    Some(libc::ENOTSUP) => "the group is threaded, or below a threaded one",
                    Some(libc::ENOENT) => "the controller has gone meanwhile",
                    _ => "the kernel refuses",
                };
                refused(format!(
                    "write {text} to {}: {why} ({error})",
                    control.display()
                ))
            })?;
        }
        Ok(())
    }

    /// Needed controllers that a group does not have.
    fn missing(
        &self,
        group: &Path,
        needed: &[&'static str],
    ) -> Result<Vec<&'static str>, LimitError> {
        let there = read(&*self.files, &group.join("cgroup.controllers"))?;
        let has = |controller: &str| there.split_whitespace().any(|one| one == controller);
        Ok(needed
            .iter()
            .copied()
            .filter(|controller| !has(controller))
            .collect())
    }

    /// Threaded groups, and those that a threaded ancestor makes invalid, take no memory limit.
    fn refuse_threaded(&self, group: &Path, needed: &[&'static str]) -> Result<(), LimitError> {
        let file = group.join("cgroup.type");
        if !needed.contains(&"memory") || !self.files.exists(&file) {
            return Ok(());
        }
        let kind = read(&*self.files, &file)?;
        if kind == "domain" || kind == "domain threaded" {
            return Ok(());
        }
        Err(refused(format!(
            "group {} is of type '{kind}', which takes no memory limit",
            group.display()
        )))
    }

    /// Differences between the kernel's files and what they are to hold.
    pub(super) fn drift(
        &self,
        path: &str,
        limits: &Limits,
        cpus: Option<&Cpus>,
    ) -> Result<Vec<String>, LimitError> {
        let mut found = Vec::new();
        for value in Self::values(limits, cpus) {
            let file = self.at.join(path).join(value.file);
            if !self.files.exists(&file) {
                found.push(format!("{} is missing", file.display()));
                continue;
            }
            let holds = read(&*self.files, &file)?;
            if !same(value.file, &holds, &value.value) {
                found.push(format!(
                    "{} holds {holds} instead of {}",
                    file.display(),
                    value.value
                ));
            }
        }
        Ok(found)
    }

    /// Removes the group.
    pub(super) fn remove(&self, path: &str) -> Result<(), LimitError> {
        remove(&*self.files, &self.at.join(path))
    }

    /// Removes a folder of groups once nothing is in it.
    pub(super) fn remove_if_empty(&self, path: &str) {
        // Refused while another group is in it, which is how we know.
        let _ = self.files.remove(&self.at.join(path));
    }
}

fn needed(limits: &Limits) -> Vec<&'static str> {
    let memory = limits.memory_mib.is_some() || limits.swap_mib.is_some();
    [
        ("cpuset", limits.cpuset.is_some()),
        ("memory", memory),
        ("cpu", limits.cpus.is_some()),
        ("pids", limits.pids.is_some()),
    ]
    .into_iter()
    .filter_map(|(controller, is_needed)| is_needed.then_some(controller))
    .collect()
}

fn lacks(group: &Path, missing: &[&str]) -> LimitError {
    refused(format!(
        "group {} has no controller {} (see its cgroup.controllers; the host or its service manager has to delegate it)",
        group.display(),
        missing.join(", ")
    ))
}

/// Whether a file holds what was wanted, in the kernel's own spelling.
fn same(file: &str, holds: &str, wanted: &str) -> bool {
    if file.starts_with("cpuset.") {
        return holds.parse::<CpuList>().ok() == wanted.parse::<CpuList>().ok();
    }
    holds == wanted
}
