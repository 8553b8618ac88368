//! The ledger: what this host was told, what it wants, what it was about to do, and what it has to say.
//!
//! ```text
//! take ──▶ operations(open) + outbox(accepted)      one transaction each,
//! intend ──▶ effect ──▶ done                        fsynced before the call returns
//! conclude ──▶ operations(final) + allocations + outbox(result)
//! ```
//! One connection behind one lock: there is a single writer by construction. A ledger that cannot be
//! written stops the agent's work; it is never worked around.

mod file;

mod record;

mod gpu_record;

mod quarantine;

mod rebuild;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use events::result::{EventData, EventKind, ResultEvent};
use events::{AllocationId, Command, GpuSelector, GpuUuid, HostName, OperationId, TenantName};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

pub use file::FileError;
pub use gpu_record::{GpuRecord, Planned};
pub use rebuild::rebuild;

use crate::operation::admit::Known;
use crate::operation::allocation::Allocation;
use crate::operation::recover::Intent;

/// Operation ids are kept longer than any queue keeps a message (14 days).
const KEEP_OPERATIONS_S: i64 = 15 * 24 * 3600;
/// How long a release that overtook its allocate wins.
const TOMBSTONE_S: i64 = 24 * 3600;

/// The ledger cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("ledger: {context}")]
pub struct LedgerError {
    /// What was being done.
    pub context: &'static str,
    /// Why it failed.
    #[source]
    pub source: rusqlite::Error,
}

type Result<T> = std::result::Result<T, LedgerError>;

/// The open ledger.
pub struct Ledger {
    connection: Mutex<Connection>,
    host: HostName,
}

/// What an event is about and says; the ledger gives it its sequence.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// Its type.
    pub kind: EventKind,
    /// Operation, allocation or host.
    pub subject: String,
    /// The tenant concerned.
    pub tenant: Option<TenantName>,
    /// The payload.
    pub data: EventData,
    /// Unix milliseconds.
    pub now_ms: i64,
}

/// Whose steps an intent belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// An allocation's.
    Allocation(AllocationId),
    /// A GPU's own: its layout, its settings.
    Gpu(GpuUuid),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Allocation(id) => id.fmt(f),
            Self::Gpu(gpu) => gpu.fmt(f),
        }
    }
}

/// How an operation's end changes what is desired.
#[derive(Debug, Clone)]
pub enum Change {
    /// Not at all.
    None,
    /// The allocation is as given.
    Put(Box<Allocation>),
    /// The allocation is gone.
    Remove(AllocationId),
    /// There never was one: its key is blocked for a while, unless it existed before.
    Tombstone(AllocationId),
    /// The GPU's own record is as given.
    Gpu(GpuUuid, Box<GpuRecord>),
}

/// One event waiting to be sent.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Its sequence.
    pub sequence: u64,
    /// The event.
    pub event: ResultEvent,
}

