//! A host that boots: what the ledger wants is made again, once, when its GPU is there.

use crate::machine::{Machine, allocate};

/// field F73, F47: the parent of three devices appears some looks after the start; each device is made
/// once, under its own id, and not before.
#[tokio::test]
async fn devices_wait_for_their_gpu_and_are_made_once_each() {
    let mut machine = Machine::start().await;
    machine.done(1, 1, &allocate(r#","count":3"#)).await;
    let before = machine.partitions();
    {
        let mut state = machine.state.lock().unwrap();
        state.partitions.clear();
        state.epoch += 1;
        state.blind = true;
    }
    let effects = machine.effects();
    machine.restart().await;
    machine.looked().await;
    assert_eq!(machine.effects(), effects, "nothing is tried without a GPU");
    machine.state.lock().unwrap().blind = false;
    machine
        .until("the devices", || {
            (machine.partitions() == before).then_some(())
        })
        .await;
    machine.looked().await;
    assert_eq!(machine.effects(), effects + 3, "one create per device");
}
