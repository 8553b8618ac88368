//! Delivery of callbacks under Lambda: woken by the callback queue, and every minute. What an event says
//! does not matter: what is due is in the table.

use std::sync::Arc;

use backplane::aws::{Aws, DynamoStore};
use backplane::{Clock, SystemClock};
use function::callback::Callbacks;
use function::callback::exchange::Limits;
use function::callback::resolver::SystemResolver;
use function::config::Wanted;
use function::sweep::Sweep;
use serde_json::Value;

use crate::environment::Environment;
use crate::records;
use crate::run::Function;
use crate::secrets::{Files, Watched};

/// Delivers callbacks.
pub struct Deliver {
    watched: Watched,
    store: Arc<DynamoStore>,
    sweep: Arc<Sweep>,
}

impl Function for Deliver {
    async fn start(environment: &Environment) -> anyhow::Result<Self> {
        let aws = Aws::connect(&environment.connection()).await?;
        let store = Arc::new(DynamoStore::new(&aws, &environment.table));
        let (files, ()) = tokio::join!(Watched::start(&aws, &environment.secrets), store.warm());
        let (watched, files) = files?;
        Ok(Self {
            sweep: build(&files, &store)?,
            watched,
            store,
        })
    }

    /// Attempts everything that is due. Records are never asked for again: their rows stay due.
    async fn handle(&mut self, _: &Value) -> anyhow::Result<Value> {
        let refreshed = self.watched.refresh(|files| build(files, &self.store));
        if let Some(sweep) = refreshed.await {
            self.sweep = sweep;
        }
        self.sweep.once().await;
        Ok(records::answer(&[]))
    }
}

fn build(files: &Files, store: &Arc<DynamoStore>) -> anyhow::Result<Arc<Sweep>> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let callbacks = Callbacks::new(
        files.config(Wanted::DELIVERY)?.callbacks,
        Arc::new(SystemResolver),
        Arc::clone(&clock),
        Limits::default(),
    );
    Ok(Arc::new(Sweep::of_callbacks(
        store.clone(),
        clock,
        Arc::new(callbacks),
    )))
}
