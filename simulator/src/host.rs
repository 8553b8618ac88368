//! The running host: the machine's truth, its files and its faults under one lock, as one kernel has them. Every request
//! of every connection ends here; whatever has to wait waits on one condition variable, so that shutdown and reboot
//! reach it. No sockets here.

mod driver;
mod mig;
mod oracle;
mod write;

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::Path,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use base64::Engine as _;

use crate::{
    description::HostDescription,
    fault::{Fault, Faults},
    machine::{Condition, GpuProcess, Machine},
    protocol::{Answer, Lifetime, Request},
    simulator::StartError,
    state::{FinishedWrite, WaitCause, WriteCounters},
    tree::{Tree, TreeError},
};

/// Longest wait of one `state` request; a client that wants more asks again.
const LONGEST_STATE_WAIT: Duration = Duration::from_secs(60);

/// A client of the host: one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) connection: u64,
    pub(crate) pid: u32,
    /// Whether it is root on the simulated host: it runs as the simulator's own user, or as real root.
    pub(crate) is_root: bool,
}

/// The running host.
#[derive(Debug)]
pub(crate) struct Host {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    machine: Machine,
    tree: Tree,
    faults: Faults,
    boot_id: String,
    generation: u64,
    /// Grows with `release`: a held write goes on when it is newer than at its beginning.
    releases: u64,
    /// Connections with the driver open through NVML, and their processes.
    sessions: BTreeMap<u64, u32>,
    waiting: BTreeMap<u64, (String, u32, WaitCause)>,
    next_write: u64,
    writes: WriteCounters,
    recent_writes: VecDeque<FinishedWrite>,
    nvml_calls: u64,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Up,
    /// No wait may go on.
    GoingDown,
}

type Guard<'host> = MutexGuard<'host, Inner>;

