//! The workers: one thread per GPU, the only place where effects on that GPU happen.
//!
//! Whatever wants something of a GPU (a command, a lease, drift, a start) enters its queue; the
//! worker observes, plans the next step, records it, does it, and looks again.

mod allocate;

mod effects;

mod ending;

mod handles;

mod leases;

mod order;

mod partition;

mod places;

mod release;

mod repair;

mod report;

mod resize;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use backplane::Clock;
use events::outcome::{Failure, HealthCheck, Inspected, Outcome};
use events::result::EventKind;
use events::{AllocationId, Code, Command, GpuUuid, HostName, Operation, OperationId};

use crate::ledger::{Change, Ledger, LedgerError};
use crate::limiter::Limiter;
use crate::operation::admit::BEING_RELEASED;
use crate::operation::allocation::Phase;
use crate::partitioner::{PartitionError, Partitioner};

pub use leases::Leases;

/// Work that may wait for one GPU. A full queue makes intake wait, and the message stay with the queue.
const QUEUE: usize = 256;

/// Tries of one operation: about five minutes of a host that cannot be observed.
const MOST_TRIES: u32 = 300;
/// What a start of the agent counts for: an operation that takes the agent down each time ends too.
const START: u32 = 10;

/// Something to do on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Job {
    /// An operation in the ledger.
    Operation(OperationId),
    /// An allocation whose lease has ended.
    Expire(AllocationId),
    /// Compare with what is desired, and repair.
    Repair,
}

/// What every worker shares.
pub struct Shared {
    /// This host.
    pub host: HostName,
    /// The ledger.
    pub ledger: Arc<Ledger>,
    /// The GPUs.
    pub partitioner: Arc<dyn Partitioner>,
    /// The control groups.
    pub limiter: Arc<dyn Limiter>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Health checks, for `inspect`.
    pub checks: Arc<dyn Fn() -> Vec<HealthCheck> + Send + Sync>,
    /// Called after something was put into the outbox.
    pub on_event: Arc<dyn Fn() + Send + Sync>,
    /// When leases end.
    pub leases: Leases,
    /// Work that could not be ended (the host could not be observed, say): the reconciler queues it
    /// again at its next look.
    pub again: Mutex<BTreeSet<Work>>,
}

/// A job with the GPU whose worker does it.
pub type Work = (Option<GpuUuid>, Job);

/// Why an operation could not be ended in the ledger's terms.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The ledger cannot be written: nothing may be done until it can.
    #[error("ledger failed")]
    Ledger(#[from] LedgerError),
    /// The host cannot be observed now; the work stays open.
    #[error("host cannot be observed")]
    Observe(#[from] PartitionError),
}

/// Whether a job is done with.
enum Ended {
    Yes,
    /// Something older has to end first.
    NotYet,
}

/// The running workers, by GPU. GPUs are added as they are seen.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Mutex<BTreeMap<Option<GpuUuid>, Worker>>,
    /// Work that waits for its worker: the same work is queued once, however often it is noticed.
    waiting: Arc<Mutex<BTreeSet<Work>>>,
}

/// One worker: the end of its queue, and its thread.
type Worker = (mpsc::SyncSender<Job>, JoinHandle<()>);

impl Workers {
    /// No workers yet.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            threads: Mutex::default(),
            waiting: Arc::default(),
        }
    }

    /// What the workers share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Queues work for a GPU (or for the host as a whole), starting its worker on first use, unless
    /// the same work waits already. Blocks while that queue is full.
    pub fn enqueue(&self, gpu: Option<&GpuUuid>, job: Job) {
        if !held(&self.waiting).insert((gpu.cloned(), job)) {
            return;
        }
        let start = || start(&self.shared, gpu.cloned(), Arc::clone(&self.waiting));
        let sender = held(&self.threads)
            .entry(gpu.cloned())
            .or_insert_with(start)
            .0
            .clone();
        // The worker ends only after its sender is dropped, in `stop`.
        let _ = sender.send(job);
    }

    /// Queues an operation for the worker of the GPU that it is about; where that cannot be told now,
    /// with the next look.
    pub fn enqueue_operation(&self, command: &Command) {
        let job = Job::Operation(command.op_id);
        match self.shared.gpu_of(command) {
            Ok(gpu) => self.enqueue(gpu.as_ref(), job),
            Err(error) => {
                tracing::error!(operation.id = %command.op_id, error = crate::chain(&error), "an operation cannot be queued now; it is tried again");
                held(&self.shared.again).insert((None, job));
            }
        }
    }

    /// Queues again what could not be ended; operations by what is known of them now.
    pub fn enqueue_again(&self) {
        for (gpu, job) in std::mem::take(&mut *held(&self.shared.again)) {
            let Job::Operation(id) = job else {
                self.enqueue(gpu.as_ref(), job);
                continue;
            };
            match self.shared.ledger.open_operation(id) {
                Ok(Some((command, _))) => self.enqueue_operation(&command),
                Ok(None) => {}
                Err(_) => {
                    held(&self.shared.again).insert((gpu, job));
                }
            }
        }
    }

    /// Lets every worker finish what it is at, and ends it. Queued work is in the ledger.
    pub fn stop(&self) {
        let threads = std::mem::take(&mut *held(&self.threads));
        for (_, (sender, thread)) in threads {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// Locks; a panic elsewhere leaves these sets and maps whole.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(
    shared: &Arc<Shared>,
    gpu: Option<GpuUuid>,
    waiting: Arc<Mutex<BTreeSet<Work>>>,
) -> Worker {
    let (sender, jobs) = mpsc::sync_channel(QUEUE);
    let shared = Arc::clone(shared);
    let name = gpu.as_ref().map_or_else(
        || "gpu-none".to_owned(),
        |gpu| format!("gpu-{:.8}", &gpu.as_str()[4..]),
    );
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        while let Ok(job) = jobs.recv() {
            held(&waiting).remove(&(gpu.clone(), job));
            match shared.run(gpu.as_ref(), job) {
                Ok(Ended::Yes) => {}
                Ok(Ended::NotYet) => {
                    held(&shared.again).insert((gpu.clone(), job));
                }
                Err(error) => {
                    tracing::error!(
                        gpu.uuid = gpu.as_ref().map(GpuUuid::as_str),
                        error = crate::chain(&error),
                        "work could not be ended; it is tried again"
                    );
                    held(&shared.again).insert((gpu.clone(), job));
                }
            }
        }
    });
    (sender, thread.expect("a thread can be started"))
}

