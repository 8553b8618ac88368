//! What policy is asked: one principal, one operation, one host.

use cedar_policy::RestrictedExpression;
use events::operation::{Consumer, Mode};
use events::{HostName, Operation, PoolName, TenantName};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// What it is.
    pub kind: PrincipalKind,
    /// Its name.
    pub name: String,
    /// On whose behalf.
    pub tenant: TenantName,
    /// Its roles.
    pub roles: Vec<String>,
}

/// Kinds of principals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrincipalKind {
    /// A source of webhooks.
    Source,
    /// A bearer token.
    Token,
}

impl PrincipalKind {
    pub(super) fn entity(self) -> &'static str {
        match self {
            Self::Source => "Source",
            Self::Token => "Token",
        }
    }
}

/// One question.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Who asks.
    pub principal: &'a Principal,
    /// What for.
    pub operation: &'a Operation,
    /// Where; `None` when it reaches no host.
    pub host: Option<&'a HostName>,
    /// That host's pools.
    pub pools: &'a [PoolName],
}

impl Question<'_> {
    /// The context that the schema describes.
    pub(super) fn context(&self) -> Vec<(String, RestrictedExpression)> {
        let text = |value: &str| RestrictedExpression::new_string(value.to_owned());
        let long =
            |value: u64| RestrictedExpression::new_long(i64::try_from(value).unwrap_or(i64::MAX));
        let mut pairs = vec![("tenant", text(self.principal.tenant.as_str()))];
        match self.operation {
            Operation::Allocate(allocate) => {
                pairs.push(("mode", text(mode(allocate.mode))));
                pairs.push(("count", long(u64::from(allocate.count))));
                pairs.push(("consumer", text(consumer(allocate.consumer))));
                pairs.extend(
                    allocate
                        .profile
                        .as_ref()
                        .map(|profile| ("profile", text(profile.as_str()))),
                );
                pairs.extend(
                    allocate
                        .memory_mib
                        .map(|memory| ("memory_mib", long(memory))),
                );
                pairs.extend(allocate.ttl_s.map(|ttl| ("ttl_s", long(ttl))));
            }
            Operation::Renew(renew) => pairs.push(("ttl_s", long(renew.ttl_s))),
            Operation::Resize(resize) => {
                pairs.extend(
                    resize
                        .profile
                        .as_ref()
                        .map(|profile| ("profile", text(profile.as_str()))),
                );
            }
            Operation::Partition(partition) => pairs.push(("mode", text(mode(partition.mode)))),
            Operation::Release(_)
            | Operation::Tune(_)
            | Operation::Reset(_)
            | Operation::Inspect(_) => {}
        }
        pairs
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Vgpu => "vgpu",
        Mode::Mig => "mig",
        Mode::Mps => "mps",
        Mode::Timeslice => "timeslice",
        Mode::Whole => "whole",
        Mode::Any => "any",
    }
}

fn consumer(consumer: Consumer) -> &'static str {
    match consumer {
        Consumer::Vm => "vm",
        Consumer::Container => "container",
        Consumer::Process => "process",
    }
}
