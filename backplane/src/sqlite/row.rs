//! Rows that several transactions read and write: operations, allocations, hosts' versions.

use events::{AllocationId, HostName, OperationId};
use rusqlite::{Connection, OptionalExtension, params};

use super::document;
use super::fault::Fault;
use crate::store::{AllocationRecord, AllocationState, OperationRecord};

/// Parses a column whose text has a rule of its own.
pub(super) fn parse<T>(what: &'static str, text: &str) -> Result<T, Fault>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse()
        .map_err(|error: T::Err| Fault::stored(what, error))
}

/// One operation.
pub(super) fn operation(
    connection: &Connection,
    id: OperationId,
) -> Result<Option<OperationRecord>, Fault> {
    let sql = "SELECT doc FROM operations WHERE id = ?1";
    let text: Option<String> = connection
        .query_row(sql, [id.to_string()], |row| row.get(0))
        .optional()?;
    text.map(|text| document::read("operation", &text))
        .transpose()
}

/// Operations by a query whose only column is the document.
pub(super) fn operations(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<OperationRecord>, Fault> {
    let mut statement = connection.prepare(sql)?;
    let texts = statement.query_map(parameters, |row| row.get::<_, String>(0))?;
    texts
        .map(|text| document::read("operation", &text?))
        .collect()
}

/// Writes an operation's new state back.
pub(super) fn update_operation(
    connection: &Connection,
    record: &OperationRecord,
) -> Result<(), Fault> {
    connection.execute(
        "UPDATE operations SET sent = ?2, final = ?3, doc = ?4 WHERE id = ?1",
        params![
            record.id.to_string(),
            record.sent,
            record.state.is_final(),
            document::write(record)?
        ],
    )?;
    Ok(())
}

/// One allocation.
pub(super) fn allocation(
    connection: &Connection,
    id: AllocationId,
) -> Result<Option<AllocationRecord>, Fault> {
    let sql = "SELECT doc FROM allocations WHERE id = ?1";
    let text: Option<String> = connection
        .query_row(sql, [id.to_string()], |row| row.get(0))
        .optional()?;
    text.map(|text| document::read("allocation", &text))
        .transpose()
}

/// Writes an allocation, new or known. `operation` is the allocate that stands behind it.
pub(super) fn put_allocation(
    connection: &Connection,
    record: &AllocationRecord,
    operation: OperationId,
) -> Result<(), Fault> {
    connection.execute(
        "INSERT INTO allocations (id, tenant, host, state, operation, sequence, doc) VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6)
         ON CONFLICT (id) DO UPDATE SET host = excluded.host, state = excluded.state, operation = excluded.operation, doc = excluded.doc",
        params![
            record.id.to_string(),
            record.tenant.as_str(),
            record.host.as_str(),
            state(record.state),
            operation.to_string(),
            document::write(record)?
        ],
    )?;
    Ok(())
}

/// Writes an allocation's new state back.
pub(super) fn update_allocation(
    connection: &Connection,
    record: &AllocationRecord,
) -> Result<(), Fault> {
    connection.execute(
        "UPDATE allocations SET state = ?2, doc = ?3 WHERE id = ?1",
        params![
            record.id.to_string(),
            state(record.state),
            document::write(record)?
        ],
    )?;
    Ok(())
}

fn state(state: AllocationState) -> &'static str {
    match state {
        AllocationState::Pending => "pending",
        AllocationState::Live => "live",
        AllocationState::Ended => "ended",
    }
}

/// Marks a host as changed: what was placed on its old version must be placed again.
pub(super) fn bump(connection: &Connection, host: &HostName) -> Result<(), Fault> {
    connection.execute(
        "UPDATE hosts SET version = version + 1 WHERE host = ?1",
        [host.as_str()],
    )?;
    Ok(())
}
