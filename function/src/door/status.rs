//! One delivery, operation or allocation. What belongs to another tenant is not there.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use events::{AllocationId, AllocationKey, DeliveryId, OperationId};

use super::{bearer, prefer, view};
use crate::App;
use crate::problem::Problem;

/// `GET /v1/deliveries/{id}`.
pub(super) async fn delivery(
    State(app): State<Arc<App>>,
    id: Result<Path<DeliveryId>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let tenant = &bearer::caller(&app, &headers)?.principal.tenant;
    let Path(id) = id.map_err(|_| Problem::not_found())?;
    let records = view::operations(&app, tenant, id, prefer::wait(&headers)).await?;
    Ok(view::ok(view::delivery(
        id,
        records.ok_or_else(Problem::not_found)?,
    )))
}

/// `GET /v1/operations/{id}`.
pub(super) async fn operation(
    State(app): State<Arc<App>>,
    id: Result<Path<OperationId>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let tenant = &bearer::caller(&app, &headers)?.principal.tenant;
    let Path(id) = id.map_err(|_| Problem::not_found())?;
    let mut waiting = app.changes.wait(prefer::wait(&headers));
    loop {
        let found = app
            .reads
            .operation(tenant, id)
            .await
            .map_err(|error| Problem::store_unavailable(&error))?;
        let found = found.ok_or_else(Problem::not_found)?;
        if found.state.is_final() || !waiting.again().await {
            return Ok(view::ok(view::OperationView::of(found)));
        }
    }
}

/// `GET /v1/allocations/{key}`.
pub(super) async fn allocation(
    State(app): State<Arc<App>>,
    key: Result<Path<AllocationKey>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let tenant = &bearer::caller(&app, &headers)?.principal.tenant;
    let Path(key) = key.map_err(|_| Problem::not_found())?;
    let found = app
        .reads
        .allocation(tenant, AllocationId::of(tenant, &key))
        .await;
    let found = found.map_err(|error| Problem::store_unavailable(&error))?;
    Ok(view::ok(view::AllocationView::of(
        found.ok_or_else(Problem::not_found)?,
    )))
}
