//! Settling an event: status forward only, inventory by sequence, reservation, allocation and the
//! callbacks it is owed, in one transaction.

use events::outcome::Outcome;
use events::result::{EventKind, HostEvent, ResultEvent};
use events::{AllocationId, HostName, Operation, OperationState};
use rusqlite::{OptionalExtension, params};

use super::fault::Fault;
use super::writer::Scope;
use super::{document, row};
use crate::store::{AllocationRecord, AllocationState, NewCallback, OperationRecord, Settlement};

/// Applies an event of a host whose signature was verified.
pub(super) fn settle(
    scope: &Scope<'_>,
    event: &HostEvent,
    callbacks: &[NewCallback],
    now_ms: i64,
) -> Result<Settlement, Fault> {
    let observed = observe(scope, event, now_ms)?;
    let settlement = match event.event.kind {
        EventKind::HostObserved if observed => Settlement::Applied(None),
        EventKind::HostObserved => Settlement::Stale,
        EventKind::AllocationExpired | EventKind::AllocationLost | EventKind::AllocationChanged => {
            of_allocation(scope, &event.event, now_ms)?
        }
        kind => of_operation(scope, &event.host, &event.event, kind.state(), now_ms)?,
    };
    if matches!(settlement, Settlement::Applied(_)) {
        for callback in callbacks {
            scope.execute(
                "INSERT INTO callbacks (endpoint, webhook_id, body, state, attempts, due_at_ms, changed_at_ms)
                 VALUES (?1, ?2, ?3, 'pending', 0, ?4, ?4) ON CONFLICT (endpoint, webhook_id) DO NOTHING",
                params![callback.endpoint, callback.webhook_id, callback.body, now_ms],
            )?;
        }
    }
    Ok(settlement)
}

/// Hears the host, and keeps its inventory unless a newer one is known. Whether it was news.
fn observe(scope: &Scope<'_>, event: &HostEvent, now_ms: i64) -> Result<bool, Fault> {
    let host = event.host.as_str();
    scope.execute(
        "UPDATE hosts SET heard_at_ms = ?2 WHERE host = ?1",
        params![host, now_ms],
    )?;
    let Some(inventory) = &event.event.data.inventory else {
        return Ok(false);
    };
    let changed = scope.execute(
        "UPDATE hosts SET inventory = ?2, sequence = ?3, version = version + 1 WHERE host = ?1 AND (sequence IS NULL OR sequence < ?3)",
        params![host, document::write(inventory)?, event.event.sequence],
    )?;
    Ok(changed > 0)
}

fn of_operation(
    scope: &Scope<'_>,
    host: &HostName,
    event: &ResultEvent,
    next: Option<OperationState>,
    now_ms: i64,
) -> Result<Settlement, Fault> {
    let (Some(id), Some(next)) = (event.data.op_id, next) else {
        return Ok(Settlement::Unknown);
    };
    let Some(mut record) = row::operation(scope, id)? else {
        return Ok(Settlement::Unknown);
    };
    if record.host.as_ref() != Some(host) || event.tenant.as_ref() != Some(&record.tenant) {
        return Ok(Settlement::Unknown);
    }
    if !record.state.may_become(next) {
        return Ok(Settlement::Stale);
    }
    record.state = next;
    record.changed_at_ms = now_ms;
    // It has arrived: nothing is to be sent again.
    record.sent = true;
    if next.is_final() {
        record.outcome.clone_from(&event.data.outcome);
        record.failure.clone_from(&event.data.failure);
        scope.execute(
            "DELETE FROM reservations WHERE operation = ?1",
            [id.to_string()],
        )?;
        row::bump(scope, host)?;
        conclude(scope, &record, now_ms)?;
    }
    row::update_operation(scope, &record)?;
    Ok(Settlement::Applied(Some(Box::new(record))))
}

/// What an operation's end means for its allocation.
fn conclude(scope: &Scope<'_>, record: &OperationRecord, now_ms: i64) -> Result<(), Fault> {
    let Some(id) = record.operation.allocation(&record.tenant) else {
        return Ok(());
    };
    let Some(mut allocation) = row::allocation(scope, id)? else {
        return Ok(());
    };
    match (&record.operation, record.state, &record.outcome) {
        (
            Operation::Allocate(_),
            OperationState::Succeeded,
            Some(Outcome::Allocated(allocated)),
        ) => {
            allocation.state = AllocationState::Live;
            allocation.allocated = Some(allocated.clone());
        }
        // Only the allocate that made it pending takes it down with itself.
        (Operation::Allocate(_), _, _)
            if allocation.state == AllocationState::Pending && made_by(scope, id, record)? =>
        {
            allocation.state = AllocationState::Ended;
        }
        (Operation::Release(_), OperationState::Succeeded, _) => {
            allocation.state = AllocationState::Ended
        }
        (Operation::Renew(_), OperationState::Succeeded, Some(Outcome::Renewed(renewed))) => {
            if let Some(allocated) = &mut allocation.allocated {
                allocated.expires_at = Some(renewed.expires_at);
            }
        }
        _ => return Ok(()),
    }
    allocation.changed_at_ms = now_ms;
    row::update_allocation(scope, &allocation)
}

fn made_by(scope: &Scope<'_>, id: AllocationId, record: &OperationRecord) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM allocations WHERE id = ?1 AND operation = ?2";
    Ok(scope
        .query_row(sql, params![id.to_string(), record.id.to_string()], |_| {
            Ok(())
        })
        .optional()?
        .is_some())
}

fn of_allocation(scope: &Scope<'_>, event: &ResultEvent, now_ms: i64) -> Result<Settlement, Fault> {
    let Some(id) = event.data.allocation else {
        return Ok(Settlement::Unknown);
    };
    let known = row::allocation(scope, id)?.filter(|allocation| {
        event.tenant.as_ref() == Some(&allocation.tenant) && is_from(event, allocation)
    });
    let Some(mut allocation) = known else {
        return Ok(Settlement::Unknown);
    };
    let newer = scope.execute(
        "UPDATE allocations SET sequence = ?2 WHERE id = ?1 AND sequence < ?2",
        params![id.to_string(), event.sequence],
    )?;
    if newer == 0 || allocation.state == AllocationState::Ended {
        return Ok(Settlement::Stale);
    }
    match (&event.kind, &event.data.outcome) {
        (EventKind::AllocationChanged, Some(Outcome::Allocated(allocated))) => {
            allocation.allocated = Some(allocated.clone())
        }
        (EventKind::AllocationChanged, _) => {}
        _ => allocation.state = AllocationState::Ended,
    }
    allocation.changed_at_ms = now_ms;
    row::update_allocation(scope, &allocation)?;
    Ok(Settlement::Applied(None))
}

fn is_from(event: &ResultEvent, allocation: &AllocationRecord) -> bool {
    event.source == format!("/hosts/{}", allocation.host)
}
