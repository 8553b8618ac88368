//! What is due: operations that were not sent, operations past their time, callbacks to attempt.
//! Claiming leases a row, so that two sweeps do not do the same work at the same time.

use rusqlite::{Connection, params};

use super::fault::Fault;
use super::row;
use super::writer::Scope;
use crate::document;
use crate::lifecycle::{self, SENDING_MS};
use crate::store::{Attempt, Due, DueCallback, DueKinds, OVERDUE_S, OperationRecord};

/// Whether anything is due, without a write: an idle sweep costs no sync.
pub(super) fn is_anything_due(
    connection: &Connection,
    kinds: DueKinds,
    now_ms: i64,
) -> Result<bool, Fault> {
    let sql = "SELECT (?4 AND EXISTS (SELECT 1 FROM callbacks WHERE state = 'pending' AND due_at_ms <= ?1 AND lease_until_ms <= ?1))
        OR (?5 AND EXISTS (SELECT 1 FROM operations WHERE final = 0 AND lease_until_ms <= ?1
            AND ((sent = 0 AND accepted_at_ms <= ?1 - ?2) OR (expires_at_s + ?3) * 1000 <= ?1)))";
    let (callbacks, operations) = (kinds.callbacks(), kinds.operations());
    let parameters = params![now_ms, SENDING_MS, OVERDUE_S, callbacks, operations];
    Ok(connection.query_row(sql, parameters, |row| row.get(0))?)
}

/// Leases up to `max` rows until `now_ms + lease_ms`: callbacks first, they are what callers wait for.
pub(super) fn claim(
    scope: &Scope<'_>,
    kinds: DueKinds,
    now_ms: i64,
    lease_ms: i64,
    max: usize,
) -> Result<Vec<Due>, Fault> {
    let until_ms = now_ms.saturating_add(lease_ms);
    let mut due = match kinds.callbacks() {
        true => callbacks(scope, now_ms, until_ms, max)?,
        false => Vec::new(),
    };
    let rest = match kinds.operations() {
        true => max.saturating_sub(due.len()),
        false => 0,
    };
    for record in open_operations(scope, now_ms, rest)? {
        scope.execute(
            "UPDATE operations SET lease_until_ms = ?2 WHERE id = ?1",
            params![record.id.to_string(), until_ms],
        )?;
        let overdue = lifecycle::is_overdue(&record, now_ms);
        due.push(if overdue {
            Due::Overdue(Box::new(record))
        } else {
            Due::Unsent(Box::new(record))
        });
    }
    Ok(due)
}

fn callbacks(scope: &Scope<'_>, now_ms: i64, until_ms: i64, max: usize) -> Result<Vec<Due>, Fault> {
    let mut statement = scope.prepare(
        "UPDATE callbacks SET lease_until_ms = ?2 WHERE id IN (
             SELECT id FROM callbacks WHERE state = 'pending' AND due_at_ms <= ?1 AND lease_until_ms <= ?1 ORDER BY due_at_ms, id LIMIT ?3)
         RETURNING endpoint, webhook_id, body, attempts",
    )?;
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![now_ms, until_ms, max], |row| {
        Ok(Due::Callback(DueCallback {
            endpoint: row.get(0)?,
            webhook_id: row.get(1)?,
            body: row.get(2)?,
            attempts: row.get(3)?,
        }))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The unsent before the overdue, which may stay so for as long as their host is silent.
fn open_operations(
    scope: &Scope<'_>,
    now_ms: i64,
    max: usize,
) -> Result<Vec<OperationRecord>, Fault> {
    let sql = "SELECT doc FROM operations WHERE final = 0 AND lease_until_ms <= ?1
        AND ((sent = 0 AND accepted_at_ms <= ?1 - ?2) OR (expires_at_s + ?3) * 1000 <= ?1)
        ORDER BY (expires_at_s + ?3) * 1000 <= ?1, seq LIMIT ?4";
    row::operations(
        scope,
        sql,
        params![
            now_ms,
            SENDING_MS,
            OVERDUE_S,
            i64::try_from(max).unwrap_or(i64::MAX)
        ],
    )
}

/// Records what came of a callback.
pub(super) fn record(
    scope: &Scope<'_>,
    callback: &DueCallback,
    attempt: &Attempt,
    now_ms: i64,
) -> Result<(), Fault> {
    let (state, due_at_ms, reason) = match attempt {
        Attempt::Delivered => ("delivered", now_ms, None),
        Attempt::RetryAt(at_ms, reason) => ("pending", *at_ms, Some(reason)),
        Attempt::Parked(reason) => ("parked", now_ms, Some(reason)),
    };
    scope.execute(
        "UPDATE callbacks SET state = ?3, due_at_ms = ?4, reason = ?5, attempts = attempts + 1, lease_until_ms = 0, changed_at_ms = ?6
         WHERE endpoint = ?1 AND webhook_id = ?2 AND state = 'pending'",
        params![callback.endpoint, callback.webhook_id, state, due_at_ms, reason, now_ms],
    )?;
    Ok(())
}

/// Records that an operation's command is in its host's queue.
pub(super) fn mark_sent(scope: &Scope<'_>, id: events::OperationId) -> Result<(), Fault> {
    let Some(mut record) = row::operation(scope, id)? else {
        return Ok(());
    };
    record.sent = true;
    scope.execute(
        "UPDATE operations SET sent = 1, doc = ?2 WHERE id = ?1",
        params![id.to_string(), document::write(&record)?],
    )?;
    Ok(())
}