impl Ledger {
    /// Opens the ledger in `state_dir`, making it on first enrolment only.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(state_dir: &Path, host: &HostName) -> std::result::Result<Self, FileError> {
        Ok(Self {
            connection: Mutex::new(file::open(state_dir)?),
            host: host.clone(),
        })
    }

    /// What can be said of a state folder's ledger without opening it for writing.
    #[must_use]
    pub fn look(state_dir: &Path) -> String {
        file::check(&state_dir.join("ledger.db")).map_or_else(
            |error| error.to_string(),
            |()| "readable, of this version".to_owned(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic inside a transaction rolled it back; the connection itself is sound.
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write<T>(
        &self,
        context: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let mut connection = self.lock();
        let done = connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .and_then(|transaction| {
                let done = job(&transaction)?;
                transaction.commit()?;
                Ok(done)
            });
        done.map_err(|source| LedgerError { context, source })
    }

    fn read<T>(
        &self,
        context: &'static str,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        job(&self.lock()).map_err(|source| LedgerError { context, source })
    }

    /// What is known that matters for `command`.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn known(&self, command: &Command, now_s: i64) -> Result<Known> {
        self.read("look up a command", |connection| {
            let operation = connection
                .query_row(
                    "SELECT hash FROM operations WHERE id = ?1",
                    [command.op_id.to_string()],
                    |row| row.get::<_, [u8; 32]>(0),
                )
                .optional()?;
            let revision = connection
                .query_row(
                    "SELECT revision FROM revisions WHERE scope = ?1",
                    [scope(command)],
                    |row| row.get(0),
                )
                .optional()?
                .unwrap_or(0);
            let id = command.operation.allocation(&command.tenant);
            let allocation = id
                .map(|id| allocation(connection, id))
                .transpose()?
                .flatten();
            // Another tenant's allocation, named by id, is as unknown as one that does not exist.
            let allocation = allocation.filter(|allocation| allocation.tenant == command.tenant);
            let sql = "SELECT COUNT(*) FROM tombstones WHERE allocation = ?1 AND until_s > ?2";
            let tombstone = match id {
                Some(id) => {
                    connection.query_row(sql, params![id.to_string(), now_s], |row| {
                        row.get::<_, i64>(0)
                    })? > 0
                }
                None => false,
            };
            Ok(Known {
                operation,
                revision,
                allocation,
                tombstone,
            })
        })
    }

    /// Takes an operation: from here the ledger owns it.
    ///
    /// # Errors
    /// The ledger cannot be written; the message must not be acknowledged.
    pub fn take(
        &self,
        command: &Command,
        hash: &[u8; 32],
        event: NewEvent,
        is_final: bool,
    ) -> Result<()> {
        self.write("take an operation", |transaction| {
            let now_s = event.now_ms / 1000;
            transaction.execute("DELETE FROM operations WHERE final = 1 AND seen_at_s < ?1", [now_s - KEEP_OPERATIONS_S])?;
            let sequence = append(transaction, &self.host, event)?;
            let final_sequence = is_final.then_some(sequence);
            transaction.execute(
                "INSERT INTO operations (id, hash, final, sequence, seen_at_s, command) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![command.op_id.to_string(), hash, is_final, final_sequence, now_s, record::write(command)?],
            )?;
            transaction.execute(
                "INSERT INTO revisions (scope, revision) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET revision = MAX(revision, excluded.revision)",
                params![scope(command), command.revision],
            )?;
            Ok(())
        })
    }

    /// Reports the stored state of a known operation again, under its first sequence.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn report_again(&self, operation: OperationId) -> Result<()> {
        self.write("report an operation again", |transaction| {
            let sql = "UPDATE outbox SET sent = 0 WHERE sequence = (SELECT sequence FROM operations WHERE id = ?1)";
            transaction.execute(sql, [operation.to_string()]).map(|_| ())
        })
    }

    /// Keeps aside a message that cannot be executed.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn dead_letter(&self, body: &str, reason: &str, now_s: i64) -> Result<()> {
        self.write("keep a dead letter", |transaction| {
            transaction
                .execute(
                    "INSERT INTO dead_letters (at_s, reason, body) VALUES (?1, ?2, ?3)",
                    params![now_s, reason, body],
                )
                .map(|_| ())
        })
    }

    /// Operations taken and not yet final, oldest first.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn open_operations(&self) -> Result<Vec<Command>> {
        self.read("list open operations", |connection| {
            let mut statement = connection
                .prepare("SELECT command FROM operations WHERE final = 0 ORDER BY rowid")?;
            statement
                .query_map([], |row| record::read(row, 0))?
                .collect()
        })
    }

    /// One open operation with the tries it has had; `None` when it is final or unknown.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn open_operation(&self, id: OperationId) -> Result<Option<(Command, u32)>> {
        self.read("read an operation", |connection| {
            let sql = "SELECT command, tries FROM operations WHERE id = ?1 AND final = 0";
            connection
                .query_row(sql, [id.to_string()], |row| {
                    Ok((record::read(row, 0)?, row.get(1)?))
                })
                .optional()
        })
    }

    /// Counts tries of an operation that could not be ended.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn tried(&self, id: OperationId, tries: u32) -> Result<()> {
        self.write("count a try", |transaction| {
            let sql = "UPDATE operations SET tries = tries + ?2 WHERE id = ?1";
            transaction
                .execute(sql, params![id.to_string(), tries])
                .map(|_| ())
        })
    }

    /// Every allocation.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn allocations(&self) -> Result<Vec<Allocation>> {
        self.read("list allocations", |connection| {
            let mut statement =
                connection.prepare("SELECT record FROM allocations ORDER BY rowid")?;
            statement
                .query_map([], |row| record::read(row, 0))?
                .collect()
        })
    }

    /// One allocation.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn allocation(&self, id: AllocationId) -> Result<Option<Allocation>> {
        self.read("read an allocation", |connection| {
            allocation(connection, id)
        })
    }

    /// Records what is about to be done to a slot, before it is done.
    ///
    /// # Errors
    /// The ledger cannot be written; the effect must not happen.
    pub fn intend(&self, owner: &Owner, gpu: &GpuUuid, intent: &Intent) -> Result<i64> {
        self.write("record an intent", |transaction| {
            transaction.execute(
                "INSERT INTO intents (allocation, gpu, open, record) VALUES (?1, ?2, 1, ?3)",
                params![owner.to_string(), gpu.as_str(), record::write(intent)?],
            )?;
            Ok(transaction.last_insert_rowid())
        })
    }

    /// Records that a step's result was seen.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn done(&self, intent: i64) -> Result<()> {
        self.write("close an intent", |transaction| {
            transaction
                .execute("UPDATE intents SET open = 0 WHERE n = ?1", [intent])
                .map(|_| ())
        })
    }

    /// Intents of what is being worked on, with whether they are still open.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn intents(&self, owner: &Owner) -> Result<Vec<(i64, bool, Intent)>> {
        self.read("list intents", |connection| {
            let mut statement = connection
                .prepare("SELECT n, open, record FROM intents WHERE allocation = ?1 ORDER BY n")?;
            statement
                .query_map([owner.to_string()], |row| {
                    Ok((row.get(0)?, row.get(1)?, record::read(row, 2)?))
                })?
                .collect()
        })
    }

    /// Ends an operation: its result, what is desired from now on, and its intents, all at once.
    ///
    /// # Errors
    /// The ledger cannot be written; the operation stays open and is worked on again.
    pub fn conclude(
        &self,
        operation: Option<OperationId>,
        change: Change,
        event: NewEvent,
    ) -> Result<()> {
        self.write("conclude an operation", |transaction| {
            let now_s = event.now_ms / 1000;
            let sequence = append(transaction, &self.host, event)?;
            if let Some(id) = operation {
                transaction.execute(
                    "UPDATE operations SET final = 1, sequence = ?2 WHERE id = ?1",
                    params![id.to_string(), sequence],
                )?;
            }
            apply(transaction, &change, now_s)
        })
    }

    /// Changes an allocation without a result: a phase that was noticed, say.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn put(&self, allocation: &Allocation) -> Result<()> {
        self.write("put an allocation", |transaction| {
            put(transaction, allocation)
        })
    }

    /// Queues an event that ends nothing.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn say(&self, event: NewEvent) -> Result<()> {
        self.write("queue an event", |transaction| {
            append(transaction, &self.host, event).map(|_| ())
        })
    }

    /// Events to send, in order, at most `limit`.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn unsent(&self, limit: u32) -> Result<Vec<Outgoing>> {
        self.read("list the outbox", |connection| {
            let mut statement = connection.prepare(
                "SELECT sequence, event FROM outbox WHERE sent = 0 ORDER BY sequence LIMIT ?1",
            )?;
            statement
                .query_map([limit], |row| {
                    Ok(Outgoing {
                        sequence: row.get(0)?,
                        event: record::read(row, 1)?,
                    })
                })?
                .collect()
        })
    }

    /// Records that the results queue has an event. Events that no operation may repeat are dropped.
    ///
    /// # Errors
    /// The ledger cannot be written; the event is sent again, and settles once.
    pub fn mark_sent(&self, sequence: u64) -> Result<()> {
        self.write("mark an event sent", |transaction| {
            transaction.execute("UPDATE outbox SET sent = 1 WHERE sequence = ?1", [sequence])?;
            // The newest row stays, so that AUTOINCREMENT's memory is never the only one.
            let sql = "DELETE FROM outbox WHERE sent = 1 AND sequence < ?1 AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.sequence = outbox.sequence)";
            transaction.execute(sql, [sequence]).map(|_| ())
        })
    }
}

