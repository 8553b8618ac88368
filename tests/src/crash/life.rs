//! One machine and its many lives: the simulated host and the caller's endpoint stay, `gpuhook up`
//! dies and is started again.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use simulator::{Client, HostDescription, MdevState, Simulator};
use uuid::Uuid;

use super::breakage::Breakage;
use super::control::Control;
use crate::door::{Answer, Door};
use crate::receiver::Receiver;
use crate::site::Site;

/// Longest wait for anything; shorter where something is broken on purpose and most likely never comes.
const DEADLINE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(6)];
/// Between two looks of a wait.
const LOOK: Duration = Duration::from_millis(3);
/// Nothing passed a point for so long: the machine is at rest.
const REST: Duration = Duration::from_millis(80);
/// How far a start moves the wall clock: past every lease and visibility timeout that a dead process left.
const LEAP_S: i64 = 120;
/// The machine.
pub(super) struct Life {
    pub(super) site: Site,
    pub(super) door: Door,
    pub(super) receiver: Receiver,
    pub(super) control: Control,
    pub(super) foreign: Vec<MdevState>,
    kernel: Client,
    breakage: Option<Breakage>,
    has_agent: bool,
    child: Option<Child>,
    offset_s: i64,
    webhooks: u64,
    _simulator: Simulator,
    folder: tempfile::TempDir,
}

impl Life {
    /// Sets up a machine beside whose partitions are those of another manager, and starts it.
    pub(super) fn begin(breakage: Option<Breakage>) -> Result<Self> {
        Self::set_up(breakage, true)
    }

    /// As [`Self::begin`], with the front door alone.
    pub(super) fn begin_without_agent() -> Result<Self> {
        Self::set_up(None, false)
    }

    fn set_up(breakage: Option<Breakage>, has_agent: bool) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("gpuhook-crash-")
            .tempdir()?;
        let tenant = format!("crash-{:012x}", Uuid::now_v7().as_u128() & 0xffff_ffff_ffff);
        let site = Site::write(folder.path(), &tenant)?;
        if !has_agent {
            std::fs::remove_file(folder.path().join("agent.toml"))?;
        }
        let simulator = Simulator::start(HostDescription::builtin("mixed")?, &site.host_folder())?;
        let mut kernel = Client::connect(&site.host_folder())?;
        let mut life = Self {
            door: Door::of(&site),
            receiver: Receiver::start(&site)?,
            control: Control::create(&folder.path().join("control"))?,
            foreign: kernel.state()?.mdevs,
            kernel,
            breakage,
            has_agent,
            child: None,
            offset_s: 0,
            webhooks: 0,
            _simulator: simulator,
            site,
            folder,
        };
        life.start()?;
        Ok(life)
    }

    /// What is broken on purpose.
    pub(super) fn breakage(&self) -> Option<Breakage> {
        self.breakage
    }

    /// Whether something is broken on purpose.
    pub(super) fn is_broken(&self) -> bool {
        self.breakage.is_some()
    }

    fn deadline(&self) -> Duration {
        DEADLINE[usize::from(self.is_broken())]
    }

    /// The truth of the simulated hardware.
    pub(super) fn hardware(&mut self) -> Result<simulator::State> {
        Ok(self.kernel.state()?)
    }

    /// The machine's own time.
    pub(super) fn now_s(&self) -> i64 {
        jiff::Timestamp::now().as_second() + self.offset_s
    }

    /// Moves the machine's wall clock.
    pub(super) fn leap(&mut self, seconds: i64) -> Result<()> {
        self.offset_s += seconds;
        self.control.set_wall_offset_s(self.offset_s)
    }

    /// Starts `gpuhook up`, later than everything that its predecessor had leased, and waits until it
    /// answers.
    pub(super) fn start(&mut self) -> Result<()> {
        self.leap(LEAP_S)?;
        self.spawn()?;
        self.until("the machine to answer", |life| {
            let hosts = life.door.get("/v1/hosts").ok()?;
            let seen = !life.has_agent
                || hosts["items"]
                    .as_array()?
                    .iter()
                    .any(|host| host["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty()));
            seen.then_some(())
        })
    }

    /// Ends the machine without warning.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts `gpuhook up`.
    pub(super) fn spawn(&mut self) -> Result<()> {
        let programs = std::env::current_exe()?;
        let programs = programs.parent().context("a program lies in a folder")?;
        let library = [
            "libgpuhook_crashpoints.so",
            "deps/libgpuhook_crashpoints.so",
        ]
        .map(|name| programs.join(name))
        .into_iter()
        .find(|path| path.exists())
        .context("libgpuhook_crashpoints.so is not built")?;
        let log = File::options().create(true).append(true).open(self.log())?;
        let child = Command::new(programs.join("gpuhook"))
            .args(["up", "--data"])
            .arg(self.folder.path())
            .env("LD_PRELOAD", library)
            .env("GPUHOOK_CRASH_CONTROL", self.folder.path().join("control"))
            .env("GPUHOOK_CRASH_DATA", self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("start gpuhook")?;
        self.control.set_main(child.id())?;
        self.child = Some(child);
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("gpuhook.log")
    }

    /// Whether the process has ended.
    pub(super) fn is_dead(&mut self) -> Result<bool> {
        let Some(child) = &mut self.child else {
            return Ok(true);
        };
        let ended = child.try_wait()?;
        if let Some(status) = ended {
            self.child = None;
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            ensure!(
                signal == Some(libc::SIGKILL),
                "gpuhook ended by itself with {status}"
            );
        }
        Ok(ended.is_some())
    }

    /// After a kill: what is broken on purpose is broken now, then the machine starts again.
    pub(super) fn restart(&mut self) -> Result<()> {
        if let Some(breakage) = self.breakage {
            breakage.harm(self.folder.path())?;
        }
        self.start()
    }

    /// Looks until `condition` gives something; fails with the log's end after a while.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + self.deadline();
        loop {
            if let Some(value) = condition(self) {
                return Ok(value);
            }
            if Instant::now() > deadline {
                bail!("waited {} s in vain for {what}", self.deadline().as_secs());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the machine was killed (true), or is at rest and `done` (false).
    pub(super) fn until_killed_or(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool> {
        let mut seen = (0, Instant::now());
        let deadline = Instant::now() + self.deadline();
        loop {
            if self.is_dead()? {
                return Ok(true);
            }
            let count = self.control.count()?;
            if count != seen.0 {
                seen = (count, Instant::now());
            }
            if seen.1.elapsed() > REST && done(self) {
                return Ok(false);
            }
            ensure!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(LOOK);
        }
    }

    /// A webhook id that was never used.
    pub(super) fn webhook_id(&mut self) -> String {
        self.webhooks += 1;
        format!("msg_{}", self.webhooks)
    }

    /// Posts a webhook; an error means that the connection broke.
    pub(super) fn post(&self, id: &str, body: &str) -> Result<Answer> {
        self.door.post(id, self.now_s(), body)
    }

    /// The agent's own status.
    pub(super) fn agent_status(&self) -> Result<Value> {
        let url = format!("http://127.0.0.1:{}/status", self.site.agent_port);
        let text = ureq::get(url).call()?.into_body().read_to_string()?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Whether the log has this text.
    pub(super) fn has_logged(&self, text: &str) -> bool {
        std::fs::read_to_string(self.log()).is_ok_and(|log| log.contains(text))
    }

    /// The end of the log, for a trial that failed.
    pub(super) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().collect();
        // What the driver itself asked is no news.
        lines.retain(|line| !line.contains("request answered"));
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
