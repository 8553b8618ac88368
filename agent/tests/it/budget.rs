//! Operations that cannot be ended: their budget is in the ledger, so that no crash renews it.

use events::Code;
use events::result::EventKind;

use crate::machine::{Machine, allocate};

fn blind(machine: &Machine, blind: bool) {
    machine.state.lock().unwrap().blind = blind;
}

/// DESIGN §7.10: the budget outlives the process, and an operation of it ends with what may be left.
#[tokio::test]
async fn an_operation_that_its_agent_is_started_for_again_and_again_ends() {
    let mut machine = Machine::start().await;
    machine.looked().await;
    blind(&machine, true);
    let command = machine.command(1, 1, &allocate(""));
    machine.send(&command);
    let mut starts = 0;
    while machine.ends_of(&command).is_empty() {
        machine.restart().await;
        starts += 1;
        assert!(starts < 40, "it is tried for ever");
    }
    assert!(starts > 10, "given up after {starts} starts only");
    let end = machine.end_of(&command).await;
    let failure = end.data.failure.unwrap();
    assert_eq!(failure.code, Code::DriverError, "{}", failure.message);
    assert!(failure.message.contains("given up"), "{}", failure.message);
    blind(&machine, false);
    let again = machine.done(2, 2, &allocate("")).await;
    assert_eq!(again.kind, EventKind::OperationSucceeded);
    assert_eq!(machine.partitions().len(), 1);
}
