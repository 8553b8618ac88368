//! Settling an event, or expiring an operation: status forward only, inventory by sequence,
//! reservation, allocation and the callbacks that are owed, in one transaction.

use events::result::{EventKind, HostEvent, ResultEvent};
use events::{HostInventory, HostName, OperationId, OperationState};

use super::DynamoStore;
use super::fault::Fault;
use super::host;
use super::item::Fields;
use super::key::Key;
use super::rows;
use super::unit::{Tries, Unit};
use crate::lifecycle::{self, Observation};
use crate::store::{NewCallback, OperationRecord, Owed, Settlement};

impl DynamoStore {
    /// Applies an event of a host whose signature was verified. Its inventory is taken whenever it is
    /// newer than the one known, even with an event that moves nothing else: it is the host's own word.
    pub(super) async fn apply(
        &self,
        event: &HostEvent,
        callbacks: &[NewCallback],
        now_ms: i64,
    ) -> Result<Settlement, Fault> {
        let (host, event) = (&event.host, &event.event);
        let seen = Observation {
            host,
            sequence: i64::try_from(event.sequence).unwrap_or(i64::MAX),
            now_ms,
        };
        let mut tries = Tries::default();
        loop {
            let mut unit = Unit::new(self);
            unit.load(everything(host, event)).await?;
            if unit.head(host)?.is_none() {
                return Ok(Settlement::Unknown);
            }
            self.hear(host, now_ms).await?;
            let observed = match &event.data.inventory {
                Some(inventory) => observe(&mut unit, inventory, &seen)?,
                None => false,
            };
            let settlement = match (event.kind.state(), event.kind) {
                (Some(state), _) => settle_operation(&mut unit, event, state, &seen).await?,
                (None, EventKind::HostObserved) => moved(observed),
                (None, _) => settle_allocation(&mut unit, event, &seen)?,
            };
            if matches!(settlement, Settlement::Applied(_)) {
                unit.owe(callbacks, now_ms).await?;
            }
            if unit.commit(&mut tries).await? {
                return Ok(settlement);
            }
        }
    }

    /// Ends `id` as expired on its host's evidence. `None` when there is none, or the operation is not
    /// merely queued any more.
    pub(super) async fn end_overdue(
        &self,
        id: OperationId,
        owed: Owed,
        now_ms: i64,
    ) -> Result<Option<OperationRecord>, Fault> {
        let mut tries = Tries::default();
        loop {
            let mut unit = Unit::new(self);
            unit.load([Key::operation(id)]).await?;
            let record = unit.operation(id)?;
            let Some((mut record, host)) = record.and_then(|record| {
                let host = record.host.clone()?;
                Some((record, host))
            }) else {
                return Ok(None);
            };
            let allocation_id = record.operation.allocation(&record.tenant);
            let keys = [Key::head(&host), Key::inventory(&host)];
            unit.load(keys.into_iter().chain(allocation_id.map(Key::allocation)))
                .await?;
            let makes = match allocation_id {
                Some(id) => unit.allocation(id)?.allocation,
                None => None,
            };
            let head = unit.head(&host)?;
            let inventory = unit.inventory(&host)?;
            if !lifecycle::expire(&mut record, makes.as_ref(), inventory.as_ref(), now_ms) {
                return Ok(None);
            }
            unit.unreserve(&host, id)?;
            let seen = Observation {
                host: &host,
                sequence: head.and_then(|head| head.sequence).unwrap_or(0),
                now_ms,
            };
            conclude(&mut unit, &record, &seen).await?;
            unit.put_operation(&record)?;
            unit.owe(&owed(&record), now_ms).await?;
            if unit.commit(&mut tries).await? {
                return Ok(Some(record));
            }
        }
    }
}

