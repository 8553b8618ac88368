//! Settling an event: status forward only, inventory by sequence, reservation, allocation and the
//! callbacks it is owed, in one transaction.

use events::result::{EventKind, HostEvent, ResultEvent};
use events::{HostInventory, HostName, OperationState};
use rusqlite::{OptionalExtension, params};

use super::allocation;
use super::fault::Fault;
use super::row;
use super::writer::Scope;
use crate::document;
use crate::lifecycle::{self, Observation};
use crate::store::{NewCallback, OperationRecord, Settlement};

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
    let changed = lifecycle::changes_capacity(known, inventory);
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
    let ours =
        row::operation(scope, id)?.filter(|record| lifecycle::is_for(record, event, seen.host));
    let Some(mut record) = ours else {
        return Ok(Settlement::Unknown);
    };
    if !lifecycle::advance(&mut record, event, next, seen) {
        return Ok(Settlement::Stale);
    }
    if next.is_final() {
        unreserve(scope, seen.host, &id.to_string())?;
        conclude(scope, &record, seen)?;
    }
    row::update_operation(scope, &record)?;
    Ok(Settlement::Applied(Some(Box::new(record))))
}

/// What an operation's end means for its allocation.
pub(super) fn conclude(
    scope: &Scope<'_>,
    operation: &OperationRecord,
    seen: &Observation<'_>,
) -> Result<(), Fault> {
    let Some(id) = operation.operation.allocation(&operation.tenant) else {
        return Ok(());
    };
    let Some(mut found) = allocation::find(scope, id)? else {
        return Ok(());
    };
    if found.conclude(operation, seen) {
        allocation::update(scope, &found)?;
    }
    Ok(())
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
    let ours = allocation::find(scope, id)?.filter(|found| {
        found.record.host == *seen.host && event.tenant.as_ref() == Some(&found.record.tenant)
    });
    let Some(mut found) = ours else {
        return Ok(Settlement::Unknown);
    };
    if !found.observe(event, seen) {
        return Ok(Settlement::Stale);
    }
    allocation::update(scope, &found)?;
    Ok(Settlement::Applied(None))
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
