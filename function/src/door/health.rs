//! `GET /healthz`: whether a webhook could be accepted now, as far as the store goes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::view;
use crate::App;
use crate::problem::Problem;

/// A store that takes longer is not healthy.
const DEADLINE: Duration = Duration::from_secs(2);

/// Answers the door.
pub(super) async fn get(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    match tokio::time::timeout(DEADLINE, app.reads.hosts()).await {
        Ok(Ok(_)) => Ok(view::ok(json!({"status": "ok"}))),
        Ok(Err(error)) => Err(Problem::store_unavailable(&error)),
        Err(_) => Err(Problem::unavailable(
            "store-unavailable",
            "The store does not answer in time",
        )),
    }
}
