//! `DELETE /v1/allocations/{key}`: a release operation, asked for with a bearer token that has a role.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use events::operation::Release;
use events::{AllocationKey, Operation, OperationId};
use uuid::Uuid;

use super::{bearer, hooks, prefer, vgpu, view};
use crate::App;
use crate::intake::{self, Arrival};
use crate::plan::Asked;
use crate::problem::Problem;

/// Answers the door. A body, should there be one, means nothing and is not read.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    key: Result<Path<AllocationKey>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let caller = bearer::caller(&app, &head.headers)?.clone();
    let Path(key) = key.map_err(|_| Problem::not_found())?;
    let id = vgpu::idempotency_key(&head.headers)?
        .unwrap_or_else(|| format!("fresh {}", Uuid::now_v7()));
    let (tenant, wait) = (caller.principal.tenant.clone(), prefer::wait(&head.headers));
    // The key stands for the body: the same Idempotency-Key on another key is a mismatch.
    let body = Bytes::from(key.to_string());
    let arrival = Arrival {
        caller,
        id,
        body,
        traceparent: hooks::traceparent(&head.headers),
    };
    let taken = intake::take(&app, arrival, read).await?;
    view::taken(&app, &tenant, taken, wait).await
}

fn read(body: &Bytes, _: &Arrival) -> Result<Vec<Asked>, Problem> {
    let key: Option<AllocationKey> = std::str::from_utf8(body)
        .ok()
        .and_then(|key| key.parse().ok());
    let operation = Operation::Release(Release {
        key: Some(key.ok_or_else(Problem::not_found)?),
        id: None,
    });
    Ok(vec![Asked {
        id: OperationId(Uuid::now_v7()),
        operation,
        pointer: String::new(),
    }])
}
