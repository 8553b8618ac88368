//! Operations whose host never said anything of them. Silence alone ends nothing: the host's own
//! inventory, taken well after the expiry, has to show that it never took the command.

use events::inventory::HostInventory;
use events::{HostName, OperationId};
use rusqlite::{OptionalExtension, params};

use super::fault::Fault;
use super::writer::Scope;
use super::{allocation, row, settle};
use crate::document;
use crate::lifecycle::{self, Observation};
use crate::store::{OperationRecord, Owed};

/// Ends `id` as expired on its host's evidence. `None` when there is none, or the operation is not
/// merely queued any more.
pub(super) fn expire(
    scope: &Scope<'_>,
    id: OperationId,
    owed: Owed,
    now_ms: i64,
) -> Result<Option<OperationRecord>, Fault> {
    let Some(mut record) = row::operation(scope, id)? else {
        return Ok(None);
    };
    let Some(host) = record.host.clone() else {
        return Ok(None);
    };
    let Some((inventory, sequence)) = last_word(scope, &host)? else {
        return Ok(None);
    };
    let makes = match record.operation.allocation(&record.tenant) {
        Some(id) => allocation::find(scope, id)?,
        None => None,
    };
    if !lifecycle::expire(&mut record, makes.as_ref(), Some(&inventory), now_ms) {
        return Ok(None);
    }
    settle::unreserve(scope, &host, &id.to_string())?;
    let seen = Observation {
        host: &host,
        sequence,
        now_ms,
    };
    settle::conclude(scope, &record, &seen)?;
    row::update_operation(scope, &record)?;
    settle::insert_callbacks(scope, &owed(&record), now_ms)?;
    Ok(Some(record))
}

/// The newest inventory of a host, and the sequence that it came under.
fn last_word(scope: &Scope<'_>, host: &HostName) -> Result<Option<(HostInventory, i64)>, Fault> {
    let sql = "SELECT inventory, sequence FROM hosts WHERE host = ?1 AND inventory IS NOT NULL AND sequence IS NOT NULL";
    let found: Option<(String, i64)> = scope
        .query_row(sql, params![host.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    found
        .map(|(text, sequence)| Ok((document::read("inventory", &text)?, sequence)))
        .transpose()
}
