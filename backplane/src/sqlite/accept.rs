//! Accepting a webhook: keys, operations, reservations and allocations in one transaction.

use events::{AllocationId, DeliveryId, HostName, Operation};
use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Fault;
use super::writer::Scope;
use super::{allocation, row, settle};
use crate::document;
use crate::lifecycle::{self, Allocation, TOMBSTONE_MS};
use crate::store::{
    Acceptance, Accepted, Digest, Ending, IdempotencyKeys, KnownDelivery, NewOperation,
    OperationRecord, Route,
};

/// The delivery behind either of the keys, unless both have been forgotten by `now_ms`.
pub(super) fn known(
    connection: &Connection,
    keys: &IdempotencyKeys,
    now_ms: i64,
) -> Result<Option<KnownDelivery>, Fault> {
    let by = |kind: &str, digest: &Digest| {
        let sql = "SELECT delivery FROM idempotency_keys WHERE kind = ?1 AND digest = ?2 AND forget_at_ms > ?3";
        connection
            .query_row(sql, params![kind, digest, now_ms], |row| {
                row.get::<_, String>(0)
            })
            .optional()
    };
    let mut delivery = by("id", &keys.id)?;
    if let (None, Some(content)) = (&delivery, &keys.content) {
        delivery = by("content", content)?;
    }
    let Some(delivery) = delivery else {
        return Ok(None);
    };
    let sql = "SELECT body, response FROM deliveries WHERE id = ?1";
    let (body, response) = connection.query_row(sql, [&delivery], |row| {
        Ok((row.get::<_, Digest>(0)?, row.get::<_, String>(1)?))
    })?;
    let sql =
        "SELECT doc FROM operations WHERE delivery = ?1 AND sent = 0 AND final = 0 ORDER BY seq";
    let unsent = row::operations(connection, sql, [&delivery])?;
    Ok(Some(KnownDelivery {
        delivery: row::parse("delivery id", &delivery)?,
        body,
        response,
        unsent,
    }))
}

/// Takes the webhook as a whole, or says why not.
pub(super) fn accept(scope: &Scope<'_>, acceptance: Acceptance) -> Result<Accepted, Fault> {
    if let Some(known) = known(scope, &acceptance.keys, acceptance.now_ms)? {
        return Ok(
            match (known.body == acceptance.body, known.unsent.is_empty()) {
                (false, _) => Accepted::Mismatch,
                (true, true) => Accepted::Replay(known),
                (true, false) => Accepted::InFlight(known),
            },
        );
    }
    let holder = |id| allocation::holder(scope, id);
    let version = |host: &HostName| row::host_version(scope, host);
    if lifecycle::capacity_moved(&acceptance, holder, version)? {
        return Ok(Accepted::CapacityMoved);
    }
    remember(scope, &acceptance)?;
    let mut records = Vec::with_capacity(acceptance.operations.len());
    for new in &acceptance.operations {
        records.push(operation(scope, &acceptance, new)?);
    }
    Ok(Accepted::New(records))
}

fn remember(scope: &Scope<'_>, acceptance: &Acceptance) -> Result<(), Fault> {
    scope.execute(
        "DELETE FROM idempotency_keys WHERE forget_at_ms <= ?1",
        [acceptance.now_ms],
    )?;
    scope.execute(
        "INSERT INTO deliveries (id, tenant, source, body, response, accepted_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            acceptance.delivery.to_string(),
            acceptance.tenant.as_str(),
            acceptance.source.as_str(),
            acceptance.body,
            acceptance.response,
            acceptance.now_ms
        ],
    )?;
    let keys = [
        ("id", Some(&acceptance.keys.id)),
        ("content", acceptance.keys.content.as_ref()),
    ];
    for (kind, digest) in keys {
        let Some(digest) = digest else { continue };
        scope.execute(
            "INSERT INTO idempotency_keys (kind, digest, delivery, forget_at_ms) VALUES (?1, ?2, ?3, ?4)",
            params![kind, digest, acceptance.delivery.to_string(), acceptance.forget_at_ms],
        )?;
    }
    Ok(())
}

