//! Two functions that work on the same thing at the same moment, and rows that cannot be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use backplane::store::{Accepted, Due};
use tokio::sync::Semaphore;

use crate::aws::{Fate, emulator, installation, overwrite};
use crate::sample::{delivery, new, release, tenant};

/// field F04: the same delivery at two functions at once. The first one has looked it up and found
/// nothing; before it reads on, the other one accepts.
#[tokio::test]
async fn a_delivery_that_is_accepted_elsewhere_meanwhile_is_not_accepted_again() {
    let gate = Arc::new(Semaphore::new(0));
    // Reads since the trial began; the second of them is held.
    let reads = Arc::new(AtomicU32::new(u32::MAX / 2));
    let fates = {
        let (gate, reads) = (Arc::clone(&gate), Arc::clone(&reads));
        Arc::new(move |call: &str| {
            if call == "BatchGetItem" && reads.fetch_add(1, Ordering::SeqCst) == 1 {
                return Fate::Held(Arc::clone(&gate));
            }
            Fate::Answered
        })
    };
    let backplane = installation(&emulator(fates).await).await;
    backplane.enrol("t4").await;
    let now_ms = backplane.now_ms();
    let first = delivery(1, now_ms, vec![new(release("one"), "t4")]);
    let second = delivery(1, now_ms, vec![new(release("one"), "t4")]);
    reads.store(0, Ordering::SeqCst);
    let accepting = {
        let (store, first) = (Arc::clone(&backplane.store), first.clone());
        tokio::spawn(async move { store.accept(first).await.unwrap() })
    };
    while reads.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    let other = backplane.store.accept(second.clone()).await.unwrap();
    assert!(matches!(other, Accepted::New(_)), "{other:?}");
    gate.add_permits(1);
    match accepting.await.unwrap() {
        Accepted::InFlight(known) => assert_eq!(known.delivery, second.delivery),
        other => panic!("accepted twice: {other:?}"),
    }
    let listed = backplane.reads.operations(&tenant(), None, 10).await;
    assert_eq!(listed.unwrap().items.len(), 1);
}

/// A row that a later program wrote, or that is damaged, holds up no other.
#[tokio::test]
async fn a_due_row_that_cannot_be_read_holds_up_no_other() {
    let endpoint = emulator(Arc::new(|_| Fate::Answered)).await;
    let backplane = installation(&endpoint).await;
    backplane.enrol("t4").await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let key = format!("key-{n}");
        ids.push(backplane.accept_placed(n, &key, "t4").await.id);
        // The due are claimed in order of their hour.
        backplane.clock.advance(Duration::from_secs(1));
    }
    let later = r#"{"v":1000,"doc":{}}"#;
    overwrite(&endpoint, &format!("OPERATION#{}", ids[1]), "doc", later).await;
    backplane.clock.advance(Duration::from_secs(10));
    let due = backplane.due(10).await;
    let due: Vec<_> = due
        .iter()
        .map(|due| match due {
            Due::Unsent(record) => record.id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(due, [ids[0], ids[2]]);
}
