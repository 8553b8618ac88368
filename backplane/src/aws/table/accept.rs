//! Accepting a webhook: keys, operations, reservations and allocations in one transaction.

use events::{AllocationId, HostName, Operation};

use super::DynamoStore;
use super::fault::Fault;
use super::item::{Draft, Fields};
use super::key::Key;
use super::rows::{self, AllocationRow, DeliveryRow};
use super::unit::{MAX_ITEMS, Tries, Unit};
use crate::lifecycle::{self, Allocation, Contract, TOMBSTONE_MS};
use crate::store::{
    Acceptance, Accepted, IdempotencyKeys, KnownDelivery, NewOperation, OperationRecord, Route,
};

impl Unit<'_> {
    /// What is kept of an allocation id that was loaded.
    pub(super) fn allocation(&self, id: AllocationId) -> Result<AllocationRow, Fault> {
        let item = self.item(&Key::allocation(id));
        Ok(item
            .map(AllocationRow::read)
            .transpose()?
            .unwrap_or_default())
    }

    pub(super) fn put_allocation(
        &mut self,
        id: AllocationId,
        row: &AllocationRow,
    ) -> Result<(), Fault> {
        self.put(Key::allocation(id), row.item(id)?);
        Ok(())
    }

    pub(super) fn put_operation(&mut self, record: &OperationRecord) -> Result<(), Fault> {
        self.put(Key::operation(record.id), rows::operation(record)?);
        Ok(())
    }
}

impl DynamoStore {
    /// The delivery behind either of the keys, unless both have been forgotten by `now_ms`.
    pub(super) async fn known(
        &self,
        keys: &IdempotencyKeys,
        now_ms: i64,
    ) -> Result<Option<KnownDelivery>, Fault> {
        let keys = idempotency_keys(keys);
        let items = self.get(&keys).await?;
        let mut delivery = None;
        for item in keys.iter().filter_map(|key| items.get(key)) {
            delivery = delivery.or(rows::read_idempotency(item, now_ms)?);
        }
        let Some(id) = delivery else {
            return Ok(None);
        };
        let key = Key::delivery(id);
        let items = self.get(std::slice::from_ref(&key)).await?;
        let Some(item) = items.get(&key) else {
            // Written with the key, and kept at least as long.
            return Err(Fault::Stored {
                what: "delivery",
                attribute: "pk",
            });
        };
        let row = DeliveryRow::read(id, item)?;
        let operations = self.operations(&row.operations).await?;
        let unsent = operations
            .into_iter()
            .filter(|record| !record.sent && !record.state.is_final());
        Ok(Some(KnownDelivery {
            unsent: unsent.collect(),
            ..row.known
        }))
    }

    /// Takes the webhook as a whole, or says why not.
    pub(super) async fn take(&self, acceptance: &Acceptance) -> Result<Accepted, Fault> {
        let mut tries = Tries::default();
        loop {
            if let Some(known) = self.known(&acceptance.keys, acceptance.now_ms).await? {
                if tries.were_made() && known.delivery == acceptance.delivery {
                    // Our own, whose answer was lost.
                    let ids: Vec<_> = acceptance.operations.iter().map(|new| new.id).collect();
                    return Ok(Accepted::New(self.operations(&ids).await?));
                }
                return Ok(
                    match (known.body == acceptance.body, known.unsent.is_empty()) {
                        (false, _) => Accepted::Mismatch,
                        (true, true) => Accepted::Replay(known),
                        (true, false) => Accepted::InFlight(known),
                    },
                );
            }
            let mut unit = Unit::new(self);
            unit.load(everything(acceptance)).await?;
            if is_known(&unit, acceptance)? {
                // Accepted elsewhere since it was looked up: what is there now tells by whom.
                continue;
            }
            let held = |id| unit.allocation(id).map(|row| holder(&row));
            let version = |host: &HostName| Ok(unit.head(host)?.map(|head| head.version));
            if lifecycle::capacity_moved(acceptance, held, version)? {
                return Ok(Accepted::CapacityMoved);
            }
            remember(&mut unit, acceptance);
            let mut records = Vec::with_capacity(acceptance.operations.len());
            for new in &acceptance.operations {
                records.push(operation(&mut unit, acceptance, new).await?);
            }
            let items = unit.changes();
            if items > MAX_ITEMS {
                let text = format!(
                    "the operations of this webhook need {items} writes in one transaction, and {MAX_ITEMS} fit: send fewer in one webhook"
                );
                return Ok(Accepted::TooLarge(text));
            }
            if unit.commit(&mut tries).await? {
                return Ok(Accepted::New(records));
            }
        }
    }
}

