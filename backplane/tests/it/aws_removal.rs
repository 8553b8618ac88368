//! Removing hosts: drained, or lost.

use std::sync::Arc;

use backplane::aws::{DynamoStore, Removal, Removed};
use backplane::store::{AllocationState, Due};
use events::OperationState;
use events::inventory::{PartitionInventory, PartitionOwner};
use events::outcome::Outcome;

use crate::aws::{Fate, emulator, store_and_installation};
use crate::implementation::Backplane;
use crate::sample::{allocated, host, id_of, inventory, new, owed, release, succeeded, tenant};

async fn start() -> (Arc<DynamoStore>, Backplane) {
    let endpoint = emulator(Arc::new(|_| Fate::Answered)).await;
    let (store, backplane) = store_and_installation(&endpoint).await;
    backplane.enrol("t4").await;
    (store, backplane)
}

async fn remove(store: &DynamoStore, backplane: &Backplane, removal: Removal) -> Removed {
    let now_ms = backplane.now_ms();
    store
        .remove_host(&host("t4"), removal, now_ms)
        .await
        .unwrap()
}

async fn make_live(backplane: &Backplane, n: u8, key: &str) {
    let record = backplane.accept_placed(n, key, "t4").await;
    let outcome = Outcome::Allocated(allocated(key));
    backplane
        .settle(succeeded(&record, u64::from(n), outcome))
        .await;
}

#[tokio::test]
async fn a_host_goes_once_it_holds_nothing_and_takes_nothing_meanwhile() {
    let (store, backplane) = start().await;
    make_live(&backplane, 1, "one").await;
    let busy = Removed::Draining {
        allocations: 1,
        operations: 0,
    };
    for _ in 0..2 {
        assert_eq!(remove(&store, &backplane, Removal::Drained).await, busy);
    }
    let view = backplane.reads.host(&host("t4")).await.unwrap().unwrap();
    assert!(view.cordoned, "nothing new is placed on it");
    let mut records = backplane.accept(2, vec![new(release("one"), "t4")]).await;
    let record = records.remove(0);
    assert_eq!(
        remove(&store, &backplane, Removal::Drained).await,
        Removed::Draining {
            allocations: 1,
            operations: 1
        }
    );
    let outcome = events::outcome::Released {
        allocation: id_of("one"),
        existed: true,
    };
    backplane
        .settle(succeeded(&record, 9, Outcome::Released(outcome)))
        .await;
    assert_eq!(
        remove(&store, &backplane, Removal::Drained).await,
        Removed::Gone
    );
    assert_eq!(backplane.reads.hosts().await.unwrap(), []);
    assert_eq!(
        remove(&store, &backplane, Removal::Drained).await,
        Removed::Gone
    );
    // It may come back, with nothing of its earlier life.
    backplane.enrol("t4").await;
    let view = backplane.reads.host(&host("t4")).await.unwrap().unwrap();
    assert!(!view.cordoned && view.inventory.is_none() && view.heard_at_ms.is_none());
}

#[tokio::test]
async fn a_host_that_is_enrolled_again_is_not_removed_any_more() {
    let (store, backplane) = start().await;
    make_live(&backplane, 1, "one").await;
    remove(&store, &backplane, Removal::Drained).await;
    backplane.enrol("t4").await;
    let view = backplane.reads.host(&host("t4")).await.unwrap().unwrap();
    assert!(!view.cordoned);
}

#[tokio::test]
async fn what_a_lost_host_held_and_had_begun_ends_and_is_told() {
    let (store, backplane) = start().await;
    make_live(&backplane, 1, "live").await;
    let pending = backplane.accept_placed(2, "pending", "t4").await;
    let observed = crate::sample::event(
        "t4",
        events::result::EventKind::HostObserved,
        50,
        events::result::EventData {
            inventory: Some(inventory("t4", backplane.now_ms())),
            ..Default::default()
        },
    );
    backplane.settle(observed).await;
    let removed = remove(&store, &backplane, Removal::Lost(owed)).await;
    assert_eq!(removed, Removed::Gone);
    assert_eq!(backplane.reads.hosts().await.unwrap(), []);
    for key in ["live", "pending"] {
        let found = backplane.reads.allocation(&tenant(), id_of(key)).await;
        assert_eq!(
            found.unwrap().unwrap().state,
            AllocationState::Ended,
            "{key}"
        );
    }
    let ended = backplane
        .reads
        .operation(&tenant(), pending.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(ended.state, OperationState::Expired);
    assert_eq!(ended.failure.unwrap().code, events::Code::HostSilent);
    let due = backplane.due(10).await;
    assert!(matches!(&due[..], [Due::Callback(_)]), "{due:?}");
    let word = succeeded(&pending, 99, Outcome::Allocated(allocated("pending")));
    assert_eq!(
        backplane.settle(word).await,
        backplane::store::Settlement::Unknown,
        "a host that was removed is a stranger"
    );
}

/// As when the index has not got the allocation yet.
#[tokio::test]
async fn a_host_that_says_itself_that_it_holds_something_is_not_removed() {
    let (store, backplane) = start().await;
    let mut seen = inventory("t4", backplane.now_ms());
    seen.gpus[0].partitions.push(PartitionInventory {
        owner: Some(PartitionOwner {
            allocation: id_of("one"),
            tenant: tenant(),
        }),
        ..PartitionInventory::foreign(id_of("one").partition(0), "T4-4Q".parse().unwrap())
    });
    let data = events::result::EventData {
        inventory: Some(seen),
        ..Default::default()
    };
    let kind = events::result::EventKind::HostObserved;
    backplane
        .settle(crate::sample::event("t4", kind, 50, data))
        .await;
    let held = Removed::Draining {
        allocations: 1,
        operations: 0,
    };
    assert_eq!(remove(&store, &backplane, Removal::Drained).await, held);
    let gone = remove(&store, &backplane, Removal::Lost(owed)).await;
    assert_eq!(gone, Removed::Gone);
}
