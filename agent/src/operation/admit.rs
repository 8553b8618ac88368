//! Whether a command enters the ledger: known, accepted, refused, expired, or a dead letter.

use events::operation::{Allocate, IfBusy, Mode, Resize};
use events::outcome::Failure;
use events::{Code, Command, HostName, Operation};

use super::allocation::{Allocation, Phase};
use crate::config::Allow;

/// Why an allocation that is being released is not brought back.
pub(crate) const BEING_RELEASED: &str =
    "the allocation is still being released; ask again once it is gone";

/// What the ledger knows that matters for one command.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The operation, if its id was seen before: hash of its payload.
    pub operation: Option<[u8; 32]>,
    /// Highest revision seen in its scope.
    pub revision: u64,
    /// The allocation it is about, if it exists.
    pub allocation: Option<Allocation>,
    /// Its key was released before it was ever allocated, and that still stands.
    pub tombstone: bool,
}

/// What to do with a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admit {
    /// Seen before with the same content: report the stored state again, even past its expiry.
    Known,
    /// Into the ledger, to be done.
    Accept,
    /// Into the ledger as refused; nothing is touched.
    Refuse(Failure),
    /// Into the ledger as expired; nothing is touched.
    Expire,
    /// Not ours, or another content under a known id: kept aside for people, never reported as a result.
    DeadLetter(&'static str),
}

/// Decides. `hash` is over the signed payload, `now_s` Unix seconds.
#[must_use]
pub fn admit(
    command: &Command,
    hash: &[u8; 32],
    known: &Known,
    allow: &Allow,
    host: &HostName,
    now_s: i64,
) -> Admit {
    if command.v != 1 || command.aud != *host {
        return Admit::DeadLetter(if command.v == 1 {
            "addressed to another host"
        } else {
            "of a version that this agent does not know"
        });
    }
    match &known.operation {
        Some(seen) if seen == hash => return Admit::Known,
        Some(_) => return Admit::DeadLetter("another content under a known operation id"),
        None => {}
    }
    if now_s >= command.exp {
        return Admit::Expire;
    }
    if command.revision < known.revision {
        let text = format!(
            "revision {} was overtaken by {}",
            command.revision, known.revision
        );
        return Admit::Refuse(Failure::new(Code::Superseded, text));
    }
    match permitted(command, allow)
        .and_then(|()| supported(&command.operation))
        .and_then(|()| consistent(&command.operation, known))
    {
        Ok(()) => Admit::Accept,
        Err(failure) => Admit::Refuse(failure),
    }
}

fn permitted(command: &Command, allow: &Allow) -> Result<(), Failure> {
    let refuse = |text: String| Err(Failure::new(Code::NotPermitted, text));
    let name = command.operation.name();
    if !allow.operations.iter().any(|allowed| allowed == name) {
        return refuse(format!("this host's allow-list has no operation '{name}'"));
    }
    if !allow
        .tenants
        .iter()
        .any(|allowed| allowed == "*" || allowed == command.tenant.as_str())
    {
        return refuse("this host's allow-list does not have the tenant".to_owned());
    }
    let (mode, if_busy) = match &command.operation {
        Operation::Allocate(allocate) => (Some(allocate.mode), IfBusy::Refuse),
        Operation::Partition(partition) => (Some(partition.mode), partition.if_busy),
        Operation::Resize(resize) => (None, resize.if_busy),
        _ => (None, IfBusy::Refuse),
    };
    if if_busy == IfBusy::Force && !allow.force {
        return refuse("this host's allow-list has no 'force'".to_owned());
    }
    match mode.map(mode_name) {
        Some(mode) if !allow.modes.iter().any(|allowed| allowed == mode) => {
            refuse(format!("this host's allow-list has no mode '{mode}'"))
        }
        _ => Ok(()),
    }
}

/// `any` means a mode with isolation; what it became is decided by the profile that was placed.
fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Vgpu | Mode::Any => "vgpu",
        Mode::Mig => "mig",
        Mode::Mps => "mps",
        Mode::Timeslice => "timeslice",
        Mode::Whole => "whole",
    }
}

