//! The script of one seed: what callers ask for, and what goes wrong meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use backplane::Reads;
use backplane::store::OperationRecord;
use events::TenantName;
use serde_json::{Value, json};
use simulator::{Client, Effect, Fault, HostDescription, MdevState, Simulator, Window};
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
/// errno of the faults of attribute writes.
const ERRNO: [i32; 7] = [
    libc::EIO,
    libc::EBUSY,
    libc::EINVAL,
    libc::EAGAIN,
    libc::ENOMEM,
    libc::ENODEV,
    libc::EPERM,
];
/// NVML's answers when it fails: not supported, in use, GPU lost, timeout, unknown.
const NVML: [u32; 5] = [3, 19, 15, 10, 999];

/// The calls that fail: those by which a host is looked at, and not the one that ends a session, whose
/// failure leaves its connection open whatever a client does.
const NVML_CALLS: [&str; 7] = [
    "nvmlInit",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetTemperature",
];
/// Profiles of both boards: those that fit beside the foreign partitions, and one that never does.
const PROFILES: [&str; 5] = ["T4-4Q", "T4-4Q", "V100D-8Q", "V100D-8Q", "V100D-4Q"];
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
    dice: Arc<Dice>,
    door: Door,
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
                self.leap(seconds);
            }
            _ => self.restart_agent()?,
        }
        if self.dice.throw("wait", 100) < 60 {
            self.look_for(Duration::from_millis(250))?;
        }
        self.look()
    }

    fn say(&mut self, what: &str) {
        if self.loud {
            println!("  {what}");
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.0.entry(what).or_default() += 1;
    }

    // -- what callers do -------------------------------------------------------------------------

    fn key(&self) -> String {
        format!("job:{}", self.dice.throw("key", KEYS.end))
    }

    fn allocate(&mut self) -> Result<()> {
        let profile = PROFILES[self.dice.throw("profile", PROFILES.len() as u64) as usize];
        let mut body = json!({
            "op": "allocate", "key": self.key(), "profile": profile,
            "count": 1 + self.dice.throw("count", 2),
        });
        if self.dice.throw("pinned", 2) == 0 {
            let gpu = u64::from(profile.starts_with("V100"));
            body["target"] = json!({"host": crate::site::HOST, "gpu": gpu});
        }
        if self.dice.throw("leased", 3) == 0 {
            body["ttl_s"] = json!(60 + self.dice.throw("ttl", 600));
        }
        if self.dice.throw("limited", 3) == 0 {
            body["limits"] = json!({"memory_mib": 256, "pids": 64});
        }
        self.ask(body)
    }

    fn on_a_key(&mut self, op: &str) -> Result<()> {
        let mut body = json!({"op": op, "key": self.key()});
        if op == "renew" {
            body["ttl_s"] = json!(60 + self.dice.throw("ttl", 600));
        }
        self.ask(body)
    }

    fn ask(&mut self, body: Value) -> Result<()> {
        let id = format!("msg_{}", self.webhooks.len());
        self.webhooks.push(Webhook {
            id,
            body: body.to_string(),
            answer: None,
            is_refused: false,
        });
        self.count("operations");
        self.send(self.webhooks.len() - 1)
    }

    /// Sends a webhook, perhaps again. A final answer never changes.
    fn send(&mut self, index: usize) -> Result<()> {
        let webhook = &self.webhooks[index];
        let now_s = jiff::Timestamp::now().as_second() + self.machine.store_clock.shift_s();
        let answer = self.door.post(&webhook.id, now_s, &webhook.body)?;
        let told = answer.body["code"].as_str().unwrap_or("");
        self.say(&format!(
            "{} -> {} {told}",
            self.webhooks[index].body, answer.status
        ));
        let webhook = &mut self.webhooks[index];
        match (&webhook.answer, answer.status) {
            // A refusal is an answer that a sender can live with. It leaves no trace, so that the same
            // webhook may be accepted later, when its host is whole again or has room.
            (None, 422) => webhook.is_refused = true,
            (None, 409) if answer.body["code"] == "no_capacity" => webhook.is_refused = true,
            (_, 503 | 409) => webhook.is_refused = false,
            (None, 200 | 202) => webhook.answer = Some(answer),
            (Some(first), _) if first.body == answer.body => {}
            (first, _) => self.violations.push(format!(
                "{} was answered {first:?}, then {answer:?}",
                webhook.id
            )),
        }
        Ok(())
    }

    fn repeat(&mut self) -> Result<()> {
        if self.webhooks.is_empty() {
            return Ok(());
        }
        self.count("repeats");
        let index = self.dice.throw("repeat", self.webhooks.len() as u64) as usize;
        self.send(index)
    }

    fn mismatch(&mut self) -> Result<()> {
        let known = self.webhooks.iter().rev().find(|webhook| {
            webhook
                .answer
                .as_ref()
                .is_some_and(|answer| answer.status == 202)
        });
        let Some(webhook) = known else { return Ok(()) };
        let body = webhook.body.replace("{\"", "{ \"");
        let now_s = jiff::Timestamp::now().as_second() + self.machine.store_clock.shift_s();
        let answer = self.door.post(&webhook.id, now_s, &body)?;
        if !matches!(answer.status, 409 | 503) {
            self.violations.push(format!(
                "another body under a known id was answered {answer:?}"
            ));
        }
        self.count("mismatches");
        Ok(())
    }

    // -- what goes wrong -------------------------------------------------------------------------

    fn break_a_write(&mut self) -> Result<()> {
        let suffix = ["create", "remove"][self.dice.throw("which write", 2) as usize];
        let effect = [Effect::Before, Effect::After][self.dice.throw("effect", 2) as usize];
        let window = Window::times(1 + self.dice.throw("times", 6));
        let fault = match self.dice.throw("how", 4) {
            0 => Fault::WriteDelay {
                path_suffix: suffix.to_owned(),
                ms: 300,
                effect,
                window,
            },
            _ => Fault::Write {
                path_suffix: suffix.to_owned(),
                errno: ERRNO[self.dice.throw("errno", ERRNO.len() as u64) as usize],
                effect,
                window,
            },
        };
        self.fault(fault)
    }

    fn break_nvml(&mut self) -> Result<()> {
        let which = self.dice.throw("function", NVML_CALLS.len() as u64) as usize;
        let function = NVML_CALLS[which].to_owned();
        let window = Window::times(1 + self.dice.throw("calls", 12));
        let fault = match self.dice.throw("slow", 3) {
            0 => Fault::NvmlDelay {
                function,
                ms: 100,
                window,
            },
            _ => Fault::Nvml {
                function,
                code: NVML[self.dice.throw("code", NVML.len() as u64) as usize],
                window,
            },
        };
        self.fault(fault)
    }

    fn lose_a_gpu(&mut self) -> Result<()> {
        let gpu = self.dice.throw("gpu", 2).to_string();
        self.fault(Fault::GpuLost { gpu })
    }

    fn fault(&mut self, fault: Fault) -> Result<()> {
        self.say(&format!("fault: {fault:?}"));
        self.count("faults");
        Ok(self.kernel.fault(fault)?)
    }

    /// A new epoch: nothing that was made is left; the other manager makes its own again.
    fn reboot(&mut self) -> Result<()> {
        self.say("the host reboots");
        self.count("reboots");
        self.machine.stop_agent();
        self.kernel.fault(Fault::Clear {})?;
        self.kernel.reboot()?;
        self.machine.start_agent()
    }

    fn vm(&mut self) -> Result<()> {
        let state = self.kernel.state()?;
        let ours: Vec<_> = state
            .mdevs
            .iter()
            .filter(|mdev| self.foreign.iter().all(|foreign| foreign.uuid != mdev.uuid))
            .collect();
        if ours.is_empty() {
            return Ok(());
        }
        let mdev = ours[self.dice.throw("which device", ours.len() as u64) as usize];
        // A device that is just being removed, or a lost GPU, refuses: as good.
        let _ = match mdev.vm_name {
            Some(_) => self.kernel.vm_close(mdev.uuid),
            None => self.kernel.vm_open(mdev.uuid, "guest"),
        };
        self.count("VMs");
        Ok(())
    }

    fn jump_host_clock(&mut self) {
        let back = self.machine.host_clock.shift_s() - self.machine.store_clock.shift_s();
        // Away by up to an hour in either direction, or back to the truth.
        let jump = match self.dice.throw("jump", 3) {
            0 => -back,
            1 => self.dice.throw("by", 3600).cast_signed(),
            _ => -self.dice.throw("by", 3600).cast_signed(),
        };
        self.say(&format!("the host's clock jumps by {jump} s"));
        self.count("jumps");
        self.machine.host_clock.jump_s(jump);
    }

    fn leap(&self, seconds: i64) {
        self.machine.store_clock.jump_s(seconds);
        self.machine.host_clock.jump_s(seconds);
    }

    fn restart_agent(&mut self) -> Result<()> {
        self.say("the agent restarts");
        self.count("restarts");
        self.machine.stop_agent();
        self.machine.start_agent()
    }

    // -- looking ---------------------------------------------------------------------------------

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

    // -- the end ---------------------------------------------------------------------------------

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
        self.machine.host_clock.jump_s(-ahead);
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
            ..
        } = self;
        violations.extend(found);
        machine.stop();
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
