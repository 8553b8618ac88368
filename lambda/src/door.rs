//! The front door under Lambda: the Router of every other server, over a configuration that is looked at
//! again every five minutes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use backplane::aws::{Aws, DynamoStore, SqsSender};
use backplane::{Clock, SystemClock};
use function::config::Wanted;
use function::{App, Backplane, router};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;

use crate::environment::Environment;
use crate::gateway;
use crate::run::Function;
use crate::secrets::{Files, Watched};

/// The front door of one sandbox.
pub struct Door {
    watched: Watched,
    store: Arc<DynamoStore>,
    sender: Arc<SqsSender>,
    router: Router,
}

impl Function for Door {
    async fn start(environment: &Environment) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let aws = Aws::connect(&environment.connection()).await?;
        let store = Arc::new(DynamoStore::new(&aws, &environment.table));
        let sender = Arc::new(SqsSender::new(&aws, environment.queues()));
        let made = begun.elapsed();
        let (files, (), ()) = tokio::join!(
            Watched::start(&aws, &environment.secrets),
            store.warm(),
            sender.warm()
        );
        let (watched, files) = files?;
        let connected = begun.elapsed();
        let router = build(&files, &store, &sender)?;
        let built = begun.elapsed();
        // What a cold start is made of: `cargo xtask bench coldstart` reads it.
        tracing::info!(
            clients_ms = ms(made),
            network_ms = ms(connected - made),
            configuration_ms = ms(built - connected),
            "front door made"
        );
        Ok(Self {
            router,
            watched,
            store,
            sender,
        })
    }

    /// Answers an event. Whatever it holds, the next one is answered too.
    async fn handle(&mut self, event: &Value) -> anyhow::Result<Value> {
        let refreshed = self
            .watched
            .refresh(|files| build(files, &self.store, &self.sender));
        if let Some(router) = refreshed.await {
            self.router = router;
        }
        let request = match gateway::request(event) {
            Ok(request) => request,
            Err(malformed) => {
                tracing::warn!(reason = %malformed, "event refused");
                return Ok(gateway::refusal(malformed));
            }
        };
        let service = TowerToHyperService::new(self.router.clone());
        let Ok(response) = service.call(request).await;
        Ok(gateway::answer(response).await)
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn build(
    files: &Files,
    store: &Arc<DynamoStore>,
    sender: &Arc<SqsSender>,
) -> anyhow::Result<Router> {
    let backplane = Backplane {
        store: store.clone(),
        reads: store.clone(),
        sender: sender.clone(),
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let app = App::new(files.config(Wanted::DOOR)?, backplane, clock)?;
    Ok(router(Arc::new(app)))
}
