//! The agent's own server on loopback: `/healthz` and `/status`.

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::keys::Keys;
use crate::polls::Polls;
use crate::reconciler::Snapshot;
use crate::worker::Shared;

/// What the doors read.
#[derive(Clone)]
pub struct Server {
    /// The ledger and the clock.
    pub shared: Arc<Shared>,
    /// What was last seen.
    pub snapshot: Arc<Mutex<Snapshot>>,
    /// How polling goes.
    pub polls: Arc<Polls>,
    /// Whom commands are trusted by.
    pub keys: Arc<Keys>,
}

impl Server {
    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(healthz))
            .route("/status", get(status))
            .with_state(self)
    }

    /// The whole status, as JSON.
    #[must_use]
    pub fn status(&self) -> Value {
        let snapshot = self
            .snapshot
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        let allocations = self.shared.ledger.allocations();
        let faults = self.faults(&snapshot);
        let keys = self.keys.now();
        let key_ids = keys.keys.iter().map(|key| key.id());
        json!({
            "host": self.shared.host,
            "healthy": faults.is_empty(),
            "faults": faults,
            "seconds_since_poll": self.polls.silent_s(self.shared.clock.now_ms()),
            "failed_polls": self.polls.failed(),
            "lost_receipts": self.polls.lost_receipts(),
            "queue_clock_ahead_s": self.polls.ahead_s(),
            "keyset": { "version": keys.version, "key_ids": key_ids.collect::<Vec<_>>() },
            "limits": self.shared.limiter.describe(),
            "inventory": snapshot.inventory,
            "drift": snapshot.drift,
            "allocations": allocations.unwrap_or_default(),
        })
    }

    fn faults(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut faults: Vec<_> = snapshot.error.iter().cloned().collect();
        faults.extend(self.polls.faults(self.shared.clock.now_ms()));
        if let Err(error) = self.shared.ledger.allocations() {
            faults.push(crate::chain(&error));
        }
        faults
    }
}

async fn healthz(State(server): State<Server>) -> (StatusCode, Json<Value>) {
    let snapshot = server
        .snapshot
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .clone();
    let faults = server.faults(&snapshot);
    let status = if faults.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        Json(json!({ "healthy": faults.is_empty(), "faults": faults })),
    )
}

async fn status(State(server): State<Server>) -> Json<Value> {
    Json(
        tokio::task::spawn_blocking(move || server.status())
            .await
            .unwrap_or_default(),
    )
}
