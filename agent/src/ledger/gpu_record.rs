//! What the ledger knows of a GPU itself: what it should be, beside what it holds for allocations.

use events::{GpuUuid, ProfileName};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};

use super::{Ledger, Result, record};
use crate::operation::place::Place;

/// One GPU's own record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRecord {
    /// Partitions that `partition` made and keeps, whoever uses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layout: Vec<Planned>,
    /// The layout to go back to, while another is being made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Vec<Planned>>,
    /// Whether MIG is to be on, once that was asked for: a reboot may have turned it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
}

/// One partition of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Where it is.
    pub place: Place,
    /// Its profile.
    pub profile: ProfileName,
}

impl Ledger {
    /// A GPU's own record; empty when nothing was ever asked of it.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn gpu(&self, gpu: &GpuUuid) -> Result<GpuRecord> {
        self.read("read a GPU's record", |connection| get(connection, gpu))
    }

    /// Changes a GPU's own record without a result.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn put_gpu(&self, gpu: &GpuUuid, record: &GpuRecord) -> Result<()> {
        self.write("put a GPU's record", |transaction| {
            put(transaction, gpu, record)
        })
    }
}

fn get(connection: &Connection, gpu: &GpuUuid) -> rusqlite::Result<GpuRecord> {
    let found = connection
        .query_row(
            "SELECT record FROM gpus WHERE uuid = ?1",
            [gpu.as_str()],
            |row| record::read(row, 0),
        )
        .optional()?;
    Ok(found.unwrap_or_default())
}

pub(super) fn put(
    transaction: &Transaction<'_>,
    gpu: &GpuUuid,
    gpu_record: &GpuRecord,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO gpus (uuid, record) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET record = excluded.record";
    transaction
        .execute(sql, params![gpu.as_str(), record::write(gpu_record)?])
        .map(|_| ())
}
