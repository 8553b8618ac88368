//! One write to a kernel attribute, from `open` to the return of `write`: faults before, the effect, faults after.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use uuid::Uuid;

use super::{Caller, Guard, Host, Inner, Phase, broken};
use crate::{
    description::SecondRemover,
    fault::{Effect, WriteFault},
    machine::{Removal, RemoveStep},
    protocol::Answer,
    state::{FinishedWrite, WaitCause},
    tree::{Attribute, TreeError},
};

/// Writes that the oracle remembers; enough for a test to read its own, bounded because `up --simulate` runs for days.
const REMEMBERED_WRITES: usize = 1024;

/// The longest that NVIDIA's older destroy path polls for the plugin to end.
const PLUGIN_PATIENCE_MS: u64 = 5_000;

/// Why a write did not succeed.
enum Failure {
    Refused(Errno),
    Broken(TreeError),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Self {
        Self::Broken(error)
    }
}

/// Who writes where, for the oracle.
#[derive(Clone, Copy)]
struct Writer<'write> {
    id: u64,
    path: &'write str,
    caller: Caller,
}

impl Host {
    pub(super) fn write(&self, caller: Caller, path: &str, bytes: &[u8]) -> Answer {
        let mut inner = self.lock();
        inner.writes.all += 1;
        inner.next_write += 1;
        let writer = Writer {
            id: inner.next_write,
            path,
            caller,
        };
        let (mut inner, result) = self.carry_out(inner, writer, bytes);

        let errno = match &result {
            Err(Failure::Refused(errno)) => errno.raw_os_error(),
            _ => 0,
        };
        if errno != 0 {
            inner.writes.refused += 1;
        }
        if inner.recent_writes.len() == REMEMBERED_WRITES {
            inner.recent_writes.pop_front();
        }
        let text = String::from_utf8_lossy(bytes).into_owned();
        inner.recent_writes.push_back(FinishedWrite {
            path: path.to_owned(),
            text,
            pid: caller.pid,
            errno,
        });
        self.notify(&mut inner);
        match result {
            Ok(()) => Answer::Ok(true),
            Err(Failure::Refused(errno)) => Answer::Errno(errno.raw_os_error()),
            Err(Failure::Broken(error)) => broken(&error),
        }
    }

