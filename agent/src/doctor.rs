//! `gpuhook-agent doctor`: what start-up needs, checked one by one, each failure with its remedy.

use std::path::Path;

use events::outcome::HealthCheck;

use crate::config::Config;
use crate::host::Host;
use crate::ledger::Ledger;
use crate::limiter::Limiter;
use crate::partitioner::Partitioner;

/// Runs every check. Nothing on the host is changed.
#[must_use]
pub fn run(config: &Config, host: &Host) -> Vec<HealthCheck> {
    let mut checks = hardware(host);
    checks.push(state_dir(&config.state_dir));
    checks.push(config.queue.check());
    checks
}

/// The checks that a running agent can repeat at any time.
#[must_use]
pub fn hardware(host: &Host) -> Vec<HealthCheck> {
    let mut checks = vec![limits(host)];
    match host.partitioner.observe() {
        Err(error) => checks.push(check(
            "nvml",
            false,
            format!("{error}; is the NVIDIA driver loaded, and paths.nvml its library?"),
        )),
        Ok(observation) => {
            let text = format!(
                "driver {}, {} GPUs",
                observation.driver_version,
                observation.gpus.len()
            );
            checks.push(check("nvml", !observation.gpus.is_empty(), text));
            for gpu in &observation.gpus {
                let detail = match (&gpu.backend, &gpu.unavailable) {
                    (_, Some(reason)) => format!("{} at {}: {reason}", gpu.name, gpu.pci),
                    (Some(backend), None) => format!(
                        "{} at {}: {backend:?}, {} profiles",
                        gpu.name,
                        gpu.pci,
                        gpu.profiles.len()
                    )
                    .to_lowercase(),
                    (None, None) => format!("{} at {}: no back-end", gpu.name, gpu.pci),
                };
                checks.push(check(
                    &format!("gpu{}", gpu.index),
                    gpu.unavailable.is_none() && gpu.backend.is_some(),
                    detail,
                ));
            }
        }
    }
    checks
}

fn check(name: &str, passed: bool, detail: String) -> HealthCheck {
    HealthCheck {
        name: name.to_owned(),
        passed,
        detail,
    }
}

fn limits(host: &Host) -> HealthCheck {
    let layout = host.limiter.layout();
    let applies = matches!(layout, crate::cgroup::Layout::V1(_));
    let remedy = if applies {
        ""
    } else {
        "; results will say limits_state not_applied"
    };
    check(
        "cgroup",
        applies,
        format!("{}{remedy}", host.limiter.describe()),
    )
}

fn state_dir(path: &Path) -> HealthCheck {
    let ledger = path.join("ledger.db");
    let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    match (ledger.exists(), path.exists()) {
        (true, _) => check(
            "ledger",
            writable(&ledger),
            format!("{}: {}", ledger.display(), Ledger::look(path)),
        ),
        (false, true) => check(
            "ledger",
            writable(path),
            format!(
                "{}: none yet; it is made at the first start",
                path.display()
            ),
        ),
        (false, false) => check(
            "ledger",
            true,
            format!(
                "{}: none yet; the folder is made at the first start",
                path.display()
            ),
        ),
    }
}
