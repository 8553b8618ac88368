//! Queue and store as they fail: refused, done but not confirmed, twice, late, out of order. Each
//! decorator passes everything on to the real one; faults stop when the dice are healed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use backplane::queue::Settled;
use backplane::sqlite::SqliteBackplane;
use backplane::store::{
    Acceptance, Accepted, AllocationRecord, Attempt, Due, DueCallback, DueKinds, HostHoldings,
    HostRecord, HostView, IdempotencyKeys, KnownDelivery, NewCallback, OperationRecord, Owed, Page,
    Settlement,
};
use backplane::{
    Message, Outgoing, QueueName, Reads, ReceiveError, Receiver, SendError, Sender, Store,
    StoreError,
};
use events::result::HostEvent;
use events::{AllocationId, DeliveryId, HostName, OperationId, TenantName};

use super::dice::Dice;

/// A store, and the sending end of queues, that fail now and then.
#[derive(Clone)]
pub(super) struct Flaky {
    pub(super) inner: SqliteBackplane,
    pub(super) dice: Arc<Dice>,
    /// Messages that the queue took and keeps back, each until so many others have overtaken it.
    held: Arc<Mutex<Vec<(u64, QueueName, Outgoing)>>>,
}

fn broken(context: &str) -> StoreError {
    StoreError {
        context: format!("chaos: {context}"),
        source: None,
    }
}

impl Flaky {
    pub(super) fn new(inner: SqliteBackplane, dice: Arc<Dice>) -> Self {
        Self {
            inner,
            dice,
            held: Arc::default(),
        }
    }

    /// Hands on everything that is kept back.
    pub(super) async fn let_go(&self) -> Result<(), SendError> {
        self.overtake(u64::MAX).await
    }

    /// So many messages have overtaken those that are kept back.
    async fn overtake(&self, count: u64) -> Result<(), SendError> {
        let mut ready = Vec::new();
        {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            for (left, queue, message) in std::mem::take(&mut *held) {
                match left.saturating_sub(count) {
                    0 => ready.push((queue, message)),
                    left => held.push((left, queue, message)),
                }
            }
        }
        for (queue, message) in ready {
            self.inner.send(&queue, message).await?;
        }
        Ok(())
    }

    /// Fails before the work, after it, or not at all.
    async fn maybe<T>(
        &self,
        place: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.dice.fault(place, 6, 2) {
            Some(0) => Err(broken(place)),
            Some(_) => {
                work.await?;
                Err(broken(place))
            }
            None => work.await,
        }
    }
}

#[async_trait]
impl Sender for Flaky {
    async fn send(&self, queue: &QueueName, message: Outgoing) -> Result<(), SendError> {
        let place = match queue {
            QueueName::Commands(_) => "send a command",
            QueueName::Results => "send a result",
        };
        match self.dice.fault(place, 25, 5) {
            Some(0) => return Err(SendError::Rejected("chaos".to_owned())),
            Some(1) => return Err(SendError::Ambiguous("chaos: not done".to_owned())),
            Some(2) => {
                self.inner.send(queue, message).await?;
                return Err(SendError::Ambiguous("chaos: done".to_owned()));
            }
            Some(3) => {
                let depth = 1 + self.dice.throw("overtaken by", 4);
                let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                held.push((depth, queue.clone(), message));
                return Ok(());
            }
            // The same message again, and past the deduplication window: really twice.
            Some(_) => {
                let mut twice = message.clone();
                twice.dedup.push_str(":again");
                self.inner.send(queue, twice).await?;
            }
            None => {}
        }
        self.inner.send(queue, message).await?;
        self.overtake(1).await
    }
}

/// The receiving end of a queue.
pub(super) struct FlakyReceiver {
    pub(super) inner: Arc<dyn Receiver>,
    pub(super) dice: Arc<Dice>,
    pub(super) places: [&'static str; 2],
}

#[async_trait]
impl Receiver for FlakyReceiver {
    async fn receive(&self, wait: Duration) -> Result<Option<Message>, ReceiveError> {
        let received = self.inner.receive(wait).await?;
        match (received, self.dice.fault(self.places[0], 6, 2)) {
            // Received, and never told: it comes again once its visibility timeout has run out.
            (Some(_), Some(0)) => Err(ReceiveError::Unavailable("chaos".to_owned())),
            (Some(message), Some(_)) => {
                self.inner.nack(&message.receipt, Duration::ZERO).await?;
                Ok(Some(message))
            }
            (received, _) => Ok(received),
        }
    }

