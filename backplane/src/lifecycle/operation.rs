//! Operations: from acceptance to a final state, forward only.

use std::collections::BTreeMap;

use events::outcome::Failure;
use events::result::ResultEvent;
use events::{AllocationId, Code, HostName, Operation, OperationState};

use super::{Contract, Observation};
use crate::store::{Acceptance, Ending, NewOperation, OperationRecord, Route};

/// Whether an allocation of a delivery would be placed on what is no longer so: beside the host that
/// already holds it, or on a host that changed since placement looked at it. Asked before this
/// delivery's own reservations, so that several on one host do not trip over each other.
pub(crate) fn capacity_moved<E>(
    acceptance: &Acceptance,
    holder: impl Fn(AllocationId) -> Result<Option<HostName>, E>,
    version: impl Fn(&HostName) -> Result<Option<u64>, E>,
) -> Result<bool, E> {
    let mut placed: BTreeMap<AllocationId, HostName> = BTreeMap::new();
    for new in &acceptance.operations {
        let (Route::Host { host, .. }, Operation::Allocate(_)) = (&new.route, &new.operation)
        else {
            continue;
        };
        let Some(id) = new.operation.allocation(&acceptance.tenant) else {
            continue;
        };
        let held = match placed.get(&id) {
            Some(host) => Some(host.clone()),
            None => holder(id)?,
        };
        if is_stale(&new.route, held.as_ref(), version(host)?) {
            return Ok(true);
        }
        placed.insert(id, host.clone());
    }
    Ok(false)
}

fn is_stale(route: &Route, holder: Option<&HostName>, version: Option<u64>) -> bool {
    let Route::Host {
        host,
        reservation,
        host_version,
        ..
    } = route
    else {
        return false;
    };
    match holder {
        Some(holder) => holder != host,
        None => reservation.is_some() && version != Some(*host_version),
    }
}

/// How an allocate ends whose key was released before it.
pub(crate) fn overtaken() -> Ending {
    let text = "the key was released before it was allocated; use another key";
    Ending {
        state: OperationState::Refused,
        outcome: None,
        failure: Some(Failure::new(Code::ReleasedBeforeAllocate, text)),
    }
}

/// The record of an operation that is being accepted, before it is given its revision. `overtaken` wins
/// over its route.
pub(crate) fn record(
    acceptance: &Acceptance,
    new: &NewOperation,
    overtaken: Option<&Ending>,
) -> Result<OperationRecord, Contract> {
    let (host, group, ending) = match (&new.route, overtaken) {
        (_, Some(ending)) | (Route::Settled(ending), None) => (None, String::new(), Some(ending)),
        (Route::Host { host, group, .. }, None) => (Some(host.clone()), group.clone(), None),
    };
    if ending.is_some_and(|ending| !ending.state.is_final()) {
        return Err(Contract("an operation settled at once needs a final state"));
    }
    Ok(OperationRecord {
        id: new.id,
        delivery: acceptance.delivery,
        tenant: acceptance.tenant.clone(),
        source: acceptance.source.clone(),
        operation: new.operation.clone(),
        host,
        revision: 0,
        group,
        state: ending.map_or(OperationState::Queued, |ending| ending.state),
        sent: ending.is_some(),
        accepted_at_ms: acceptance.now_ms,
        changed_at_ms: acceptance.now_ms,
        expires_at_s: new.expires_at_s,
        outcome: ending.and_then(|ending| ending.outcome.clone()),
        failure: ending.and_then(|ending| ending.failure.clone()),
        callbacks: new.callbacks.clone(),
        traceparent: new.traceparent.clone(),
    })
}

/// Whether an event speaks of this operation: it is its host's, and its tenant's.
pub(crate) fn is_for(record: &OperationRecord, event: &ResultEvent, host: &HostName) -> bool {
    record.host.as_ref() == Some(host) && event.tenant.as_ref() == Some(&record.tenant)
}

/// Moves an operation to the state that an event reports. Whether it moved: never back.
pub(crate) fn advance(
    record: &mut OperationRecord,
    event: &ResultEvent,
    next: OperationState,
    seen: &Observation<'_>,
) -> bool {
    if !record.state.may_become(next) {
        return false;
    }
    record.state = next;
    record.changed_at_ms = seen.now_ms;
    // It has arrived: nothing is to be sent again.
    record.sent = true;
    if next.is_final() {
        record.outcome.clone_from(&event.data.outcome);
        record.failure.clone_from(&event.data.failure);
    }
    true
}
