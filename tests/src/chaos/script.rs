//! The script of one seed: what callers ask for, and what goes wrong meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use backplane::Reads;
use backplane::store::OperationRecord;
use events::TenantName;
use serde_json::json;
use simulator::{Client, Fault, HostDescription, MdevState, Simulator};
use uuid::Uuid;

use super::dice::Dice;
use super::judge;
use super::machine::Machine;
use crate::door::{Answer, Door};
use crate::receiver::Receiver;
use crate::site::Site;

/// Longest time for everything to come to rest once it is healed.
const REST: Duration = Duration::from_secs(60);
/// What clocks leap in each round of waiting: past visibility timeouts, leases and retry pauses.
const LEAP_S: i64 = 45;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Keys that operations are about: few, so that they meet.
pub(super) const KEYS: std::ops::Range<u64> = 0..7;

/// One webhook of the script.
pub(super) struct Webhook {
    pub(super) id: String,
    pub(super) body: String,
    /// The final answer; 503 and in-progress are not.
    pub(super) answer: Option<Answer>,
    /// The last answer was a refusal.
    pub(super) is_refused: bool,
}

impl Webhook {
    /// Whether its sender still has to send it again.
    pub(super) fn is_open(&self) -> bool {
        self.answer.is_none() && !self.is_refused
    }
}

/// What has been done, in numbers.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<&'static str, u64>);

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<_> = self
            .0
            .iter()
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        f.write_str(&parts.join(", "))
    }
}

/// A running script.
pub(super) struct Script {
    pub(super) site: Site,
    pub(super) receiver: Receiver,
    pub(super) foreign: Vec<MdevState>,
    pub(super) kernel: Client,
    pub(super) machine: Machine,
    pub(super) webhooks: Vec<Webhook>,
    /// Final states as first seen.
    pub(super) finals: BTreeMap<String, OperationRecord>,
    pub(super) violations: Vec<String>,
    pub(super) dice: Arc<Dice>,
    pub(super) door: Door,
    sequence: i64,
    tally: Tally,
    loud: bool,
    _simulator: Simulator,
    _folder: tempfile::TempDir,
}

