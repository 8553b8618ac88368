//! Starts and stops the simulated host: a process of its own, as kernel and driver are.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A running simulated host. It ends when this value is dropped, and also when this process dies,
/// since it watches its standard input.
pub(crate) struct SimulatedHost {
    child: Child,
}

impl SimulatedHost {
    /// Starts `host` (a built-in name or a description file) with its files in `folder`.
    pub(crate) fn start(host: &str, folder: &Path) -> Result<Self> {
        // What an earlier run left describes a machine that is switched off.
        if folder.exists() {
            std::fs::remove_dir_all(folder)
                .with_context(|| format!("clear {}", folder.display()))?;
        }
        crate::data::create_private(folder)?;
        let mut child = Command::new(std::env::current_exe().context("find this program")?)
            .args(["simulator", "--until-stdin-closes", "--host", host, "--dir"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the simulated host")?;
        let stdout = child
            .stdout
            .take()
            .context("simulated host has no output")?;
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .context("read from the simulated host")?;
        if !line.starts_with("ready") {
            let status = child.wait().context("wait for the simulated host")?;
            bail!("the simulated host '{host}' did not start ({status}); its message is above");
        }
        Ok(Self { child })
    }
}

impl Drop for SimulatedHost {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It is ours and holds nothing durable; a failure to end it is only untidy.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
