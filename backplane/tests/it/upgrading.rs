//! Backplanes of earlier versions, one of each kept for ever: this version works them to the end.

use std::sync::Arc;
use std::time::Duration;

use backplane::sqlite::SqliteBackplane;
use backplane::store::{AllocationState, Due, DueKinds, Settlement};
use backplane::{QueueName, Reads, Receiver, Store};
use events::result::EventKind;
use events::{OperationId, OperationState, TenantName};

use crate::implementation::ManualClock;
use crate::sample::{delivery, host, new, of_operation, release};

/// Left by version 1, killed with two operations running, a message in a queue, callbacks that had
/// failed, a reservation, tombstones and a dead letter.
const VERSION_1: &str = include_str!("../data/old/backplane-1.sql");
/// When it was left, Unix milliseconds.
const LEFT_MS: i64 = 1_796_124_191_000;
/// The allocate that was running.
const RUNNING: &str = "01a23158-2357-75e2-9c71-dc5d2222d725";

#[tokio::test]
async fn a_backplane_of_version_1_is_worked_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backplane.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(VERSION_1).unwrap();
    connection.close().unwrap();
    let clock = ManualClock::start();
    let ahead = LEFT_MS - crate::implementation::START_MS;
    clock.advance(Duration::from_millis(ahead.unsigned_abs()));
    let backplane = SqliteBackplane::open(&path, clock.clone()).unwrap();
    let acme: TenantName = "acme".parse().unwrap();

    let operations = backplane.operations(&acme, None, 100).await.unwrap().items;
    let states: Vec<_> = operations.iter().map(|record| record.state).collect();
    assert_eq!(operations.len(), 8);
    assert_eq!(
        states
            .iter()
            .filter(|state| **state == OperationState::Running)
            .count(),
        2
    );
    let allocations = backplane.allocations(&acme, None, 100).await.unwrap().items;
    let live = allocations
        .iter()
        .filter(|record| record.state == AllocationState::Live);
    assert_eq!((allocations.len(), live.count()), (3, 2));
    let view = backplane.host(&host("gpu-1")).await.unwrap().unwrap();
    assert!(view.inventory.is_some());
    assert_eq!(view.reserved.len(), 1);
    assert_eq!(backplane.dead_letters(10).await.unwrap().len(), 1);

    let receiver = backplane.receiver(&QueueName::Commands(host("gpu-1")));
    let message = receiver.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(message.body, "kept");
    receiver.ack(&message.receipt).await.unwrap();

    let id: OperationId = RUNNING.parse().unwrap();
    let record = backplane.operation(&acme, id).await.unwrap().unwrap();
    let mut failed = of_operation(&record, EventKind::OperationFailed, 99, None);
    failed.event.tenant = Some(acme.clone());
    let settled = backplane.settle(failed, Vec::new(), LEFT_MS).await.unwrap();
    assert!(matches!(settled, Settlement::Applied(_)), "{settled:?}");
    let view = backplane.host(&host("gpu-1")).await.unwrap().unwrap();
    assert_eq!(view.reserved, [], "what was reserved is free");

    clock.advance(Duration::from_secs(3600));
    let now_ms = LEFT_MS + 3_600_000;
    let due = backplane
        .claim_due(DueKinds::All, now_ms, 60_000, 100)
        .await
        .unwrap();
    let callbacks = due.iter().filter(|due| matches!(due, Due::Callback(_)));
    assert_eq!(callbacks.count(), 2, "{due:?}");
    let accepted = backplane
        .accept(delivery(1, now_ms, vec![new(release("one"), "gpu-1")]))
        .await;
    accepted.unwrap();
}

/// Whoever raises the backplane's version keeps a backplane of the one before.
#[tokio::test]
async fn there_is_a_backplane_of_every_version_before_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("backplane.db");
    let clock: Arc<ManualClock> = ManualClock::start();
    drop(SqliteBackplane::create_or_open(&path, clock).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    let version: u32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    let kept = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/old");
    for earlier in 1..=version {
        let file = kept.join(format!("backplane-{earlier}.sql"));
        assert!(file.exists(), "{} is missing", file.display());
    }
}
