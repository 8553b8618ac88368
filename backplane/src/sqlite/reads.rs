//! The traits, method by method, over the transactions and queries of this folder.

use async_trait::async_trait;
use events::inventory::Reservation;
use events::result::HostEvent;
use events::{AllocationId, DeliveryId, HostName, OperationId, TenantName};
use rusqlite::{Connection, Row, params};

use super::fault::Fault;
use super::{SqliteBackplane, accept, allocation, due, holdings, overdue, row, settle};
use crate::document;
use crate::store::{
    Acceptance, Accepted, AllocationRecord, Attempt, Due, DueCallback, DueKinds, HostHoldings,
    HostRecord, HostView, IdempotencyKeys, KnownDelivery, NewCallback, OperationRecord, Owed, Page,
    Reads, Settlement, Store, StoreError,
};

type Result<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl Store for SqliteBackplane {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted> {
        self.write(move |scope| accept::accept(scope, acceptance))
            .await
            .map_err(|fault| fault.store("accept a delivery"))
    }

    async fn mark_sent(&self, operation: OperationId) -> Result<()> {
        self.write(move |scope| due::mark_sent(scope, operation))
            .await
            .map_err(|fault| fault.store("mark an operation sent"))
    }

    async fn settle(
        &self,
        event: HostEvent,
        callbacks: Vec<NewCallback>,
        now_ms: i64,
    ) -> Result<Settlement> {
        let settled = self
            .write(move |scope| settle::settle(scope, &event, &callbacks, now_ms))
            .await;
        settled.map_err(|fault| fault.store("settle an event"))
    }

    async fn claim_due(
        &self,
        kinds: DueKinds,
        now_ms: i64,
        lease_ms: i64,
        max: usize,
    ) -> Result<Vec<Due>> {
        let context = "claim what is due";
        if !self
            .read(move |connection| due::is_anything_due(connection, kinds, now_ms))
            .await
            .map_err(|fault| fault.store(context))?
        {
            return Ok(Vec::new());
        }
        self.write(move |scope| due::claim(scope, kinds, now_ms, lease_ms, max))
            .await
            .map_err(|fault| fault.store(context))
    }

    async fn expire(
        &self,
        operation: OperationId,
        owed: Owed,
        now_ms: i64,
    ) -> Result<Option<OperationRecord>> {
        self.write(move |scope| overdue::expire(scope, operation, owed, now_ms))
            .await
            .map_err(|fault| fault.store("expire an operation"))
    }

    async fn record_attempt(
        &self,
        callback: &DueCallback,
        attempt: Attempt,
        now_ms: i64,
    ) -> Result<()> {
        let callback = callback.clone();
        self.write(move |scope| due::record(scope, &callback, &attempt, now_ms))
            .await
            .map_err(|fault| fault.store("record an attempt"))
    }

    async fn put_host(&self, host: HostRecord) -> Result<()> {
        let put = self.write(move |scope| {
            scope.execute(
                "INSERT INTO hosts (host, pools, public_key, version) VALUES (?1, ?2, ?3, 1)
                 ON CONFLICT (host) DO UPDATE SET pools = excluded.pools, public_key = excluded.public_key",
                params![host.host.as_str(), document::write(&host.pools)?, host.public_key],
            )?;
            Ok(())
        });
        put.await.map_err(|fault| fault.store("enrol a host"))
    }
}

#[async_trait]
impl Reads for SqliteBackplane {
    async fn known_delivery(
        &self,
        keys: &IdempotencyKeys,
        now_ms: i64,
    ) -> Result<Option<KnownDelivery>> {
        let keys = keys.clone();
        self.read(move |connection| accept::known(connection, &keys, now_ms))
            .await
            .map_err(|fault| fault.store("look up a delivery"))
    }

    async fn delivery(
        &self,
        tenant: &TenantName,
        id: DeliveryId,
    ) -> Result<Option<Vec<OperationRecord>>> {
        let tenant = tenant.clone();
        self.read(move |connection| accept::delivery(connection, tenant.as_str(), id))
            .await
            .map_err(|fault| fault.store("read a delivery"))
    }

