//! What a settled event owes to its caller: one callback per endpoint that the operation names.
//!
//! The body is a CloudEvent of our own making: the host's event names what happened, the store's
//! record says to whom it matters. Nothing of the host's inventory goes out.

use backplane::store::{NewCallback, OperationRecord};
use backplane::{Reads, StoreError};
use events::result::{EventData, EventKind, HostEvent, ResultEvent};
use events::{
    AllocationId, AllocationKey, DeliveryId, Failure, HostName, Operation, OperationId,
    OperationState, Outcome, TenantName,
};
use serde::Serialize;

use super::disclosure;

/// CloudEvents `source` of what no host has said.
const FUNCTION: &str = "/function";
/// Rows of a page, when an allocation's operation is looked for.
const PAGE: usize = 200;
/// Pages looked through: a tenant's last 20,000 operations.
const MAX_PAGES: usize = 100;

/// A callback's body.
#[derive(Serialize)]
struct Notice<'a> {
    specversion: &'static str,
    id: String,
    source: &'a str,
    #[serde(rename = "type")]
    kind: EventKind,
    subject: &'a str,
    time: &'a str,
    datacontenttype: &'static str,
    sequence: u64,
    tenant: &'a TenantName,
    data: NoticeData<'a>,
}

/// A callback's payload.
#[derive(Serialize)]
struct NoticeData<'a> {
    /// The operation; for `allocation.*` the one that made the allocation.
    op_id: OperationId,
    /// The webhook that asked for it.
    delivery_id: DeliveryId,
    /// What was asked for, as it is spelt on the wire.
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a AllocationKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation: Option<AllocationId>,
    /// The operation's final state; absent for `allocation.*`, which move no operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<OperationState>,
    status_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Failure>,
}

/// The callbacks that `event` owes, none for events that nobody waits for.
pub(super) async fn callbacks(
    event: &HostEvent,
    reads: &dyn Reads,
) -> Result<Vec<NewCallback>, StoreError> {
    let (host, event) = (&event.host, &event.event);
    let record = match event.kind.state() {
        Some(state) if state.is_final() => match event.data.op_id {
            Some(id) => reads.operation_for_host(host, id).await?,
            None => None,
        },
        Some(_) => None,
        None => maker(host, event, reads).await?,
    };
    let Some(record) = record.filter(|record| !record.callbacks.is_empty()) else {
        return Ok(Vec::new());
    };
    let body = body(event, &record)?;
    Ok(to_each(&record, &event.subject, event.sequence, &body))
}

/// The callbacks of an operation that was settled when it was accepted: it has no host, so this
/// front door speaks, under the sequence that no host uses.
pub(super) fn at_once(record: &OperationRecord) -> Result<Vec<NewCallback>, StoreError> {
    let kind = match record.state {
        OperationState::Succeeded => EventKind::OperationSucceeded,
        OperationState::Failed => EventKind::OperationFailed,
        OperationState::Refused => EventKind::OperationRefused,
        OperationState::Expired => EventKind::OperationExpired,
        OperationState::Queued | OperationState::Running => return Ok(Vec::new()),
    };
    let time = jiff::Timestamp::from_millisecond(record.changed_at_ms)
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let event = ResultEvent {
        specversion: "1.0".to_owned(),
        id: format!("{}.0", record.id),
        source: FUNCTION.to_owned(),
        kind,
        subject: record.id.to_string(),
        time: time.to_string(),
        datacontenttype: "application/json".to_owned(),
        sequence: 0,
        tenant: Some(record.tenant.clone()),
        data: EventData {
            op_id: Some(record.id),
            allocation: record.operation.allocation(&record.tenant),
            revision: Some(record.revision),
            outcome: record.outcome.clone(),
            failure: record.failure.clone(),
            inventory: None,
        },
    };
    let body = body(&event, record)?;
    Ok(to_each(record, &event.subject, event.sequence, &body))
}

fn to_each(record: &OperationRecord, subject: &str, sequence: u64, body: &str) -> Vec<NewCallback> {
    // Without a '.': the signed text is `id.timestamp.body`, and a dot in the id would make it
    // ambiguous (webhook facts §1.1).
    let webhook_id = format!("msg_{subject}_{sequence}");
    let callback = |endpoint: &String| NewCallback {
        endpoint: endpoint.clone(),
        webhook_id: webhook_id.clone(),
        body: body.to_owned(),
    };
    record.callbacks.iter().map(callback).collect()
}

fn body(event: &ResultEvent, record: &OperationRecord) -> Result<String, StoreError> {
    let outcome = event.data.outcome.clone();
    let notice = Notice {
        specversion: "1.0",
        id: format!("{}.{}", event.subject, event.sequence),
        source: &event.source,
        kind: event.kind,
        subject: &event.subject,
        time: &event.time,
        datacontenttype: "application/json",
        sequence: event.sequence,
        tenant: &record.tenant,
        data: NoticeData {
            op_id: record.id,
            delivery_id: record.delivery,
            op: record.operation.name(),
            key: record.operation.key(),
            allocation: event.data.allocation,
            state: event.kind.state(),
            status_url: format!("/v1/operations/{}", record.id),
            outcome: outcome.map(|outcome| disclosure::for_tenant(outcome, &record.tenant)),
            failure: event.data.failure.as_ref(),
        },
    };
    serde_json::to_string(&notice).map_err(|error| StoreError {
        context: "write a callback's body".to_owned(),
        source: Some(Box::new(error)),
    })
}

/// The operation that made the allocation of an `allocation.*` event: its caller is told of its end.
async fn maker(
    host: &HostName,
    event: &ResultEvent,
    reads: &dyn Reads,
) -> Result<Option<OperationRecord>, StoreError> {
    let (Some(tenant), Some(allocation)) = (&event.tenant, event.data.allocation) else {
        return Ok(None);
    };
    // A host speaks for its own allocations only, whatever tenant it names.
    let known = reads.allocation(tenant, allocation).await?;
    let Some(known) = known.filter(|known| known.host == *host) else {
        return Ok(None);
    };
    if let Some(id) = event.data.op_id {
        let named = reads.operation_for_host(host, id).await?;
        let named = named.filter(|record| made(record, tenant, host, &known.key));
        if named.is_some() {
            return Ok(named);
        }
    }
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let page = reads.operations(tenant, cursor.as_deref(), PAGE).await?;
        let newest = page
            .items
            .into_iter()
            .find(|record| made(record, tenant, host, &known.key));
        if newest.is_some() || page.next.is_none() {
            return Ok(newest);
        }
        cursor = page.next;
    }
    tracing::error!(host = %host, allocation.id = %allocation, "no callback: the operation that made the allocation is too long ago");
    Ok(None)
}

fn made(
    record: &OperationRecord,
    tenant: &TenantName,
    host: &HostName,
    key: &AllocationKey,
) -> bool {
    record.tenant == *tenant
        && record.host.as_ref() == Some(host)
        && record.state == OperationState::Succeeded
        && matches!(&record.operation, Operation::Allocate(allocate) if allocate.key == *key)
}