/// Revisions grow per allocation, per GPU for what is about one, and per host for the rest.
fn scope(command: &Command) -> String {
    if let Some(id) = command.operation.allocation(&command.tenant) {
        return format!("allocation:{id}");
    }
    match command.operation.gpu() {
        Some(GpuSelector::Uuid(gpu)) => format!("gpu:{gpu}"),
        _ => format!("host:{}", command.operation.name()),
    }
}

fn allocation(connection: &Connection, id: AllocationId) -> rusqlite::Result<Option<Allocation>> {
    connection
        .query_row(
            "SELECT record FROM allocations WHERE id = ?1",
            [id.to_string()],
            |row| record::read(row, 0),
        )
        .optional()
}

fn put(transaction: &Transaction<'_>, allocation: &Allocation) -> rusqlite::Result<()> {
    let sql = "INSERT INTO allocations (id, gpu, record) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET gpu = excluded.gpu, record = excluded.record";
    transaction
        .execute(
            sql,
            params![
                allocation.id.to_string(),
                allocation.gpu.as_str(),
                record::write(allocation)?
            ],
        )
        .map(|_| ())
}

fn apply(transaction: &Transaction<'_>, change: &Change, now_s: i64) -> rusqlite::Result<()> {
    let owner = match change {
        Change::None => return Ok(()),
        Change::Gpu(gpu, record) => {
            gpu_record::put(transaction, gpu, record)?;
            Owner::Gpu(gpu.clone())
        }
        Change::Put(allocation) => {
            put(transaction, allocation)?;
            Owner::Allocation(allocation.id)
        }
        Change::Remove(id) => {
            transaction.execute("DELETE FROM allocations WHERE id = ?1", [id.to_string()])?;
            Owner::Allocation(*id)
        }
        Change::Tombstone(id) => {
            transaction.execute("DELETE FROM tombstones WHERE until_s <= ?1", [now_s])?;
            let sql = "INSERT INTO tombstones (allocation, until_s) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET until_s = excluded.until_s";
            transaction.execute(sql, params![id.to_string(), now_s + TOMBSTONE_S])?;
            Owner::Allocation(*id)
        }
    };
    // Steps of what is settled prove nothing any more.
    transaction
        .execute(
            "DELETE FROM intents WHERE allocation = ?1",
            [owner.to_string()],
        )
        .map(|_| ())
}

/// Appends an event; its sequence is its row, so it grows for ever.
fn append(
    transaction: &Transaction<'_>,
    host: &HostName,
    event: NewEvent,
) -> rusqlite::Result<u64> {
    transaction.execute("INSERT INTO outbox (event) VALUES ('')", [])?;
    let sequence = u64::try_from(transaction.last_insert_rowid()).unwrap_or(0);
    let time =
        jiff::Timestamp::from_millisecond(event.now_ms).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let event = ResultEvent {
        specversion: "1.0".to_owned(),
        id: format!("{}.{sequence}", event.subject),
        source: format!("/hosts/{host}"),
        kind: event.kind,
        subject: event.subject,
        time: time.to_string(),
        datacontenttype: "application/json".to_owned(),
        sequence,
        tenant: event.tenant,
        data: event.data,
    };
    transaction.execute(
        "UPDATE outbox SET event = ?2 WHERE sequence = ?1",
        params![sequence, record::write(&event)?],
    )?;
    Ok(sequence)
}