    async fn operation(
        &self,
        tenant: &TenantName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>> {
        let tenant = tenant.clone();
        let read = self.read(move |connection| {
            Ok(row::operation(connection, id)?.filter(|record| record.tenant == tenant))
        });
        read.await.map_err(|fault| fault.store("read an operation"))
    }

    async fn operations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<OperationRecord>> {
        let sql = "SELECT seq, doc FROM operations WHERE tenant = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3";
        self.page("list operations", sql, tenant, after, limit)
            .await
    }

    async fn allocation(
        &self,
        tenant: &TenantName,
        id: AllocationId,
    ) -> Result<Option<AllocationRecord>> {
        let tenant = tenant.clone();
        let read = self.read(move |connection| {
            let row = allocation::find(connection, id)?;
            Ok(row
                .map(|row| row.record)
                .filter(|record| record.tenant == tenant))
        });
        read.await
            .map_err(|fault| fault.store("read an allocation"))
    }

    async fn allocations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AllocationRecord>> {
        let sql = "SELECT seq, doc FROM allocations WHERE tenant = ?1 AND seq < ?2 AND state <> 'ended' ORDER BY seq DESC LIMIT ?3";
        self.page("list allocations", sql, tenant, after, limit)
            .await
    }

    async fn hosts(&self) -> Result<Vec<HostView>> {
        self.read(|connection| hosts(connection, None))
            .await
            .map_err(|fault| fault.store("list hosts"))
    }

    async fn host(&self, host: &HostName) -> Result<Option<HostView>> {
        let host = host.clone();
        let read =
            self.read(move |connection| Ok(hosts(connection, Some(&host))?.into_iter().next()));
        read.await.map_err(|fault| fault.store("read a host"))
    }

    async fn holdings(&self, host: &HostName) -> Result<Option<HostHoldings>> {
        let host = host.clone();
        self.read(move |connection| holdings::holdings(connection, &host))
            .await
            .map_err(|fault| fault.store("read what a host holds"))
    }

    async fn operation_for_host(
        &self,
        host: &HostName,
        id: OperationId,
    ) -> Result<Option<OperationRecord>> {
        let host = host.clone();
        let read =
            self.read(move |connection| {
                Ok(row::operation(connection, id)?
                    .filter(|record| record.host.as_ref() == Some(&host)))
            });
        read.await
            .map_err(|fault| fault.store("read a host's operation"))
    }
}

impl SqliteBackplane {
    /// One page of a tenant's rows; the cursor is the last row's place, so new rows do not shift it.
    async fn page<T>(
        &self,
        context: &'static str,
        sql: &'static str,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<T>>
    where
        T: serde::de::DeserializeOwned + Send + 'static,
    {
        let tenant = tenant.clone();
        // A cursor that we did not give out is after everything.
        let before = after.map_or(i64::MAX, |cursor| cursor.parse().unwrap_or(0));
        let read = self.read(move |connection| {
            let mut statement = connection.prepare(sql)?;
            let more = i64::try_from(limit).unwrap_or(i64::MAX - 1) + 1;
            let rows = statement.query_map(params![tenant.as_str(), before, more], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
            })?;
            let mut rows = rows.collect::<std::result::Result<Vec<_>, _>>()?;
            let is_more = rows.len() > limit;
            rows.truncate(limit);
            let next = is_more
                .then(|| rows.last().map(|(seq, _)| seq.to_string()))
                .flatten();
            let items = rows
                .iter()
                .map(|(_, text)| document::read("row", text))
                .collect::<std::result::Result<_, document::DocumentError>>()?;
            Ok(Page { items, next })
        });
        read.await.map_err(|fault| fault.store(context))
    }
}

/// Columns of a host before they are parsed.
type RawHost = (String, String, String, u64, Option<i64>, Option<String>);

fn hosts(
    connection: &Connection,
    only: Option<&HostName>,
) -> std::result::Result<Vec<HostView>, Fault> {
    let sql = "SELECT host, pools, public_key, version, heard_at_ms, inventory FROM hosts WHERE ?1 IS NULL OR host = ?1 ORDER BY host";
    let mut statement = connection.prepare(sql)?;
    let columns = |row: &Row<'_>| -> rusqlite::Result<RawHost> {
        Ok((
            row.get(0)?,
            row.get(1)?,
            row.get(2)?,
            row.get(3)?,
            row.get(4)?,
            row.get(5)?,
        ))
    };
    let rows = statement.query_map([only.map(HostName::as_str)], columns)?;
    rows.map(|row| view(connection, row?)).collect()
}

fn view(
    connection: &Connection,
    (host, pools, public_key, version, heard_at_ms, inventory): RawHost,
) -> std::result::Result<HostView, Fault> {
    let record = HostRecord {
        host: row::parse("host name", &host)?,
        pools: document::read("pools", &pools)?,
        public_key,
    };
    let mut statement =
        connection.prepare("SELECT doc FROM reservations WHERE host = ?1 ORDER BY operation")?;
    let texts = statement.query_map([&host], |row| row.get::<_, String>(0))?;
    let reserved = texts
        .map(|text| Ok(document::read::<Reservation>("reservation", &text?)?))
        .collect::<std::result::Result<_, Fault>>()?;
    let inventory = inventory
        .map(|text| document::read("inventory", &text))
        .transpose()?;
    Ok(HostView {
        record,
        inventory,
        reserved,
        version,
        heard_at_ms,
        // Hosts of one machine come and go with its configuration.
        cordoned: false,
    })
}
