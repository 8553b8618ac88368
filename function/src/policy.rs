//! Who may do what, where: Cedar. Principal is the source (or token) in its roles, action is the
//! operation, resource is the host in its pools, context is what is asked for. Default deny.
//!
//! A policy whose evaluation fails counts as a deny of the whole request: a `forbid` that was skipped
//! would otherwise permit.

mod question;

mod load;

use std::collections::{HashMap, HashSet};

use cedar_policy::{
    Authorizer, Context, Entities, Entity, EntityId, EntityTypeName, EntityUid, PolicyId,
    PolicySet, Request, RestrictedExpression, Schema,
};

pub use load::{PolicyError, PolicyFault};
pub use question::{Principal, PrincipalKind, Question};

/// The shipped policy.
pub const DEFAULT_POLICY: &str = include_str!("policy/default.cedar");

/// What policies may speak of.
const SCHEMA: &str = include_str!("policy/schema.cedarschema");

/// Host of operations that reach none.
const NO_HOST: &str = "none";

/// A validated policy set.
#[derive(Debug)]
pub struct Policy {
    policies: PolicySet,
    schema: Schema,
    authorizer: Authorizer,
}

/// A decision with what decided it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is permitted.
    pub permitted: bool,
    /// `@id` of each policy that decided, or its number; empty when nothing permitted.
    pub policies: Vec<String>,
}

impl Policy {
    /// The shipped policy.
    #[must_use]
    pub fn shipped() -> Self {
        Self::parse(DEFAULT_POLICY).expect("the shipped policy is valid, which a test proves")
    }

    /// Decides one question.
    #[must_use]
    pub fn decide(&self, question: &Question<'_>) -> Decision {
        let denied = |reason: String| {
            tracing::error!(%reason, "policy cannot be evaluated; denied");
            Decision {
                permitted: false,
                policies: Vec::new(),
            }
        };
        let (request, entities) = match self.request(question) {
            Ok(request) => request,
            Err(reason) => return denied(reason),
        };
        let response = self
            .authorizer
            .is_authorized(&request, &self.policies, &entities);
        if let Some(error) = response.diagnostics().errors().next() {
            return denied(error.to_string());
        }
        let mut policies: Vec<_> = response
            .diagnostics()
            .reason()
            .map(|id| self.name(id))
            .collect();
        policies.sort();
        let permitted = response.decision() == cedar_policy::Decision::Allow;
        Decision {
            permitted,
            policies,
        }
    }

    fn name(&self, id: &PolicyId) -> String {
        let named = self
            .policies
            .annotation(id, "id")
            .filter(|name| !name.is_empty());
        named.map_or_else(|| id.to_string(), str::to_owned)
    }

    fn request(&self, question: &Question<'_>) -> Result<(Request, Entities), String> {
        let principal = uid(question.principal.kind.entity(), &question.principal.name)?;
        let host = uid("Host", question.host.map_or(NO_HOST, |host| host.as_str()))?;
        let action = uid("Action", question.operation.name())?;
        let context = Context::from_pairs(question.context()).map_err(|error| error.to_string())?;
        let parents = |kind, names: &mut dyn Iterator<Item = &str>| {
            names
                .map(|name| uid(kind, name))
                .collect::<Result<HashSet<_>, _>>()
        };
        let roles = parents(
            "Role",
            &mut question.principal.roles.iter().map(String::as_str),
        )?;
        let pools = parents("Pool", &mut question.pools.iter().map(|pool| pool.as_str()))?;
        let tenant = RestrictedExpression::new_string(question.principal.tenant.to_string());
        let attributes = HashMap::from([("tenant".to_owned(), tenant)]);
        let entities = [
            Entity::new(principal.clone(), attributes, roles).map_err(|error| error.to_string())?,
            Entity::new_no_attrs(host.clone(), pools),
        ];
        let entities = Entities::from_entities(entities, Some(&self.schema))
            .map_err(|error| error.to_string())?;
        let request = Request::new(principal, action, host, context, Some(&self.schema))
            .map_err(|error| error.to_string())?;
        Ok((request, entities))
    }
}