impl Script {
    pub(super) fn begin(seed: u64, loud: bool) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("gpuhook-chaos-")
            .tempdir()?;
        let unique = Uuid::now_v7().as_u128() & 0xffff_ffff;
        let site = Site::write(folder.path(), &format!("chaos-{seed}-{unique:08x}"))?;
        let simulator = Simulator::start(HostDescription::builtin("mixed")?, &site.host_folder())?;
        let mut kernel = Client::connect(&site.host_folder())?;
        let dice = Arc::new(Dice::new(seed));
        let script = Self {
            receiver: Receiver::start(&site)?,
            foreign: kernel.state()?.mdevs,
            kernel,
            machine: Machine::start(&site, &dice)?,
            webhooks: Vec::new(),
            finals: BTreeMap::new(),
            violations: Vec::new(),
            dice,
            door: Door::of(&site),
            sequence: -1,
            tally: Tally::default(),
            loud,
            _simulator: simulator,
            site,
            _folder: folder,
        };
        script.wait_for_inventory()?;
        Ok(script)
    }

    fn wait_for_inventory(&self) -> Result<()> {
        let deadline = Instant::now() + REST;
        while Instant::now() < deadline {
            let hosts = self.machine.ask(self.machine.flaky.inner.hosts())?;
            if hosts.iter().any(|host| host.inventory.is_some()) {
                return Ok(());
            }
            self.machine.nudge()?;
            self.leap(LEAP_S);
            std::thread::sleep(LOOK);
        }
        anyhow::bail!("the host never reported")
    }

    /// One step: something happens, and sometimes it is waited for.
    pub(super) fn step(&mut self) -> Result<()> {
        let throw = self.dice.throw("what happens", 100);
        match throw {
            0..30 => self.allocate()?,
            30..50 => self.on_a_key("release")?,
            50..57 => self.on_a_key("renew")?,
            57..60 => self.ask(json!({"op": "inspect", "target": {"host": crate::site::HOST}}))?,
            60..68 => self.repeat()?,
            68..70 => self.mismatch()?,
            70..80 => self.break_a_write()?,
            80..85 => self.break_nvml()?,
            85..87 => self.lose_a_gpu()?,
            87..89 => self.reboot()?,
            89..94 => self.vm()?,
            94..96 => self.jump_host_clock(),
            96..98 => {
                let seconds = 20 + self.dice.throw("leap", 600).cast_signed();
                self.say(&format!("time passes: {seconds} s"));
                // Messages may overtake each other, but not by minutes.
                self.machine.nudge()?;
                self.leap(seconds);
            }
            _ => self.restart_agent()?,
        }
        if self.dice.throw("wait", 100) < 60 {
            self.look_for(Duration::from_millis(250))?;
        }
        self.look()
    }

    pub(super) fn say(&mut self, what: &str) {
        if self.loud {
            println!("  {what}");
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.tally.0.entry(what).or_default() += 1;
    }

    fn look_for(&mut self, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if self
                .operations()?
                .iter()
                .all(|record| record.state.is_final())
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Every operation, as the store has it.
    pub(super) fn operations(&self) -> Result<Vec<OperationRecord>> {
        let tenant: TenantName = self.site.tenant.parse()?;
        let page = self
            .machine
            .ask(self.machine.flaky.inner.operations(&tenant, None, 5000))?;
        Ok(page.items)
    }

    /// What must be so at any time: final states stay, sequences grow.
    fn look(&mut self) -> Result<()> {
        for record in self.operations()? {
            if !record.state.is_final() {
                continue;
            }
            let id = record.id.to_string();
            match self.finals.get(&id) {
                None => {
                    self.finals.insert(id, record);
                }
                Some(first) if *first == record => {}
                Some(first) => self.violations.push(format!(
                    "a final state changed from {first:?}\n  to {record:?}"
                )),
            }
        }
        let sequence = judge::sequence(&self.site)?;
        if sequence < self.sequence {
            self.violations
                .push(format!("sequence {sequence} came after {}", self.sequence));
        }
        self.sequence = sequence;
        Ok(())
    }

    /// Heals everything, waits until nothing moves, compares, and stops.
    pub(super) fn end(mut self) -> Result<(Vec<String>, Tally)> {
        self.say("-- healed --");
        self.dice.heal();
        self.kernel.fault(Fault::Clear {})?;
        self.kernel.release()?;
        for mdev in self.kernel.state()?.mdevs {
            if mdev.vm_name.is_some() && !self.foreign.contains(&mdev) {
                self.kernel.vm_close(mdev.uuid)?;
            }
        }
        let ahead = self.machine.host_clock.shift_s() - self.machine.store_clock.shift_s();
        self.machine.host_clock.set_by_s(-ahead);
        self.clear_quarantine()?;
        let deadline = Instant::now() + REST;
        loop {
            for index in 0..self.webhooks.len() {
                if self.webhooks[index].is_open() {
                    self.send(index)?;
                }
            }
            self.machine.nudge()?;
            self.leap(LEAP_S);
            std::thread::sleep(LOOK * 4);
            self.look()?;
            let left = judge::unrest(&mut self)?;
            if left.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                self.violations.extend(
                    left.iter()
                        .map(|what| format!("never came to rest: {what}")),
                );
                break;
            }
            // Wakes receivers that wait for a time which has leapt past.
            if self.dice.throw("poke", 8) == 0 {
                self.ask(json!({"op": "inspect", "target": {"host": crate::site::HOST}}))?;
            }
        }
        let found = judge::compare(&mut self)?;
        let Self {
            mut violations,
            machine,
            tally,
            site,
            ..
        } = self;
        violations.extend(found);
        machine.stop();
        violations.extend(judge::files(&site));
        judge::clear_groups(&site)?;
        Ok((violations, tally))
    }

    /// What an operator does about a GPU that a failed roll-back put out of use.
    fn clear_quarantine(&mut self) -> Result<()> {
        self.machine.stop_agent();
        let state = self.kernel.state()?;
        for gpu in state.gpus {
            let ledger = agent::ledger::Ledger::open(
                &self.site.folder.join("agent"),
                &crate::site::HOST.parse()?,
            )?;
            ledger.clear_quarantine(&gpu.uuid.parse()?)?;
        }
        self.machine.start_agent()?;
        ensure!(self.machine.agent_status().is_object(), "the agent is back");
        Ok(())
    }
}
