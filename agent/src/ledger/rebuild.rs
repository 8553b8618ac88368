//! Rebuilding a lost ledger from what the front door knows this host to hold. What the hardware lacks
//! of it is made again by the same repair that follows a reboot; what the hardware has beyond it is
//! foreign from now on, and said to be there.

use std::path::Path;

use events::holdings::{Holding, Holdings};
use events::operation::{Allocate, HostTarget, Target};
use events::{AllocationId, Command, GpuSelector, Operation};
use rusqlite::{Transaction, params};

use super::{FileError, file, put, record, scope};
use crate::operation::allocation::{Allocation, Phase};
use crate::operation::place::Place;
use crate::operation::recover::Intent;

/// Makes the ledger of `state_dir`, which must have none.
///
/// # Errors
/// See [`FileError`].
pub fn rebuild(state_dir: &Path, holdings: &Holdings) -> Result<(), FileError> {
    file::build(state_dir, |connection| {
        let transaction = connection.transaction()?;
        transaction.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'outbox'",
            [holdings.sequence],
        )?;
        for holding in &holdings.allocations {
            hold(&transaction, holding)?;
        }
        for command in &holdings.operations {
            resume(&transaction, command, holdings.iat)?;
        }
        transaction.commit()
    })
}

fn hold(transaction: &Transaction<'_>, holding: &Holding) -> rusqlite::Result<()> {
    let id = AllocationId::of(&holding.tenant, &holding.spec.key);
    put(
        transaction,
        &Allocation {
            id,
            operation: holding.operation,
            tenant: holding.tenant.clone(),
            gpu: holding.gpu.clone(),
            spec: holding.spec.clone(),
            profile: holding.profile.clone(),
            expires_at: holding.expires_at,
            phase: Phase::Live,
            places: None,
            since: None,
        },
    )?;
    revise(transaction, &format!("allocation:{id}"), holding.revision)
}

/// An operation that was taken and not ended is open again, known under the hash of its message.
fn resume(transaction: &Transaction<'_>, command: &Command, now_s: i64) -> rusqlite::Result<()> {
    let payload = serde_json::to_vec(command)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let hash = ring::digest::digest(&ring::digest::SHA256, &payload);
    transaction.execute(
        "INSERT INTO operations (id, hash, final, sequence, seen_at_s, command) VALUES (?1, ?2, 0, NULL, ?3, ?4)",
        params![
            command.op_id.to_string(),
            hash.as_ref(),
            now_s,
            record::write(command)?
        ],
    )?;
    if let Operation::Allocate(spec) = &command.operation {
        intend(
            transaction,
            &AllocationId::of(&command.tenant, &spec.key),
            spec,
        )?;
    }
    revise(transaction, &scope(command), command.revision)
}

/// What an allocate may have made before its records were lost: the ids are its own (UUIDv5 of the
/// allocation), so that a partition under one of them is its work, and an empty slot is to be filled.
fn intend(
    transaction: &Transaction<'_>,
    id: &AllocationId,
    spec: &Allocate,
) -> rusqlite::Result<()> {
    let Some(Target::Host(HostTarget {
        gpu: Some(GpuSelector::Uuid(gpu)),
        ..
    })) = &spec.target
    else {
        return Ok(());
    };
    for ordinal in 0..spec.count {
        let intent = Intent {
            place: Place::mdev(id.partition(ordinal)),
            epoch: "lost".to_owned(),
            before: None,
            want: spec.profile.clone(),
        };
        transaction.execute(
            "INSERT INTO intents (allocation, gpu, open, record) VALUES (?1, ?2, 1, ?3)",
            params![id.to_string(), gpu.as_str(), record::write(&intent)?],
        )?;
    }
    Ok(())
}

fn revise(transaction: &Transaction<'_>, scope: &str, revision: u64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO revisions (scope, revision) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET revision = MAX(revision, excluded.revision)";
    transaction
        .execute(sql, params![scope, revision])
        .map(|_| ())
}
