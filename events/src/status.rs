//! The states of an operation as its caller sees them, and the one way they may move.
//!
//! ```text
//! queued -> running -> succeeded | failed | refused | expired
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Durably accepted, not yet taken by its host.
    Queued,
    /// In the host's ledger.
    Running,
    /// Done, read back from the hardware.
    Succeeded,
    /// Tried and given up; what remains is said.
    Failed,
    /// Never started.
    Refused,
    /// Not started in time.
    Expired,
}

impl OperationState {
    /// Whether no further state follows.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

    /// Whether an operation in this state may move to `next`: forward only, and never out of a
    /// final state. Events may overtake each other on the way.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Queued => next != Self::Queued,
            Self::Running => next.is_final(),
            _ => false,
        }
    }

    /// The state as it is spelt on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Expired => "expired",
        }
    }
}

impl std::str::FromStr for OperationState {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_value(serde_json::Value::from(text))
    }
}

#[cfg(test)]
mod tests {
    use super::OperationState::{self, *};

    #[test]
    fn states_only_move_forward() {
        let all = [Queued, Running, Succeeded, Failed, Refused, Expired];
        for from in all {
            assert_eq!(from.as_str().parse::<OperationState>().unwrap(), from);
            for to in all {
                let forward =
                    (from == Queued && to != Queued) || (from == Running && to.is_final());
                assert_eq!(from.may_become(to), forward, "{from:?} -> {to:?}");
            }
        }
    }
}
