//! Results under Lambda: records are settled one by one, and only those that could not be now come again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backplane::aws::{Aws, DynamoStore, SqsSender};
use backplane::{Clock, SystemClock};
use function::results::ResultsWorker;
use serde_json::Value;

use crate::environment::Environment;
use crate::records;
use crate::run::Function;

/// How long records of an event are begun with. While the table does not answer each takes its deadline;
/// a function that runs out of time has said nothing of those that it has settled.
const BEGINNING: Duration = Duration::from_secs(8);

/// Settles results.
pub struct Results {
    worker: ResultsWorker,
    sender: SqsSender,
    moved: Arc<AtomicBool>,
    callback_queue_url: String,
}

impl Function for Results {
    async fn start(environment: &Environment) -> anyhow::Result<Self> {
        let aws = Aws::connect(&environment.connection()).await?;
        let store = Arc::new(DynamoStore::new(&aws, &environment.table));
        store.warm().await;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let moved = Arc::new(AtomicBool::new(false));
        let on_change = {
            let moved = Arc::clone(&moved);
            Arc::new(move || moved.store(true, Ordering::Relaxed))
        };
        Ok(Self {
            worker: ResultsWorker::new(store.clone(), store, clock, on_change),
            sender: SqsSender::new(&aws, environment.queues()),
            moved,
            callback_queue_url: environment.callback_queue_url.clone(),
        })
    }

    async fn handle(&mut self, event: &Value) -> anyhow::Result<Value> {
        let messages = records::messages(event)?;
        let failed = self.worker.handle_within(messages, BEGINNING).await;
        if self.moved.swap(false, Ordering::Relaxed) {
            wake(&self.sender, &self.callback_queue_url).await;
        }
        Ok(records::answer(&failed))
    }
}

/// Wakes the delivery of callbacks. If that fails, it looks by itself within a minute.
pub(crate) async fn wake(sender: &SqsSender, callback_queue_url: &str) {
    if let Err(error) = sender.wake(callback_queue_url, "due").await {
        tracing::warn!(%error, "the delivery of callbacks could not be woken; it looks every minute");
    }
}
