//! Reading connections, used off the async runtime and kept for the next reader.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::fault::Fault;
use super::file;

/// Reads at once: more would only wait for each other on the two to sixteen CPUs of one machine.
const AT_ONCE: usize = 8;

pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            idle: Mutex::new(Vec::new()),
            permits: Semaphore::new(AT_ONCE),
        }
    }

    /// Waits for a turn.
    pub(super) async fn turn(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Fault> {
        self.permits.acquire().await.map_err(|_| Fault::Stopped)
    }

    /// Reads within one snapshot. Blocks.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let kept = self.idle().pop();
        let conn = match kept {
            Some(conn) => conn,
            None => file::open_reader(&self.path)?,
        };
        let snapshot = conn.unchecked_transaction()?;
        let result = read(&snapshot);
        snapshot.finish()?;
        // Not after a fault: a fresh connection is the cheaper cure.
        if result.is_ok() {
            self.idle().push(conn);
        }
        result
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        // A list of connections is whole at every moment, whoever panicked beside it.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