    async fn ack(&self, receipt: &str) -> Result<Settled, ReceiveError> {
        match self.dice.fault(self.places[1], 8, 3) {
            Some(0) => Err(ReceiveError::Unavailable("chaos: not done".to_owned())),
            Some(1) => {
                self.inner.ack(receipt).await?;
                Err(ReceiveError::Unavailable("chaos: done".to_owned()))
            }
            Some(_) => {
                self.inner.nack(receipt, Duration::ZERO).await?;
                Ok(Settled::Lost)
            }
            None => self.inner.ack(receipt).await,
        }
    }

    async fn nack(&self, receipt: &str, after: Duration) -> Result<Settled, ReceiveError> {
        self.inner.nack(receipt, after).await
    }
}

#[async_trait]
impl Store for Flaky {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted, StoreError> {
        self.maybe("accept", self.inner.accept(acceptance)).await
    }

    async fn mark_sent(&self, operation: OperationId) -> Result<(), StoreError> {
        self.maybe("mark sent", self.inner.mark_sent(operation))
            .await
    }

    async fn settle(
        &self,
        event: HostEvent,
        callbacks: Vec<NewCallback>,
        now_ms: i64,
    ) -> Result<Settlement, StoreError> {
        self.maybe("settle", self.inner.settle(event, callbacks, now_ms))
            .await
    }

    async fn claim_due(
        &self,
        kinds: DueKinds,
        now_ms: i64,
        lease_ms: i64,
        max: usize,
    ) -> Result<Vec<Due>, StoreError> {
        self.maybe(
            "claim due",
            self.inner.claim_due(kinds, now_ms, lease_ms, max),
        )
        .await
    }

    async fn expire(
        &self,
        operation: OperationId,
        owed: Owed,
        now_ms: i64,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.maybe("expire", self.inner.expire(operation, owed, now_ms))
            .await
    }

    async fn record_attempt(
        &self,
        callback: &DueCallback,
        attempt: Attempt,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.maybe(
            "record attempt",
            self.inner.record_attempt(callback, attempt, now_ms),
        )
        .await
    }

    async fn put_host(&self, host: HostRecord) -> Result<(), StoreError> {
        self.inner.put_host(host).await
    }
}

#[async_trait]
impl Reads for Flaky {
    async fn known_delivery(
        &self,
        keys: &IdempotencyKeys,
        now_ms: i64,
    ) -> Result<Option<KnownDelivery>, StoreError> {
        self.maybe("known delivery", self.inner.known_delivery(keys, now_ms))
            .await
    }

    async fn delivery(
        &self,
        tenant: &TenantName,
        id: DeliveryId,
    ) -> Result<Option<Vec<OperationRecord>>, StoreError> {
        self.inner.delivery(tenant, id).await
    }

    async fn operation(
        &self,
        tenant: &TenantName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.inner.operation(tenant, id).await
    }

    async fn operations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<OperationRecord>, StoreError> {
        self.inner.operations(tenant, after, limit).await
    }

    async fn allocation(
        &self,
        tenant: &TenantName,
        id: AllocationId,
    ) -> Result<Option<AllocationRecord>, StoreError> {
        self.maybe("allocation", self.inner.allocation(tenant, id))
            .await
    }

    async fn allocations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AllocationRecord>, StoreError> {
        self.inner.allocations(tenant, after, limit).await
    }

    async fn hosts(&self) -> Result<Vec<HostView>, StoreError> {
        self.maybe("hosts", self.inner.hosts()).await
    }

    async fn host(&self, host: &HostName) -> Result<Option<HostView>, StoreError> {
        self.maybe("host", self.inner.host(host)).await
    }

    async fn holdings(&self, host: &HostName) -> Result<Option<HostHoldings>, StoreError> {
        self.inner.holdings(host).await
    }

    async fn operation_for_host(
        &self,
        host: &HostName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.maybe(
            "operation for host",
            self.inner.operation_for_host(host, id),
        )
        .await
    }
}