impl Unit<'_> {
    /// An operation that was loaded.
    pub(super) fn operation(&self, id: OperationId) -> Result<Option<OperationRecord>, Fault> {
        self.item(&Key::operation(id))
            .map(rows::read_operation)
            .transpose()
    }

    /// Queues callbacks; one that is there already stays as it is.
    pub(super) async fn owe(
        &mut self,
        callbacks: &[NewCallback],
        now_ms: i64,
    ) -> Result<(), Fault> {
        let key = |new: &NewCallback| Key::callback(&new.endpoint, &new.webhook_id);
        self.load(callbacks.iter().map(key)).await?;
        for new in callbacks {
            if self.item(&key(new)).is_none() {
                self.put(key(new), rows::callback(new, now_ms));
            }
        }
        Ok(())
    }
}

/// The items that an event is about, as far as it says itself.
fn everything(host: &HostName, event: &ResultEvent) -> Vec<Key> {
    let mut keys = vec![Key::head(host)];
    keys.extend(event.data.inventory.as_ref().map(|_| Key::inventory(host)));
    keys.extend(event.data.op_id.map(Key::operation));
    keys.extend(event.data.allocation.map(Key::allocation));
    keys
}

fn moved(moved: bool) -> Settlement {
    if moved {
        Settlement::Applied(None)
    } else {
        Settlement::Stale
    }
}

/// Takes an inventory unless a newer one is known. Whether it was taken.
fn observe(
    unit: &mut Unit<'_>,
    inventory: &HostInventory,
    seen: &Observation<'_>,
) -> Result<bool, Fault> {
    let known = unit.item(&Key::inventory(seen.host));
    let known = known.map(|item| Fields::of(item, "inventory").number::<i64>("sequence"));
    if known
        .transpose()?
        .is_some_and(|known| known >= seen.sequence)
    {
        return Ok(false);
    }
    let Some(mut head) = unit.head(seen.host)? else {
        return Ok(false);
    };
    let changed = lifecycle::changes_capacity(unit.inventory(seen.host)?, inventory);
    head.version += u64::from(changed);
    head.sequence = Some(seen.sequence);
    unit.put_head(&head)?;
    unit.put(
        Key::inventory(seen.host),
        host::inventory(inventory, seen.sequence)?,
    );
    Ok(true)
}

async fn settle_operation(
    unit: &mut Unit<'_>,
    event: &ResultEvent,
    next: OperationState,
    seen: &Observation<'_>,
) -> Result<Settlement, Fault> {
    let Some(id) = event.data.op_id else {
        return Ok(Settlement::Unknown);
    };
    let record = unit.operation(id)?;
    let ours = record.filter(|record| lifecycle::is_for(record, event, seen.host));
    let Some(mut record) = ours else {
        return Ok(Settlement::Unknown);
    };
    if !lifecycle::advance(&mut record, event, next, seen) {
        return Ok(Settlement::Stale);
    }
    if next.is_final() {
        unit.unreserve(seen.host, id)?;
        conclude(unit, &record, seen).await?;
    }
    unit.put_operation(&record)?;
    Ok(Settlement::Applied(Some(Box::new(record))))
}

/// What an operation's end means for its allocation.
async fn conclude(
    unit: &mut Unit<'_>,
    operation: &OperationRecord,
    seen: &Observation<'_>,
) -> Result<(), Fault> {
    let Some(id) = operation.operation.allocation(&operation.tenant) else {
        return Ok(());
    };
    unit.load([Key::allocation(id)]).await?;
    let mut row = unit.allocation(id)?;
    let found = row.allocation.as_mut();
    if found.is_some_and(|found| found.conclude(operation, seen)) {
        unit.put_allocation(id, &row)?;
    }
    Ok(())
}

fn settle_allocation(
    unit: &mut Unit<'_>,
    event: &ResultEvent,
    seen: &Observation<'_>,
) -> Result<Settlement, Fault> {
    let Some(id) = event.data.allocation else {
        return Ok(Settlement::Unknown);
    };
    let mut row = unit.allocation(id)?;
    let ours = row.allocation.as_mut().filter(|found| {
        found.record.host == *seen.host && event.tenant.as_ref() == Some(&found.record.tenant)
    });
    let Some(found) = ours else {
        return Ok(Settlement::Unknown);
    };
    if !found.observe(event, seen) {
        return Ok(Settlement::Stale);
    }
    unit.put_allocation(id, &row)?;
    Ok(Settlement::Applied(None))
}
