//! What callers read: rows of the store as JSON, each as its tenant may see it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use backplane::store::{AllocationRecord, AllocationState, HostView, OperationRecord};
use events::inventory::{GpuInventory, PartitionInventory};
use events::outcome::Allocated;
use events::{Failure, Operation, OperationState, Outcome, TenantName};
use jiff::Timestamp;
use placement::geometry::{Room, room};
use serde::Serialize;
use serde_json::{Value, json};

use crate::App;
use crate::intake::Taken;
use crate::problem::Problem;
use crate::results::disclosure;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// An operation.
#[derive(Serialize)]
pub(super) struct OperationView {
    op_id: String,
    delivery_id: String,
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    source: String,
    state: OperationState,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    revision: u64,
    accepted_at: String,
    changed_at: String,
    expires_at: String,
    status_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    /// What was asked for, with the placement decided.
    request: Operation,
}

impl OperationView {
    /// As its own tenant sees it.
    pub(super) fn of(record: OperationRecord) -> Self {
        let tenant = record.tenant;
        Self {
            op_id: record.id.to_string(),
            delivery_id: record.delivery.to_string(),
            op: record.operation.name(),
            key: record.operation.key().map(ToString::to_string),
            source: record.source.to_string(),
            state: record.state,
            host: record.host.map(|host| host.to_string()),
            revision: record.revision,
            accepted_at: time(record.accepted_at_ms),
            changed_at: time(record.changed_at_ms),
            expires_at: time(record.expires_at_s.saturating_mul(1000)),
            status_url: format!("/v1/operations/{}", record.id),
            outcome: record
                .outcome
                .map(|outcome| disclosure::for_tenant(outcome, &tenant)),
            failure: record.failure,
            request: record.operation,
        }
    }
}

/// An allocation.
#[derive(Serialize)]
pub(super) struct AllocationView {
    id: String,
    key: String,
    state: AllocationState,
    host: String,
    gpu: String,
    changed_at: String,
    request: Operation,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocated: Option<Allocated>,
}

impl AllocationView {
    /// As its own tenant sees it.
    pub(super) fn of(record: AllocationRecord) -> Self {
        Self {
            id: record.id.to_string(),
            key: record.key.to_string(),
            state: record.state,
            host: record.host.to_string(),
            gpu: record.gpu.to_string(),
            changed_at: time(record.changed_at_ms),
            request: record.spec,
            allocated: record.allocated,
        }
    }
}

/// A host: its GPUs with what is free, the tenant's own partitions, and others' as occupied.
pub(super) fn host(view: &HostView, tenant: &TenantName) -> Value {
    let gpus = view.inventory.iter().flat_map(|inventory| &inventory.gpus);
    json!({
        "host": view.record.host,
        "pools": view.record.pools,
        "last_heard_at": view.heard_at_ms.map(time),
        "driver_version": view.inventory.as_ref().map(|inventory| &inventory.driver_version),
        "gpus": gpus.map(|gpu| gpu_view(gpu, view, tenant)).collect::<Vec<_>>(),
    })
}

fn gpu_view(gpu: &GpuInventory, view: &HostView, tenant: &TenantName) -> Value {
    let profiles = gpu.profiles.iter().map(|profile| {
        let free = match room(gpu, &view.reserved, profile) {
            Room::For(free) if gpu.unavailable.is_none() => free,
            _ => 0,
        };
        json!({"profile": profile.profile, "memory_mib": profile.memory_mib, "max": profile.max_instances, "free": free})
    });
    json!({
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "index": gpu.index,
        "name": gpu.name,
        "memory_mib": gpu.memory_mib,
        "backend": gpu.backend,
        "unavailable": gpu.unavailable,
        "profiles": profiles.collect::<Vec<_>>(),
        "partitions": gpu.partitions.iter().map(|partition| partition_view(partition, tenant)).collect::<Vec<_>>(),
    })
}

/// Others' and foreign partitions hold capacity, which callers must see, and nothing else of them.
fn partition_view(partition: &PartitionInventory, tenant: &TenantName) -> Value {
    let owner = partition.owner.as_ref();
    let mut view = match owner.filter(|owner| owner.tenant == *tenant) {
        Some(owner) => json!({
            "id": partition.id, "profile": partition.profile, "allocation": owner.allocation, "in_use": partition.in_use,
        }),
        None if partition.spare => json!({"profile": partition.profile, "spare": true}),
        None => json!({"profile": partition.profile, "occupied": true}),
    };
    if let Some(slices) = partition.slices {
        view["slices"] = json!(slices);
    }
    if view["allocation"].is_string() {
        for (name, at_s) in [("since", partition.since), ("until", partition.until)] {
            if let Some(at_s) = at_s {
                view[name] = json!(time(at_s.saturating_mul(1000)));
            }
        }
    }
    view
}

/// RFC 3339.
fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| time.to_string())
}

/// The answer to a delivery: `202` as accepted or replayed; with a wait that saw every operation end,
/// `200` with the operations as they are.
pub(super) async fn taken(
    app: &Arc<App>,
    tenant: &TenantName,
    taken: Taken,
    wait: Duration,
) -> Result<Response, Problem> {
    let mut status = taken.status;
    let mut body = taken.response;
    if !wait.is_zero() && status == StatusCode::ACCEPTED {
        let records = operations(app, tenant, taken.delivery, wait).await?;
        if let Some(records) =
            records.filter(|records| records.iter().all(|record| record.state.is_final()))
        {
            status = StatusCode::OK;
            body = delivery(taken.delivery, records).to_string();
        }
    }
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/deliveries/{}", taken.delivery)) {
        headers.insert(header::LOCATION, location);
    }
    if status == StatusCode::ACCEPTED {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
    }
    if taken.replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// A delivery's operations, waiting up to `wait` for them to end.
pub(super) async fn operations(
    app: &App,
    tenant: &TenantName,
    id: events::DeliveryId,
    wait: Duration,
) -> Result<Option<Vec<OperationRecord>>, Problem> {
    let mut waiting = app.changes.wait(wait);
    loop {
        let found = app
            .reads
            .delivery(tenant, id)
            .await
            .map_err(|error| Problem::store_unavailable(&error))?;
        let ended = found.iter().flatten().all(|record| record.state.is_final());
        if ended || !waiting.again().await {
            return Ok(found);
        }
    }
}

/// A delivery with its operations.
pub(super) fn delivery(id: events::DeliveryId, records: Vec<OperationRecord>) -> Value {
    let operations: Vec<_> = records.into_iter().map(OperationView::of).collect();
    json!({"delivery_id": id, "operations": operations})
}

/// JSON, 200.
pub(super) fn ok(body: impl Serialize) -> Response {
    Json(body).into_response()
}
