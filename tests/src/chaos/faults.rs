//! What goes wrong: driver, kernel, GPUs, guests, clocks, the agent, the whole host.

use anyhow::Result;
use simulator::{Effect, Fault, Window};

use super::script::Script;

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

impl Script {
    pub(super) fn break_a_write(&mut self) -> Result<()> {
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

    pub(super) fn break_nvml(&mut self) -> Result<()> {
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

    pub(super) fn lose_a_gpu(&mut self) -> Result<()> {
        let gpu = self.dice.throw("gpu", 2).to_string();
        self.fault(Fault::GpuLost { gpu })
    }

    pub(super) fn fault(&mut self, fault: Fault) -> Result<()> {
        self.say(&format!("fault: {fault:?}"));
        self.count("faults");
        Ok(self.kernel.fault(fault)?)
    }

    /// A new epoch: nothing that was made is left; the other manager makes its own again.
    pub(super) fn reboot(&mut self) -> Result<()> {
        self.say("the host reboots");
        self.count("reboots");
        self.machine.stop_agent();
        self.kernel.fault(Fault::Clear {})?;
        self.kernel.reboot()?;
        self.machine.start_agent()
    }

    pub(super) fn vm(&mut self) -> Result<()> {
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

    pub(super) fn jump_host_clock(&mut self) {
        let back = self.machine.host_clock.shift_s() - self.machine.store_clock.shift_s();
        // Away by up to an hour in either direction, or back to the truth.
        let jump = match self.dice.throw("jump", 3) {
            0 => -back,
            1 => self.dice.throw("by", 3600).cast_signed(),
            _ => -self.dice.throw("by", 3600).cast_signed(),
        };
        self.say(&format!("the host's clock jumps by {jump} s"));
        self.count("jumps");
        self.machine.host_clock.set_by_s(jump);
    }

    pub(super) fn leap(&self, seconds: i64) {
        self.machine.store_clock.pass_s(seconds);
        self.machine.host_clock.pass_s(seconds);
    }

    pub(super) fn restart_agent(&mut self) -> Result<()> {
        self.say("the agent restarts");
        self.count("restarts");
        self.machine.stop_agent();
        self.machine.start_agent()
    }
}
