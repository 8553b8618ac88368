//! The parts of `gpuhook up` in this process, over a flaky backplane and shifted clocks. The agent
//! can be stopped and started by itself.

use std::sync::Arc;

use agent::{Ends, Host, Running};
use anyhow::{Context, Result};
use backplane::sqlite::SqliteBackplane;
use backplane::{Clock, QueueName};
use function::callback::Callbacks;
use function::callback::exchange::Limits;
use function::callback::resolver::SystemResolver;
use function::results::ResultsWorker;
use function::sweep::Sweep;
use function::{App, Backplane};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::clock::ShiftedClock;
use super::dice::Dice;
use super::flaky::{Flaky, FlakyReceiver};
use crate::site::Site;

/// The running parts.
pub(super) struct Machine {
    runtime: Runtime,
    pub(super) flaky: Flaky,
    pub(super) store_clock: ShiftedClock,
    pub(super) host_clock: ShiftedClock,
    config: std::path::PathBuf,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    sweep: Arc<Sweep>,
    agent: Option<Running>,
}

impl Machine {
    pub(super) fn start(site: &Site, dice: &Arc<Dice>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let store_clock = ShiftedClock::default();
        let clock: Arc<dyn Clock> = Arc::new(store_clock.clone());
        let mut config = function::Config::load(&site.folder.join("gpuhook.toml"))?;
        let _inside = runtime.enter();
        let store = SqliteBackplane::create_or_open(
            config.store_path.as_ref().context("store.path")?,
            Arc::clone(&clock),
        )?;
        let flaky = Flaky::new(store, Arc::clone(dice));
        let callbacks = Callbacks::new(
            std::mem::take(&mut config.callbacks),
            Arc::new(SystemResolver),
            Arc::clone(&clock),
            Limits::default(),
        );
        let listen = config.listen;
        let shared = Arc::new(flaky.clone());
        let backplane = Backplane {
            store: shared.clone(),
            reads: shared.clone(),
            sender: shared.clone(),
        };
        let app = Arc::new(App::new(config, backplane, Arc::clone(&clock))?);
        runtime.block_on(app.enrol_hosts())?;
        let listener = runtime.block_on(TcpListener::bind(listen))?;
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
        let results = ResultsWorker::new(shared.clone(), shared, clock, on_change);
        let receiver = FlakyReceiver {
            inner: Arc::new(flaky.inner.receiver(&QueueName::Results)),
            dice: Arc::clone(dice),
            places: ["receive a result", "acknowledge a result"],
        };
        let settling = {
            let stopped = stopped.clone();
            async move { results.run(&receiver, stopped).await }
        };
        let tasks = vec![
            tokio::spawn(settling),
            tokio::spawn(Arc::clone(&sweep).run(stopped.clone())),
            tokio::spawn(function::serve(listener, app, stopped)),
        ];
        let mut machine = Self {
            flaky,
            store_clock,
            host_clock: ShiftedClock::default(),
            config: site.folder.join("agent.toml"),
            stop,
            tasks,
            sweep,
            agent: None,
            runtime,
        };
        machine.start_agent()?;
        Ok(machine)
    }

    /// Starts the agent.
    pub(super) fn start_agent(&mut self) -> Result<()> {
        let config = agent::Config::load(&self.config)?;
        // As `gpuhook` runs itself for kernel writes; this program has no such subcommand.
        let writer = std::env::current_exe()?.with_file_name("gpuhook-agent");
        let host = Host::with_writer(&config, writer);
        let queue = QueueName::Commands(config.host.clone());
        let receiver = FlakyReceiver {
            inner: Arc::new(self.flaky.inner.receiver(&queue)),
            dice: Arc::clone(&self.flaky.dice),
            places: ["receive a command", "acknowledge a command"],
        };
        let ends = Ends::of(
            &host,
            Arc::new(receiver),
            Arc::new(self.flaky.clone()),
            Arc::new(self.host_clock.clone()),
        );
        let started = self.runtime.block_on(agent::start(config, ends));
        self.agent = Some(started.context("start the agent")?);
        Ok(())
    }

    /// Stops the agent in order.
    pub(super) fn stop_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            self.runtime.block_on(agent.shutdown());
        }
    }

    /// What the agent says of itself.
    pub(super) fn agent_status(&self) -> serde_json::Value {
        self.agent.as_ref().map(Running::status).unwrap_or_default()
    }

    /// Hands on what the queue keeps back, and lets the sweep look.
    pub(super) fn nudge(&self) -> Result<()> {
        self.sweep.poke();
        Ok(self.runtime.block_on(self.flaky.let_go())?)
    }

    /// Asks the store itself.
    pub(super) fn ask<T>(&self, question: impl Future<Output = T>) -> T {
        self.runtime.block_on(question)
    }

    /// Stops everything.
    pub(super) fn stop(mut self) {
        self.stop_agent();
        let _ = self.stop.send(true);
        for task in std::mem::take(&mut self.tasks) {
            let _ = self.runtime.block_on(task);
        }
    }
}
