//! The one writer: a thread that owns the writing connection and commits in groups.
//!
//! Requests that wait while a commit is on its way to the disk share the next one. Each runs in a
//! savepoint of its own, so that one that fails takes nobody with it, and each is answered after
//! the commit: an answer means durable.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::fault::Fault;
use super::wake::Waker;

/// Requests that may wait; beyond it their senders do. Sixteen groups' worth.
const WAITING: usize = 1024;
/// Requests in one transaction: bounds how long the file is locked for other processes.
const GROUP: usize = 64;

/// Requests in the last transaction from which on there are several senders at work: the next one waits
/// a moment for those that have just been answered and are about to ask again.
const BUSY: usize = 3;
/// That moment: for as long as one more comes within each pause, and for so many pauses at most,
/// which is about what a sync takes.
const LINGER: (Duration, u32) = (Duration::from_micros(500), 8);

/// The open transaction as a request sees it.
pub(super) struct Scope<'a> {
    conn: &'a Connection,
    wake: Cell<bool>,
}

impl Scope<'_> {
    /// Something may have become receivable: receivers of all processes look again after the commit.
    pub(super) fn wake_receivers(&self) {
        self.wake.set(true);
    }
}

impl Deref for Scope<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.conn
    }
}

/// Told why the commit failed, if it did.
type Answer = Box<dyn FnOnce(Option<&str>)>;
type Request = Box<dyn FnOnce(&Scope<'_>) -> Answer + Send>;

/// Hands requests to the writer thread; dropping it ends the thread, with all of them done.
pub(super) struct Writer {
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
    commits: Arc<AtomicU64>,
}

impl Writer {
    pub(super) fn start(conn: Connection, waker: Waker) -> std::io::Result<Self> {
        let (requests, waiting) = mpsc::channel(WAITING);
        let commits = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&commits);
        let thread = std::thread::Builder::new()
            .name("backplane-write".to_owned())
            .spawn(move || serve(&conn, waiting, &waker, &counter))?;
        Ok(Self {
            requests: Some(requests),
            thread: Some(thread),
            commits,
        })
    }

    /// Runs a request in the next transaction; returns once that is durable.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        request: impl FnOnce(&Scope<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (reply, answer) = oneshot::channel();
        let request: Request = Box::new(move |scope| {
            let result = in_savepoint(scope, request);
            Box::new(move |failure| {
                let result = match (failure, result) {
                    (Some(reason), Ok(_) | Err(Fault::Unconfirmed(_))) => {
                        Err(Fault::Unconfirmed(reason.to_owned()))
                    }
                    (_, result) => result,
                };
                // The caller may have gone away; what it asked for is done all the same.
                drop(reply.send(result));
            })
        });
        let requests = self.requests.as_ref().ok_or(Fault::Stopped)?;
        requests.send(request).await.map_err(|_| Fault::Stopped)?;
        answer.await.map_err(|_| Fault::Stopped)?
    }

    /// Transactions committed so far.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was printed there, and each waiting caller has had its error.
            drop(thread.join());
        }
    }
}

fn serve(
    conn: &Connection,
    mut waiting: mpsc::Receiver<Request>,
    waker: &Waker,
    commits: &AtomicU64,
) {
    let mut group = Vec::with_capacity(GROUP);
    let mut last = 0;
    while waiting.blocking_recv_many(&mut group, GROUP) > 0 {
        if last >= BUSY {
            linger(&mut waiting, &mut group);
        }
        last = group.len();
        let scope = Scope {
            conn,
            wake: Cell::new(false),
        };
        let (answers, outcome) = commit(&scope, &mut group);
        if outcome.is_ok() {
            commits.fetch_add(1, Ordering::Relaxed);
            if scope.wake.get() {
                waker.wake();
            }
        }
        let failure = outcome.err().map(|fault| fault.chain());
        for answer in answers {
            answer(failure.as_deref());
        }
    }
}

/// Lets more requests into a group that is about to be committed.
fn linger(waiting: &mut mpsc::Receiver<Request>, group: &mut Vec<Request>) {
    for _ in 0..LINGER.1 {
        std::thread::sleep(LINGER.0);
        let before = group.len();
        while group.len() < GROUP
            && let Ok(request) = waiting.try_recv()
        {
            group.push(request);
        }
        if group.len() == before || group.len() >= GROUP {
            return;
        }
    }
}

/// One transaction around a group of requests.
fn commit(scope: &Scope<'_>, group: &mut Vec<Request>) -> (Vec<Answer>, Result<(), Fault>) {
    let begun = scope.execute_batch("BEGIN IMMEDIATE");
    // Without a transaction they do nothing, and are answered with the reason all the same.
    let answers = group.drain(..).map(|request| request(scope)).collect();
    if let Err(error) = begun {
        return (answers, Err(error.into()));
    }
    // A full disk or an IO error may have rolled all of it back on the way, savepoints included.
    if scope.is_autocommit() {
        return (
            answers,
            Err(Fault::Unconfirmed("SQLite rolled it back".to_owned())),
        );
    }
    let outcome = scope.execute_batch("COMMIT").map_err(Fault::from);
    if outcome.is_err()
        && !scope.is_autocommit()
        && let Err(error) = scope.execute_batch("ROLLBACK")
    {
        tracing::error!(error = %error, "backplane transaction could not be rolled back");
    }
    (answers, outcome)
}

fn in_savepoint<T>(
    scope: &Scope<'_>,
    request: impl FnOnce(&Scope<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let lost = || Fault::Unconfirmed("there is no transaction".to_owned());
    if scope.is_autocommit() {
        return Err(lost());
    }
    scope.execute_batch("SAVEPOINT request")?;
    let result = request(scope);
    if scope.is_autocommit() {
        return result.and(Err(lost()));
    }
    match &result {
        Ok(_) => scope.execute_batch("RELEASE request")?,
        Err(_) => scope.execute_batch("ROLLBACK TO request; RELEASE request")?,
    }
    result
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::sqlite::wake::Wakes;

    /// What waits while a commit is under way shares the next one; one that fails harms no other.
    #[tokio::test]
    async fn requests_that_wait_share_one_commit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("writer.db");
        let conn = Connection::open(&path).unwrap();
        conn.execute_batch("CREATE TABLE numbers (number INTEGER)")
            .unwrap();
        let wakes = Wakes::start(&path).unwrap();
        let writer = Rc::new(Writer::start(conn, wakes.waker()).unwrap());

        let (release, held) = std::sync::mpsc::channel();
        let first = writer.run(move |_| {
            held.recv().unwrap();
            Ok(())
        });
        let senders = async {
            let local = tokio::task::LocalSet::new();
            for number in 0..GROUP {
                let writer = Rc::clone(&writer);
                local.spawn_local(async move {
                    let run = writer.run(move |scope| {
                        scope.execute("INSERT INTO numbers VALUES (?1)", [number])?;
                        if number == 7 {
                            return Err(crate::lifecycle::Contract("seven").into());
                        }
                        Ok(number)
                    });
                    assert_eq!(run.await.is_ok(), number != 7);
                });
            }
            // Runs once everyone before it in the set has queued its request.
            local.spawn_local(async move { release.send(()).unwrap() });
            local.await;
        };
        let (first, ()) = tokio::join!(first, senders);
        first.unwrap();
        assert_eq!(writer.commits(), 2);

        drop(writer);
        let conn = Connection::open(&path).unwrap();
        let sql = "SELECT count(*), sum(number = 7) FROM numbers";
        let (rows, sevens): (usize, usize) = conn
            .query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!((rows, sevens), (GROUP - 1, 0));
    }
}
