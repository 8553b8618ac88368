//! Outcomes that are known at once, without asking any host.

use backplane::store::Ending;
use events::operation::{Allocate, Mode};
use events::outcome::Released;
use events::{AllocationId, Code, Failure, Operation, OperationState, Outcome};

/// Operations that this version does not execute are refused by name, never silently. Policy is not
/// asked: there is nothing to permit.
pub(super) fn not_executed(operation: &Operation) -> Option<Ending> {
    match operation {
        Operation::Resize(_) | Operation::Tune(_) | Operation::Reset(_) => Some(refused(
            Code::NotSupported,
            format!("{} is not executed by this version", operation.name()),
        )),
        Operation::Allocate(_)
        | Operation::Partition(_)
        | Operation::Renew(_)
        | Operation::Release(_)
        | Operation::Inspect(_) => None,
    }
}

/// The same for modes of sharing.
pub(super) fn mode_not_executed(allocate: &Allocate) -> Option<Ending> {
    match allocate.mode {
        Mode::Vgpu | Mode::Mig | Mode::Any => None,
        Mode::Mps | Mode::Timeslice | Mode::Whole => Some(refused(
            Code::NotSupported,
            "only vGPUs and MIG instances are made by this version".to_owned(),
        )),
    }
}

/// A key that is held with another spec.
pub(super) fn use_resize(difference: &str) -> Ending {
    let message =
        format!("the allocation exists with another {difference}; release it first, or resize it");
    refused(Code::UseResize, message)
}

/// `renew` or `release` of what is not there. Releasing the unknown succeeds and says so.
pub(super) fn on_unknown(operation: &Operation, allocation: AllocationId) -> Ending {
    match operation {
        Operation::Release(_) => {
            let outcome = Some(Outcome::Released(Released {
                allocation,
                existed: false,
            }));
            Ending {
                state: OperationState::Succeeded,
                outcome,
                failure: None,
            }
        }
        _ => refused(
            Code::UnknownAllocation,
            "there is no such allocation".to_owned(),
        ),
    }
}

fn refused(code: Code, message: String) -> Ending {
    Ending {
        state: OperationState::Refused,
        outcome: None,
        failure: Some(Failure::new(code, message)),
    }
}
