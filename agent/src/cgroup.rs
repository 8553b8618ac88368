//! Control groups, by our own thin layer: the two well-known crates hide which file failed, and
//! report success for device rules that they do not apply on v2 (decision 0002).

mod files;

mod layout;

mod cpus;

mod v1;

mod v2;

use std::path::PathBuf;

use events::limits::{CpuList, Cpuset};
use events::{Code, Limits};

use cpus::Cpus;
pub use layout::Layout;

use crate::limiter::{Enforcement, GroupName, LimitError, Limiter};
use crate::partitioner::Class;
use crate::probe::HostRoot;

/// Our root group in every hierarchy. Nothing outside it is ever written.
const ROOT_GROUP: &str = "gpuhook";

/// Applies limits through the kernel's control groups.
pub struct CgroupLimiter {
    layout: Layout,
    gpus: HostRoot,
}

fn refused(message: String) -> LimitError {
    LimitError {
        code: Code::LimitRefused,
        class: Class::Refuse,
        message,
    }
}

fn failed(message: String) -> LimitError {
    LimitError {
        code: Code::LimitsFailed,
        class: Class::Retry,
        message,
    }
}

impl CgroupLimiter {
    /// Detects what is mounted at `cgroup` by `proc/self/mountinfo`; `gpus` is where NUMA nodes are read.
    #[must_use]
    pub fn new(cgroup: PathBuf, proc: &std::path::Path, gpus: HostRoot) -> Self {
        Self {
            layout: layout::detect(&cgroup, proc),
            gpus,
        }
    }

    /// What was detected.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// CPUs and memory nodes for a group: as listed, or those next to the GPU.
    fn cpuset(
        &self,
        host_cpus: impl FnOnce() -> Result<Cpus, LimitError>,
        limits: &Limits,
        numa_node: Option<u16>,
    ) -> Result<Option<Cpus>, LimitError> {
        let Some(wanted) = &limits.cpuset else {
            return Ok(None);
        };
        let host = host_cpus()?;
        let node = |node: u16| -> Option<CpuList> {
            let path = format!("/sys/devices/system/node/node{node}/cpulist");
            self.gpus.read(&path).ok()?.parse().ok()
        };
        let cpus = match wanted {
            Cpuset::List(list) => Cpus {
                cpus: list.clone(),
                mems: host.mems.clone(),
            },
            Cpuset::Auto => match numa_node
                .and_then(|number| node(number).zip(number.to_string().parse().ok()))
            {
                Some((cpus, mems)) => Cpus { cpus, mems },
                // One node, or a host that does not say: everything is near.
                None => host.clone(),
            },
        };
        if !host.cpus.contains_all(&cpus.cpus) {
            return Err(refused(format!(
                "limits.cpuset {} is not within this host's CPUs {}",
                cpus.cpus, host.cpus
            )));
        }
        if !host.mems.contains_all(&cpus.mems) {
            return Err(refused(format!(
                "the GPU's memory node {} is not among this host's nodes {}",
                cpus.mems, host.mems
            )));
        }
        Ok(Some(cpus))
    }
}

impl Limiter for CgroupLimiter {
    fn describe(&self) -> String {
        self.layout.to_string()
    }

    fn check(&self, limits: &Limits, numa_node: Option<u16>) -> Result<(), LimitError> {
        match &self.layout {
            Layout::V1(v1) => {
                v1.check(limits)?;
                self.cpuset(|| v1.host_cpus(), limits, numa_node)?;
            }
            Layout::V2(v2) => {
                v2.check(limits)?;
                self.cpuset(|| v2.host_cpus(), limits, numa_node)?;
            }
            Layout::Unusable(_) => {}
        }
        Ok(())
    }

    fn ensure(
        &self,
        group: &GroupName,
        limits: &Limits,
        numa_node: Option<u16>,
    ) -> Result<Enforcement, LimitError> {
        let path = path_of(group);
        let written = match &self.layout {
            Layout::V1(v1) => {
                let cpus = self.cpuset(|| v1.host_cpus(), limits, numa_node)?;
                v1.write(&path, limits, cpus.as_ref())
            }
            Layout::V2(v2) => {
                let cpus = self.cpuset(|| v2.host_cpus(), limits, numa_node)?;
                v2.write(&path, limits, cpus.as_ref())
            }
            Layout::Unusable(reason) => {
                return Ok(Enforcement::NotApplied {
                    reason: reason.clone(),
                });
            }
        };
        if let Err(error) = written {
            // Half a set of limits would be taken for the whole.
            return match self.remove(group) {
                Ok(()) => Err(error),
                Err(left) => Err(LimitError {
                    message: format!("{}; and {} is left: {}", error.message, path, left.message),
                    ..error
                }),
            };
        }
        Ok(Enforcement::Applied {
            cgroup_path: format!("/{path}"),
        })
    }

    fn drift(
        &self,
        group: &GroupName,
        limits: &Limits,
        numa_node: Option<u16>,
    ) -> Result<Vec<String>, LimitError> {
        match &self.layout {
            Layout::V1(v1) => {
                let cpus = self.cpuset(|| v1.host_cpus(), limits, numa_node)?;
                v1.drift(&path_of(group), limits, cpus.as_ref())
            }
            Layout::V2(v2) => {
                let cpus = self.cpuset(|| v2.host_cpus(), limits, numa_node)?;
                v2.drift(&path_of(group), limits, cpus.as_ref())
            }
            Layout::Unusable(_) => Ok(Vec::new()),
        }
    }

    fn remove(&self, group: &GroupName) -> Result<(), LimitError> {
        // The allocation's own folder goes with its last group; it is not empty before.
        let folder = format!("{ROOT_GROUP}/{}", group.allocation);
        match &self.layout {
            Layout::V1(v1) => {
                v1.remove(&path_of(group))?;
                v1.remove_if_empty(&folder);
            }
            Layout::V2(v2) => {
                v2.remove(&path_of(group))?;
                v2.remove_if_empty(&folder);
            }
            Layout::Unusable(_) => {}
        }
        Ok(())
    }
}

fn path_of(group: &GroupName) -> String {
    format!("{ROOT_GROUP}/{}/{}", group.allocation, group.ordinal)
}
