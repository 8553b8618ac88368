//! `/proc/driver/nvidia/capabilities`: which device node opens which GPU or compute instance (gpu facts §4.6).

use std::{collections::BTreeMap, fs};

use super::{Tree, TreeError, failed};
use crate::machine::{Gpu, Machine};

impl Tree {
    /// What belongs to no instance; only where some board can be cut.
    pub(super) fn render_capabilities(&self, machine: &Machine) -> Result<(), TreeError> {
        if machine.gpus.iter().all(|gpu| gpu.board.mig.is_none()) {
            return Ok(());
        }
        let below = "proc/driver/nvidia/capabilities/mig";
        self.capability(&format!("{below}/config"), 1, 0o400)?;
        self.capability(&format!("{below}/monitor"), 2, 0o444)?;
        let mut minors = "config 1\nmonitor 2\n".to_owned();
        for gpu in 0..machine.gpus.len() {
            for instance in 0..15 {
                let first = first_minor(gpu, instance);
                minors += &format!("gpu{gpu}/gi{instance}/access {first}\n");
                for compute in 0..8 {
                    let minor = first + 1 + compute;
                    minors += &format!("gpu{gpu}/gi{instance}/ci{compute}/access {minor}\n");
                }
            }
        }
        self.file("proc/driver/nvidia-caps/mig-minors", 0o444, &minors)
    }

    /// Those of the instances that a GPU has now.
    pub(crate) fn update_capabilities(&self, gpu: &Gpu) -> Result<(), TreeError> {
        if gpu.board.mig.is_none() {
            return Ok(());
        }
        let below = format!("proc/driver/nvidia/capabilities/gpu{}/mig", gpu.index);
        let mut wanted = BTreeMap::new();
        for instance in &gpu.mig.instances {
            let first = first_minor(gpu.index, instance.id);
            let name = format!("gi{}", instance.id);
            wanted.insert(format!("{name}/access"), first);
            for compute in &instance.compute {
                wanted.insert(
                    format!("{name}/ci{}/access", compute.id),
                    first + 1 + compute.id,
                );
            }
        }
        self.directory(&below)?;
        for instance in names(&self.root.join(&below)) {
            self.remove_unless(&wanted, &below, &instance)?;
            for compute in names(&self.root.join(format!("{below}/{instance}"))) {
                if compute.starts_with("ci") {
                    self.remove_unless(&wanted, &below, &format!("{instance}/{compute}"))?;
                }
            }
        }
        for (name, minor) in wanted {
            let path = format!("{below}/{name}");
            if !self.root.join(&path).exists() {
                self.capability(&path, minor, 0o444)?;
            }
        }
        Ok(())
    }

    fn remove_unless(
        &self,
        wanted: &BTreeMap<String, u32>,
        below: &str,
        name: &str,
    ) -> Result<(), TreeError> {
        let path = self.root.join(format!("{below}/{name}"));
        if wanted.contains_key(&format!("{name}/access")) || !path.exists() {
            return Ok(());
        }
        fs::remove_dir_all(&path).map_err(|source| failed("remove", &path, source))
    }

    fn capability(&self, path: &str, minor: u32, mode: u32) -> Result<(), TreeError> {
        let text =
            format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n");
        self.file(path, 0o444, &text)?;
        self.file(&format!("dev/nvidia-caps/nvidia-cap{minor}"), mode, "")
    }
}

/// Fifteen GPU instances a GPU, and eight compute instances each.
fn first_minor(gpu: usize, instance: u32) -> u32 {
    3 + 135 * gpu as u32 + 9 * instance
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}
