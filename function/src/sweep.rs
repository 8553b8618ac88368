//! The sweep: takes what is due from the store and does it. Callbacks are attempted, commands that
//! were accepted and never sent are sent again, and hosts that stay silent are reported.
//!
//! Rows are leased, not taken: whatever this process does not finish, because it is full, stopped or
//! killed, comes due again when the lease runs out. Each endpoint has its own few turns, so that a
//! slow receiver delays nobody but itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use backplane::store::{Due, DueCallback, DueKinds, OperationRecord};
use backplane::{Clock, Store};
use events::OperationId;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout};

use crate::callback::Callbacks;
use crate::causes::chain;
use crate::results::owed_at_once;
use crate::shutdown::requested;

/// How often due rows are looked for when nobody pokes.
const TICK: Duration = Duration::from_secs(1);
/// How long a function looks for more while it waits for what it has begun.
const LOOKING: Duration = Duration::from_secs(40);
/// Rows claimed at once.
const BATCH: usize = 64;
/// Batches claimed one after the other before the rest waits for the next tick.
const MAX_BATCHES: usize = 16;
/// Attempts at one endpoint, or sends, at the same time.
const TURNS: usize = 4;
/// Rows that wait for a turn; more are left until their lease runs out.
const PLACES: usize = 256;
/// Longest wait for a turn.
const TURN_WAIT: Duration = Duration::from_secs(40);
/// What is kept of a lease for recording the attempt.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// Deadline of one send.
const SEND: Duration = Duration::from_secs(10);
/// How long attempts under way may go on when the process stops. One that is cut off is made again.
const GRACE: Duration = Duration::from_secs(3);
/// Silent operations remembered as reported; beyond, they are reported again.
const MAX_REPORTED: usize = 4096;

/// Sends an accepted operation's command to its host and records that. Sending twice is harmless:
/// the queue knows the operation's id, and so does the host.
#[async_trait]
pub trait Dispatch: Send + Sync {
    /// Returns once the command is queued and the store knows.
    async fn dispatch(&self, operation: &OperationRecord) -> Result<(), DispatchFailed>;
}

/// Why a command is not certainly queued.
pub type DispatchFailed = Box<dyn std::error::Error + Send + Sync>;

/// Does what is due.
pub struct Sweep {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    kinds: DueKinds,
    callbacks: Option<Arc<Callbacks>>,
    dispatch: Option<Arc<dyn Dispatch>>,
    expired: AtomicU64,
    poked: Notify,
    endpoints: Mutex<BTreeMap<String, Lane>>,
    sends: Lane,
    reported: Mutex<BTreeSet<OperationId>>,
}

/// Turns of one endpoint, and places to wait for them.
#[derive(Clone)]
struct Lane {
    turns: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

impl Lane {
    fn new() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(TURNS)),
            places: Arc::new(Semaphore::new(PLACES)),
        }
    }

    /// Does `work` when it is its turn, or leaves it to the end of its lease.
    fn start(&self, tasks: &mut JoinSet<()>, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            tracing::debug!("no place to wait; the row comes due again");
            return;
        };
        let turns = Arc::clone(&self.turns);
        tasks.spawn(async move {
            let _place = place;
            // After a longer wait the lease would run out during the work, and it would be done twice.
            if let Ok(Ok(_turn)) = timeout(TURN_WAIT, turns.acquire()).await {
                work.await;
            }
        });
    }
}