fn uid(kind: &str, name: &str) -> Result<EntityUid, String> {
    let kind: EntityTypeName = kind.parse().map_err(|error| format!("{kind}: {error}"))?;
    Ok(EntityUid::from_type_name_and_id(kind, EntityId::new(name)))
}

#[cfg(test)]
mod tests {
    use events::{Operation, PoolName};

    use super::*;

    fn operation(text: &str) -> Operation {
        serde_json::from_str(text).unwrap()
    }

    fn decide(policy: &Policy, roles: &[&str], text: &str, pools: &[PoolName]) -> Decision {
        let operation = operation(text);
        let principal = Principal {
            kind: PrincipalKind::Source,
            name: "ci".to_owned(),
            tenant: "acme".parse().unwrap(),
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        };
        let host = "gpu-1".parse().unwrap();
        policy.decide(&Question {
            principal: &principal,
            operation: &operation,
            host: Some(&host),
            pools,
        })
    }

    const ALLOCATE: &str = r#"{"op":"allocate","key":"k","profile":"T4-4Q","count":3,"ttl_s":60}"#;
    const RESET: &str = r#"{"op":"reset","target":{"host":"gpu-1"}}"#;

    #[test]
    fn the_shipped_policy_denies_what_no_role_permits() {
        let policy = Policy::shipped();
        for (roles, text, expect) in [
            (&["operator"][..], ALLOCATE, Some("operators-use-gpus")),
            (
                &["operator"],
                r#"{"op":"renew","key":"k","ttl_s":1}"#,
                Some("operators-use-gpus"),
            ),
            (
                &["operator"],
                r#"{"op":"release","key":"k"}"#,
                Some("operators-use-gpus"),
            ),
            (
                &["operator"],
                r#"{"op":"inspect","target":{"host":"gpu-1"}}"#,
                Some("operators-use-gpus"),
            ),
            (&["operator"], RESET, None),
            (&["admin"], RESET, Some("administrators-do-everything")),
            (&["admin"], ALLOCATE, Some("administrators-do-everything")),
            (&[], ALLOCATE, None),
            (&["Operator"], ALLOCATE, None),
            (&["nobody"], ALLOCATE, None),
        ] {
            let decision = decide(&policy, roles, text, &[]);
            let expect = Decision {
                permitted: expect.is_some(),
                policies: expect.map(str::to_owned).into_iter().collect(),
            };
            assert_eq!(decision, expect, "{roles:?} {text}");
        }
    }

    #[test]
    fn policies_see_pool_context_and_tenant() {
        let policy = Policy::parse(
            r#"permit(principal, action == Action::"allocate", resource in Pool::"small")
               when { context.tenant == "acme" && principal.tenant == "acme" && context has count && context.count < 4 };
               @id("no-16q") forbid(principal, action, resource) when { context has profile && context.profile == "T4-16Q" };"#,
        )
        .unwrap();
        let small: [PoolName; 1] = ["small".parse().unwrap()];
        for (text, pools, expect) in [
            (ALLOCATE, &small[..], true),
            (ALLOCATE, &[], false),
            (
                r#"{"op":"allocate","key":"k","profile":"T4-4Q","count":4}"#,
                &small,
                false,
            ),
            (
                r#"{"op":"allocate","key":"k","memory_mib":9}"#,
                &small,
                true,
            ),
            (r#"{"op":"release","key":"k"}"#, &small, false),
        ] {
            assert_eq!(
                decide(&policy, &[], text, pools).permitted,
                expect,
                "{text}"
            );
        }
        let forbidden = decide(
            &policy,
            &[],
            r#"{"op":"allocate","key":"k","profile":"T4-16Q"}"#,
            &small,
        );
        assert_eq!(
            forbidden,
            Decision {
                permitted: false,
                policies: vec!["no-16q".to_owned()]
            }
        );
    }

    #[test]
    fn an_error_while_evaluating_denies() {
        // Overflow is the one error that validation cannot rule out.
        let policy = Policy::parse(
            r#"permit(principal, action, resource);
               forbid(principal, action, resource) when { context has count && context.count * 9223372036854775807 > 1 };"#,
        )
        .unwrap();
        assert!(!decide(&policy, &["admin"], ALLOCATE, &[]).permitted);
        assert!(decide(&policy, &["admin"], RESET, &[]).permitted);
    }
}
