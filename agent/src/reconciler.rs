//! The reconciler and the sampler in one thread: each second it looks at the host once, keeps what
//! it saw for `/status`, says what changed by itself, and queues repairs and ended leases. It changes
//! nothing itself.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use events::inventory::HostInventory;
use events::result::{EventData, EventKind};

use crate::ledger::NewEvent;
use crate::partitioner::Observation;
use crate::worker::{Job, WorkError, Workers};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// What was last seen.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The host, if it could be observed.
    pub inventory: Option<HostInventory>,
    /// Why not, otherwise.
    pub error: Option<String>,
    /// Differences from what should be.
    pub drift: Vec<String>,
}

/// Looks and queues.
pub struct Reconciler {
    /// Where work goes.
    pub workers: Arc<Workers>,
    /// What was last seen.
    pub snapshot: Arc<Mutex<Snapshot>>,
}

impl Reconciler {
    /// Looks every second until `stop` is dropped. Blocking: runs on a thread of its own.
    pub fn run(self, stop: &mpsc::Receiver<()>) {
        let mut said = None;
        loop {
            if let Err(error) = self.look(&mut said) {
                tracing::warn!(
                    error = crate::chain(&error),
                    "the host cannot be reconciled now"
                );
                self.keep(Snapshot {
                    error: Some(crate::chain(&error)),
                    ..Snapshot::default()
                });
            }
            if stop.recv_timeout(INTERVAL) != Err(mpsc::RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn look(&self, said: &mut Option<HostInventory>) -> Result<(), WorkError> {
        self.workers.enqueue_again();
        let shared = self.workers.shared();
        let observation: Observation = shared.partitioner.observe()?;
        let inventory = shared.inventory(&observation)?;
        let changed = said.as_ref().is_none_or(|said| {
            HostInventory {
                taken_at_ms: 0,
                ..said.clone()
            } != HostInventory {
                taken_at_ms: 0,
                ..inventory.clone()
            }
        });
        if changed {
            let data = EventData {
                inventory: Some(inventory.clone()),
                ..EventData::default()
            };
            let subject = shared.host.to_string();
            shared.ledger.say(NewEvent {
                kind: EventKind::HostObserved,
                subject,
                tenant: None,
                data,
                now_ms: shared.clock.now_ms(),
            })?;
            (shared.on_event)();
            *said = Some(inventory.clone());
        }
        let overdue = shared.overdue(&observation)?;
        for gpu in &overdue.drifted {
            self.workers.enqueue(Some(gpu), Job::Repair);
        }
        for (gpu, allocation) in &overdue.ended {
            self.workers.enqueue(Some(gpu), Job::Expire(*allocation));
        }
        self.keep(Snapshot {
            inventory: Some(inventory),
            error: None,
            drift: shared.drift(&observation)?,
        });
        Ok(())
    }

    fn keep(&self, snapshot: Snapshot) {
        *self
            .snapshot
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = snapshot;
    }
}
