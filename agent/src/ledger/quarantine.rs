//! GPUs that take no more work until an operator has looked at them.

use events::GpuUuid;
use rusqlite::{OptionalExtension, params};

use super::{Ledger, Result};

impl Ledger {
    /// Puts a GPU out of use until an operator clears it.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn quarantine(&self, gpu: &GpuUuid, reason: &str) -> Result<()> {
        self.write("quarantine a GPU", |transaction| {
            let sql = "INSERT INTO quarantine (gpu, reason) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET reason = excluded.reason";
            transaction.execute(sql, params![gpu.as_str(), reason]).map(|_| ())
        })
    }

    /// Takes a GPU back into use: an operator has looked at it. Whether it was out of use.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn clear_quarantine(&self, gpu: &GpuUuid) -> Result<bool> {
        self.write("clear a quarantine", |transaction| {
            let sql = "DELETE FROM quarantine WHERE gpu = ?1";
            Ok(transaction.execute(sql, [gpu.as_str()])? > 0)
        })
    }

    /// GPUs out of use, each with why.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn quarantines(&self) -> Result<Vec<(String, String)>> {
        self.read("list the quarantine", |connection| {
            let mut statement =
                connection.prepare("SELECT gpu, reason FROM quarantine ORDER BY gpu")?;
            statement
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })
    }

    /// Why a GPU is out of use, if it is.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn quarantined(&self, gpu: &GpuUuid) -> Result<Option<String>> {
        self.read("read the quarantine", |connection| {
            connection
                .query_row(
                    "SELECT reason FROM quarantine WHERE gpu = ?1",
                    [gpu.as_str()],
                    |row| row.get(0),
                )
                .optional()
        })
    }
}