impl Shared {
    fn run(&self, gpu: Option<&GpuUuid>, job: Job) -> Result<Ended, WorkError> {
        match (job, gpu) {
            (Job::Operation(id), _) => return self.work_on(id),
            (Job::Expire(id), _) => self.expire(id)?,
            (Job::Repair, Some(gpu)) => self.repair(gpu)?,
            (Job::Repair, None) => {}
        }
        Ok(Ended::Yes)
    }

    /// Works on an operation within its budget, which the ledger keeps.
    fn work_on(&self, id: OperationId) -> Result<Ended, WorkError> {
        let Some((command, tries)) = self.ledger.open_operation(id)? else {
            return Ok(Ended::Yes);
        };
        if self.has_to_wait(&command)? {
            return Ok(Ended::NotYet);
        }
        if tries >= MOST_TRIES {
            self.give_up_unseen(&command, "the agent was started again and again")?;
            return Ok(Ended::Yes);
        }
        match self.operate(&command) {
            Err(WorkError::Observe(error)) if tries + 1 >= MOST_TRIES => {
                self.give_up_unseen(&command, &error.message)?;
                Ok(Ended::Yes)
            }
            Err(WorkError::Observe(error)) => {
                self.ledger.tried(id, 1)?;
                Err(WorkError::Observe(error))
            }
            done => done,
        }
    }

    /// Counts a start against every operation that the last life left open.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn count_start(&self, id: OperationId) -> Result<(), LedgerError> {
        self.ledger.tried(id, START)
    }

    fn operate(&self, command: &Command) -> Result<Ended, WorkError> {
        match &command.operation {
            Operation::Partition(asked) => return self.partition(command, asked),
            Operation::Resize(asked) => return self.resize(command, asked),
            Operation::Allocate(spec) => self.allocate(command, spec),
            Operation::Renew(renew) => self.renew(command, renew.ttl_s),
            Operation::Release(_) => self.release(command),
            Operation::Inspect(_) => self.inspect(command),
            // `admit` refuses them; a ledger written by another version may still hold one.
            Operation::Tune(_) | Operation::Reset(_) => {
                let text = "this version does not execute it";
                return self.refuse(command, Failure::new(Code::NotSupported, text));
            }
        }?;
        Ok(Ended::Yes)
    }

    fn renew(&self, command: &Command, ttl_s: u64) -> Result<(), WorkError> {
        let id = command.operation.allocation(&command.tenant);
        let allocation = id
            .map(|id| self.ledger.allocation(id))
            .transpose()?
            .flatten();
        let Some(mut allocation) =
            allocation.filter(|allocation| allocation.tenant == command.tenant)
        else {
            let failure = Failure::new(
                Code::UnknownAllocation,
                "there is no such allocation on this host",
            );
            return self.end(
                command,
                Err(failure),
                EventKind::OperationRefused,
                Change::None,
            );
        };
        if allocation.phase == Phase::Releasing {
            let failure = Failure::new(Code::InUse, BEING_RELEASED);
            return self.end(
                command,
                Err(failure),
                EventKind::OperationRefused,
                Change::None,
            );
        }
        let expires_at = self.clock.now_s() + i64::try_from(ttl_s).unwrap_or(i64::MAX / 2);
        allocation.expires_at = Some(expires_at);
        allocation.phase = Phase::Live;
        let outcome = Outcome::Renewed(events::outcome::Renewed {
            allocation: allocation.id,
            expires_at,
        });
        self.end(
            command,
            Ok(outcome),
            EventKind::OperationSucceeded,
            Change::Put(Box::new(allocation)),
        )
    }

    fn inspect(&self, command: &Command) -> Result<(), WorkError> {
        let observation = self.partitioner.observe()?;
        let drift = self.drift(&observation)?;
        let inventory = self.inventory(&observation)?;
        let outcome = Outcome::Inspected(Inspected {
            inventory,
            checks: (self.checks)(),
            drift,
        });
        self.end(
            command,
            Ok(outcome),
            EventKind::OperationSucceeded,
            Change::None,
        )
    }
}
