//! The HTTP doors: one axum Router, the same under every server.
//!
//! ```text
//! request -> log, id, deadline -> path, method -> length, carrier -> body -> source -> signature
//!         -> idempotency look-up -> JSON -> operations -> policy -> placement -> accept -> queue -> 202
//! ```
//! Each step only sees what the step before it let through, and nothing is written before `accept`.

mod envelope;

mod body;

mod bearer;

mod prefer;

mod hooks;

mod vgpu;

mod release;

mod status;

mod listing;

mod view;

mod health;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::App;
use crate::problem::Problem;

/// All doors over one state.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/hooks/{source}", post(hooks::post))
        .route("/vgpu", post(vgpu::post))
        .route("/v1/deliveries/{id}", get(status::delivery))
        .route("/v1/operations", get(listing::operations))
        .route("/v1/operations/{id}", get(status::operation))
        .route("/v1/allocations", get(listing::allocations))
        // Keys have slashes, and some carriers decode `%2F` on the way.
        .route(
            "/v1/allocations/{*key}",
            get(status::allocation).delete(release::delete),
        )
        .route("/v1/hosts", get(listing::hosts))
        .route("/healthz", get(health::get))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(from_fn(envelope::around))
        .with_state(app)
}

async fn not_found() -> Response {
    Problem::not_found().into_response()
}

/// The router adds `Allow`.
async fn method_not_allowed() -> Response {
    let detail = "This path does not take this method; the Allow header tells which it takes";
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method-not-allowed",
        "Method not allowed",
        detail,
    )
    .into_response()
}
