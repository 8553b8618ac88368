//! Validated names. A value of these types has passed its rule, wherever it came from.
//!
//! The rules are narrow on purpose: names end up in queue names, message groups, cgroup paths and
//! log fields (field F58), so no later room has to escape or hash them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a text is not the name it was offered as.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} must be {rule}")]
pub struct InvalidName {
    /// What was being named, for people.
    pub kind: &'static str,
    /// The rule in words.
    pub rule: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $pattern:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(#[schemars(regex(pattern = $pattern))] String);

        impl $name {
            /// The text of the name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                let check: fn(&str) -> bool = $check;
                if check(&text) { Ok(Self(text)) } else { Err(InvalidName { kind: $kind, rule: $rule }) }
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::try_from(text.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// Queue names are `gpuhook-<host>.fifo` within SQS's 80 characters, hence 52.
fn is_label(text: &str) -> bool {
    (1..=52).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
}

fn is_key(text: &str) -> bool {
    (1..=200).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

fn is_profile(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'+'))
}

name!(
    /// A GPU host, as enrolled.
    HostName, "host", r"^[a-z0-9][a-z0-9-]{0,51}$",
    "1 to 52 of a-z, 0-9 and '-', not starting with '-'", is_label
);
name!(
    /// A set of hosts that a request may be placed on.
    PoolName, "pool", r"^[a-z0-9][a-z0-9-]{0,51}$",
    "1 to 52 of a-z, 0-9 and '-', not starting with '-'", is_label
);
name!(
    /// Who owns allocations and reads their status.
    TenantName, "tenant", r"^[a-z0-9][a-z0-9-]{0,51}$",
    "1 to 52 of a-z, 0-9 and '-', not starting with '-'", is_label
);
name!(
    /// One configured sender of webhooks.
    SourceName, "source", r"^[a-z0-9][a-z0-9-]{0,51}$",
    "1 to 52 of a-z, 0-9 and '-', not starting with '-'", is_label
);
name!(
    /// The caller's own name for an allocation, unique within the tenant.
    AllocationKey, "key", r"^[!-~]{1,200}$",
    "1 to 200 printable ASCII characters without spaces", is_key
);
name!(
    /// A partition profile as the vendor spells its last token: `T4-4Q`, `1g.10gb+me`.
    ProfileName, "profile", r"^[A-Za-z0-9.+-]{1,64}$",
    "1 to 64 letters, digits, '-', '.' or '+'", is_profile
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_their_rule_at_every_edge() {
        let long = "a".repeat(52);
        let too_long = "a".repeat(53);
        for (text, good) in [
            ("gpu-01", true),
            (long.as_str(), true),
            (too_long.as_str(), false),
            ("", false),
            ("-a", false),
            ("A", false),
            ("a b", false),
            ("a/b", false),
            ("é", false),
            ("a\n", false),
        ] {
            assert_eq!(text.parse::<HostName>().is_ok(), good, "{text:?}");
        }
        for (text, good) in [
            ("github:org/repo#job-7", true),
            ("", false),
            ("a b", false),
            ("a\u{0}", false),
            ("ключ", false),
        ] {
            assert_eq!(text.parse::<AllocationKey>().is_ok(), good, "{text:?}");
        }
    }
}
