//! Ledgers of earlier versions, one of each kept for ever: this version works them to the end.

use events::result::EventKind;
use events::{OperationId, OperationState};

use crate::fake::GPU;
use crate::machine::Machine;

/// A ledger of an earlier version, killed with an allocate at its second partition, a release behind
/// it, a removal that had failed, an event that was not sent, a GPU in quarantine, a tombstone and a
/// dead letter.
struct Old {
    sql: &'static str,
    /// The last sequence that it used, of an event that was not sent.
    last: u64,
    /// Its open operations: the allocate called `open`, and the release of `live`.
    open: [&'static str; 2],
}

const VERSION_1: Old = Old {
    sql: include_str!("../data/old/ledger-1.sql"),
    last: 15,
    open: [
        "01a23158-2357-75e2-9c71-dc5d2222d725",
        "01a23158-294e-73c4-9c7c-55a0f27049d8",
    ],
};
const VERSION_2: Old = Old {
    sql: include_str!("../data/old/ledger-2.sql"),
    last: 1_796_145_219_763,
    open: [
        "01a23299-158d-7599-9d40-bac6954cb3dc",
        "01a23299-1b8f-70b1-b010-4d80b4216319",
    ],
};
/// The GPUs that it names.
const GPUS: [&str; 2] = [
    "GPU-a517fd27-99e6-5445-8861-e924d04d1899",
    "GPU-778b3bad-d358-5932-a8de-0f08602199ca",
];
fn lay_out(folder: &std::path::Path, sql: &str) {
    let state = folder.join("agent");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("enrolled"), "").unwrap();
    let connection = rusqlite::Connection::open(state.join("ledger.db")).unwrap();
    connection.execute_batch(sql).unwrap();
    connection.close().unwrap();
}

#[tokio::test]
async fn a_ledger_of_version_1_is_worked_to_its_end() {
    work_to_the_end(&VERSION_1).await;
}

#[tokio::test]
async fn a_ledger_of_version_2_is_worked_to_its_end() {
    work_to_the_end(&VERSION_2).await;
}

async fn work_to_the_end(old: &Old) {
    let folder = tempfile::tempdir().unwrap();
    let sql = GPUS
        .iter()
        .fold(old.sql.to_owned(), |sql, gpu| sql.replace(gpu, GPU));
    lay_out(folder.path(), &sql);
    let machine = Machine::start_in(folder).await;
    for id in old.open {
        let id: OperationId = id.parse().unwrap();
        let end = machine
            .until("the open operations to end", || {
                let mut events = machine.events().into_iter();
                events.find(|event| {
                    event.data.op_id == Some(id)
                        && event.kind.state() == Some(OperationState::Succeeded)
                })
            })
            .await;
        assert!(end.sequence > old.last, "above everything that it said");
    }
    machine
        .until("the removal to be finished", || {
            let mut events = machine.events().into_iter();
            events.find(|event| event.kind == EventKind::AllocationExpired)
        })
        .await;
    let status = machine.status();
    let left = status["allocations"].as_array().unwrap();
    let keys: Vec<_> = left.iter().map(|one| &one["spec"]["key"]).collect();
    assert_eq!(keys, ["open"], "{status:#}");
    assert_eq!(machine.partitions().len(), 2);
    let unsent = machine
        .events()
        .into_iter()
        .find(|event| event.sequence <= old.last);
    assert!(unsent.is_some(), "what it had not sent is sent");
    assert_eq!(machine.dead_letters(), 1);
    assert_eq!(
        machine.quarantines(),
        ["GPU-00000000-0000-4000-8000-000000000000"]
    );
}

/// Whoever raises the ledger's version keeps a ledger of the one before.
#[test]
fn there_is_a_ledger_of_every_version_before_this_one() {
    let folder = tempfile::tempdir().unwrap();
    drop(agent::ledger::Ledger::open(folder.path(), &"gpu-1".parse().unwrap()).unwrap());
    let connection = rusqlite::Connection::open(folder.path().join("ledger.db")).unwrap();
    let version: u32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    let kept = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/old");
    for earlier in 1..version {
        let file = kept.join(format!("ledger-{earlier}.sql"));
        assert!(file.exists(), "{} is missing", file.display());
    }
}
