//! The allocations table: what each key of a tenant stands for, as far as the store knows.
//!
//! An event moves a row only if it comes from the row's host and is newer than the last that did,
//! so that events may arrive in any order, and late ones of a key's earlier life move nothing.

use events::inventory::Reservation;
use events::operation::{Allocate, Target};
use events::outcome::{Allocated, Outcome};
use events::{
    AllocationId, GpuSelector, GpuUuid, HostName, Operation, OperationId, OperationState,
};
use rusqlite::{Connection, OptionalExtension, params};

use super::document;
use super::fault::Fault;
use super::writer::Scope;
use crate::store::{AllocationRecord, AllocationState, OperationRecord};

/// Older than every event; hosts count from 0 or 1.
const NEVER: i64 = -1;

/// Who says something about an allocation, and when.
pub(super) struct Observation<'a> {
    /// The host.
    pub(super) host: &'a HostName,
    /// The event's sequence number.
    pub(super) sequence: i64,
    /// Unix milliseconds now.
    pub(super) now_ms: i64,
}

/// A row.
pub(super) struct Row {
    pub(super) record: AllocationRecord,
    /// The allocate that made it pending or live.
    operation: String,
    /// The last event that moved it.
    sequence: i64,
}

/// A row, ended ones included.
pub(super) fn find(conn: &Connection, id: AllocationId) -> Result<Option<Row>, Fault> {
    let sql = "SELECT operation, sequence, doc FROM allocations WHERE id = ?1";
    let columns = conn.query_row(sql, [id.to_string()], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?))
    });
    let Some((operation, sequence, doc)) = columns.optional()? else {
        return Ok(None);
    };
    let record = document::read("allocation", &doc)?;
    Ok(Some(Row {
        record,
        operation,
        sequence,
    }))
}

/// The host that a pending or live allocation is on.
pub(super) fn holder(conn: &Connection, id: AllocationId) -> Result<Option<HostName>, Fault> {
    let held = find(conn, id)?.filter(|row| row.record.state != AllocationState::Ended);
    Ok(held.map(|row| row.record.host))
}

/// Makes the allocation of an accepted `allocate` pending, as a new row: lists show it as new.
pub(super) fn begin(
    scope: &Scope<'_>,
    operation: &OperationRecord,
    host: &HostName,
    reservation: Option<&Reservation>,
) -> Result<(), Fault> {
    let Operation::Allocate(spec) = &operation.operation else {
        return Err(Fault::Contract("only an allocate begins an allocation"));
    };
    let gpu = gpu(spec, &operation.group, reservation);
    let record = AllocationRecord {
        id: AllocationId::of(&operation.tenant, &spec.key),
        key: spec.key.clone(),
        tenant: operation.tenant.clone(),
        host: host.clone(),
        gpu: gpu.ok_or(Fault::Contract(
            "an allocate names no GPU: placement is decided before",
        ))?,
        state: AllocationState::Pending,
        spec: operation.operation.clone(),
        allocated: None,
        changed_at_ms: operation.accepted_at_ms,
    };
    // What that host said about the key's earlier life stays older than what it says from now on.
    let earlier = find(scope, record.id)?.filter(|row| row.record.host == *host);
    scope.execute(
        "INSERT OR REPLACE INTO allocations (id, tenant, host, state, operation, sequence, doc) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            record.id.to_string(),
            record.tenant.as_str(),
            host.as_str(),
            column(record.state),
            operation.id.to_string(),
            earlier.map_or(NEVER, |row| row.sequence),
            document::write(&record)?
        ],
    )?;
    Ok(())
}

/// The GPU that placement decided on.
fn gpu(spec: &Allocate, group: &str, reservation: Option<&Reservation>) -> Option<GpuUuid> {
    if let Some(reservation) = reservation {
        return Some(reservation.gpu.clone());
    }
    if let Some(Target::Host(target)) = &spec.target
        && let Some(GpuSelector::Uuid(uuid)) = &target.gpu
    {
        return Some(uuid.clone());
    }
    group.parse().ok()
}

