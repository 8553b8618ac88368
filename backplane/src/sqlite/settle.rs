//! Settling an event: status forward only, inventory by sequence, reservation, allocation and the
//! callbacks it is owed, in one transaction.

use events::outcome::Outcome;
use events::result::{EventKind, HostEvent, ResultEvent};
use events::{HostInventory, HostName, OperationState};
use rusqlite::{OptionalExtension, params};

use super::allocation::{self, Observation};
use super::fault::Fault;
use super::writer::Scope;
use super::{document, row};
use crate::store::{AllocationState, NewCallback, Settlement};

/// Applies an event of a host whose signature was verified. Its inventory is taken whenever it is
/// newer than the one known, even with an event that moves nothing else: it is the host's own word.
pub(super) fn settle(
    scope: &Scope<'_>,
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
    if !hear(scope, &seen)? {
        return Ok(Settlement::Unknown);
    }
    let observed = match &event.data.inventory {
        Some(inventory) => observe(scope, inventory, &seen)?,
        None => false,
    };
    let settlement = match (event.kind.state(), event.kind) {
        (Some(state), _) => settle_operation(scope, event, state, &seen)?,
        (None, EventKind::HostObserved) => moved(observed),
        (None, _) => settle_allocation(scope, event, &seen)?,
    };
    if matches!(settlement, Settlement::Applied(_)) {
        insert_callbacks(scope, callbacks, now_ms)?;
    }
    Ok(settlement)
}

fn moved(moved: bool) -> Settlement {
    if moved {
        Settlement::Applied(None)
    } else {
        Settlement::Stale
    }
}

/// Notes that the host was heard. Whether it is enrolled.
fn hear(scope: &Scope<'_>, seen: &Observation<'_>) -> Result<bool, Fault> {
    let heard = scope.execute(
        "UPDATE hosts SET heard_at_ms = max(?2, coalesce(heard_at_ms, ?2)) WHERE host = ?1",
        params![seen.host.as_str(), seen.now_ms],
    )?;
    Ok(heard == 1)
}

/// Takes an inventory unless a newer one is known. Whether it was taken.
fn observe(
    scope: &Scope<'_>,
    inventory: &HostInventory,
    seen: &Observation<'_>,
) -> Result<bool, Fault> {
    let host = seen.host.as_str();
    let sql = "SELECT inventory FROM hosts WHERE host = ?1 AND (sequence IS NULL OR sequence < ?2)";
    let known: Option<Option<String>> = scope
        .query_row(sql, params![host, seen.sequence], |row| row.get(0))
        .optional()?;
    let Some(known) = known else {
        return Ok(false);
    };
    let known: Option<HostInventory> = known
        .map(|text| document::read("inventory", &text))
        .transpose()?;
    // The same inventory at a later time moves no capacity: what was placed on it stays placed.
    let taken_at_ms = inventory.taken_at_ms;
    let changed = known.is_none_or(|known| {
        HostInventory {
            taken_at_ms,
            ..known
        } != *inventory
    });
    scope.execute(
        "UPDATE hosts SET inventory = ?2, sequence = ?3, version = version + ?4 WHERE host = ?1",
        params![host, document::write(inventory)?, seen.sequence, changed],
    )?;
    Ok(true)
}

fn settle_operation(
    scope: &Scope<'_>,
    event: &ResultEvent,
    next: OperationState,
    seen: &Observation<'_>,
) -> Result<Settlement, Fault> {
    let Some(id) = event.data.op_id else {
        return Ok(Settlement::Unknown);
    };
    let ours = row::operation(scope, id)?.filter(|record| {
        record.host.as_ref() == Some(seen.host) && event.tenant.as_ref() == Some(&record.tenant)
    });
    let Some(mut record) = ours else {
        return Ok(Settlement::Unknown);
    };
    if !record.state.may_become(next) {
        return Ok(Settlement::Stale);
    }
    record.state = next;
    record.changed_at_ms = seen.now_ms;
    // It has arrived: nothing is to be sent again.
    record.sent = true;
    if next.is_final() {
        record.outcome.clone_from(&event.data.outcome);
        record.failure.clone_from(&event.data.failure);
        unreserve(scope, seen.host, &id.to_string())?;
        allocation::conclude(scope, &record, seen)?;
    }
    row::update_operation(scope, &record)?;
    Ok(Settlement::Applied(Some(Box::new(record))))
}

/// Takes back what was promised to an operation, if anything was.
pub(super) fn unreserve(scope: &Scope<'_>, host: &HostName, operation: &str) -> Result<(), Fault> {
    let sql = "DELETE FROM reservations WHERE operation = ?1";
    match scope.execute(sql, [operation])? {
        0 => Ok(()),
        _ => row::bump(scope, host),
    }
}

fn settle_allocation(
    scope: &Scope<'_>,
    event: &ResultEvent,
    seen: &Observation<'_>,
) -> Result<Settlement, Fault> {
    let Some(id) = event.data.allocation else {
        return Ok(Settlement::Unknown);
    };
    let ours = allocation::find(scope, id)?.filter(|row| {
        row.record.host == *seen.host && event.tenant.as_ref() == Some(&row.record.tenant)
    });
    let Some(row) = ours else {
        return Ok(Settlement::Unknown);
    };
    // What a key's earlier life left ends late (a removal that had failed, say) while another allocate of
    // the key is on its way: that one's allocation does not end with it.
    let is_of_earlier_life = row.record.state == AllocationState::Pending
        && event.data.op_id.is_some_and(|id| !row.is_pending_by(id));
    if is_of_earlier_life {
        return Ok(Settlement::Stale);
    }
    match (event.kind, &event.data.outcome) {
        (EventKind::AllocationChanged, Some(Outcome::Allocated(allocated))) => {
            allocation::change(scope, row, allocated, seen).map(moved)
        }
        // A change that does not say to what.
        (EventKind::AllocationChanged, _) => Ok(Settlement::Stale),
        _ => allocation::end(scope, row, seen).map(moved),
    }
}

/// Queues callbacks; one that is there already stays as it is.
pub(super) fn insert_callbacks(
    scope: &Scope<'_>,
    callbacks: &[NewCallback],
    now_ms: i64,
) -> Result<(), Fault> {
    for callback in callbacks {
        scope.execute(
            "INSERT INTO callbacks (endpoint, webhook_id, body, state, attempts, due_at_ms, changed_at_ms)
             VALUES (?1, ?2, ?3, 'pending', 0, ?4, ?4) ON CONFLICT (endpoint, webhook_id) DO NOTHING",
            params![callback.endpoint, callback.webhook_id, callback.body, now_ms],
        )?;
    }
    Ok(())
}
