//! Which control-group layout this host has, by the file-system type of what is mounted, never by
//! kernel version or by the presence of some directory (field F37).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::Kernel;
use super::v1::Hierarchies;
use super::v2::Unified;

/// Controllers whose limits this version applies.
const NEEDED: [&str; 4] = ["memory", "cpuset", "cpu", "pids"];
const NOT_ROOT: &str =
    "not root: control groups cannot be made (run as root, or accept not_applied)";

/// What is mounted, as far as limits go.
#[derive(Debug, Clone)]
pub enum Layout {
    /// All controllers that limits need are v1 hierarchies that can be written.
    V1(Hierarchies),
    /// The controllers are on the unified hierarchy.
    V2(Unified),
    /// Limits cannot be applied here, with the reason.
    Unusable(String),
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V1(hierarchies) if hierarchies.hybrid => {
                f.write_str("cgroup hybrid: controllers on v1")
            }
            Self::V1(_) => f.write_str("cgroup v1"),
            Self::V2(unified) => write!(f, "cgroup v2 at {}", unified.at.display()),
            Self::Unusable(reason) => f.write_str(reason),
        }
    }
}

/// Reads `proc/self/mountinfo` and keeps what lies at or below `cgroup`.
pub(super) fn detect(cgroup: &Path, proc: &Path) -> Layout {
    let path = proc.join("self/mountinfo");
    match std::fs::read_to_string(&path) {
        Ok(text) => judge(cgroup, &text, rustix::process::geteuid().is_root()),
        Err(error) => Layout::Unusable(format!("{} cannot be read: {error}", path.display())),
    }
}

fn judge(cgroup: &Path, mountinfo: &str, is_root: bool) -> Layout {
    let mut v1: BTreeMap<&str, (PathBuf, bool)> = BTreeMap::new();
    let mut v2 = Vec::new();
    for line in mountinfo.lines() {
        let Some(mount) = Mount::parse(line).filter(|mount| mount.at.starts_with(cgroup)) else {
            continue;
        };
        match mount.kind {
            "cgroup" => {
                let controllers = mount
                    .super_options
                    .split(',')
                    .filter(|option| NEEDED.contains(option));
                v1.extend(
                    controllers.map(|controller| (controller, (mount.at.clone(), mount.read_only))),
                );
            }
            "cgroup2" => v2.push((mount.at.clone(), mount.read_only)),
            _ => {}
        }
    }
    let missing: Vec<_> = NEEDED
        .into_iter()
        .filter(|controller| !v1.contains_key(controller))
        .collect();
    if v1.is_empty() {
        return judge_v2(cgroup, v2, is_root);
    }
    if !missing.is_empty() {
        return Layout::Unusable(format!(
            "cgroup v1 lacks {} (mounted: {})",
            missing.join(", "),
            v1.keys().copied().collect::<Vec<_>>().join(", ")
        ));
    }
    if let Some((controller, (at, _))) = v1.iter().find(|(_, (_, read_only))| *read_only) {
        return Layout::Unusable(format!(
            "cgroup v1 {controller} at {} is mounted read-only",
            at.display()
        ));
    }
    if !is_root {
        return Layout::Unusable(NOT_ROOT.to_owned());
    }
    let at = v1
        .into_iter()
        .map(|(controller, (at, _))| (controller.to_owned(), at))
        .collect();
    Layout::V1(Hierarchies {
        at,
        hybrid: !v2.is_empty(),
    })
}

/// None of our controllers is on v1: the unified hierarchy has them, if there is one.
fn judge_v2(cgroup: &Path, mounts: Vec<(PathBuf, bool)>, is_root: bool) -> Layout {
    match mounts.into_iter().next() {
        None => Layout::Unusable(format!(
            "no control groups are mounted at {}",
            cgroup.display()
        )),
        Some((at, true)) => Layout::Unusable(format!(
            "cgroup v2 at {} is mounted read-only",
            at.display()
        )),
        Some(_) if !is_root => Layout::Unusable(NOT_ROOT.to_owned()),
        Some((at, false)) => Layout::V2(Unified {
            at,
            files: Arc::new(Kernel),
        }),
    }
}

struct Mount<'a> {
    at: PathBuf,
    read_only: bool,
    kind: &'a str,
    super_options: &'a str,
}

impl<'a> Mount<'a> {
    /// `36 35 98:0 / /mnt ro,noatime shared:1 - ext3 /dev/root rw,errors=continue` (proc(5)).
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(4);
        let (at, options) = (fields.next()?, fields.next()?);
        let mut fields = right.split(' ');
        let (kind, _source, super_options) = (fields.next()?, fields.next()?, fields.next()?);
        let read_only = [options, super_options]
            .iter()
            .any(|options| options.split(',').any(|option| option == "ro"));
        Some(Self {
            at: PathBuf::from(at.replace("\\040", " ")),
            read_only,
            kind,
            super_options,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/cpuset rw,nosuid - cgroup cgroup rw,cpuset
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cgroup/pids rw,nosuid - cgroup cgroup rw,pids
";
    const UNIFIED: &str =
        "35 30 0:31 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    fn said(mountinfo: &str, is_root: bool) -> String {
        judge(Path::new("/sys/fs/cgroup"), mountinfo, is_root).to_string()
    }

    /// field F37.
    #[test]
    fn layouts_are_told_apart_by_what_is_mounted() {
        assert_eq!(said(V1, true), "cgroup v1");
        assert_eq!(
            said(&format!("{V1}{UNIFIED}"), true),
            "cgroup hybrid: controllers on v1"
        );
        assert_eq!(said(V2, true), "cgroup v2 at /sys/fs/cgroup");
        let stray = "36 30 0:32 / /sys/fs/cgroup/net_cls rw - cgroup cgroup rw,net_cls\n";
        assert_eq!(
            said(&format!("{V2}{stray}"), true),
            "cgroup v2 at /sys/fs/cgroup",
            "a stray v1 mount without our controllers"
        );
        assert_eq!(
            said(&format!("{stray}{UNIFIED}"), true),
            "cgroup v2 at /sys/fs/cgroup/unified",
            "hybrid, with nothing but net_cls on v1"
        );
        assert!(said(V2, false).contains("not root"));
        // A container's view: mounted, and not to be written.
        assert_eq!(
            said(&V2.replace("cgroup2 rw,", "cgroup2 ro,"), true),
            "cgroup v2 at /sys/fs/cgroup is mounted read-only"
        );
        assert!(said(&V1.replace("rw,memory", "ro,memory"), true).contains("read-only"));
        assert!(said(&V1.replace("rw,pids", "rw,freezer"), true).contains("lacks pids"));
        assert!(said(V1, false).contains("not root"));
        assert!(said("", true).contains("no control groups"));
        let elsewhere = V1.replace("/sys/fs/cgroup", "/mnt/other");
        assert!(said(&elsewhere, true).contains("no control groups"));
    }
}
