//! What a host holds, read in one go.

use events::{HostName, OperationState};
use rusqlite::{Connection, OptionalExtension};

use super::fault::Fault;
use super::row;
use crate::document;
use crate::store::{HeldAllocation, HostHoldings};

/// Everything that `host` holds; `None` if it is not enrolled.
pub(super) fn holdings(
    connection: &Connection,
    host: &HostName,
) -> Result<Option<HostHoldings>, Fault> {
    let sql = "SELECT coalesce(sequence, 0) FROM hosts WHERE host = ?1";
    let sequence: Option<i64> = connection
        .query_row(sql, [host.as_str()], |row| row.get(0))
        .optional()?;
    let Some(sequence) = sequence else {
        return Ok(None);
    };
    let open = "SELECT doc FROM operations WHERE host = ?1 AND final = 0 ORDER BY seq";
    let mut running = row::operations(connection, open, [host.as_str()])?;
    running.retain(|record| record.state == OperationState::Running);
    Ok(Some(HostHoldings {
        sequence: u64::try_from(sequence).unwrap_or(0),
        allocations: allocations(connection, host)?,
        running,
    }))
}

fn allocations(connection: &Connection, host: &HostName) -> Result<Vec<HeldAllocation>, Fault> {
    let sql = "SELECT a.doc, a.operation, r.revision FROM allocations a
        JOIN revisions r ON r.scope = 'allocation:' || a.id
        WHERE a.host = ?1 AND a.state = 'live' ORDER BY a.seq";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([host.as_str()], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, u64>(2)?,
        ))
    })?;
    rows.map(|row| {
        let (doc, operation, revision) = row?;
        Ok(HeldAllocation {
            record: document::read("allocation", &doc)?,
            operation: row::parse("operation id", &operation)?,
            revision,
        })
    })
    .collect()
}