fn operation(
    scope: &Scope<'_>,
    acceptance: &Acceptance,
    new: &NewOperation,
) -> Result<OperationRecord, Fault> {
    let allocation = new.operation.allocation(&acceptance.tenant);
    let overtaken = tombstone(scope, new, allocation, acceptance.now_ms)?;
    let mut record = lifecycle::record(acceptance, new, overtaken.as_ref())?;
    record.revision = next_revision(scope, allocation, &record.group)?;
    scope.execute(
        "INSERT INTO operations (id, delivery, tenant, host, sent, final, accepted_at_ms, expires_at_s, doc)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            record.id.to_string(),
            record.delivery.to_string(),
            record.tenant.as_str(),
            record.host.as_ref().map(HostName::as_str),
            record.sent,
            record.state.is_final(),
            record.accepted_at_ms,
            record.expires_at_s,
            document::write(&record)?
        ],
    )?;
    if record.host.is_some() {
        reserve(scope, new, &record, allocation)?;
    }
    if record.state.is_final() {
        settle::insert_callbacks(scope, &(acceptance.owed)(&record), acceptance.now_ms)?;
    }
    Ok(record)
}

/// A release that overtakes its allocate wins: a key that is released before it was ever allocated
/// is blocked for a while, and its allocate is refused (DESIGN §4). After an ordinary release the
/// key may be used again.
fn tombstone(
    scope: &Scope<'_>,
    new: &NewOperation,
    allocation: Option<AllocationId>,
    now_ms: i64,
) -> Result<Option<Ending>, Fault> {
    let (Some(id), Operation::Allocate(_) | Operation::Release(_)) = (allocation, &new.operation)
    else {
        return Ok(None);
    };
    let id = id.to_string();
    scope.execute("DELETE FROM tombstones WHERE until_ms <= ?1", [now_ms])?;
    if let (Operation::Release(_), Route::Settled(_)) = (&new.operation, &new.route) {
        scope.execute(
            "INSERT INTO tombstones (allocation, until_ms) SELECT ?1, ?2
             WHERE NOT EXISTS (SELECT 1 FROM revisions WHERE scope = ?3) ON CONFLICT (allocation) DO NOTHING",
            params![id, now_ms.saturating_add(TOMBSTONE_MS), format!("allocation:{id}")],
        )?;
        return Ok(None);
    }
    let sql = "SELECT 1 FROM tombstones WHERE allocation = ?1";
    let blocked = scope
        .query_row(sql, [&id], |_| Ok(()))
        .optional()?
        .is_some();
    Ok(blocked.then(lifecycle::overtaken))
}

/// Per allocation, or per message group for what is about no allocation.
fn next_revision(
    scope: &Scope<'_>,
    allocation: Option<AllocationId>,
    group: &str,
) -> Result<u64, Fault> {
    let name = allocation.map_or_else(|| format!("group:{group}"), |id| format!("allocation:{id}"));
    Ok(scope.query_row(
        "INSERT INTO revisions (scope, revision) VALUES (?1, 1) ON CONFLICT (scope) DO UPDATE SET revision = revision + 1 RETURNING revision",
        [name],
        |row| row.get(0),
    )?)
}

/// An allocate makes its allocation pending and, holding capacity, the host another version. One
/// that is pending or live already has its capacity.
fn reserve(
    scope: &Scope<'_>,
    new: &NewOperation,
    record: &OperationRecord,
    allocation: Option<AllocationId>,
) -> Result<(), Fault> {
    let (
        Route::Host {
            host, reservation, ..
        },
        Operation::Allocate(_),
        Some(id),
    ) = (&new.route, &new.operation, allocation)
    else {
        return Ok(());
    };
    let earlier = allocation::find(scope, id)?;
    if earlier.as_ref().is_some_and(Allocation::is_held) {
        return Ok(());
    }
    let begun = Allocation::begin(record, host, reservation.as_ref(), earlier.as_ref())?;
    allocation::insert(scope, &begun)?;
    let Some(reservation) = reservation else {
        return Ok(());
    };
    scope.execute(
        "INSERT INTO reservations (operation, host, doc) VALUES (?1, ?2, ?3)",
        params![
            record.id.to_string(),
            host.as_str(),
            document::write(reservation)?
        ],
    )?;
    row::bump(scope, host)
}

/// Operations of a delivery, in order; `None` if the tenant has no such delivery.
pub(super) fn delivery(
    connection: &Connection,
    tenant: &str,
    id: DeliveryId,
) -> Result<Option<Vec<OperationRecord>>, Fault> {
    let sql = "SELECT 1 FROM deliveries WHERE id = ?1 AND tenant = ?2";
    let exists = connection
        .query_row(sql, params![id.to_string(), tenant], |_| Ok(()))
        .optional()?;
    let sql = "SELECT doc FROM operations WHERE delivery = ?1 ORDER BY seq";
    exists
        .map(|()| row::operations(connection, sql, [id.to_string()]))
        .transpose()
}
