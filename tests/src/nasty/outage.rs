//! The embedded backplane, counted, and down on demand in each of the ways in which queue and table
//! go down.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use backplane::sqlite::SqliteBackplane;
use backplane::store::{
    Acceptance, Accepted, AllocationRecord, Attempt, Due, DueCallback, DueKinds, HostHoldings,
    HostRecord, HostView, IdempotencyKeys, KnownDelivery, NewCallback, OperationRecord, Owed, Page,
    Settlement,
};
use backplane::{Outgoing, QueueName, Reads, SendError, Sender, Store, StoreError};
use events::result::HostEvent;
use events::{AllocationId, DeliveryId, HostName, OperationId, TenantName};

/// What is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outage {
    /// Nothing.
    None,
    /// The table answers nothing.
    Table,
    /// The table can be read and takes nothing.
    TableWrites,
    /// The table does not learn that commands were sent.
    TableMarks,
    /// The queue refuses.
    QueueRefuses,
    /// The queue does nothing and says nothing.
    QueueSilent,
    /// The queue takes the message, and the confirmation is lost.
    QueueUnconfirmed,
}

/// A backplane in front of which things break.
#[derive(Clone)]
pub(super) struct Breakable {
    pub(super) inner: SqliteBackplane,
    outage: Arc<Mutex<Outage>>,
    accepted: Arc<AtomicUsize>,
}

impl Breakable {
    pub(super) fn new(inner: SqliteBackplane) -> Self {
        Self {
            inner,
            outage: Arc::new(Mutex::new(Outage::None)),
            accepted: Arc::default(),
        }
    }

    /// Breaks, or heals.
    pub(super) fn set(&self, outage: Outage) {
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = outage;
    }

    /// Deliveries that the store took as new.
    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    fn outage(&self) -> Outage {
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unless(&self, outages: &[Outage]) -> Result<&SqliteBackplane, StoreError> {
        if outages.contains(&self.outage()) {
            return Err(StoreError {
                context: "told to be down".to_owned(),
                source: None,
            });
        }
        Ok(&self.inner)
    }

    fn reads(&self) -> Result<&SqliteBackplane, StoreError> {
        self.unless(&[Outage::Table])
    }

    fn writes(&self) -> Result<&SqliteBackplane, StoreError> {
        self.unless(&[Outage::Table, Outage::TableWrites])
    }
}

#[async_trait]
impl Sender for Breakable {
    async fn send(&self, queue: &QueueName, message: Outgoing) -> Result<(), SendError> {
        match self.outage() {
            Outage::QueueRefuses => Err(SendError::Rejected("told to be down".to_owned())),
            Outage::QueueSilent => Err(SendError::Ambiguous("told to be down".to_owned())),
            Outage::QueueUnconfirmed => {
                self.inner.send(queue, message).await?;
                Err(SendError::Ambiguous("told to lose this".to_owned()))
            }
            _ => self.inner.send(queue, message).await,
        }
    }
}

#[async_trait]
impl Store for Breakable {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted, StoreError> {
        let accepted = self.writes()?.accept(acceptance).await?;
        if matches!(accepted, Accepted::New(_)) {
            self.accepted.fetch_add(1, Ordering::SeqCst);
        }
        Ok(accepted)
    }

    async fn mark_sent(&self, operation: OperationId) -> Result<(), StoreError> {
        let store = self.unless(&[Outage::Table, Outage::TableWrites, Outage::TableMarks])?;
        store.mark_sent(operation).await
    }

    async fn settle(
        &self,
        event: HostEvent,
        callbacks: Vec<NewCallback>,
        now_ms: i64,
    ) -> Result<Settlement, StoreError> {
        self.writes()?.settle(event, callbacks, now_ms).await
    }

    async fn claim_due(
        &self,
        kinds: DueKinds,
        now_ms: i64,
        lease_ms: i64,
        max: usize,
    ) -> Result<Vec<Due>, StoreError> {
        self.writes()?.claim_due(kinds, now_ms, lease_ms, max).await
    }

    async fn expire(
        &self,
        operation: OperationId,
        owed: Owed,
        now_ms: i64,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.writes()?.expire(operation, owed, now_ms).await
    }

    async fn record_attempt(
        &self,
        callback: &DueCallback,
        attempt: Attempt,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let store = self.writes()?;
        store.record_attempt(callback, attempt, now_ms).await
    }

    async fn put_host(&self, host: HostRecord) -> Result<(), StoreError> {
        self.writes()?.put_host(host).await
    }
}

#[async_trait]
impl Reads for Breakable {
    async fn known_delivery(
        &self,
        keys: &IdempotencyKeys,
        now_ms: i64,
    ) -> Result<Option<KnownDelivery>, StoreError> {
        self.reads()?.known_delivery(keys, now_ms).await
    }

    async fn delivery(
        &self,
        tenant: &TenantName,
        id: DeliveryId,
    ) -> Result<Option<Vec<OperationRecord>>, StoreError> {
        self.reads()?.delivery(tenant, id).await
    }

    async fn operation(
        &self,
        tenant: &TenantName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.reads()?.operation(tenant, id).await
    }

    async fn operations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<OperationRecord>, StoreError> {
        self.reads()?.operations(tenant, after, limit).await
    }

    async fn allocation(
        &self,
        tenant: &TenantName,
        id: AllocationId,
    ) -> Result<Option<AllocationRecord>, StoreError> {
        self.reads()?.allocation(tenant, id).await
    }

    async fn allocations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AllocationRecord>, StoreError> {
        self.reads()?.allocations(tenant, after, limit).await
    }

    async fn hosts(&self) -> Result<Vec<HostView>, StoreError> {
        self.reads()?.hosts().await
    }

    async fn host(&self, host: &HostName) -> Result<Option<HostView>, StoreError> {
        self.reads()?.host(host).await
    }

    async fn holdings(&self, host: &HostName) -> Result<Option<HostHoldings>, StoreError> {
        self.reads()?.holdings(host).await
    }

    async fn operation_for_host(
        &self,
        host: &HostName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.reads()?.operation_for_host(host, id).await
    }
}
