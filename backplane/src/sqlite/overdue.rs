//! Operations whose host never said anything of them. Silence alone ends nothing: the host's own
//! inventory, taken well after the expiry, has to show that it never took the command.

use events::inventory::HostInventory;
use events::outcome::Failure;
use events::{AllocationId, Code, HostName, OperationId, OperationState};
use rusqlite::{OptionalExtension, params};

use super::allocation::{self, Observation};
use super::fault::Fault;
use super::writer::Scope;
use super::{document, row, settle};
use crate::store::{OVERDUE_S, OperationRecord, Owed};

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
    let after_ms = record
        .expires_at_s
        .saturating_add(OVERDUE_S)
        .saturating_mul(1000);
    if record.state != OperationState::Queued || now_ms < after_ms {
        return Ok(None);
    }
    let Some((inventory, sequence)) = last_word(scope, &host)? else {
        return Ok(None);
    };
    if inventory.taken_at_ms < after_ms || is_known_there(scope, &record, &inventory)? {
        return Ok(None);
    }
    let text = format!(
        "host {host} did not take the command before its expiry, and its inventory does not know it"
    );
    record.state = OperationState::Expired;
    record.failure = Some(Failure::new(Code::HostSilent, text));
    record.changed_at_ms = now_ms;
    // Nothing is to be sent any more: the host would refuse it.
    record.sent = true;
    settle::unreserve(scope, &host, &id.to_string())?;
    let seen = Observation {
        host: &host,
        sequence,
        now_ms,
    };
    allocation::conclude(scope, &record, &seen)?;
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

/// Whether the host has partitions of the allocation that this operation was to make.
fn is_known_there(
    scope: &Scope<'_>,
    record: &OperationRecord,
    inventory: &HostInventory,
) -> Result<bool, Fault> {
    let Some(id) = record.operation.allocation(&record.tenant) else {
        return Ok(false);
    };
    let makes = allocation::find(scope, id)?.is_some_and(|row| row.is_pending_by(record.id));
    Ok(makes && has(inventory, id))
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
