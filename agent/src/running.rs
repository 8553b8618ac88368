//! Bring-up and take-down: recover first, then reconcile, then poll.

use std::sync::{Arc, Mutex, mpsc};

use backplane::{Clock, Receiver, Sender};
use events::outcome::HealthCheck;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::host::Host;
use crate::intake::Intake;
use crate::keys::{Keys, KeysError};
use crate::ledger::{FileError, Ledger, LedgerError};
use crate::limiter::Limiter;
use crate::partitioner::Partitioner;
use crate::polls::Polls;
use crate::reconciler::{Reconciler, Snapshot};
use crate::reporter::Reporter;
use crate::server::Server;
use crate::worker::{Leases, Shared, Workers};

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its ledger cannot be used.
    #[error("ledger cannot be opened")]
    File(#[from] FileError),
    /// It does not know whom to trust.
    #[error("keys of commands cannot be used")]
    Keys(#[from] KeysError),
    /// Its ledger cannot be read.
    #[error("ledger cannot be read")]
    Ledger(#[from] LedgerError),
    /// Its server cannot listen.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// The ends that an agent works between.
pub struct Ends {
    /// This host's command queue.
    pub receiver: Arc<dyn Receiver>,
    /// The results queue.
    pub sender: Arc<dyn Sender>,
    /// The GPUs.
    pub partitioner: Arc<dyn Partitioner>,
    /// The control groups.
    pub limiter: Arc<dyn Limiter>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Health checks, for `inspect`.
    pub checks: Arc<dyn Fn() -> Vec<HealthCheck> + Send + Sync>,
}

impl Ends {
    /// The ends of a host.
    #[must_use]
    pub fn of(
        host: &Host,
        receiver: Arc<dyn Receiver>,
        sender: Arc<dyn Sender>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let checked = host.clone();
        Self {
            receiver,
            sender,
            partitioner: host.partitioner.clone(),
            limiter: host.limiter.clone(),
            clock,
            checks: Arc::new(move || crate::doctor::hardware(&checked)),
        }
    }
}

/// A running agent.
pub struct Running {
    server: Server,
    workers: Arc<Workers>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    reporter: (watch::Sender<bool>, JoinHandle<()>),
    reconciler: Reconciling,
}

/// Starts an agent on the current runtime.
///
/// # Errors
/// See [`StartError`].
pub async fn start(config: Config, ends: Ends) -> Result<Running, StartError> {
    let ledger = Arc::new(Ledger::open(&config.state_dir, &config.host)?);
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|source| StartError::Listen {
            address: config.listen,
            source,
        })?;
    let keys = Arc::new(Keys::open(&config.trust, &config.state_dir)?);
    let (stop, stopped) = watch::channel(false);
    let poke = Arc::new(Notify::new());
    let on_event = {
        let poke = Arc::clone(&poke);
        Arc::new(move || poke.notify_one())
    };
    let polls = Arc::new(Polls::new(ends.clock.now_ms()));
    let shared = Arc::new(Shared {
        host: config.host.clone(),
        ledger: Arc::clone(&ledger),
        partitioner: ends.partitioner,
        limiter: ends.limiter,
        clock: ends.clock,
        checks: ends.checks,
        on_event,
        again: Mutex::default(),
        leases: Leases::default(),
    });
    let workers = Arc::new(Workers::new(Arc::clone(&shared)));
    resume(&workers)?;
    let snapshot = Arc::new(Mutex::new(Snapshot::default()));
    let reconciler = start_reconciler(Reconciler {
        workers: Arc::clone(&workers),
        snapshot: Arc::clone(&snapshot),
    });
    // Its own end: it stops last, after what the workers still had to say.
    let (silence, silenced) = watch::channel(false);
    let reporter = Reporter {
        ledger,
        sender: ends.sender,
        key: config.host_key,
        host: config.host,
        poke,
    };
    let reporter = tokio::spawn(Arc::new(reporter).run(silenced));
    let intake = Intake {
        receiver: ends.receiver,
        keys: Arc::clone(&keys),
        allow: config.allow,
        workers: Arc::clone(&workers),
        polls: Arc::clone(&polls),
    };
    let server = Server {
        shared,
        snapshot,
        polls,
        keys,
    };
    let tasks = vec![
        tokio::spawn(Arc::new(intake).run(stopped.clone())),
        tokio::spawn(serve(listener, server.clone(), stopped)),
    ];
    Ok(Running {
        server,
        workers,
        stop,
        tasks,
        reporter: (silence, reporter),
        reconciler,
    })
}

/// The reconciler's thread, which ends when the sender is dropped.
type Reconciling = (mpsc::Sender<()>, std::thread::JoinHandle<()>);

fn start_reconciler(reconciler: Reconciler) -> Reconciling {
    let (end, ended) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("reconciler".to_owned())
        .spawn(move || reconciler.run(&ended));
    (end, thread.expect("a thread can be started"))
}

async fn serve(listener: TcpListener, server: Server, stopped: watch::Receiver<bool>) {
    let serving = axum::serve(listener, server.router()).with_graceful_shutdown(until(stopped));
    if let Err(error) = serving.await {
        tracing::error!(%error, "the agent's own server has ended");
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Work that a crash interrupted goes on before anything new is taken.
fn resume(workers: &Workers) -> Result<(), LedgerError> {
    let ledger = &workers.shared().ledger;
    for command in ledger.open_operations()? {
        tracing::info!(operation.id = %command.op_id, operation.name = command.operation.name(), "resuming an operation");
        workers.shared().count_start(command.op_id)?;
        workers.enqueue_operation(&command);
    }
    Ok(())
}

impl Running {
    /// The status that `/status` gives.
    #[must_use]
    pub fn status(&self) -> serde_json::Value {
        self.server.status()
    }

    /// Stops taking work, finishes the steps under way, and sends what there is to say.
    pub async fn shutdown(self) {
        let _ = self.stop.send(true);
        for task in self.tasks {
            let _ = task.await;
        }
        let (end, reconciler) = self.reconciler;
        let workers = self.workers;
        let stopped = tokio::task::spawn_blocking(move || {
            drop(end);
            let _ = reconciler.join();
            workers.stop();
        });
        let _ = stopped.await;
        let (silence, reporter) = self.reporter;
        let _ = silence.send(true);
        let _ = reporter.await;
    }
}
