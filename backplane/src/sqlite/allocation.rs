//! The allocations table. What becomes of a row is decided in `lifecycle`.

use events::{AllocationId, HostName};
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Fault;
use super::row;
use super::writer::Scope;
use crate::document;
use crate::lifecycle::Allocation;
use crate::store::AllocationState;

/// A row, ended ones included.
pub(super) fn find(conn: &Connection, id: AllocationId) -> Result<Option<Allocation>, Fault> {
    let sql = "SELECT operation, sequence, doc FROM allocations WHERE id = ?1";
    let columns = conn.query_row(sql, [id.to_string()], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get(1)?,
            row.get::<_, String>(2)?,
        ))
    });
    let Some((operation, sequence, doc)) = columns.optional()? else {
        return Ok(None);
    };
    Ok(Some(Allocation {
        record: document::read("allocation", &doc)?,
        operation: row::parse("operation id", &operation)?,
        sequence,
    }))
}

/// The host that a pending or live allocation is on.
pub(super) fn holder(conn: &Connection, id: AllocationId) -> Result<Option<HostName>, Fault> {
    let held = find(conn, id)?.filter(Allocation::is_held);
    Ok(held.map(|row| row.record.host))
}

/// Writes an allocation that begins as a new row: lists show it as new.
pub(super) fn insert(scope: &Scope<'_>, allocation: &Allocation) -> Result<(), Fault> {
    let record = &allocation.record;
    scope.execute(
        "INSERT OR REPLACE INTO allocations (id, tenant, host, state, operation, sequence, doc) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            record.id.to_string(),
            record.tenant.as_str(),
            record.host.as_str(),
            column(record.state),
            allocation.operation.to_string(),
            allocation.sequence,
            document::write(record)?
        ],
    )?;
    Ok(())
}

/// Writes back an allocation that moved.
pub(super) fn update(scope: &Scope<'_>, allocation: &Allocation) -> Result<(), Fault> {
    scope.execute(
        "UPDATE allocations SET state = ?2, operation = ?3, sequence = ?4, doc = ?5 WHERE id = ?1",
        params![
            allocation.record.id.to_string(),
            column(allocation.record.state),
            allocation.operation.to_string(),
            allocation.sequence,
            document::write(&allocation.record)?
        ],
    )?;
    Ok(())
}

fn column(state: AllocationState) -> &'static str {
    match state {
        AllocationState::Pending => "pending",
        AllocationState::Live => "live",
        AllocationState::Ended => "ended",
    }
}
