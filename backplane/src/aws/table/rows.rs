//! Rows as items and back: operations, allocations, callbacks, deliveries.

use events::{AllocationId, DeliveryId, OperationId};

use super::fault::Fault;
use super::item::{Draft, Fields, Item};
use super::key::{self, Key};
use crate::document;
use crate::lifecycle::{Allocation, SENDING_MS, overdue_from_ms};
use crate::store::{
    Acceptance, AllocationState, Attempt, DueCallback, KnownDelivery, NewCallback, OperationRecord,
};

/// Milliseconds that a settled delivery, operation or callback is kept: longer than agents know
/// operations (15 days) and people look back.
const KEPT_MS: i64 = 90 * 24 * 3600 * 1000;

/// An operation's item. While it is not final it is found by its host, and due when it should have been
/// sent, or should have ended.
pub(super) fn operation(record: &OperationRecord) -> Result<Item, Fault> {
    let place = key::place(record.accepted_at_ms, record.id);
    let draft = Draft::new(&Key::operation(record.id))
        .text("doc", document::write(record)?)
        .text("tenant_pk", key::operations_of(&record.tenant))
        .text("tenant_sk", place.clone());
    let open = record.host.as_ref().filter(|_| !record.state.is_final());
    let Some(host) = open else {
        return Ok(draft
            .number("ttl", (record.changed_at_ms + KEPT_MS) / 1000)
            .item());
    };
    let (due_pk, due_at) = if record.sent {
        (key::DUE_OVERDUE, overdue_from_ms(record))
    } else {
        (
            key::DUE_UNSENT,
            record.accepted_at_ms.saturating_add(SENDING_MS),
        )
    };
    Ok(draft
        .text("host_pk", key::operations_at(host))
        .text("host_sk", place)
        .text("due_pk", due_pk)
        .number("due_at", due_at)
        .item())
}

/// The operation of an item.
pub(super) fn read_operation(item: &Item) -> Result<OperationRecord, Fault> {
    let fields = Fields::of(item, "operation");
    Ok(document::read("operation", fields.text("doc")?)?)
}

/// What is kept of an allocation id: its revisions even when nothing was ever allocated.
#[derive(Debug, Clone, Default)]
pub(super) struct AllocationRow {
    /// The highest revision given out.
    pub(super) revision: u64,
    /// Until when an allocate of it is refused.
    pub(super) tombstone_until_ms: Option<i64>,
    /// What it stands for, ended ones included.
    pub(super) allocation: Option<Allocation>,
    /// Its place in lists.
    pub(super) place: Option<String>,
}

impl AllocationRow {
    pub(super) fn item(&self, id: AllocationId) -> Result<Item, Fault> {
        let draft = Draft::new(&Key::allocation(id))
            .number("revision", self.revision)
            .maybe(self.tombstone_until_ms, |draft, until_ms| {
                draft.number("tombstone_until_ms", until_ms)
            });
        let (Some(allocation), Some(place)) = (&self.allocation, &self.place) else {
            return Ok(draft.item());
        };
        let record = &allocation.record;
        let draft = draft
            .text("doc", document::write(record)?)
            .text("operation", allocation.operation.to_string())
            .number("sequence", allocation.sequence)
            .text("place", place.clone());
        let draft = match record.state {
            AllocationState::Ended => draft,
            AllocationState::Pending | AllocationState::Live => draft
                .text("tenant_pk", key::allocations_of(&record.tenant))
                .text("tenant_sk", place.clone()),
        };
        Ok(match record.state {
            AllocationState::Live => draft
                .text("host_pk", key::allocations_at(&record.host))
                .text("host_sk", place.clone())
                .item(),
            AllocationState::Pending | AllocationState::Ended => draft.item(),
        })
    }

    pub(super) fn read(item: &Item) -> Result<Self, Fault> {
        let fields = Fields::of(item, "allocation");
        let allocation = match fields.maybe_text("doc")? {
            None => None,
            Some(doc) => Some(Allocation {
                record: document::read("allocation", doc)?,
                operation: fields.parsed("operation")?,
                sequence: fields.number("sequence")?,
            }),
        };
        Ok(Self {
            revision: fields.number("revision")?,
            tombstone_until_ms: fields.maybe_number("tombstone_until_ms")?,
            allocation,
            place: fields.maybe_text("place")?.map(str::to_owned),
        })
    }
}

