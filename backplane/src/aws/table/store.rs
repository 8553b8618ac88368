//! The traits, method by method, over the units of work and queries of this folder.

use async_trait::async_trait;
use events::result::HostEvent;
use events::{AllocationId, DeliveryId, HostName, OperationId, TenantName};

use super::DynamoStore;
use super::fault::Fault;
use super::host::Head;
use super::item::Draft;
use super::key::Key;
use super::rows::{AllocationRow, DeliveryRow};
use super::unit::{Tries, Unit};
use crate::store::{
    Acceptance, Accepted, AllocationRecord, Attempt, Due, DueCallback, DueKinds, HostHoldings,
    HostRecord, HostView, IdempotencyKeys, KnownDelivery, NewCallback, OperationRecord, Owed, Page,
    Reads, Settlement, Store, StoreError,
};

type Result<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl Store for DynamoStore {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted> {
        let taken = self.take(&acceptance).await;
        taken.map_err(|fault| fault.store("accept a delivery"))
    }

    async fn mark_sent(&self, operation: OperationId) -> Result<()> {
        let sent = self.sent(operation).await;
        sent.map_err(|fault| fault.store("mark an operation sent"))
    }

    async fn settle(
        &self,
        event: HostEvent,
        callbacks: Vec<NewCallback>,
        now_ms: i64,
    ) -> Result<Settlement> {
        let applied = self.apply(&event, &callbacks, now_ms).await;
        applied.map_err(|fault| fault.store("settle an event"))
    }

    async fn claim_due(
        &self,
        kinds: DueKinds,
        now_ms: i64,
        lease_ms: i64,
        max: usize,
    ) -> Result<Vec<Due>> {
        let claimed = self.claim(kinds, now_ms, lease_ms, max).await;
        claimed.map_err(|fault| fault.store("claim what is due"))
    }

    async fn expire(
        &self,
        operation: OperationId,
        owed: Owed,
        now_ms: i64,
    ) -> Result<Option<OperationRecord>> {
        let ended = self.end_overdue(operation, owed, now_ms).await;
        ended.map_err(|fault| fault.store("expire an operation"))
    }

    async fn record_attempt(
        &self,
        callback: &DueCallback,
        attempt: Attempt,
        now_ms: i64,
    ) -> Result<()> {
        let recorded = self.attempted(callback, &attempt, now_ms).await;
        recorded.map_err(|fault| fault.store("record an attempt"))
    }

    async fn put_host(&self, host: HostRecord) -> Result<()> {
        let put = self.enrol(&host).await;
        put.map_err(|fault| fault.store("enrol a host"))
    }
}

impl DynamoStore {
    /// Enrols a host, or re-enrols it: what was observed and promised stays.
    async fn enrol(&self, record: &HostRecord) -> std::result::Result<(), Fault> {
        let (key, listed) = (Key::head(&record.host), Key::listed(&record.host));
        let mut tries = Tries::default();
        loop {
            let mut unit = Unit::new(self);
            unit.load([key.clone(), listed.clone()]).await?;
            let head = match unit.head(&record.host)? {
                Some(head) if head.record == *record && !head.cordoned => return Ok(()),
                Some(head) => Head {
                    record: record.clone(),
                    cordoned: false,
                    ..head
                },
                None => Head {
                    record: record.clone(),
                    version: 1,
                    sequence: None,
                    reserved: Default::default(),
                    cordoned: false,
                },
            };
            unit.put_head(&head)?;
            unit.put(listed.clone(), Draft::new(&listed).item());
            if unit.commit(&mut tries).await? {
                return Ok(());
            }
        }
    }

    async fn one_operation(
        &self,
        id: OperationId,
    ) -> std::result::Result<Option<OperationRecord>, Fault> {
        Ok(self.operations(&[id]).await?.pop())
    }
}

#[async_trait]
impl Reads for DynamoStore {
    async fn known_delivery(
        &self,
        keys: &IdempotencyKeys,
        now_ms: i64,
    ) -> Result<Option<KnownDelivery>> {
        let known = self.known(keys, now_ms).await;
        known.map_err(|fault| fault.store("look up a delivery"))
    }

    async fn delivery(
        &self,
        tenant: &TenantName,
        id: DeliveryId,
    ) -> Result<Option<Vec<OperationRecord>>> {
        let read = async {
            let key = Key::delivery(id);
            let items = self.get(std::slice::from_ref(&key)).await?;
            let Some(item) = items.get(&key) else {
                return Ok(None);
            };
            let row = DeliveryRow::read(id, item)?;
            if row.tenant != tenant.as_str() {
                return Ok(None);
            }
            self.operations(&row.operations).await.map(Some)
        };
        read.await
            .map_err(|fault: Fault| fault.store("read a delivery"))
    }

    async fn operation(
        &self,
        tenant: &TenantName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>> {
        let read = self.one_operation(id).await;
        let read = read.map_err(|fault| fault.store("read an operation"))?;
        Ok(read.filter(|record| record.tenant == *tenant))
    }

    async fn operations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<OperationRecord>> {
        let page = self.page_of_operations(tenant, after, limit).await;
        page.map_err(|fault| fault.store("list operations"))
    }

    async fn allocation(
        &self,
        tenant: &TenantName,
        id: AllocationId,
    ) -> Result<Option<AllocationRecord>> {
        let read = async {
            let key = Key::allocation(id);
            let items = self.get(std::slice::from_ref(&key)).await?;
            let row = items.get(&key).map(AllocationRow::read).transpose()?;
            Ok(row.and_then(|row| row.allocation).map(|found| found.record))
        };
        let read = read.await;
        let read = read.map_err(|fault: Fault| fault.store("read an allocation"))?;
        Ok(read.filter(|record| record.tenant == *tenant))
    }

    async fn allocations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AllocationRecord>> {
        let page = self.page_of_allocations(tenant, after, limit).await;
        page.map_err(|fault| fault.store("list allocations"))
    }

    async fn hosts(&self) -> Result<Vec<HostView>> {
        let read = async {
            let names = self.host_names().await?;
            self.views(&names).await
        };
        read.await.map_err(|fault: Fault| fault.store("list hosts"))
    }

    async fn host(&self, host: &HostName) -> Result<Option<HostView>> {
        let views = self.views(std::slice::from_ref(host)).await;
        Ok(views.map_err(|fault| fault.store("read a host"))?.pop())
    }

    async fn holdings(&self, host: &HostName) -> Result<Option<HostHoldings>> {
        let held = self.held(host).await;
        held.map_err(|fault| fault.store("read what a host holds"))
    }

    async fn operation_for_host(
        &self,
        host: &HostName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>> {
        let read = self.one_operation(id).await;
        let read = read.map_err(|fault| fault.store("read a host's operation"))?;
        Ok(read.filter(|record| record.host.as_ref() == Some(host)))
    }
}
