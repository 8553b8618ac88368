//! The agent's own server on loopback: `/healthz` and `/status`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::reconciler::Snapshot;
use crate::worker::Shared;

/// Polls are answered within 20 s; three missed ones are a fault.
const STALE_MS: i64 = 60_000;

/// What the doors read.
#[derive(Clone)]
pub struct Server {
    /// The ledger and the clock.
    pub shared: Arc<Shared>,
    /// What was last seen.
    pub snapshot: Arc<Mutex<Snapshot>>,
    /// Unix milliseconds of the last answered poll.
    pub polled_at_ms: Arc<AtomicI64>,
    /// Receipts that had run out before they were used.
    pub lost_receipts: Arc<AtomicU64>,
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
        json!({
            "host": self.shared.host,
            "healthy": faults.is_empty(),
            "faults": faults,
            "seconds_since_poll": self.since_poll_ms() / 1000,
            "lost_receipts": self.lost_receipts.load(Ordering::Relaxed),
            "limits": self.shared.limiter.describe(),
            "inventory": snapshot.inventory,
            "drift": snapshot.drift,
            "allocations": allocations.unwrap_or_default(),
        })
    }

    fn since_poll_ms(&self) -> i64 {
        self.shared.clock.now_ms() - self.polled_at_ms.load(Ordering::Relaxed)
    }

    fn faults(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut faults: Vec<_> = snapshot.error.iter().cloned().collect();
        if self.since_poll_ms() > STALE_MS {
            faults.push(format!(
                "the command queue has not answered for {} s",
                self.since_poll_ms() / 1000
            ));
        }
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