/// A callback's item when it is queued.
pub(super) fn callback(new: &NewCallback, now_ms: i64) -> Item {
    Draft::new(&Key::callback(&new.endpoint, &new.webhook_id))
        .text("endpoint", new.endpoint.clone())
        .text("webhook_id", new.webhook_id.clone())
        .text("payload", new.body.clone())
        .text("phase", "pending")
        .number("attempts", 0)
        .number("changed_at_ms", now_ms)
        .text("due_pk", key::DUE_CALLBACKS)
        .number("due_at", now_ms)
        .item()
}

/// The callback of an item.
pub(super) fn read_callback(item: &Item) -> Result<DueCallback, Fault> {
    let fields = Fields::of(item, "callback");
    Ok(DueCallback {
        endpoint: fields.text("endpoint")?.to_owned(),
        webhook_id: fields.text("webhook_id")?.to_owned(),
        body: fields.text("payload")?.to_owned(),
        attempts: fields.number("attempts")?,
    })
}

/// A pending callback's item after an attempt; `None` if it has ended already.
pub(super) fn attempted(
    item: &Item,
    attempt: &Attempt,
    now_ms: i64,
) -> Result<Option<Item>, Fault> {
    let fields = Fields::of(item, "callback");
    if fields.text("phase")? != "pending" {
        return Ok(None);
    }
    let callback = read_callback(item)?;
    let draft = Draft::new(&Key::callback(&callback.endpoint, &callback.webhook_id))
        .text("endpoint", callback.endpoint)
        .text("webhook_id", callback.webhook_id)
        .text("payload", callback.body)
        .number("attempts", callback.attempts.saturating_add(1))
        .number("changed_at_ms", now_ms);
    let ttl = now_ms.saturating_add(KEPT_MS) / 1000;
    Ok(Some(match attempt {
        Attempt::Delivered => draft.text("phase", "delivered").number("ttl", ttl).item(),
        Attempt::Parked(reason) => draft
            .text("phase", "parked")
            .text("reason", reason.clone())
            .number("ttl", ttl)
            .item(),
        Attempt::RetryAt(at_ms, reason) => draft
            .text("phase", "pending")
            .text("reason", reason.clone())
            .text("due_pk", key::DUE_CALLBACKS)
            .number("due_at", at_ms)
            .item(),
    }))
}

/// A delivery's item, with the ids of its operations in order.
pub(super) fn delivery(acceptance: &Acceptance) -> Item {
    let kept_until_ms = acceptance.now_ms.saturating_add(KEPT_MS);
    let operations = acceptance.operations.iter().map(|new| new.id.to_string());
    Draft::new(&Key::delivery(acceptance.delivery))
        .text("tenant", acceptance.tenant.as_str())
        .text("origin", acceptance.source.as_str())
        .bytes("hash", &acceptance.body)
        .text("response", acceptance.response.clone())
        .number("accepted_at_ms", acceptance.now_ms)
        .texts("operation_ids", operations)
        .number("ttl", kept_until_ms.max(acceptance.forget_at_ms) / 1000)
        .item()
}

/// A delivery read back.
pub(super) struct DeliveryRow {
    pub(super) tenant: String,
    pub(super) operations: Vec<OperationId>,
    /// What a repetition needs to know; `unsent` is not filled in.
    pub(super) known: KnownDelivery,
}

impl DeliveryRow {
    pub(super) fn read(id: DeliveryId, item: &Item) -> Result<Self, Fault> {
        let fields = Fields::of(item, "delivery");
        Ok(Self {
            tenant: fields.text("tenant")?.to_owned(),
            operations: fields.texts("operation_ids")?,
            known: KnownDelivery {
                delivery: id,
                body: fields.bytes("hash")?,
                response: fields.text("response")?.to_owned(),
                unsent: Vec::new(),
            },
        })
    }
}

/// An idempotency key's item.
pub(super) fn idempotency(key: &Key, delivery: DeliveryId, forget_at_ms: i64) -> Item {
    Draft::new(key)
        .text("delivery", delivery.to_string())
        .number("forget_at_ms", forget_at_ms)
        .number("ttl", forget_at_ms / 1000)
        .item()
}

/// The delivery behind an idempotency key, unless it has been forgotten by now: DynamoDB may take days to
/// delete what is past its TTL.
pub(super) fn read_idempotency(item: &Item, now_ms: i64) -> Result<Option<DeliveryId>, Fault> {
    let fields = Fields::of(item, "idempotency key");
    let forget_at_ms: i64 = fields.number("forget_at_ms")?;
    let delivery = fields.parsed("delivery")?;
    Ok((forget_at_ms > now_ms).then_some(delivery))
}
