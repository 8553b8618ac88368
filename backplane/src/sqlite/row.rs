//! Rows that several transactions read and write: operations, hosts' versions.

use events::{HostName, OperationId};
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Fault;
use crate::document;
use crate::store::OperationRecord;

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
    Ok(text
        .map(|text| document::read("operation", &text))
        .transpose()?)
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
        .map(|text| Ok(document::read("operation", &text?)?))
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

/// The host's version; `None` if it is not enrolled.
pub(super) fn host_version(connection: &Connection, host: &HostName) -> Result<Option<u64>, Fault> {
    let sql = "SELECT version FROM hosts WHERE host = ?1";
    Ok(connection
        .query_row(sql, [host.as_str()], |row| row.get(0))
        .optional()?)
}

/// Marks a host as changed: what was placed on its old version must be placed again.
pub(super) fn bump(connection: &Connection, host: &HostName) -> Result<(), Fault> {
    connection.execute(
        "UPDATE hosts SET version = version + 1 WHERE host = ?1",
        [host.as_str()],
    )?;
    Ok(())
}