impl Host {
    /// Boots the host into `dir`.
    pub(crate) fn boot(description: HostDescription, dir: &Path) -> Result<Self, StartError> {
        let machine = Machine::new(description)?;
        let boot_id = new_boot_id();
        let tree = Tree::render(&dir.join("root"), &dir.join("staging"), &machine, &boot_id)?;
        show_foreign(&tree, &machine)?;
        let inner = Inner {
            machine,
            tree,
            faults: Faults::default(),
            boot_id,
            generation: 0,
            releases: 0,
            sessions: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next_write: 0,
            writes: WriteCounters::default(),
            recent_writes: VecDeque::new(),
            nvml_calls: 0,
            phase: Phase::Up,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
        })
    }

    /// Answers one request. May take as long as the kernel's write would.
    pub(crate) fn answer(&self, caller: Caller, request: Request) -> Answer {
        match request {
            Request::AttributeWrite { path, bytes } => {
                match base64::engine::general_purpose::STANDARD.decode(bytes) {
                    Ok(bytes) => self.write(caller, &path, &bytes),
                    Err(_) => Answer::Error("bytes is not standard base64".into()),
                }
            }
            Request::Nvml(call) => Answer::Nvml(self.nvml(caller, &call)),
            Request::State { after, timeout_ms } => Answer::State(Box::new(
                self.state(after, Duration::from_millis(timeout_ms)),
            )),
            Request::Fault(fault) => self.fault(fault),
            Request::Release {} => {
                let mut inner = self.lock();
                inner.faults.drop_holds();
                inner.releases += 1;
                self.notify(&mut inner);
                Answer::Ok(true)
            }
            Request::VmOpen {
                uuid,
                vm_name,
                lifetime,
            } => {
                let name = vm_name.unwrap_or_else(|| format!("vm-{uuid}"));
                let connection = (lifetime == Lifetime::Connection).then_some(caller.connection);
                self.change_vm(uuid, |machine| machine.open(uuid, name, connection))
            }
            Request::VmClose { uuid } => self.change_vm(uuid, |machine| machine.close(uuid)),
            Request::ProcessOpen { gpu, memory_mib } => self.open_process(caller, &gpu, memory_mib),
            Request::Reboot {} => self.reboot(),
        }
    }

    /// The connection is closed: the kernel releases what its process held.
    pub(crate) fn release_client(&self, connection: u64) {
        let mut inner = self.lock();
        inner.sessions.remove(&connection);
        for uuid in inner.machine.release_client(connection) {
            let mdev = &inner.machine.mdevs[&uuid];
            // The device may be hidden already; its directory is there until the remover has finished.
            if let Err(error) = inner.tree.update_mdev(&inner.machine.gpus[mdev.gpu], mdev) {
                eprintln!("simulator: {error}");
            }
        }
        self.notify(&mut inner);
    }

    /// Ends every wait. Further requests are still answered, without waiting.
    pub(crate) fn go_down(&self) {
        let mut inner = self.lock();
        inner.phase = Phase::GoingDown;
        self.notify(&mut inner);
    }

    fn lock(&self) -> Guard<'_> {
        // A panic in one connection's thread must not take the host down with it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has changed: clients that wait for it look again.
    fn notify(&self, inner: &mut Inner) {
        inner.generation += 1;
        self.changed.notify_all();
    }

    /// Waits until `done` says so or the deadline is over; shutdown ends it too.
    fn wait<'host>(
        &self,
        mut inner: Guard<'host>,
        deadline: Option<Instant>,
        done: impl Fn(&Inner) -> bool,
    ) -> Guard<'host> {
        while !done(&inner) && inner.phase == Phase::Up {
            inner = match deadline {
                None => self
                    .changed
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.changed
                        .wait_timeout(inner, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        inner
    }

    fn fault(&self, fault: Fault) -> Answer {
        let mut inner = self.lock();
        match fault {
            Fault::GpuLost { gpu } => {
                let Some(index) = inner.machine.find_gpu(&gpu) else {
                    return no_such_gpu(&gpu);
                };
                inner.machine.gpus[index].condition = Condition::Lost;
            }
            Fault::Clear {} => {
                inner.faults.clear();
                inner.releases += 1;
                inner
                    .machine
                    .gpus
                    .iter_mut()
                    .for_each(|gpu| gpu.condition = Condition::Healthy);
            }
            other => inner.faults.arm(other),
        }
        self.notify(&mut inner);
        Answer::Ok(true)
    }

    fn change_vm(
        &self,
        uuid: uuid::Uuid,
        change: impl FnOnce(&mut Machine) -> Result<(), rustix::io::Errno>,
    ) -> Answer {
        let mut inner = self.lock();
        if let Err(errno) = change(&mut inner.machine) {
            return Answer::Errno(errno.raw_os_error());
        }
        let mdev = &inner.machine.mdevs[&uuid];
        let rendered = inner.tree.update_mdev(&inner.machine.gpus[mdev.gpu], mdev);
        self.notify(&mut inner);
        rendered.map_or_else(|error| broken(&error), |()| Answer::Ok(true))
    }

    fn open_process(&self, caller: Caller, gpu: &str, memory_mib: u64) -> Answer {
        let mut inner = self.lock();
        let Some((index, compute)) = inner.machine.find_device(gpu) else {
            return no_such_gpu(gpu);
        };
        inner.machine.gpus[index].processes.push(GpuProcess {
            connection: caller.connection,
            pid: caller.pid,
            memory_mib,
            compute,
        });
        self.notify(&mut inner);
        Answer::Ok(true)
    }

    fn reboot(&self) -> Answer {
        let mut inner = self.lock();
        let Inner {
            machine,
            tree,
            boot_id,
            sessions,
            ..
        } = &mut *inner;
        let gone: Vec<_> = machine.mdevs.values().cloned().collect();
        machine.reboot();
        sessions.clear();
        *boot_id = new_boot_id();
        let rendered = gone
            .iter()
            .try_for_each(|mdev| tree.remove_mdev(machine, mdev))
            .and_then(|()| show_foreign(tree, machine))
            .and_then(|()| {
                machine
                    .gpus
                    .iter()
                    .try_for_each(|gpu| tree.update_capabilities(gpu))
            })
            .and_then(|()| tree.update_boot_id(boot_id));
        self.notify(&mut inner);
        rendered.map_or_else(|error| broken(&error), |()| Answer::Ok(true))
    }
}

/// Right after a boot: what there is, another manager made.
fn show_foreign(tree: &Tree, machine: &Machine) -> Result<(), TreeError> {
    for mdev in machine.mdevs.values() {
        tree.add_mdev(machine, mdev)?;
        tree.update_mdev(&machine.gpus[mdev.gpu], mdev)?;
    }
    Ok(())
}

/// Random, as the kernel's: a restarted simulator has lost its devices, so its boot id must not come again.
fn new_boot_id() -> String {
    match fs::read_to_string("/proc/sys/kernel/random/uuid") {
        Ok(text) => text.trim().to_owned(),
        Err(_) => uuid::Uuid::now_v7().to_string(),
    }
}

fn no_such_gpu(text: &str) -> Answer {
    Answer::Error(format!("no GPU is called `{text}`"))
}

/// The files cannot follow the truth, a full disk say. Nothing on hardware corresponds to it, so it is no errno.
fn broken(error: &TreeError) -> Answer {
    Answer::Error(format!("the simulated host is damaged: {error}"))
}
