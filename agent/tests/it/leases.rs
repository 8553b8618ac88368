//! Leases while clocks jump.

use events::result::EventKind;

use crate::machine::{Machine, allocate};

const TWO_DAYS_S: i64 = 2 * 24 * 3600;

async fn leased() -> Machine {
    let machine = Machine::start().await;
    let made = machine.done(1, 1, &allocate(r#","ttl_s":60"#)).await;
    assert_eq!(made.kind, EventKind::OperationSucceeded);
    machine.looked().await;
    machine
}

async fn has_ended(machine: &Machine) {
    machine
        .until("the lease's end", || {
            let mut events = machine.events().into_iter();
            events.find(|event| event.kind == EventKind::AllocationExpired)
        })
        .await;
    assert_eq!(machine.partitions(), []);
}

/// field F65: a backwards jump does not extend a lease.
#[tokio::test]
async fn a_clock_set_back_lengthens_no_lease() {
    let machine = leased().await;
    machine.set_clock_by_s(-TWO_DAYS_S);
    machine.pass_s(59);
    machine.looked().await;
    assert_eq!(machine.partitions().len(), 1);
    machine.pass_s(1);
    has_ended(&machine).await;
}

/// field F65: nor does a forward jump end one; after it the lease ends when its time has passed.
#[tokio::test]
async fn a_clock_set_forward_rips_nothing_out() {
    let machine = leased().await;
    machine.set_clock_by_s(TWO_DAYS_S);
    machine.looked().await;
    machine.looked().await;
    assert_eq!(machine.partitions().len(), 1);
    machine.pass_s(60);
    has_ended(&machine).await;
}

/// field F65: a renewed lease is another lease, whatever the clock showed when the first was granted.
#[tokio::test]
async fn a_renewal_counts_from_when_it_was_granted() {
    let machine = leased().await;
    machine.set_clock_by_s(-TWO_DAYS_S);
    machine.pass_s(50);
    machine
        .done(2, 2, r#"{"op":"renew","key":"k","ttl_s":60}"#)
        .await;
    machine.looked().await;
    machine.pass_s(59);
    machine.looked().await;
    assert_eq!(machine.partitions().len(), 1);
    machine.pass_s(1);
    has_ended(&machine).await;
}
