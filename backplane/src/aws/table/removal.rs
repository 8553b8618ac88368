//! Removing a host: first it is cordoned, then it goes once it holds nothing. A host that is lost never
//! lets go by itself: what it held ends here.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::{Delete, TransactWriteItem};
use events::{AllocationId, HostName, OperationId};

use super::DynamoStore;
use super::fault::Fault;
use super::item::{Fields, number, text};
use super::key::{self, Key};
use super::rows::{self, AllocationRow};
use super::unit::{Tries, Unit};
use crate::lifecycle;
use crate::store::{Owed, StoreError};

/// How a host is removed.
#[derive(Debug, Clone, Copy)]
pub enum Removal {
    /// Once it holds nothing.
    Drained,
    /// It is gone for good: what it holds and what it had begun ends, and callers are owed that.
    Lost(Owed),
}

/// What became of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// There is no such host any more, or there never was.
    Gone,
    /// It is cordoned, and still holds this much.
    Draining {
        /// Live allocations.
        allocations: usize,
        /// Operations that it has not ended.
        operations: usize,
    },
}

impl DynamoStore {
    /// Removes a host, or says what it still holds. Nothing new is placed on it from the first call on.
    ///
    /// # Errors
    /// The table does not answer.
    pub async fn remove_host(
        &self,
        host: &HostName,
        removal: Removal,
        now_ms: i64,
    ) -> Result<Removed, StoreError> {
        let removed = self.remove(host, removal, now_ms).await;
        removed.map_err(|fault| fault.store("remove a host"))
    }

    async fn remove(
        &self,
        host: &HostName,
        removal: Removal,
        now_ms: i64,
    ) -> Result<Removed, Fault> {
        if !self.cordon(host).await? {
            return Ok(Removed::Gone);
        }
        if let Removal::Lost(owed) = removal {
            self.end_all(host, owed, now_ms).await?;
        }
        let operations = self.at_host(&key::operations_at(host)).await?.len();
        let mut allocations = self.at_host(&key::allocations_at(host)).await?.len();
        if matches!(removal, Removal::Drained) {
            // The index may not have the latest yet; the host's own word is read consistently.
            allocations = allocations.max(self.told_by(host).await?);
        }
        if operations + allocations > 0 || !self.delete(host).await? {
            return Ok(Removed::Draining {
                allocations,
                operations,
            });
        }
        Ok(Removed::Gone)
    }

    /// How many allocations its inventory has partitions of.
    async fn told_by(&self, host: &HostName) -> Result<usize, Fault> {
        let mut unit = Unit::new(self);
        unit.load([Key::inventory(host)]).await?;
        let inventory = unit.inventory(host)?;
        let gpus = inventory.iter().flat_map(|inventory| &inventory.gpus);
        let owners = gpus
            .flat_map(|gpu| &gpu.partitions)
            .filter_map(|partition| partition.owner.as_ref());
        let allocations: BTreeSet<_> = owners.map(|owner| owner.allocation).collect();
        Ok(allocations.len())
    }

    /// Whether there is such a host; it is cordoned then.
    async fn cordon(&self, host: &HostName) -> Result<bool, Fault> {
        let mut tries = Tries::default();
        loop {
            let mut unit = Unit::new(self);
            unit.load([Key::head(host)]).await?;
            let Some(mut head) = unit.head(host)? else {
                return Ok(false);
            };
            if !head.cordoned {
                head.cordoned = true;
                // What was placed on it and is not accepted yet is placed again, elsewhere.
                head.version += 1;
                unit.put_head(&head)?;
            }
            if unit.commit(&mut tries).await? {
                return Ok(true);
            }
        }
    }

    async fn end_all(&self, host: &HostName, owed: Owed, now_ms: i64) -> Result<(), Fault> {
        for item in self.at_host(&key::operations_at(host)).await? {
            let id = rows::read_operation(&item)?.id;
            self.end_operation(host, id, owed, now_ms).await?;
        }
        for item in self.at_host(&key::allocations_at(host)).await? {
            if let Some(found) = AllocationRow::read(&item)?.allocation {
                self.end_allocation(host, found.record.id, now_ms).await?;
            }
        }
        Ok(())
    }

    /// Ends an operation with what it was promised, the allocation that waits for it, and its callbacks.
    async fn end_operation(
        &self,
        host: &HostName,
        id: OperationId,
        owed: Owed,
        now_ms: i64,
    ) -> Result<(), Fault> {
        let mut tries = Tries::default();
        loop {
            let mut unit = Unit::new(self);
            unit.load([Key::operation(id), Key::head(host)]).await?;
            let Some(mut record) = unit.operation(id)? else {
                return Ok(());
            };
            if !lifecycle::lose(&mut record, now_ms) {
                return Ok(());
            }
            unit.unreserve(host, id)?;
            if let Some(allocation) = record.operation.allocation(&record.tenant) {
                unit.load([Key::allocation(allocation)]).await?;
                let mut row = unit.allocation(allocation)?;
                let waits = row.allocation.as_mut();
                let waits = waits.filter(|found| found.is_pending_by(id));
                if waits.is_some_and(|found| found.lose(now_ms)) {
                    unit.put_allocation(allocation, &row)?;
                }
            }
            unit.put_operation(&record)?;
            unit.owe(&owed(&record), now_ms).await?;
            if unit.commit(&mut tries).await? {
                return Ok(());
            }
        }
    }

    async fn end_allocation(
        &self,
        host: &HostName,
        id: AllocationId,
        now_ms: i64,
    ) -> Result<(), Fault> {
        let mut tries = Tries::default();
        loop {
            let mut unit = Unit::new(self);
            unit.load([Key::allocation(id)]).await?;
            let mut row = unit.allocation(id)?;
            let here = row.allocation.as_mut();
            let here = here.filter(|found| found.record.host == *host);
            if here.is_some_and(|found| found.lose(now_ms)) {
                unit.put_allocation(id, &row)?;
            }
            if unit.commit(&mut tries).await? {
                return Ok(());
            }
        }
    }

    /// Deletes a host's items, if its head is as it was read and promises nothing.
    async fn delete(&self, host: &HostName) -> Result<bool, Fault> {
        let head = Key::head(host);
        let items = self.get(std::slice::from_ref(&head)).await?;
        let Some(item) = items.get(&head) else {
            return Ok(true);
        };
        if !super::host::Head::read(host, item)?.reserved.is_empty() {
            return Ok(false);
        }
        let version: u64 = Fields::of(item, "host").number("ver")?;
        let deletion = |key: Key| {
            Delete::builder()
                .table_name(&self.table)
                .key("pk", text(key.pk))
                .key("sk", text(key.sk))
        };
        let guarded = deletion(head)
            .condition_expression("ver = :ver")
            .expression_attribute_values(":ver", number(version));
        let rest = [Key::listed(host), Key::inventory(host), Key::heard(host)];
        let deletions = std::iter::once(guarded).chain(rest.into_iter().map(deletion));
        let items = deletions.map(|deletion| {
            let deletion = deletion.build().expect("table and key are set");
            TransactWriteItem::builder().delete(deletion).build()
        });
        self.write_all(items.collect()).await
    }
}
