//! The embedded backplane with an observer in front of it: counts what changes something, and fails
//! or holds on demand.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use backplane::sqlite::SqliteBackplane;
use backplane::store::{
    Acceptance, Accepted, AllocationRecord, Attempt, Due, DueCallback, DueKinds, HostHoldings,
    HostRecord, HostView, IdempotencyKeys, KnownDelivery, NewCallback, OperationRecord, Owed, Page,
    Settlement,
};
use backplane::{Clock, Outgoing, QueueName, Reads, SendError, Sender, Store, StoreError};
use events::result::HostEvent;
use events::{AllocationId, DeliveryId, HostName, OperationId, TenantName};
use tokio::sync::Semaphore;

/// A clock that moves when told.
pub(crate) struct StillClock(pub(crate) AtomicI64);

impl Clock for StillClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// What goes wrong with one send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Access denied: not queued.
    Rejected,
    /// Throttled, or the request got lost: not queued, which the sender does not know.
    Lost,
    /// Timed out after accepting: queued, which the sender does not know.
    Unconfirmed,
    /// The process ends before the queue has the message.
    CrashBefore,
    /// The process ends once the queue has the message.
    CrashAfter,
}

pub(crate) struct Spy {
    pub(crate) inner: SqliteBackplane,
    /// Acceptances that the store took as new.
    pub(crate) accepts: AtomicUsize,
    /// Messages that the queue took, duplicates included.
    pub(crate) sends: AtomicUsize,
    pub(crate) store_down: AtomicBool,
    pub(crate) queue_down: AtomicBool,
    /// Panics where a delivery is looked up: an internal error.
    pub(crate) panics: AtomicBool,
    /// Answers `CapacityMoved` this many times.
    pub(crate) moved: AtomicUsize,
    /// A permit lets one send through; plenty of them unless a test takes them away.
    pub(crate) gate: Semaphore,
    /// Sends that have reached the gate.
    pub(crate) at_gate: Semaphore,
    /// What goes wrong with the sends to come, in order; nothing once it is empty.
    pub(crate) faults: Mutex<VecDeque<Option<Fault>>>,
    /// Sends that stand where the process is to end.
    pub(crate) at_crash: Semaphore,
}

impl Spy {
    pub(crate) fn new(inner: SqliteBackplane) -> Arc<Self> {
        Arc::new(Self {
            inner,
            accepts: AtomicUsize::new(0),
            sends: AtomicUsize::new(0),
            store_down: AtomicBool::new(false),
            queue_down: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            moved: AtomicUsize::new(0),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
            at_gate: Semaphore::new(0),
            faults: Mutex::default(),
            at_crash: Semaphore::new(0),
        })
    }

    fn store(&self) -> Result<&SqliteBackplane, StoreError> {
        if self.store_down.load(Ordering::SeqCst) {
            Err(StoreError {
                context: "told to be down".to_owned(),
                source: None,
            })
        } else {
            Ok(&self.inner)
        }
    }

    async fn stand_still<T>(&self) -> T {
        self.at_crash.add_permits(1);
        std::future::pending().await
    }

    /// Acceptances and sends so far.
    pub(crate) fn effects(&self) -> (usize, usize) {
        (
            self.accepts.load(Ordering::SeqCst),
            self.sends.load(Ordering::SeqCst),
        )
    }
}

#[async_trait]
impl Sender for Spy {
    async fn send(&self, queue: &QueueName, message: Outgoing) -> Result<(), SendError> {
        self.at_gate.add_permits(1);
        let _through = self.gate.acquire().await.unwrap();
        if self.queue_down.load(Ordering::SeqCst) {
            return Err(SendError::Ambiguous("told to be down".to_owned()));
        }
        let fault = self.faults.lock().unwrap().pop_front().flatten();
        match fault {
            Some(Fault::Rejected) => return Err(SendError::Rejected("access denied".to_owned())),
            Some(Fault::Lost) => return Err(SendError::Ambiguous("throttled".to_owned())),
            Some(Fault::CrashBefore) => self.stand_still().await,
            Some(Fault::Unconfirmed | Fault::CrashAfter) | None => {}
        }
        self.sends.fetch_add(1, Ordering::SeqCst);
        self.inner.send(queue, message).await?;
        match fault {
            Some(Fault::Unconfirmed) => Err(SendError::Ambiguous("timed out".to_owned())),
            Some(Fault::CrashAfter) => self.stand_still().await,
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Store for Spy {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted, StoreError> {
        let store = self.store()?;
        let told = self
            .moved
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        if told.is_ok() {
            return Ok(Accepted::CapacityMoved);
        }
        let accepted = store.accept(acceptance).await?;
        if matches!(accepted, Accepted::New(_)) {
            self.accepts.fetch_add(1, Ordering::SeqCst);
        }
        Ok(accepted)
    }

    async fn mark_sent(&self, operation: OperationId) -> Result<(), StoreError> {
        self.store()?.mark_sent(operation).await
    }

    async fn settle(
        &self,
        event: HostEvent,
        callbacks: Vec<NewCallback>,
        now_ms: i64,
    ) -> Result<Settlement, StoreError> {
        self.store()?.settle(event, callbacks, now_ms).await
    }

    async fn claim_due(
        &self,
        kinds: DueKinds,
        now_ms: i64,
        lease_ms: i64,
        max: usize,
    ) -> Result<Vec<Due>, StoreError> {
        self.store()?.claim_due(kinds, now_ms, lease_ms, max).await
    }

    async fn expire(
        &self,
        operation: OperationId,
        owed: Owed,
        now_ms: i64,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.store()?.expire(operation, owed, now_ms).await
    }

    async fn record_attempt(
        &self,
        callback: &DueCallback,
        attempt: Attempt,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.store()?
            .record_attempt(callback, attempt, now_ms)
            .await
    }

    async fn put_host(&self, host: HostRecord) -> Result<(), StoreError> {
        self.store()?.put_host(host).await
    }
}

#[async_trait]
impl Reads for Spy {
    async fn known_delivery(
        &self,
        keys: &IdempotencyKeys,
        now_ms: i64,
    ) -> Result<Option<KnownDelivery>, StoreError> {
        assert!(!self.panics.load(Ordering::SeqCst), "told to panic");
        self.store()?.known_delivery(keys, now_ms).await
    }

    async fn delivery(
        &self,
        tenant: &TenantName,
        id: DeliveryId,
    ) -> Result<Option<Vec<OperationRecord>>, StoreError> {
        self.store()?.delivery(tenant, id).await
    }

    async fn operation(
        &self,
        tenant: &TenantName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.store()?.operation(tenant, id).await
    }

    async fn operations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<OperationRecord>, StoreError> {
        self.store()?.operations(tenant, after, limit).await
    }

    async fn allocation(
        &self,
        tenant: &TenantName,
        id: AllocationId,
    ) -> Result<Option<AllocationRecord>, StoreError> {
        self.store()?.allocation(tenant, id).await
    }

    async fn allocations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AllocationRecord>, StoreError> {
        self.store()?.allocations(tenant, after, limit).await
    }

    async fn hosts(&self) -> Result<Vec<HostView>, StoreError> {
        self.store()?.hosts().await
    }

    async fn host(&self, host: &HostName) -> Result<Option<HostView>, StoreError> {
        self.store()?.host(host).await
    }

    async fn holdings(&self, host: &HostName) -> Result<Option<HostHoldings>, StoreError> {
        self.store()?.holdings(host).await
    }

    async fn operation_for_host(
        &self,
        host: &HostName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.store()?.operation_for_host(host, id).await
    }
}