/// Whether one of the keys that were loaded counts: it would be overwritten.
fn is_known(unit: &Unit<'_>, acceptance: &Acceptance) -> Result<bool, Fault> {
    for key in idempotency_keys(&acceptance.keys) {
        if let Some(item) = unit.item(&key)
            && rows::read_idempotency(item, acceptance.now_ms)?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn idempotency_keys(keys: &IdempotencyKeys) -> Vec<Key> {
    let id = Some(Key::idempotency("id", &keys.id));
    let content = keys.content.as_ref();
    let content = content.map(|digest| Key::idempotency("content", digest));
    id.into_iter().chain(content).collect()
}

/// Every item that an acceptance decides on or writes.
fn everything(acceptance: &Acceptance) -> Vec<Key> {
    let mut keys = idempotency_keys(&acceptance.keys);
    keys.push(Key::delivery(acceptance.delivery));
    for new in &acceptance.operations {
        keys.push(Key::operation(new.id));
        match new.operation.allocation(&acceptance.tenant) {
            Some(id) => keys.push(Key::allocation(id)),
            None => keys.push(Key::group(group(&new.route))),
        }
        if let Route::Host { host, .. } = &new.route {
            keys.push(Key::head(host));
        }
    }
    keys
}

fn group(route: &Route) -> &str {
    match route {
        Route::Host { group, .. } => group,
        Route::Settled(_) => "",
    }
}

fn holder(row: &AllocationRow) -> Option<HostName> {
    let held = row.allocation.as_ref().filter(|held| held.is_held());
    held.map(|held| held.record.host.clone())
}

fn remember(unit: &mut Unit<'_>, acceptance: &Acceptance) {
    for key in idempotency_keys(&acceptance.keys) {
        let item = rows::idempotency(&key, acceptance.delivery, acceptance.forget_at_ms);
        unit.put(key, item);
    }
    unit.put(
        Key::delivery(acceptance.delivery),
        rows::delivery(acceptance),
    );
}

async fn operation(
    unit: &mut Unit<'_>,
    acceptance: &Acceptance,
    new: &NewOperation,
) -> Result<OperationRecord, Fault> {
    let Some(id) = new.operation.allocation(&acceptance.tenant) else {
        let mut record = lifecycle::record(acceptance, new, None)?;
        record.revision = next_of_group(unit, group(&new.route))?;
        return finish(unit, acceptance, record).await;
    };
    let mut row = unit.allocation(id)?;
    let overtaken = tombstone(&mut row, new, acceptance.now_ms).then(lifecycle::overtaken);
    let mut record = lifecycle::record(acceptance, new, overtaken.as_ref())?;
    row.revision += 1;
    record.revision = row.revision;
    if record.host.is_some() {
        reserve(unit, &mut row, new, &record)?;
    }
    unit.put_allocation(id, &row)?;
    finish(unit, acceptance, record).await
}

async fn finish(
    unit: &mut Unit<'_>,
    acceptance: &Acceptance,
    record: OperationRecord,
) -> Result<OperationRecord, Fault> {
    if unit.item(&Key::operation(record.id)).is_some() {
        return Err(Contract("an operation id was used before").into());
    }
    unit.put_operation(&record)?;
    if record.state.is_final() {
        unit.owe(&(acceptance.owed)(&record), acceptance.now_ms)
            .await?;
    }
    Ok(record)
}

/// A release that overtakes its allocate wins: a key that is released before it was ever allocated is
/// blocked for a while (DESIGN §4). Whether it blocks this operation.
fn tombstone(row: &mut AllocationRow, new: &NewOperation, now_ms: i64) -> bool {
    let (Operation::Allocate(_) | Operation::Release(_)) = &new.operation else {
        return false;
    };
    row.tombstone_until_ms = row.tombstone_until_ms.filter(|until_ms| *until_ms > now_ms);
    if let (Operation::Release(_), Route::Settled(_)) = (&new.operation, &new.route) {
        if row.revision == 0 {
            row.tombstone_until_ms = Some(now_ms.saturating_add(TOMBSTONE_MS));
        }
        return false;
    }
    row.tombstone_until_ms.is_some()
}

fn next_of_group(unit: &mut Unit<'_>, group: &str) -> Result<u64, Fault> {
    let key = Key::group(group);
    let last = unit.item(&key);
    let last = last.map(|item| Fields::of(item, "group").number::<u64>("revision"));
    let next = last.transpose()?.unwrap_or(0) + 1;
    let item = Draft::new(&key).number("revision", next).item();
    unit.put(key, item);
    Ok(next)
}

/// An allocate makes its allocation pending and, holding capacity, the host another version. One that
/// is pending or live already has its capacity.
fn reserve(
    unit: &mut Unit<'_>,
    row: &mut AllocationRow,
    new: &NewOperation,
    record: &OperationRecord,
) -> Result<(), Fault> {
    let (
        Route::Host {
            host, reservation, ..
        },
        Operation::Allocate(_),
    ) = (&new.route, &new.operation)
    else {
        return Ok(());
    };
    let earlier = row.allocation.as_ref();
    if earlier.is_some_and(Allocation::is_held) {
        return Ok(());
    }
    let begun = Allocation::begin(record, host, reservation.as_ref(), earlier)?;
    row.allocation = Some(begun);
    row.place = Some(super::key::place(record.accepted_at_ms, record.id));
    let (Some(reservation), Some(mut head)) = (reservation, unit.head(host)?) else {
        return Ok(());
    };
    head.reserved
        .insert(record.id.to_string(), reservation.clone());
    head.version += 1;
    unit.put_head(&head)
}
