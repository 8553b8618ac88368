//! Operations of one allocation run in the order in which they were taken.

use events::outcome::Outcome;
use events::result::EventKind;

use crate::machine::{Machine, allocate};

const RELEASE: &str = r#"{"op":"release","key":"k"}"#;

async fn allocated_then_released(machine: &Machine) {
    let made = machine.end_of(&machine.command(1, 1, &allocate(""))).await;
    let gone = machine.end_of(&machine.command(2, 2, RELEASE)).await;
    assert_eq!(made.kind, EventKind::OperationSucceeded, "{made:?}");
    assert!(
        matches!(gone.data.outcome, Some(Outcome::Released(ref released)) if released.existed),
        "the release ran before what it was to release: {gone:?}"
    );
    assert!(made.sequence < gone.sequence);
    assert_eq!(machine.partitions(), []);
}

/// Found by chaos (seed 1008): a release that is taken while its allocate still waits for the GPU
/// found no allocation, said so, and the allocate then made one that nobody would ever release.
#[tokio::test]
async fn a_release_right_behind_its_allocate_waits_for_it() {
    let machine = Machine::start().await;
    machine.send(&machine.command(1, 1, &allocate("")));
    machine.send(&machine.command(2, 2, RELEASE));
    allocated_then_released(&machine).await;
}

#[tokio::test]
async fn a_release_waits_for_an_allocate_that_is_held_up() {
    let mut machine = Machine::start().await;
    machine.looked().await;
    machine.state.lock().unwrap().blind = true;
    machine.send(&machine.command(1, 1, &allocate("")));
    machine.send(&machine.command(2, 2, RELEASE));
    machine
        .until("both to be taken", || {
            let taken = machine.events();
            let taken = taken
                .iter()
                .filter(|event| event.kind == EventKind::OperationAccepted);
            (taken.count() == 2).then_some(())
        })
        .await;
    // Over a restart, too: there the two are queued again at once.
    machine.restart().await;
    machine.state.lock().unwrap().blind = false;
    allocated_then_released(&machine).await;
}