impl Sweep {
    /// A sweep of everything that has not begun.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        callbacks: Arc<Callbacks>,
        dispatch: Arc<dyn Dispatch>,
    ) -> Self {
        Self::of(DueKinds::All, store, clock, Some(callbacks), Some(dispatch))
    }

    /// A sweep of callbacks alone.
    #[must_use]
    pub fn of_callbacks(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        callbacks: Arc<Callbacks>,
    ) -> Self {
        Self::of(DueKinds::Callbacks, store, clock, Some(callbacks), None)
    }

    /// A sweep of operations alone.
    #[must_use]
    pub fn of_operations(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        dispatch: Arc<dyn Dispatch>,
    ) -> Self {
        Self::of(DueKinds::Operations, store, clock, None, Some(dispatch))
    }

    fn of(
        kinds: DueKinds,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        callbacks: Option<Arc<Callbacks>>,
        dispatch: Option<Arc<dyn Dispatch>>,
    ) -> Self {
        Self {
            store,
            clock,
            kinds,
            callbacks,
            dispatch,
            expired: AtomicU64::new(0),
            poked: Notify::new(),
            endpoints: Mutex::default(),
            sends: Lane::new(),
            reported: Mutex::default(),
        }
    }

    /// Operations that this sweep has ended as expired: callbacks are owed for them.
    #[must_use]
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Something became due: look at once.
    pub fn poke(&self) {
        self.poked.notify_one();
    }

    /// Sweeps every second and when poked, until `shutdown` becomes true or its sender is gone.
    pub async fn run(self: Arc<Self>, mut shutdown: watch::Receiver<bool>) {
        let mut tasks = JoinSet::new();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = requested(&mut shutdown) => break,
                Some(ended) = tasks.join_next() => report_panic(ended),
                _ = tick.tick() => self.start_due(&mut tasks).await,
                () = self.poked.notified() => self.start_due(&mut tasks).await,
            }
        }
        let _ = timeout(GRACE, finish(&mut tasks)).await;
    }

    /// Does everything that is due now, and returns when it is done: for a function that is woken. While a
    /// slow receiver keeps it, callbacks that come due are attempted too: there may be nobody else to.
    pub async fn once(self: &Arc<Self>) {
        let mut tasks = JoinSet::new();
        self.start_due(&mut tasks).await;
        let mut tick = interval_at(Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let looks = async {
            while !tasks.is_empty() && self.kinds.callbacks() {
                tokio::select! {
                    Some(ended) = tasks.join_next() => report_panic(ended),
                    _ = tick.tick() => self.start_due(&mut tasks).await,
                }
            }
        };
        // What is started last has its whole lease before a function's time is over.
        let _ = timeout(LOOKING, looks).await;
        finish(&mut tasks).await;
    }

    async fn start_due(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let callback = self.callbacks.as_ref();
        let callback = callback.map_or(Duration::ZERO, |callbacks| callbacks.limits().total);
        let lease = callback.max(SEND) + TURN_WAIT + LEASE_MARGIN;
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        for _ in 0..MAX_BATCHES {
            let claimed = self
                .store
                .claim_due(self.kinds, self.clock.now_ms(), lease_ms, BATCH)
                .await;
            let due = match claimed {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "what is due cannot be read");
                    return;
                }
            };
            let more = due.len() >= BATCH;
            for due in due {
                self.start(due, tasks);
            }
            if !more {
                return;
            }
        }
    }

    fn start(self: &Arc<Self>, due: Due, tasks: &mut JoinSet<()>) {
        let sweep = Arc::clone(self);
        match due {
            Due::Callback(callback) => {
                let lane = self.lane(&callback.endpoint);
                lane.start(tasks, async move { sweep.call_back(&callback).await });
            }
            Due::Unsent(operation) => {
                self.sends
                    .start(tasks, async move { sweep.send(&operation).await });
            }
            Due::Overdue(operation) => {
                self.sends
                    .start(tasks, async move { sweep.expire(&operation).await });
            }
        }
    }

    fn lane(&self, endpoint: &str) -> Lane {
        let mut lanes = self
            .endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        lanes
            .entry(endpoint.to_owned())
            .or_insert_with(Lane::new)
            .clone()
    }

    async fn call_back(&self, callback: &DueCallback) {
        let Some(callbacks) = &self.callbacks else {
            return;
        };
        let attempt = callbacks.attempt(callback).await;
        let now_ms = self.clock.now_ms();
        if let Err(error) = self.store.record_attempt(callback, attempt, now_ms).await {
            tracing::warn!(callback.id = %callback.webhook_id, error = chain(&error), "attempt not recorded; it will be made again under the same id");
        }
    }

    async fn send(&self, operation: &OperationRecord) {
        let id = operation.id;
        let Some(dispatch) = &self.dispatch else {
            return;
        };
        match timeout(SEND, dispatch.dispatch(operation)).await {
            Ok(Ok(())) => tracing::info!(operation.id = %id, "command sent by the sweep"),
            Ok(Err(error)) => {
                tracing::warn!(operation.id = %id, error = chain(&*error), "command not sent; it comes due again")
            }
            Err(_) => {
                tracing::warn!(operation.id = %id, "sending took too long; it comes due again")
            }
        }
    }

    /// An operation past its expiry, of which its host said nothing. It may have run: only the host's
    /// own evidence ends it.
    async fn expire(&self, operation: &OperationRecord) {
        let now_ms = self.clock.now_ms();
        match self.store.expire(operation.id, owed_at_once, now_ms).await {
            Ok(Some(_)) => {
                tracing::warn!(operation.id = %operation.id, "operation expired: its host never took it");
                self.expired.fetch_add(1, Ordering::Relaxed);
                self.poke();
            }
            Ok(None) => self.report_silent(operation),
            Err(error) => {
                tracing::warn!(operation.id = %operation.id, error = chain(&error), "overdue operation not judged; it comes due again")
            }
        }
    }

    /// Without evidence a person is told, once.
    fn report_silent(&self, operation: &OperationRecord) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= MAX_REPORTED {
            reported.clear();
        }
        if reported.insert(operation.id) {
            let host = operation.host.as_ref().map(ToString::to_string);
            tracing::error!(alert = "host_silent", operation.id = %operation.id, host, "operation is past its expiry and its host has not reported; is the agent running?");
        }
    }
}

async fn finish(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        report_panic(ended);
    }
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a task of the sweep ended early; its row comes due again");
    }
}