    fn carry_out<'host>(
        &self,
        mut inner: Guard<'host>,
        writer: Writer<'_>,
        bytes: &[u8],
    ) -> (Guard<'host>, Result<(), Failure>) {
        // Every attribute that does something is root's alone (mode 0200).
        if !writer.caller.is_root {
            return (inner, Err(Errno::ACCESS.into()));
        }
        let attribute = match inner.tree.open_attribute(writer.path) {
            Ok(attribute) => attribute,
            Err(errno) => return (inner, Err(errno.into())),
        };
        let faults = inner.faults.on_write(writer.path);
        let (guard, result) = self.suffer(inner, writer, &faults, Effect::Before);
        inner = guard;
        if let Err(errno) = result {
            return (inner, Err(errno.into()));
        }
        let (guard, result) = self.take_effect(inner, writer, attribute, bytes);
        inner = guard;
        if result.is_err() {
            return (inner, result);
        }
        let (inner, result) = self.suffer(inner, writer, &faults, Effect::After);
        (inner, result.map_err(Failure::from))
    }

    /// What faults do on one side of the effect.
    fn suffer<'host>(
        &self,
        mut inner: Guard<'host>,
        writer: Writer<'_>,
        faults: &[(Effect, WriteFault)],
        side: Effect,
    ) -> (Guard<'host>, Result<(), Errno>) {
        for (_, fault) in faults.iter().filter(|(effect, _)| *effect == side) {
            match fault {
                WriteFault::Errno(errno) => return (inner, Err(Errno::from_raw_os_error(*errno))),
                WriteFault::Delay(ms) => {
                    let deadline = Instant::now() + Duration::from_millis(*ms);
                    inner = self.wait_visibly(
                        inner,
                        writer,
                        WaitCause::Delayed,
                        Some(deadline),
                        |_| false,
                    );
                }
                WriteFault::Hold => {
                    let cause = if side == Effect::Before {
                        WaitCause::HeldBefore
                    } else {
                        WaitCause::HeldAfter
                    };
                    let releases = inner.releases;
                    inner = self.wait_visibly(inner, writer, cause, None, |inner| {
                        inner.releases > releases
                    });
                }
            }
        }
        (inner, Ok(()))
    }

    /// Waits where the oracle can see it.
    fn wait_visibly<'host>(
        &self,
        mut inner: Guard<'host>,
        writer: Writer<'_>,
        cause: WaitCause,
        deadline: Option<Instant>,
        done: impl Fn(&Inner) -> bool,
    ) -> Guard<'host> {
        inner.waiting.insert(
            writer.id,
            (writer.path.to_owned(), writer.caller.pid, cause),
        );
        self.notify(&mut inner);
        let mut inner = self.wait(inner, deadline, done);
        inner.waiting.remove(&writer.id);
        inner
    }

    fn take_effect<'host>(
        &self,
        mut inner: Guard<'host>,
        writer: Writer<'_>,
        attribute: Attribute,
        bytes: &[u8],
    ) -> (Guard<'host>, Result<(), Failure>) {
        let result = match attribute {
            Attribute::Create { parent, type_id } => inner.create(parent, type_id, bytes),
            Attribute::Params { uuid } => inner.set_params(uuid, bytes),
            Attribute::Remove { uuid } => return self.remove(inner, writer, uuid, bytes),
            Attribute::Inert => Ok(()),
        };
        (inner, result)
    }

    fn remove<'host>(
        &self,
        mut inner: Guard<'host>,
        writer: Writer<'_>,
        uuid: Uuid,
        bytes: &[u8],
    ) -> (Guard<'host>, Result<(), Failure>) {
        let step = match inner.machine.begin_remove(uuid, bytes) {
            Ok(step) => step,
            Err(errno) => return (inner, Err(errno.into())),
        };
        let deadline = match step {
            RemoveStep::Nothing => return (inner, Ok(())),
            RemoveStep::Remove => {
                let result = inner.finish_remove(uuid);
                return (inner, result);
            }
            RemoveStep::WaitForVm => None,
            RemoveStep::WaitBriefly => {
                let ms = inner
                    .machine
                    .description
                    .quirks
                    .ebusy_after_ms
                    .unwrap_or(PLUGIN_PATIENCE_MS);
                Some(Instant::now() + Duration::from_millis(ms))
            }
        };
        if inner.machine.description.second_remover() == SecondRemover::Enoent
            && let Err(error) = inner.hide(uuid)
        {
            return (inner, Err(error.into()));
        }
        let boot = inner.machine.boot;
        let free = |inner: &Inner| {
            inner.machine.boot != boot
                || inner
                    .machine
                    .mdevs
                    .get(&uuid)
                    .is_none_or(|mdev| mdev.vm.is_none())
        };
        inner = self.wait_visibly(inner, writer, WaitCause::Vm, deadline, free);
        let result = if inner.machine.boot != boot || inner.phase == Phase::GoingDown {
            Err(Errno::NODEV.into())
        } else if free(&inner) {
            inner.finish_remove(uuid)
        } else {
            inner.machine.abandon_remove(uuid);
            inner
                .show(uuid)
                .map_err(Failure::from)
                .and(Err(Errno::BUSY.into()))
        };
        (inner, result)
    }
}

impl Inner {
    fn create(
        &mut self,
        parent: crate::pci::PciAddress,
        type_id: u32,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let gpu = self
            .machine
            .gpus
            .iter()
            .position(|gpu| gpu.pci == parent)
            .ok_or(Errno::NODEV)?;
        if let Some(uuid) = self.machine.create(gpu, type_id, bytes)? {
            self.tree
                .add_mdev(&self.machine, &self.machine.mdevs[&uuid])?;
            self.writes.created += 1;
        }
        Ok(())
    }

    fn set_params(&mut self, uuid: Uuid, bytes: &[u8]) -> Result<(), Failure> {
        self.machine.set_params(uuid, bytes)?;
        let mdev = &self.machine.mdevs[&uuid];
        Ok(self.tree.update_mdev(&self.machine.gpus[mdev.gpu], mdev)?)
    }

    fn hide(&self, uuid: Uuid) -> Result<(), TreeError> {
        let mdev = &self.machine.mdevs[&uuid];
        debug_assert_eq!(mdev.removal, Removal::UnderWay);
        self.tree.hide_mdev(&self.machine.gpus[mdev.gpu], mdev)
    }

    /// Undoes `hide` for a removal that was given up.
    fn show(&self, uuid: Uuid) -> Result<(), TreeError> {
        match self.machine.mdevs.get(&uuid) {
            Some(mdev) => self.tree.show_mdev(&self.machine.gpus[mdev.gpu], mdev),
            None => Ok(()),
        }
    }

    fn finish_remove(&mut self, uuid: Uuid) -> Result<(), Failure> {
        let mdev = self.machine.finish_remove(uuid).ok_or(Errno::NODEV)?;
        self.writes.removed += 1;
        Ok(self.tree.remove_mdev(&self.machine, &mdev)?)
    }
}
