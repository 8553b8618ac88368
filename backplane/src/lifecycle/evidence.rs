//! What a host's inventory proves: that capacity changed, or that a command never arrived. Silence
//! alone proves nothing.

use events::inventory::HostInventory;
use events::outcome::Failure;
use events::{AllocationId, Code, OperationState};

use super::Allocation;
use crate::store::{OVERDUE_S, OperationRecord};

/// Whether an inventory differs from the one known. The same inventory at a later time moves no
/// capacity: what was placed on it stays placed.
pub(crate) fn changes_capacity(known: Option<HostInventory>, inventory: &HostInventory) -> bool {
    let taken_at_ms = inventory.taken_at_ms;
    known.is_none_or(|known| {
        HostInventory {
            taken_at_ms,
            ..known
        } != *inventory
    })
}

/// From when its host's silence about an operation counts, Unix milliseconds.
pub(crate) fn overdue_from_ms(record: &OperationRecord) -> i64 {
    record
        .expires_at_s
        .saturating_add(OVERDUE_S)
        .saturating_mul(1000)
}

/// Whether its host's silence about an operation counts by now.
pub(crate) fn is_overdue(record: &OperationRecord, now_ms: i64) -> bool {
    overdue_from_ms(record) <= now_ms
}

/// Ends an operation as expired, if it is overdue, merely queued, and an inventory taken since does
/// not know what it was to make. Whether it ended.
pub(crate) fn expire(
    record: &mut OperationRecord,
    allocation: Option<&Allocation>,
    inventory: Option<&HostInventory>,
    now_ms: i64,
) -> bool {
    let (Some(host), Some(inventory)) = (record.host.clone(), inventory) else {
        return false;
    };
    let is_silent = record.state == OperationState::Queued
        && is_overdue(record, now_ms)
        && inventory.taken_at_ms >= overdue_from_ms(record);
    let makes = allocation.filter(|allocation| allocation.is_pending_by(record.id));
    if !is_silent || makes.is_some_and(|makes| has(inventory, makes.record.id)) {
        return false;
    }
    let text = format!(
        "host {host} did not take the command before its expiry, and its inventory does not know it"
    );
    record.state = OperationState::Expired;
    record.failure = Some(Failure::new(Code::HostSilent, text));
    record.changed_at_ms = now_ms;
    // Nothing is to be sent any more: the host would refuse it.
    record.sent = true;
    true
}

fn has(inventory: &HostInventory, id: AllocationId) -> bool {
    let mut partitions = inventory.gpus.iter().flat_map(|gpu| &gpu.partitions);
    partitions.any(|partition| {
        partition
            .owner
            .as_ref()
            .is_some_and(|owner| owner.allocation == id)
    })
}

/// Ends an operation whose host is gone for good. Whether it ended.
#[cfg(feature = "aws")]
pub(crate) fn lose(record: &mut OperationRecord, now_ms: i64) -> bool {
    if record.state.is_final() {
        return false;
    }
    let host = record
        .host
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    let text = format!("host {host} was removed as lost; what it had begun is not known");
    record.state = match record.state {
        OperationState::Queued => OperationState::Expired,
        _ => OperationState::Failed,
    };
    record.failure = Some(Failure::new(Code::HostSilent, text));
    record.changed_at_ms = now_ms;
    record.sent = true;
    true
}
