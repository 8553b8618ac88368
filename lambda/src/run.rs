//! What every function does at its start, and its loop.

use std::sync::Arc;
use std::time::Instant;

use lambda_runtime::{LambdaEvent, service_fn};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::environment::Environment;

/// A function: started once per sandbox, then given one event after the other.
pub trait Function: Sized {
    /// Makes everything that can be made before the first event.
    fn start(environment: &Environment) -> impl Future<Output = anyhow::Result<Self>>;

    /// Answers an event. An error makes Lambda try the event again, where the event's source does.
    fn handle(&mut self, event: &Value) -> impl Future<Output = anyhow::Result<Value>>;
}

/// Runs a function. A start that fails ends the process with its reason; Lambda tries again.
///
/// # Errors
/// The start failed, or Lambda's runtime API is gone.
pub fn run<F: Function>() -> anyhow::Result<()> {
    log();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let begun = Instant::now();
        let started = match Environment::read() {
            Ok(environment) => F::start(&environment).await,
            Err(error) => Err(error.into()),
        };
        let function = started.inspect_err(|error| {
            let error = format!("{error:#}");
            tracing::error!(alert = "start", error, "the function cannot start");
        })?;
        let init_ms = begun.elapsed().as_secs_f64() * 1000.0;
        tracing::info!(init_ms, "started");
        let function = Arc::new(Mutex::new(function));
        let events = service_fn(|event: LambdaEvent<Value>| {
            let function = Arc::clone(&function);
            async move {
                let answer = function.lock().await.handle(&event.payload).await;
                answer.map_err(|error| lambda_runtime::Error::from(format!("{error:#}")))
            }
        });
        let ran = lambda_runtime::run(events).await;
        ran.map_err(|error| anyhow::anyhow!("the runtime API has ended: {error}"))
    })
}

/// JSON lines, as CloudWatch reads them.
fn log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    tracing_subscriber::fmt()
        .json()
        .with_env_filter(filter.unwrap_or_else(|_| "info".into()))
        .with_writer(std::io::stderr)
        .init();
}
