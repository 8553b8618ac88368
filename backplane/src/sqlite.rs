//! The embedded backplane: queue and store in one SQLite file, durable before anything is answered.
//!
//! One thread writes (`writer`), in group commits; readers have connections of their own. Several
//! processes may share the file: SQLite's lock serialises them and `wake` tells their receivers.

mod file;

mod fault;

mod writer;

mod readers;

mod wake;

mod queue;

mod receiver;

mod row;

mod allocation;

mod accept;

mod settle;

mod due;

mod overdue;

mod holdings;

mod reads;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::watch;

pub use file::OpenError;
pub use queue::DeadLetter;
pub use receiver::SqliteReceiver;

use self::fault::Fault;
use self::writer::Scope;
use crate::clock::Clock;
use crate::queue::{Outgoing, QueueName, SendError, Sender};
use crate::store::StoreError;

/// One open backplane file; clones share it.
#[derive(Clone)]
pub struct SqliteBackplane {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    writer: writer::Writer,
    readers: Arc<readers::Readers>,
    wakes: wake::Wakes,
}

impl SqliteBackplane {
    /// Opens the file, making it first if nothing was ever there.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn create_or_open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        file::ensure_file(path)?;
        Self::open(path, clock)
    }

    /// Opens an existing file. A missing, foreign, newer or damaged one is an error: it is never
    /// treated as empty.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let connection = file::open_writer(path)?;
        let wakes = wake::Wakes::start(path)?;
        let started = writer::Writer::start(connection, wakes.waker());
        let writer = started.map_err(|source| OpenError::Io {
            doing: "start the writer of",
            path: path.to_owned(),
            source,
        })?;
        let readers = Arc::new(readers::Readers::new(path.to_owned()));
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                clock,
                writer,
                readers,
                wakes,
            }),
        })
    }

    /// The consuming end of one queue.
    #[must_use]
    pub fn receiver(&self, queue: &QueueName) -> SqliteReceiver {
        SqliteReceiver::new(self.clone(), queue)
    }

    /// Messages that were delivered too often, newest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let read = self
            .read(move |connection| queue::dead_letters(connection, limit))
            .await;
        read.map_err(|fault| fault.store("list dead letters"))
    }

    /// Transactions committed by this process so far: what group commit saves shows here.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.inner.writer.commits()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    fn now_ms(&self) -> i64 {
        self.inner.clock.now_ms()
    }

    fn wakes(&self) -> watch::Receiver<u64> {
        self.inner.wakes.subscribe()
    }

    async fn write<T: Send + 'static>(
        &self,
        request: impl FnOnce(&Scope<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        self.inner.writer.run(request).await
    }

    /// Reads off the async runtime.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let _turn = self.inner.readers.turn().await?;
        let readers = Arc::clone(&self.inner.readers);
        tokio::task::spawn_blocking(move || readers.read(read))
            .await
            .map_err(|_| Fault::Stopped)?
    }
}

#[async_trait]
impl Sender for SqliteBackplane {
    async fn send(&self, queue: &QueueName, message: Outgoing) -> Result<(), SendError> {
        crate::queue::check(&message)?;
        let (queue, now_ms) = (queue.to_string(), self.now_ms());
        Ok(self
            .write(move |scope| queue::send(scope, &queue, &message, now_ms))
            .await?)
    }
}
