//! cgroup v1: one hierarchy per controller, every value read back.

use std::collections::BTreeMap;
use std::path::PathBuf;

use events::Limits;
use events::limits::CpuList;

use super::cpus::Cpus;
use super::files::{Kernel, ensure_group, read, remove, write};
use super::{failed, refused};
use crate::limiter::LimitError;

/// CFS period, the kernel's default.
const PERIOD_US: u64 = 100_000;
/// Smallest quota that the kernel takes.
const LEAST_QUOTA_US: u64 = 1000;

/// The mounted hierarchies, by controller.
#[derive(Debug, Clone)]
pub struct Hierarchies {
    pub(super) at: BTreeMap<String, PathBuf>,
    pub(super) hybrid: bool,
}

/// One file of a group with the value it is to hold.
struct Value {
    controller: &'static str,
    file: &'static str,
    value: String,
}

impl Hierarchies {
    fn group(&self, controller: &str, path: &str) -> PathBuf {
        // `detect` made sure that all four are there.
        self.at
            .get(controller)
            .cloned()
            .unwrap_or_default()
            .join(path)
    }

    /// CPUs and memory nodes of the host's root group.
    pub(super) fn host_cpus(&self) -> Result<Cpus, LimitError> {
        let root = self.group("cpuset", "");
        let list = |file: &str| {
            let text = read(&Kernel, &root.join(file))?;
            text.parse().map_err(|_| {
                failed(format!(
                    "{} holds no list: {text:?}",
                    root.join(file).display()
                ))
            })
        };
        Ok(Cpus {
            cpus: list("cpuset.cpus")?,
            mems: list("cpuset.mems")?,
        })
    }

    /// Whether the host can hold these limits at all.
    pub(super) fn check(&self, limits: &Limits) -> Result<(), LimitError> {
        if limits.swap_mib.is_some()
            && !self.group("memory", "memory.memsw.limit_in_bytes").exists()
        {
            return Err(refused(
                "limits.swap_mib: this kernel does not count swap (boot it with swapaccount=1)"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Values in the order in which they may be written.
    fn values(&self, limits: &Limits, cpus: Option<&Cpus>) -> Vec<Value> {
        let value = |controller, file, value: String| Value {
            controller,
            file,
            value,
        };
        let bytes = |mib: u64| mib * 1024 * 1024;
        let mut values = Vec::new();
        if let Some(cpus) = cpus {
            values.push(value("cpuset", "cpuset.cpus", cpus.cpus.to_string()));
            values.push(value("cpuset", "cpuset.mems", cpus.mems.to_string()));
        }
        if let Some(memory) = limits.memory_mib {
            values.push(value(
                "memory",
                "memory.limit_in_bytes",
                bytes(memory).to_string(),
            ));
            // v1 counts memory and swap together (field F03).
            let both = limits.swap_mib.map(|swap| bytes(memory + swap));
            values.extend(
                both.map(|both| value("memory", "memory.memsw.limit_in_bytes", both.to_string())),
            );
        }
        if let Some(cpus) = limits.cpus {
            let quota = (u64::from(cpus.milli) * PERIOD_US / 1000).max(LEAST_QUOTA_US);
            values.push(value("cpu", "cpu.cfs_period_us", PERIOD_US.to_string()));
            values.push(value("cpu", "cpu.cfs_quota_us", quota.to_string()));
        }
        values.extend(
            limits
                .pids
                .map(|pids| value("pids", "pids.max", pids.to_string())),
        );
        values
    }

    /// Makes the group in every hierarchy and brings it to these limits, each file read back.
    pub(super) fn write(
        &self,
        path: &str,
        limits: &Limits,
        cpus: Option<&Cpus>,
    ) -> Result<(), LimitError> {
        for controller in self.at.keys() {
            self.make(controller, path)?;
        }
        let mut values = self.values(limits, cpus);
        self.order_memory(path, &mut values)?;
        for value in &values {
            let file = self.group(value.controller, path).join(value.file);
            if !same(value.file, &read(&Kernel, &file)?, &value.value) {
                write(&Kernel, &file, &value.value)?;
            }
        }
        match self.drift(path, limits, cpus)?.first() {
            None => Ok(()),
            Some(drift) => Err(failed(format!("after writing, {drift}"))),
        }
    }

    /// Memory may never exceed memory+swap: raising starts with the sum, lowering with memory.
    fn order_memory(&self, path: &str, values: &mut [Value]) -> Result<(), LimitError> {
        let at = |file: &str| values.iter().position(|value| value.file == file);
        let (Some(memory), Some(both)) = (
            at("memory.limit_in_bytes"),
            at("memory.memsw.limit_in_bytes"),
        ) else {
            return Ok(());
        };
        let current = read(
            &Kernel,
            &self
                .group("memory", path)
                .join("memory.memsw.limit_in_bytes"),
        )?;
        let raises = |current: u64| {
            values[memory]
                .value
                .parse::<u64>()
                .is_ok_and(|wanted| wanted > current)
        };
        if current.parse().is_ok_and(raises) {
            values.swap(memory, both);
        }
        Ok(())
    }

    /// The group's directories from our root down. A fresh cpuset is empty and takes no process
    /// (ENOSPC), so each level gets its parent's CPUs and nodes.
    fn make(&self, controller: &str, path: &str) -> Result<(), LimitError> {
        let mut parent = self.group(controller, "");
        for part in path.split('/') {
            let child = parent.join(part);
            ensure_group(&Kernel, &child)?;
            if controller == "cpuset" {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    if read(&Kernel, &child.join(file))?.is_empty() {
                        write(
                            &Kernel,
                            &child.join(file),
                            &read(&Kernel, &parent.join(file))?,
                        )?;
                    }
                }
            }
            parent = child;
        }
        Ok(())
    }

    /// Differences between the kernel's files and what they are to hold.
    pub(super) fn drift(
        &self,
        path: &str,
        limits: &Limits,
        cpus: Option<&Cpus>,
    ) -> Result<Vec<String>, LimitError> {
        let mut found = Vec::new();
        for value in self.values(limits, cpus) {
            let file = self.group(value.controller, path).join(value.file);
            if !file.exists() {
                found.push(format!("{} is missing", file.display()));
                continue;
            }
            let holds = read(&Kernel, &file)?;
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

    /// Removes the group from every hierarchy, also after one refused.
    pub(super) fn remove(&self, path: &str) -> Result<(), LimitError> {
        let removed: Vec<_> = self
            .at
            .keys()
            .map(|controller| remove(&Kernel, &self.group(controller, path)))
            .collect();
        removed.into_iter().find(Result::is_err).unwrap_or(Ok(()))
    }

    /// Removes a folder of groups once nothing is in it.
    pub(super) fn remove_if_empty(&self, path: &str) {
        for controller in self.at.keys() {
            // Refused while another group is in it, which is how we know.
            let _ = std::fs::remove_dir(self.group(controller, path));
        }
    }
}

/// Whether a file holds what was wanted, in the kernel's own spelling.
fn same(file: &str, holds: &str, wanted: &str) -> bool {
    if file.starts_with("cpuset.") {
        return holds.parse::<CpuList>().ok() == wanted.parse::<CpuList>().ok();
    }
    holds == wanted
}
