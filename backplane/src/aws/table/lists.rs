//! Lists: a tenant's operations and allocations, hosts, and what a host holds.

use std::collections::BTreeSet;
use std::str::FromStr;

use events::{HostName, OperationId, OperationState, TenantName};

use super::DynamoStore;
use super::fault::Fault;
use super::item::{Fields, Item, text};
use super::key::{self, BY_HOST, BY_TENANT, HOSTS, Key};
use super::rows::{self, AllocationRow};
use crate::store::{AllocationRecord, HeldAllocation, HostHoldings, OperationRecord, Page};

/// Before every place: a cursor that we did not give out is after everything.
const NOWHERE: &str = " ";

impl DynamoStore {
    /// Operations by their ids, in that order; those that are not there are left out.
    pub(super) async fn operations(
        &self,
        ids: &[OperationId],
    ) -> Result<Vec<OperationRecord>, Fault> {
        let keys: Vec<_> = ids.iter().map(|id| Key::operation(*id)).collect();
        let items = self.get(&keys).await?;
        keys.iter()
            .filter_map(|key| items.get(key))
            .map(rows::read_operation)
            .collect()
    }

    /// One page of a tenant's operations.
    pub(super) async fn page_of_operations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<OperationRecord>, Fault> {
        let partition = key::operations_of(tenant);
        self.page(&partition, after, limit, rows::read_operation)
            .await
    }

    /// One page of what a tenant holds.
    pub(super) async fn page_of_allocations(
        &self,
        tenant: &TenantName,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<AllocationRecord>, Fault> {
        let read = |item: &Item| {
            let allocation = AllocationRow::read(item)?.allocation;
            let missing = Fault::Stored {
                what: "allocation",
                attribute: "doc",
            };
            Ok(allocation.ok_or(missing)?.record)
        };
        let partition = key::allocations_of(tenant);
        self.page(&partition, after, limit, read).await
    }

    /// The cursor is the last row's place, so that new rows do not shift it.
    async fn page<T>(
        &self,
        partition: &str,
        after: Option<&str>,
        limit: usize,
        read: impl Fn(&Item) -> Result<T, Fault>,
    ) -> Result<Page<T>, Fault> {
        let more = limit.saturating_add(1);
        let mut items: Vec<Item> = Vec::new();
        let mut before =
            after.map(|cursor| if is_place(cursor) { cursor } else { NOWHERE }.to_owned());
        loop {
            let wanted = more - items.len();
            let found = self
                .newest_first(partition, before.as_deref(), wanted)
                .await?;
            let is_last = found.is_empty();
            items.extend(found);
            if is_last || items.len() >= more {
                break;
            }
            // A page of DynamoDB ends at 1 MB, wherever that is.
            before = items.last().map(place).transpose()?;
        }
        let is_more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| is_more).map(place).transpose()?;
        let items = items.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Page { items, next })
    }

    async fn newest_first(
        &self,
        partition: &str,
        before: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Item>, Fault> {
        let query = self
            .client
            .query()
            .table_name(&self.table)
            .index_name(BY_TENANT)
            .scan_index_forward(false)
            .limit(i32::try_from(limit).unwrap_or(i32::MAX))
            .expression_attribute_values(":pk", text(partition));
        let query = match before {
            None => query.key_condition_expression("tenant_pk = :pk"),
            Some(before) => query
                .key_condition_expression("tenant_pk = :pk AND tenant_sk < :before")
                .expression_attribute_values(":before", text(before)),
        };
        let found = query.send().await.map_err(|error| Fault::call(&error))?;
        Ok(found.items.unwrap_or_default())
    }

    /// The names of all enrolled hosts, in order.
    pub(super) async fn host_names(&self) -> Result<Vec<HostName>, Fault> {
        let query = self
            .client
            .query()
            .table_name(&self.table)
            .consistent_read(true)
            .key_condition_expression("pk = :pk")
            .expression_attribute_values(":pk", text(HOSTS));
        let mut names = Vec::new();
        let mut pages = query.into_paginator().send();
        while let Some(page) = pages.next().await {
            for item in page.map_err(|error| Fault::call(&error))?.items() {
                names.push(Fields::of(item, "host").parsed("sk")?);
            }
        }
        Ok(names)
    }

    /// Everything that a host holds; `None` if it is not enrolled.
    pub(super) async fn held(&self, host: &HostName) -> Result<Option<HostHoldings>, Fault> {
        let key = Key::head(host);
        let items = self.get(std::slice::from_ref(&key)).await?;
        let Some(item) = items.get(&key) else {
            return Ok(None);
        };
        let sequence = super::host::Head::read(host, item)?.sequence.unwrap_or(0);
        let mut allocations = Vec::new();
        for item in self.at_host(&key::allocations_at(host)).await? {
            let row = AllocationRow::read(&item)?;
            let Some(allocation) = row.allocation else {
                continue;
            };
            allocations.push(HeldAllocation {
                record: allocation.record,
                operation: allocation.operation,
                revision: row.revision,
            });
        }
        let open = self.at_host(&key::operations_at(host)).await?;
        let open = open.iter().map(rows::read_operation);
        let mut running = open.collect::<Result<Vec<_>, _>>()?;
        running.retain(|record| record.state == OperationState::Running);
        Ok(Some(HostHoldings {
            sequence: u64::try_from(sequence).unwrap_or(0),
            allocations,
            running,
        }))
    }

    /// Rows of a host's partition, oldest first. The index tells which there are, if only a moment late; what
    /// they hold, and whether they still belong there, is read from the table itself.
    pub(super) async fn at_host(&self, partition: &str) -> Result<Vec<Item>, Fault> {
        let query = self
            .client
            .query()
            .table_name(&self.table)
            .index_name(BY_HOST)
            .key_condition_expression("host_pk = :pk")
            .expression_attribute_values(":pk", text(partition));
        let mut keys = Vec::new();
        let mut pages = query.into_paginator().send();
        while let Some(page) = pages.next().await {
            for item in page.map_err(|error| Fault::call(&error))?.items() {
                let fields = Fields::of(item, "row");
                keys.push(Key {
                    pk: fields.text("pk")?.to_owned(),
                    sk: fields.text("sk")?.to_owned(),
                });
            }
        }
        // What moves while the pages are read may be on two of them.
        let mut seen = BTreeSet::new();
        keys.retain(|key| seen.insert(key.clone()));
        let mut items = self.get(&keys).await?;
        let now = keys.iter().filter_map(|key| items.remove(key));
        let is_there = |item: &Item| {
            let there = Fields::of(item, "row").maybe_text("host_pk");
            there.is_ok_and(|there| there == Some(partition))
        };
        Ok(now.filter(is_there).collect())
    }
}

fn place(item: &Item) -> Result<String, Fault> {
    Ok(Fields::of(item, "row").text("tenant_sk")?.to_owned())
}

/// Whether a cursor is one that we may have given out.
fn is_place(cursor: &str) -> bool {
    let Some((time, operation)) = cursor.split_once('.') else {
        return false;
    };
    time.len() == 15
        && time.bytes().all(|byte| byte.is_ascii_digit())
        && OperationId::from_str(operation).is_ok()
}