fn supported(operation: &Operation) -> Result<(), Failure> {
    let refuse = |text: String| Err(Failure::new(Code::NotSupported, text));
    let limits = match operation {
        Operation::Allocate(Allocate { limits, .. }) | Operation::Resize(Resize { limits, .. }) => {
            limits.as_ref()
        }
        Operation::Tune(_) | Operation::Reset(_) => {
            return refuse(format!(
                "operation '{}' is not executed by this version",
                operation.name()
            ));
        }
        _ => None,
    };
    if limits.is_some_and(|limits| limits.io.is_some()) {
        return refuse("limits.io is not executed by this version".to_owned());
    }
    Ok(())
}

fn consistent(operation: &Operation, known: &Known) -> Result<(), Failure> {
    let refuse = |code, text: &str| Err(Failure::new(code, text));
    match (operation, &known.allocation) {
        (Operation::Allocate(_), _) if known.tombstone => refuse(
            Code::ReleasedBeforeAllocate,
            "the key was released before it was allocated; use another key",
        ),
        (Operation::Allocate(_) | Operation::Renew(_), Some(allocation))
            if allocation.phase == Phase::Releasing =>
        {
            refuse(Code::InUse, BEING_RELEASED)
        }
        (Operation::Allocate(asked), Some(allocation)) if !same_spec(asked, &allocation.spec) => {
            refuse(
                Code::UseResize,
                "the key is allocated with another spec; release it first, or resize it",
            )
        }
        (Operation::Renew(_) | Operation::Resize(_), None) => refuse(
            Code::UnknownAllocation,
            "there is no such allocation on this host",
        ),
        _ => Ok(()),
    }
}

