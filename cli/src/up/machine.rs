//! One machine's parts, started in order and stopped in reverse.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::{Ends, Host, Running};
use anyhow::{Context, Result, bail};
use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, QueueName, Reads, SystemClock};
use function::callback::Callbacks;
use function::callback::exchange::Limits;
use function::callback::resolver::SystemResolver;
use function::results::ResultsWorker;
use function::sweep::Sweep;
use function::{App, Backplane};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::has_beside;
use crate::data::Data;

/// How long the agent may take for its first look at the host.
const FIRST_LOOK: Duration = Duration::from_secs(30);

/// The running parts.
pub(super) struct Machine {
    base: String,
    store: SqliteBackplane,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    agent: Option<Running>,
}

impl Machine {
    /// Starts function, workers and, where the folder has an `agent.toml`, the agent.
    pub(super) async fn start(data: &Data) -> Result<Self> {
        let mut config = function::Config::load(&data.config())?;
        let agent_file = data.path("agent.toml");
        let agent_config = agent_file
            .exists()
            .then(|| agent::Config::load(&agent_file))
            .transpose()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let enrolled = agent_config
            .as_ref()
            .is_some_and(|agent| agent.state_dir.join("enrolled").exists());
        let store = open(data.store_path(&config)?, enrolled, &clock)?;
        let listen = config.listen;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("listen on {listen}: is another gpuhook running?"))?;
        let base = format!(
            "http://{}",
            listener
                .local_addr()
                .context("read the front door's address")?
        );

        let callbacks = Callbacks::new(
            std::mem::take(&mut config.callbacks),
            Arc::new(SystemResolver),
            Arc::clone(&clock),
            Limits::default(),
        );
        let shared = Arc::new(store.clone());
        let backplane = Backplane {
            store: shared.clone(),
            reads: shared.clone(),
            sender: shared.clone(),
        };
        let app = Arc::new(App::new(config, backplane, Arc::clone(&clock))?);
        app.enrol_hosts().await?;
        let (stop, stopped) = watch::channel(false);
        let sweep = Arc::new(Sweep::new(
            shared.clone(),
            Arc::clone(&clock),
            Arc::new(callbacks),
            app.dispatcher.clone(),
        ));
        let on_change = {
            let (changes, sweep) = (app.changes.clone(), Arc::clone(&sweep));
            Arc::new(move || {
                changes.poke();
                sweep.poke();
            })
        };
        let results = ResultsWorker::new(
            shared.clone(),
            shared.clone(),
            Arc::clone(&clock),
            on_change,
        );
        let receiver = store.receiver(&QueueName::Results);
        let settling = {
            let stopped = stopped.clone();
            async move { results.run(&receiver, stopped).await }
        };
        let tasks = vec![
            tokio::spawn(settling),
            tokio::spawn(sweep.run(stopped.clone())),
            tokio::spawn(function::serve(listener, app, stopped)),
        ];
        let agent = match agent_config {
            Some(config) => Some(start_agent(config, &store, clock).await?),
            None => None,
        };
        Ok(Self {
            base,
            store,
            stop,
            tasks,
            agent,
        })
    }

    /// The front door's base URL.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Waits until the agent's first look at its host is settled, so that something can be placed.
    pub(super) async fn wait_for_inventory(&self) -> Result<()> {
        let looked = async {
            let mut tick = tokio::time::interval(Duration::from_millis(20));
            loop {
                tick.tick().await;
                let hosts = self.store.hosts().await?;
                if hosts.iter().any(|host| host.inventory.is_some()) {
                    return Ok::<_, anyhow::Error>(());
                }
            }
        };
        match tokio::time::timeout(FIRST_LOOK, looked).await {
            Ok(looked) => looked,
            Err(_) => bail!(
                "no host has reported within {} s: see `gpuhook-agent doctor`",
                FIRST_LOOK.as_secs()
            ),
        }
    }

    /// Stops the agent first, so that what it still reports is settled, then the rest.
    pub(super) async fn stop(self) {
        if let Some(agent) = self.agent {
            agent.shutdown().await;
        }
        // Nobody else holds the receiving ends when they are gone already.
        let _ = self.stop.send(true);
        for task in self.tasks {
            let _ = task.await;
        }
    }
}

/// Opens the backplane; makes it on a machine that never had one. A file that was there once and is
/// gone is not replaced: an empty store would forget what hosts still hold.
fn open(path: &Path, enrolled: bool, clock: &Arc<dyn Clock>) -> Result<SqliteBackplane> {
    let opened = if enrolled || has_beside(path, ".wake") {
        SqliteBackplane::open(path, Arc::clone(clock))
    } else {
        SqliteBackplane::create_or_open(path, Arc::clone(clock))
    };
    Ok(opened?)
}

async fn start_agent(
    config: agent::Config,
    store: &SqliteBackplane,
    clock: Arc<dyn Clock>,
) -> Result<Running> {
    let host = Host::new(&config);
    let receiver = Arc::new(store.receiver(&QueueName::Commands(config.host.clone())));
    let ends = Ends::of(&host, receiver, Arc::new(store.clone()), clock);
    agent::start(config, ends).await.context("start the agent")
}
