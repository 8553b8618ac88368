//! Conformance: reads, which never cross tenants.

use backplane::store::Acceptance;
use events::{OperationId, TenantName};
use uuid::Uuid;

use crate::implementation::Backplane;
use crate::sample::{allocate, delivery, host, id_of, new, placed, release, tenant};

conforms!(
    nothing_is_read_across_tenants,
    lists_page_from_the_newest_on,
    new_rows_do_not_shift_a_page,
    a_reused_key_is_listed_as_new,
    hosts_are_listed_by_name,
    the_unknown_is_absent,
);

fn other() -> TenantName {
    "other".parse().unwrap()
}

async fn nothing_is_read_across_tenants(backplane: Backplane) {
    backplane.enrol("t4").await;
    let acceptance = delivery(1, backplane.now_ms(), vec![placed("one", "t4", 1)]);
    let id = acceptance.operations[0].id;
    backplane.store.accept(acceptance.clone()).await.unwrap();
    let reads = &backplane.reads;
    assert_eq!(reads.operation(&other(), id).await.unwrap(), None);
    assert_eq!(
        reads.delivery(&other(), acceptance.delivery).await.unwrap(),
        None
    );
    assert_eq!(
        reads.allocation(&other(), id_of("one")).await.unwrap(),
        None
    );
    assert_eq!(
        reads.operations(&other(), None, 10).await.unwrap().items,
        []
    );
    assert_eq!(
        reads.allocations(&other(), None, 10).await.unwrap().items,
        []
    );
    assert!(reads.operation(&tenant(), id).await.unwrap().is_some());
}

async fn lists_page_from_the_newest_on(backplane: Backplane) {
    backplane.enrol("t4").await;
    let mut expect = Vec::new();
    for n in 1..=5 {
        let key = format!("key-{n}");
        expect.insert(0, backplane.accept_placed(n, &key, "t4").await.id);
        let foreign = Acceptance {
            tenant: other(),
            ..delivery(100 + n, backplane.now_ms(), vec![new(release(&key), "t4")])
        };
        backplane.store.accept(foreign).await.unwrap();
    }
    let (mut operations, mut keys, mut pages) = (Vec::new(), Vec::new(), Vec::new());
    let (mut after, mut after_allocation) = (None::<String>, None::<String>);
    loop {
        let reads = &backplane.reads;
        let page = reads
            .operations(&tenant(), after.as_deref(), 2)
            .await
            .unwrap();
        let allocations = reads
            .allocations(&tenant(), after_allocation.as_deref(), 2)
            .await;
        let allocations = allocations.unwrap();
        pages.push((page.items.len(), allocations.items.len()));
        operations.extend(page.items.iter().map(|record| record.id));
        keys.extend(
            allocations
                .items
                .iter()
                .map(|record| record.key.to_string()),
        );
        (after, after_allocation) = (page.next, allocations.next);
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, [(2, 2), (2, 2), (1, 1)]);
    assert_eq!(operations, expect);
    assert_eq!(keys, ["key-5", "key-4", "key-3", "key-2", "key-1"]);
    let exact = backplane
        .reads
        .operations(&tenant(), None, 5)
        .await
        .unwrap();
    assert_eq!(exact.next, None, "a full last page promises another");
    let invented = backplane
        .reads
        .operations(&tenant(), Some("x'--"), 5)
        .await
        .unwrap();
    assert_eq!((invented.items.len(), invented.next), (0, None));
}

async fn new_rows_do_not_shift_a_page(backplane: Backplane) {
    backplane.enrol("t4").await;
    let first = backplane
        .accept(1, vec![new(allocate("one"), "t4")])
        .await
        .remove(0);
    backplane.accept(2, vec![new(allocate("two"), "t4")]).await;
    let page = backplane
        .reads
        .operations(&tenant(), None, 1)
        .await
        .unwrap();
    backplane
        .accept(3, vec![new(allocate("three"), "t4")])
        .await;
    // The front door lets these through a URL, and nothing else.
    let cursor = page.next.clone().unwrap();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
    assert!(
        cursor.len() <= 128 && cursor.chars().all(is_plain),
        "{cursor}"
    );
    let next = backplane
        .reads
        .operations(&tenant(), page.next.as_deref(), 1)
        .await
        .unwrap();
    assert_eq!(next.items, [first]);
}

async fn a_reused_key_is_listed_as_new(backplane: Backplane) {
    use events::result::EventKind;
    backplane.enrol("t4").await;
    let first = backplane.accept_placed(1, "one", "t4").await;
    backplane.accept_placed(2, "two", "t4").await;
    let refused = crate::sample::of_operation(&first, EventKind::OperationRefused, 1, None);
    backplane.settle(refused).await;
    backplane.accept_placed(3, "one", "t4").await;
    let listed = backplane
        .reads
        .allocations(&tenant(), None, 10)
        .await
        .unwrap();
    let keys: Vec<_> = listed
        .items
        .iter()
        .map(|record| record.key.as_str())
        .collect();
    assert_eq!(keys, ["one", "two"]);
}

async fn hosts_are_listed_by_name(backplane: Backplane) {
    assert_eq!(backplane.reads.hosts().await.unwrap(), []);
    for name in ["b", "a", "c"] {
        backplane.enrol(name).await;
    }
    let hosts = backplane.reads.hosts().await.unwrap();
    let names: Vec<_> = hosts.iter().map(|view| view.record.host.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(
        backplane.reads.host(&host("b")).await.unwrap().as_ref(),
        Some(&hosts[1])
    );
}

async fn the_unknown_is_absent(backplane: Backplane) {
    let id = Uuid::now_v7();
    let reads = &backplane.reads;
    assert_eq!(
        reads.operation(&tenant(), OperationId(id)).await.unwrap(),
        None
    );
    assert_eq!(
        reads
            .delivery(&tenant(), events::DeliveryId(id))
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        reads.allocation(&tenant(), id_of("one")).await.unwrap(),
        None
    );
    assert_eq!(reads.host(&host("t4")).await.unwrap(), None);
    let empty = delivery(1, backplane.now_ms(), Vec::new());
    backplane.store.accept(empty.clone()).await.unwrap();
    let read = backplane.reads.delivery(&tenant(), empty.delivery).await;
    assert_eq!(
        read.unwrap(),
        Some(Vec::new()),
        "a delivery may have no operations"
    );
}