/// Whether two specs ask for the same: where it was placed and how long it lives are not part of it.
fn same_spec(a: &Allocate, b: &Allocate) -> bool {
    let essence = |spec: &Allocate| {
        (
            spec.profile.clone(),
            spec.count,
            spec.limits.clone().unwrap_or_default(),
            spec.consumer,
        )
    };
    essence(a) == essence(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(operation: &str, revision: u64) -> Command {
        let text = format!(
            r#"{{"v":1,"op_id":"01940000-0000-7000-8000-000000000001","delivery_id":"01940000-0000-7000-8000-000000000002",
            "tenant":"acme","source":"ci","aud":"gpu-1","revision":{revision},"iat":1000,"exp":1900,"operation":{operation}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const ALLOCATE: &str = r#"{"op":"allocate","key":"k","profile":"T4-4Q","mode":"vgpu"}"#;

    fn allow(operations: &[&str], tenants: &[&str]) -> Allow {
        let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Allow {
            operations: own(operations),
            modes: own(&["vgpu", "mps"]),
            tenants: own(tenants),
            force: false,
        }
    }

    fn decide(command: &Command, known: &Known, now_s: i64) -> Admit {
        let allow = allow(
            &["allocate", "renew", "release", "inspect", "reset"],
            &["*"],
        );
        admit(
            command,
            &[1; 32],
            known,
            &allow,
            &"gpu-1".parse().unwrap(),
            now_s,
        )
    }

    fn code(admit: &Admit) -> Option<Code> {
        if let Admit::Refuse(failure) = admit {
            Some(failure.code)
        } else {
            None
        }
    }

    /// DESIGN §7, rule 14.
    #[test]
    fn a_known_operation_is_reported_again_even_past_its_expiry() {
        let seen = |hash| Known {
            operation: Some([hash; 32]),
            revision: 9,
            ..Known::default()
        };
        assert_eq!(decide(&command(ALLOCATE, 1), &seen(1), 9999), Admit::Known);
        assert!(matches!(
            decide(&command(ALLOCATE, 1), &seen(2), 1000),
            Admit::DeadLetter(_)
        ));
        assert_eq!(
            decide(&command(ALLOCATE, 1), &Known::default(), 1900),
            Admit::Expire
        );
        assert_eq!(
            decide(&command(ALLOCATE, 1), &Known::default(), 1899),
            Admit::Accept
        );
    }

    #[test]
    fn what_is_not_for_this_host_or_overtaken_or_forbidden_is_not_done() {
        let fresh = Known::default();
        let mut other = command(ALLOCATE, 1);
        other.aud = "gpu-2".parse().unwrap();
        assert!(matches!(decide(&other, &fresh, 1000), Admit::DeadLetter(_)));
        let mut newer = command(ALLOCATE, 1);
        newer.v = 2;
        assert!(matches!(decide(&newer, &fresh, 1000), Admit::DeadLetter(_)));
        let seen = Known {
            revision: 5,
            ..Known::default()
        };
        assert_eq!(
            code(&decide(&command(ALLOCATE, 4), &seen, 1000)),
            Some(Code::Superseded)
        );
        assert_eq!(decide(&command(ALLOCATE, 5), &seen, 1000), Admit::Accept);
        for (allowed, tenants) in [(&["release"][..], &["*"][..]), (&["allocate"], &["rival"])] {
            let admit = admit(
                &command(ALLOCATE, 1),
                &[1; 32],
                &fresh,
                &allow(allowed, tenants),
                &"gpu-1".parse().unwrap(),
                1000,
            );
            assert_eq!(code(&admit), Some(Code::NotPermitted));
        }
        let mut strict = allow(&["allocate"], &["*"]);
        strict.modes.clear();
        let host = "gpu-1".parse().unwrap();
        let decided = admit(
            &command(ALLOCATE, 1),
            &[1; 32],
            &fresh,
            &strict,
            &host,
            1000,
        );
        assert_eq!(
            code(&decided),
            Some(Code::NotPermitted),
            "no mode is allowed"
        );
        for (operation, expect) in [
            (
                r#"{"op":"resize","key":"k","profile":"T4-8Q"}"#,
                Code::NotPermitted,
            ),
            (
                r#"{"op":"allocate","key":"k","profile":"T4-4Q","limits":{"io":{"read_bytes_per_s":1}}}"#,
                Code::NotSupported,
            ),
            (
                r#"{"op":"reset","target":{"host":"gpu-1"}}"#,
                Code::NotSupported,
            ),
            (
                r#"{"op":"renew","key":"k","ttl_s":5}"#,
                Code::UnknownAllocation,
            ),
        ] {
            assert_eq!(
                code(&decide(&command(operation, 1), &fresh, 1000)),
                Some(expect),
                "{operation}"
            );
        }
        let tombstone = Known {
            tombstone: true,
            ..Known::default()
        };
        assert_eq!(
            code(&decide(&command(ALLOCATE, 1), &tombstone, 1000)),
            Some(Code::ReleasedBeforeAllocate)
        );
    }

    #[test]
    fn the_same_key_needs_the_same_spec() {
        let Operation::Allocate(spec) = command(ALLOCATE, 1).operation else {
            panic!()
        };
        let tenant = "acme".parse().unwrap();
        let known = Known {
            allocation: Some(Allocation {
                id: events::AllocationId::of(&tenant, &spec.key),
                operation: command(ALLOCATE, 1).op_id,
                tenant,
                gpu: "GPU-2a8b1d5e-0000-4000-8000-000000000001".parse().unwrap(),
                profile: "T4-4Q".parse().unwrap(),
                spec,
                expires_at: None,
                phase: Phase::Live,
                places: None,
                since: None,
            }),
            ..Known::default()
        };
        assert_eq!(decide(&command(ALLOCATE, 1), &known, 1000), Admit::Accept);
        let other = r#"{"op":"allocate","key":"k","profile":"T4-4Q","count":2}"#;
        assert_eq!(
            code(&decide(&command(other, 1), &known, 1000)),
            Some(Code::UseResize)
        );
    }
}