/// What an operation's end means for its allocation. `operation` is the record after the event.
pub(super) fn conclude(
    scope: &Scope<'_>,
    operation: &OperationRecord,
    seen: &Observation<'_>,
) -> Result<(), Fault> {
    let Some(id) = operation.operation.allocation(&operation.tenant) else {
        return Ok(());
    };
    let Some(mut row) = find(scope, id)?.filter(|row| row.is_older_than(seen)) else {
        return Ok(());
    };
    let succeeded = operation.state == OperationState::Succeeded;
    // Only the allocate that made it pending takes it down with itself.
    let fell = !succeeded && row.is_pending_by(operation.id);
    let record = &mut row.record;
    match (&operation.operation, &operation.outcome) {
        (Operation::Allocate(_), Some(Outcome::Allocated(allocated))) if succeeded => {
            record.spec = operation.operation.clone();
            set_live(record, allocated);
            row.operation = operation.id.to_string();
        }
        (Operation::Allocate(_), _) if fell => record.state = AllocationState::Ended,
        (Operation::Release(_), _) if succeeded => record.state = AllocationState::Ended,
        (Operation::Renew(_), Some(Outcome::Renewed(renewed))) if succeeded => {
            let Some(allocated) = &mut record.allocated else {
                return Ok(());
            };
            allocated.expires_at = Some(renewed.expires_at);
        }
        _ => return Ok(()),
    }
    row.store(scope, seen)
}

/// The end of an allocation that no operation asked for. Whether it moved.
pub(super) fn end(scope: &Scope<'_>, row: Row, seen: &Observation<'_>) -> Result<bool, Fault> {
    move_living(scope, row, seen, |record| {
        record.state = AllocationState::Ended;
    })
}

/// New handles of a living allocation. Whether it moved.
pub(super) fn change(
    scope: &Scope<'_>,
    row: Row,
    allocated: &Allocated,
    seen: &Observation<'_>,
) -> Result<bool, Fault> {
    move_living(scope, row, seen, |record| set_live(record, allocated))
}

fn move_living(
    scope: &Scope<'_>,
    mut row: Row,
    seen: &Observation<'_>,
    change: impl FnOnce(&mut AllocationRecord),
) -> Result<bool, Fault> {
    if !row.is_older_than(seen) || row.record.state == AllocationState::Ended {
        return Ok(false);
    }
    change(&mut row.record);
    row.store(scope, seen)?;
    Ok(true)
}

impl Row {
    fn is_older_than(&self, seen: &Observation<'_>) -> bool {
        self.record.host == *seen.host && self.sequence < seen.sequence
    }

    /// Whether it waits for this very operation.
    pub(super) fn is_pending_by(&self, operation: OperationId) -> bool {
        self.record.state == AllocationState::Pending && self.operation == operation.to_string()
    }

    fn store(mut self, scope: &Scope<'_>, seen: &Observation<'_>) -> Result<(), Fault> {
        self.record.changed_at_ms = seen.now_ms;
        scope.execute(
            "UPDATE allocations SET state = ?2, operation = ?3, sequence = ?4, doc = ?5 WHERE id = ?1",
            params![
                self.record.id.to_string(),
                column(self.record.state),
                self.operation,
                seen.sequence,
                document::write(&self.record)?
            ],
        )?;
        Ok(())
    }
}

fn set_live(record: &mut AllocationRecord, allocated: &Allocated) {
    record.state = AllocationState::Live;
    record.gpu = allocated.gpu.clone();
    record.allocated = Some(allocated.clone());
}

fn column(state: AllocationState) -> &'static str {
    match state {
        AllocationState::Pending => "pending",
        AllocationState::Live => "live",
        AllocationState::Ended => "ended",
    }
}
