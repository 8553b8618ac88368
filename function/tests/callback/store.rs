//! A store in memory, with what settling and the sweep touch, and switches to take it down.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use backplane::store::{
    Acceptance, Accepted, AllocationRecord, Attempt, Due, DueCallback, DueKinds, HostHoldings,
    HostRecord, HostView, IdempotencyKeys, KnownDelivery, NewCallback, OperationRecord, Owed, Page,
    Settlement,
};
use backplane::{Reads, Store, StoreError};
use events::result::HostEvent;
use events::{AllocationId, DeliveryId, HostName, OperationId, TenantName};
use tokio::sync::Notify;

/// The rows.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) down: bool,
    pub(crate) hosts: BTreeMap<HostName, String>,
    pub(crate) operations: Vec<OperationRecord>,
    pub(crate) allocations: Vec<AllocationRecord>,
    pub(crate) settled: Vec<(HostEvent, Vec<NewCallback>)>,
    pub(crate) callbacks: Vec<Row>,
    pub(crate) other_due: Vec<Due>,
}

/// A callback's row.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) due: DueCallback,
    pub(crate) due_at_ms: i64,
    pub(crate) ended: Option<Attempt>,
}

/// The store.
#[derive(Default)]
pub(crate) struct FakeStore {
    rows: Mutex<Rows>,
    pub(crate) recorded: Notify,
}

impl FakeStore {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub(crate) fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap()
    }

    /// Queues a callback that is due at once.
    pub(crate) fn push(&self, endpoint: &str, webhook_id: &str, body: &str, now_ms: i64) {
        let mut rows = self.rows();
        rows.callbacks.push(Row {
            due: DueCallback {
                endpoint: endpoint.to_owned(),
                webhook_id: webhook_id.to_owned(),
                body: body.to_owned(),
                attempts: 0,
            },
            due_at_ms: now_ms,
            ended: None,
        });
    }

    fn up(&self) -> Result<MutexGuard<'_, Rows>, StoreError> {
        let rows = self.rows();
        if rows.down { Err(down()) } else { Ok(rows) }
    }
}

fn down() -> StoreError {
    StoreError {
        context: "fake store is down".to_owned(),
        source: None,
    }
}

#[async_trait]
impl Store for FakeStore {
    async fn accept(&self, _: Acceptance) -> Result<Accepted, StoreError> {
        Err(down())
    }

    async fn mark_sent(&self, _: OperationId) -> Result<(), StoreError> {
        Err(down())
    }

    async fn settle(
        &self,
        event: HostEvent,
        callbacks: Vec<NewCallback>,
        _: i64,
    ) -> Result<Settlement, StoreError> {
        let mut rows = self.up()?;
        let data = &event.event.data;
        let operation = data.op_id.map(|id| {
            let ours = |record: &&mut OperationRecord| {
                record.id == id && record.host.as_ref() == Some(&event.host)
            };
            let record = rows.operations.iter_mut().find(ours)?;
            let state = event.event.kind.state()?;
            let moves = record.state.may_become(state);
            record.state = if moves { state } else { record.state };
            Some((record.clone(), moves))
        });
        let settlement = match operation {
            Some(None) => Settlement::Unknown,
            Some(Some((_, false))) => Settlement::Stale,
            Some(Some((record, true))) => Settlement::Applied(Some(Box::new(record))),
            None => Settlement::Applied(None),
        };
        if matches!(settlement, Settlement::Applied(_)) {
            rows.settled.push((event, callbacks));
        }
        Ok(settlement)
    }

    async fn claim_due(
        &self,
        _: DueKinds,
        now_ms: i64,
        lease_ms: i64,
        max: usize,
    ) -> Result<Vec<Due>, StoreError> {
        let mut rows = self.up()?;
        let mut due = std::mem::take(&mut rows.other_due);
        let open = |row: &&mut Row| row.ended.is_none() && row.due_at_ms <= now_ms;
        for row in rows.callbacks.iter_mut().filter(open).take(max - due.len()) {
            row.due_at_ms = now_ms + lease_ms;
            due.push(Due::Callback(row.due.clone()));
        }
        Ok(due)
    }

    async fn expire(
        &self,
        _: OperationId,
        _: Owed,
        _: i64,
    ) -> Result<Option<OperationRecord>, StoreError> {
        // No host of these tests has ever said anything.
        Ok(None)
    }

    async fn record_attempt(
        &self,
        callback: &DueCallback,
        attempt: Attempt,
        _: i64,
    ) -> Result<(), StoreError> {
        let mut rows = self.up()?;
        let row = rows
            .callbacks
            .iter_mut()
            .find(|row| {
                row.due.endpoint == callback.endpoint && row.due.webhook_id == callback.webhook_id
            })
            .unwrap();
        row.due.attempts += 1;
        match attempt {
            Attempt::RetryAt(at_ms, _) => row.due_at_ms = at_ms,
            ended => row.ended = Some(ended),
        }
        self.recorded.notify_waiters();
        Ok(())
    }

    async fn put_host(&self, _: HostRecord) -> Result<(), StoreError> {
        Err(down())
    }
}

#[async_trait]
impl Reads for FakeStore {
    async fn known_delivery(
        &self,
        _: &IdempotencyKeys,
        _: i64,
    ) -> Result<Option<KnownDelivery>, StoreError> {
        Err(down())
    }

    async fn delivery(
        &self,
        _: &TenantName,
        _: DeliveryId,
    ) -> Result<Option<Vec<OperationRecord>>, StoreError> {
        Err(down())
    }

    async fn operation(
        &self,
        _: &TenantName,
        _: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError> {
        Err(down())
    }

    async fn operations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<OperationRecord>, StoreError> {
        let rows = self.up()?;
        let from: usize = after.map_or(0, |cursor| cursor.parse().unwrap());
        let own: Vec<_> = rows
            .operations
            .iter()
            .rev()
            .filter(|record| record.tenant == *tenant)
            .collect();
        let next = from + limit;
        Ok(Page {
            items: own
                .iter()
                .skip(from)
                .take(limit)
                .copied()
                .cloned()
                .collect(),
            next: (next < own.len()).then(|| next.to_string()),
        })
    }

    async fn allocation(
        &self,
        tenant: &TenantName,
        id: AllocationId,
    ) -> Result<Option<AllocationRecord>, StoreError> {
        let rows = self.up()?;
        let own = |record: &&AllocationRecord| record.tenant == *tenant && record.id == id;
        Ok(rows.allocations.iter().find(own).cloned())
    }

    async fn allocations(
        &self,
        _: &TenantName,
        _: Option<&str>,
        _: usize,
    ) -> Result<Page<AllocationRecord>, StoreError> {
        Err(down())
    }

    async fn hosts(&self) -> Result<Vec<HostView>, StoreError> {
        Err(down())
    }

    async fn host(&self, host: &HostName) -> Result<Option<HostView>, StoreError> {
        let rows = self.up()?;
        Ok(rows.hosts.get(host).map(|public_key| HostView {
            record: HostRecord {
                host: host.clone(),
                pools: Vec::new(),
                public_key: public_key.clone(),
            },
            inventory: None,
            reserved: Vec::new(),
            version: 1,
            heard_at_ms: None,
            cordoned: false,
        }))
    }

    async fn holdings(&self, _: &HostName) -> Result<Option<HostHoldings>, StoreError> {
        Err(down())
    }

    async fn operation_for_host(
        &self,
        host: &HostName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>, StoreError> {
        let rows = self.up()?;
        let ours =
            |record: &&OperationRecord| record.id == id && record.host.as_ref() == Some(host);
        Ok(rows.operations.iter().find(ours).cloned())
    }
}
