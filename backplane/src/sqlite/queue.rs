//! The queue's transactions, as SQL. Waiting is in `receiver`.

use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use super::fault::Fault;
use super::writer::Scope;
use crate::queue::{
    DEDUPLICATION_WINDOW, DEFAULT_VISIBILITY, MAX_RECEIVES, Message, Outgoing, Settled,
};

/// A message that was delivered too often, kept for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message's id.
    pub id: String,
    /// The queue it died in.
    pub queue: String,
    /// Its group.
    pub group: String,
    /// Its body.
    pub body: String,
    /// Deliveries.
    pub receives: u32,
    /// Unix milliseconds of its death.
    pub died_at_ms: i64,
    /// Why.
    pub reason: String,
}

/// Heads of all groups of queue ?1. The recursion jumps from group to group along the index, so a
/// long backlog of one group costs the others nothing.
const HEADS: &str = "
    WITH RECURSIVE groups (grp) AS (
        SELECT min(grp) FROM messages WHERE queue = ?1
        UNION ALL
        SELECT (SELECT min(grp) FROM messages WHERE queue = ?1 AND grp > groups.grp) FROM groups WHERE grp IS NOT NULL
    ),
    heads AS (
        SELECT m.* FROM groups JOIN messages m
        ON m.seq = (SELECT min(seq) FROM messages WHERE queue = ?1 AND grp = groups.grp)
    )";

/// Queues a message unless its deduplication id is remembered. The window starts at the first send
/// and is not extended by duplicates.
pub(super) fn send(
    scope: &Scope<'_>,
    queue: &str,
    message: &Outgoing,
    now_ms: i64,
) -> Result<(), Fault> {
    scope.execute("DELETE FROM dedup_ids WHERE forget_at_ms <= ?1", [now_ms])?;
    let forget_at_ms = now_ms.saturating_add(millis(DEDUPLICATION_WINDOW));
    let first = scope.execute(
        "INSERT INTO dedup_ids (queue, dedup, forget_at_ms) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        params![queue, message.dedup, forget_at_ms],
    )?;
    if first == 0 {
        return Ok(());
    }
    scope.execute(
        "INSERT INTO messages (queue, grp, id, body, sent_at_ms, visible_at_ms, receives) VALUES (?1, ?2, ?3, ?4, ?5, ?5, 0)",
        params![queue, message.group, Uuid::now_v7().to_string(), message.body, now_ms],
    )?;
    scope.wake_receivers();
    Ok(())
}

/// When the next message of the queue is deliverable, Unix milliseconds; in the past if one is now.
pub(super) fn next_at_ms(conn: &Connection, queue: &str) -> Result<Option<i64>, Fault> {
    let sql = format!("{HEADS} SELECT min(visible_at_ms) FROM heads");
    Ok(conn.query_row(&sql, [queue], |row| row.get(0))?)
}

/// Delivers the oldest deliverable head, under a fresh receipt. Heads that used up their deliveries
/// are moved aside on the way.
pub(super) fn claim(scope: &Scope<'_>, queue: &str, now_ms: i64) -> Result<Option<Message>, Fault> {
    let sql = format!(
        "{HEADS} SELECT seq, receives FROM heads WHERE visible_at_ms <= ?2 ORDER BY seq LIMIT 1"
    );
    loop {
        let head = scope
            .query_row(&sql, params![queue, now_ms], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let Some((seq, receives)): Option<(i64, u32)> = head else {
            return Ok(None);
        };
        if receives < MAX_RECEIVES {
            return deliver(scope, seq, now_ms).map(Some);
        }
        bury(
            scope,
            seq,
            now_ms,
            &format!("received {receives} times without being acknowledged"),
        )?;
    }
}

fn deliver(scope: &Scope<'_>, seq: i64, now_ms: i64) -> Result<Message, Fault> {
    let receipt = Uuid::now_v7().to_string();
    let hidden_until_ms = now_ms.saturating_add(millis(DEFAULT_VISIBILITY));
    Ok(scope.query_row(
        "UPDATE messages SET receives = receives + 1, receipt = ?2, visible_at_ms = ?3 WHERE seq = ?1
         RETURNING id, receipt, grp, body, receives",
        params![seq, receipt, hidden_until_ms],
        |row| {
            Ok(Message {
                id: row.get(0)?,
                receipt: row.get(1)?,
                group: row.get(2)?,
                body: row.get(3)?,
                receive_count: row.get(4)?,
                server_time_ms: now_ms,
                sender: None,
            })
        },
    )?)
}

fn bury(scope: &Scope<'_>, seq: i64, now_ms: i64, reason: &str) -> Result<(), Fault> {
    scope.execute(
        "INSERT INTO dead_letters (queue, grp, id, body, sent_at_ms, died_at_ms, receives, reason)
         SELECT queue, grp, id, body, sent_at_ms, ?2, receives, ?3 FROM messages WHERE seq = ?1",
        params![seq, now_ms, reason],
    )?;
    scope.execute("DELETE FROM messages WHERE seq = ?1", [seq])?;
    Ok(())
}

/// Deletes a message, if its receipt still holds.
pub(super) fn ack(
    scope: &Scope<'_>,
    queue: &str,
    receipt: &str,
    now_ms: i64,
) -> Result<Settled, Fault> {
    let deleted = scope.execute(
        "DELETE FROM messages WHERE queue = ?1 AND receipt = ?2 AND visible_at_ms > ?3",
        params![queue, receipt, now_ms],
    )?;
    Ok(settled(scope, deleted))
}

/// Puts a message back, visible from `visible_at_ms`, if its receipt still holds. The receipt is
/// spent with it.
pub(super) fn nack(
    scope: &Scope<'_>,
    queue: &str,
    receipt: &str,
    visible_at_ms: i64,
    now_ms: i64,
) -> Result<Settled, Fault> {
    let put_back = scope.execute(
        "UPDATE messages SET receipt = NULL, visible_at_ms = ?3 WHERE queue = ?1 AND receipt = ?2 AND visible_at_ms > ?4",
        params![queue, receipt, visible_at_ms, now_ms],
    )?;
    Ok(settled(scope, put_back))
}

fn settled(scope: &Scope<'_>, rows: usize) -> Settled {
    if rows == 0 {
        return Settled::Lost;
    }
    // Another receiver may be waiting for this group.
    scope.wake_receivers();
    Settled::Done
}

/// Dead letters, newest first.
pub(super) fn dead_letters(conn: &Connection, limit: usize) -> Result<Vec<DeadLetter>, Fault> {
    let sql = "SELECT id, queue, grp, body, receives, died_at_ms, reason FROM dead_letters ORDER BY seq DESC LIMIT ?1";
    let mut statement = conn.prepare(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let letters = statement.query_map([limit], |row| {
        Ok(DeadLetter {
            id: row.get(0)?,
            queue: row.get(1)?,
            group: row.get(2)?,
            body: row.get(3)?,
            receives: row.get(4)?,
            died_at_ms: row.get(5)?,
            reason: row.get(6)?,
        })
    })?;
    Ok(letters.collect::<Result<_, _>>()?)
}

/// A bounded duration as the file's clock counts it.
pub(super) fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
