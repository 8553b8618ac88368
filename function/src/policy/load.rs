//! Reading policies: parsed and validated against the schema, every fault with its place.

use cedar_policy::{Authorizer, PolicySet, Schema, ValidationMode, Validator};
use miette::Diagnostic;

use super::{Policy, SCHEMA};

/// Why a policy text cannot be used: all of its faults.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy has {} faults", .faults.len())]
pub struct PolicyError {
    /// Each fault.
    pub faults: Vec<PolicyFault>,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFault {
    /// Byte offset into the text, where it is known.
    pub offset: Option<usize>,
    /// What is wrong.
    pub message: String,
}

impl Policy {
    /// Reads policies.
    ///
    /// # Errors
    /// All syntax errors, or all validation errors.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let policies: PolicySet =
            text.parse()
                .map_err(|errors: cedar_policy::ParseErrors| PolicyError {
                    faults: errors.iter().map(fault).collect(),
                })?;
        let (schema, _) = Schema::from_cedarschema_str(SCHEMA)
            .expect("the shipped schema is valid, which a test proves");
        let validated = Validator::new(schema.clone()).validate(&policies, ValidationMode::Strict);
        let faults: Vec<_> = validated.validation_errors().map(fault).collect();
        if faults.is_empty() {
            Ok(Self {
                policies,
                schema,
                authorizer: Authorizer::new(),
            })
        } else {
            Err(PolicyError { faults })
        }
    }
}

fn fault(error: &impl Diagnostic) -> PolicyFault {
    let offset = error
        .labels()
        .and_then(|mut labels| labels.next())
        .map(|label| label.offset());
    let mut message = error.to_string();
    if let Some(help) = error.help() {
        message = format!("{message} ({help})");
    }
    PolicyFault { offset, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_are_found_at_load_with_their_place() {
        for (text, word) in [
            (
                r#"permit(principal in Role::"operator", action == Action::"alocate", resource);"#,
                "alocate",
            ),
            (
                "permit(principal, action, resource) when { context.nonsense == 1 };",
                "nonsense",
            ),
            (
                "permit(principal, action, resource) when { context.count == 1 };",
                "count",
            ),
            ("permit(principal, action, resource", ""),
            ("allow(principal, action, resource);", "allow"),
        ] {
            let faults = Policy::parse(text).unwrap_err().faults;
            assert!(
                faults.iter().any(|fault| fault.message.contains(word)),
                "{text}: {faults:?}"
            );
            assert!(
                faults
                    .iter()
                    .all(|fault| fault.offset.is_some_and(|at| at <= text.len())),
                "{text}: {faults:?}"
            );
        }
        assert!(
            Policy::parse("").is_ok(),
            "no policy at all denies everything, which is valid"
        );
    }
}
