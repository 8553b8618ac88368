//! The sweep under Lambda: once a minute, commands that were accepted and never sent are sent again, and
//! overdue operations are judged.

use std::sync::Arc;

use backplane::aws::{Aws, DynamoStore, SqsSender};
use backplane::{Clock, SystemClock};
use function::Dispatcher;
use function::config::Wanted;
use function::sweep::Sweep;
use serde_json::Value;

use crate::environment::Environment;
use crate::results::wake;
use crate::run::Function;
use crate::secrets::{Files, Watched};

/// Sweeps operations.
pub struct Sweeper {
    watched: Watched,
    store: Arc<DynamoStore>,
    sender: Arc<SqsSender>,
    sweep: Arc<Sweep>,
    callback_queue_url: String,
}

impl Function for Sweeper {
    async fn start(environment: &Environment) -> anyhow::Result<Self> {
        let aws = Aws::connect(&environment.connection()).await?;
        let store = Arc::new(DynamoStore::new(&aws, &environment.table));
        let sender = Arc::new(SqsSender::new(&aws, environment.queues()));
        let (files, ()) = tokio::join!(Watched::start(&aws, &environment.secrets), store.warm());
        let (watched, files) = files?;
        Ok(Self {
            sweep: build(&files, &store, &sender)?,
            watched,
            store,
            sender,
            callback_queue_url: environment.callback_queue_url.clone(),
        })
    }

    /// Does what is due.
    async fn handle(&mut self, _: &Value) -> anyhow::Result<Value> {
        let refreshed = self
            .watched
            .refresh(|files| build(files, &self.store, &self.sender));
        if let Some(sweep) = refreshed.await {
            self.sweep = sweep;
        }
        let before = self.sweep.expired();
        self.sweep.once().await;
        if self.sweep.expired() > before {
            wake(&self.sender, &self.callback_queue_url).await;
        }
        Ok(Value::Null)
    }
}

fn build(
    files: &Files,
    store: &Arc<DynamoStore>,
    sender: &Arc<SqsSender>,
) -> anyhow::Result<Arc<Sweep>> {
    let config = files.config(Wanted::SWEEP)?;
    let dispatcher = Dispatcher {
        signing_key: config
            .signing_key
            .ok_or_else(|| anyhow::anyhow!("gpuhook.toml has no [signing]"))?,
        sender: sender.clone(),
        store: store.clone(),
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Ok(Arc::new(Sweep::of_operations(
        store.clone(),
        clock,
        Arc::new(dispatcher),
    )))
}
