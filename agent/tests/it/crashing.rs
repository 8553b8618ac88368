//! The agent dies before and after every effect of an allocate and of a release; what is started
//! from its ledger finishes the work once.

use events::result::EventKind;

use crate::fake::Boundary;
use crate::machine::{Machine, allocate};

/// Two creates and two groups.
const ALLOCATE_EFFECTS: u32 = 4;

fn boundaries(from: u32, to: u32) -> impl Iterator<Item = Boundary> {
    (from..=to).flat_map(|effect| [false, true].map(|after| Boundary { effect, after }))
}

#[tokio::test]
async fn an_allocate_survives_a_crash_at_every_effect() {
    let mut points = 0;
    for boundary in boundaries(1, ALLOCATE_EFFECTS) {
        let mut machine = Machine::start_stopping_at(Some(boundary)).await;
        let foreign = machine.add_foreign();
        let command = machine.command(1, 1, &allocate(r#","count":2,"limits":{"memory_mib":64}"#));
        machine.send(&command);
        machine.restart_after_crash().await;
        let end = machine.end_of(&command).await;
        assert_eq!(
            end.kind,
            EventKind::OperationSucceeded,
            "{boundary:?}: {end:?}"
        );
        let id = end.data.allocation.unwrap();
        let mut wanted = vec![foreign, id.partition(0), id.partition(1)];
        wanted.sort();
        assert_eq!(machine.partitions(), wanted, "{boundary:?}");
        assert_eq!(
            machine.state.lock().unwrap().groups.len(),
            2,
            "{boundary:?}"
        );
        // Redelivered, since nobody knows whether it was acknowledged.
        machine.send(&command);
        machine
            .until("the acknowledgement", || {
                (*machine.queues.acknowledged.lock().unwrap() == 1).then_some(())
            })
            .await;
        assert_eq!(machine.ends_of(&command).len(), 1, "{boundary:?}");
        points += 1;
    }
    println!("allocate: {points} crash points");
}

#[tokio::test]
async fn a_release_survives_a_crash_at_every_effect() {
    let mut points = 0;
    for boundary in boundaries(ALLOCATE_EFFECTS + 1, ALLOCATE_EFFECTS + 2) {
        let mut machine = Machine::start_stopping_at(Some(boundary)).await;
        machine
            .done(1, 1, &allocate(r#","count":2,"limits":{"memory_mib":64}"#))
            .await;
        let command = machine.command(2, 2, r#"{"op":"release","key":"k"}"#);
        machine.send(&command);
        machine.restart_after_crash().await;
        let end = machine.end_of(&command).await;
        assert_eq!(
            end.kind,
            EventKind::OperationSucceeded,
            "{boundary:?}: {end:?}"
        );
        assert_eq!(machine.partitions(), [], "{boundary:?}");
        assert_eq!(
            machine.state.lock().unwrap().groups.len(),
            0,
            "{boundary:?}"
        );
        assert_eq!(machine.ends_of(&command).len(), 1, "{boundary:?}");
        points += 1;
    }
    println!("release: {points} crash points");
}
