//! Conformance: an operation whose host never took it ends on that host's own evidence, and on
//! nothing else.

use std::time::Duration;

use backplane::store::{AllocationState, Due, OVERDUE_S, OperationRecord, Settlement};
use events::inventory::{HostInventory, PartitionInventory, PartitionOwner};
use events::result::{EventData, EventKind};
use events::{Code, OperationState};

use crate::implementation::Backplane;
use crate::sample::{callback, event, id_of, inventory, of_operation, owed, placed, tenant};

conforms!(
    silence_alone_expires_nothing,
    the_hosts_own_evidence_expires_and_frees,
    a_host_that_knows_the_allocation_is_no_evidence,
    what_has_started_is_never_expired_by_the_store,
    a_late_word_of_the_host_changes_no_final_state,
);

const EXPIRY: Duration = Duration::from_secs(900);

async fn expire(backplane: &Backplane, record: &OperationRecord) -> Option<OperationRecord> {
    let expired = backplane
        .store
        .expire(record.id, owed, backplane.now_ms())
        .await;
    expired.unwrap()
}

async fn observed(backplane: &Backplane, sequence: u64, inventory: HostInventory) {
    let data = EventData {
        inventory: Some(inventory),
        ..EventData::default()
    };
    let event = event("t4", EventKind::HostObserved, sequence, data);
    backplane.settle(event).await;
}

async fn overdue(backplane: &Backplane, key: &str) -> OperationRecord {
    backplane.enrol("t4").await;
    let mut wanted = placed(key, "t4", backplane.version("t4").await);
    wanted.callbacks = vec!["hooks".to_owned()];
    let record = backplane.accept(1, vec![wanted]).await.remove(0);
    backplane.store.mark_sent(record.id).await.unwrap();
    backplane.clock.advance(EXPIRY);
    backplane
        .clock
        .advance(Duration::from_secs(OVERDUE_S.unsigned_abs()));
    record
}

/// The moment from which a host's inventory is evidence.
fn evident_ms(record: &OperationRecord) -> i64 {
    (record.expires_at_s + OVERDUE_S) * 1000
}

async fn silence_alone_expires_nothing(backplane: Backplane) {
    let record = overdue(&backplane, "one").await;
    assert_eq!(expire(&backplane, &record).await, None, "never heard of");
    observed(&backplane, 1, inventory("t4", evident_ms(&record) - 1)).await;
    backplane.clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(expire(&backplane, &record).await, None, "an older look");
    assert_eq!(backplane.reserved("t4").await, 1);
}

async fn the_hosts_own_evidence_expires_and_frees(backplane: Backplane) {
    let record = overdue(&backplane, "one").await;
    observed(&backplane, 1, inventory("t4", evident_ms(&record))).await;
    let expired = expire(&backplane, &record).await.unwrap();
    assert_eq!(expired.state, OperationState::Expired);
    assert_eq!(expired.failure.unwrap().code, Code::HostSilent);
    assert_eq!(backplane.reserved("t4").await, 0);
    let allocation = backplane.reads.allocation(&tenant(), id_of("one")).await;
    assert_eq!(
        allocation.unwrap().unwrap().state,
        AllocationState::Ended,
        "the key is free again"
    );
    let due = backplane.due(10).await;
    assert!(
        matches!(&due[..], [Due::Callback(told)] if told.webhook_id == format!("{}_expired", record.id)),
        "the caller is told, and nothing is sent any more: {due:?}"
    );
    assert_eq!(expire(&backplane, &record).await, None, "once");
}

async fn a_host_that_knows_the_allocation_is_no_evidence(backplane: Backplane) {
    let record = overdue(&backplane, "one").await;
    let mut seen = inventory("t4", evident_ms(&record));
    seen.gpus[0].partitions.push(PartitionInventory {
        owner: Some(PartitionOwner {
            tenant: tenant(),
            allocation: id_of("one"),
        }),
        ..PartitionInventory::foreign(id_of("one").partition(0), "T4-4Q".parse().unwrap())
    });
    observed(&backplane, 1, seen).await;
    assert_eq!(expire(&backplane, &record).await, None);
}

async fn what_has_started_is_never_expired_by_the_store(backplane: Backplane) {
    let record = overdue(&backplane, "one").await;
    backplane
        .settle(of_operation(&record, EventKind::OperationAccepted, 1, None))
        .await;
    observed(&backplane, 2, inventory("t4", evident_ms(&record))).await;
    assert_eq!(expire(&backplane, &record).await, None);
}

async fn a_late_word_of_the_host_changes_no_final_state(backplane: Backplane) {
    let record = overdue(&backplane, "one").await;
    observed(&backplane, 1, inventory("t4", evident_ms(&record))).await;
    let expired = expire(&backplane, &record).await.unwrap();
    for (sequence, kind) in [
        (2, EventKind::OperationExpired),
        (3, EventKind::OperationAccepted),
    ] {
        let event = of_operation(&record, kind, sequence, None);
        let settled = backplane
            .store
            .settle(event, vec![callback("late")], backplane.now_ms())
            .await;
        assert_eq!(settled.unwrap(), Settlement::Stale);
    }
    let known = backplane.reads.operation(&tenant(), record.id).await;
    assert_eq!(known.unwrap().unwrap(), expired);
}
