//! `[[source]]` and `[[token]]`: who may post and who may read.

use events::operation::{HostTarget, PoolTarget, Target};
use events::{GpuSelector, HostName, PoolName, SourceName, TenantName};

use super::document::{At, Document, Section};
use super::reference::{self, Environment};
use crate::policy::{Principal, PrincipalKind};
use crate::signature::{ApiKey, WebhookSecret};

/// Secrets of one source: current, next, and a few forgotten ones (Svix allows ten).
const MAX_SECRETS: usize = 10;
/// A day: beyond, the timestamp protects nothing.
const MAX_TOLERANCE_S: i64 = 86_400;
/// What the reference libraries use.
const DEFAULT_TOLERANCE_S: i64 = 300;

/// One configured sender.
#[derive(Debug)]
pub struct Source {
    /// Its name, tenant and roles.
    pub caller: Caller,
    /// How it proves itself.
    pub scheme: Scheme,
}

/// On whose behalf something is asked for, and what is filled in for it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The source's name, or the token's.
    pub name: SourceName,
    /// Whom policy is asked about.
    pub principal: Principal,
    /// Where operations go that name no target.
    pub default_target: Option<Target>,
    /// Endpoints that get the results.
    pub callbacks: Vec<String>,
}

/// How a source proves itself.
#[derive(Debug)]
pub enum Scheme {
    /// Standard Webhooks, v1 and v1a: `POST /v1/hooks/<name>`.
    StandardWebhooks {
        /// Any of these.
        secrets: Vec<WebhookSecret>,
        /// How far the timestamp may be off, either way, inclusive.
        tolerance_s: i64,
    },
    /// `X-API-KEY`: `POST /vgpu`.
    ApiKey {
        /// Any of these.
        keys: Vec<ApiKey>,
    },
}

/// A bearer token of the read doors.
#[derive(Debug)]
pub struct Token {
    /// Its name, tenant and roles; roles only matter for `DELETE`.
    pub caller: Caller,
    /// Its hash.
    pub key: ApiKey,
}

/// Reads one `[[source]]`.
pub(super) fn source(
    document: &Document<'_>,
    section: Section<'_>,
    environment: Environment<'_>,
) -> Option<At<Source>> {
    let at = section.at;
    let name = section.require("name", section.parsed::<SourceName>("name"));
    let tenant = section.require("tenant", section.parsed::<TenantName>("tenant"));
    let preset = section.require("preset", section.string("preset"));
    let roles = roles(&section);
    let default_target = section
        .table("default_target")
        .and_then(|table| target(document, table));
    let callbacks = section
        .strings("callbacks")
        .into_iter()
        .map(|name| name.value.to_owned())
        .collect();
    let tolerance = section.integer("tolerance_s", 1..=MAX_TOLERANCE_S);
    let references = section.strings("secrets");
    if references.is_empty() || references.len() > MAX_SECRETS {
        document.fault(at, format!("source.secrets must list 1 to {MAX_SECRETS} references: an unsigned source is open to everybody"));
    }
    section.finish();
    let scheme = match preset.map(|preset| (preset.value, preset.at))? {
        ("standard-webhooks", _) => {
            let secrets = secrets(document, &references, environment, WebhookSecret::parse);
            Scheme::StandardWebhooks {
                secrets,
                tolerance_s: tolerance.map_or(DEFAULT_TOLERANCE_S, |tolerance| tolerance.value),
            }
        }
        ("api-key", _) => {
            if let Some(tolerance) = tolerance {
                document.fault(
                    tolerance.at,
                    "source.tolerance_s means nothing for api-key, which has no timestamp",
                );
            }
            Scheme::ApiKey {
                keys: secrets(document, &references, environment, ApiKey::parse),
            }
        }
        (other, at) => {
            document.fault(
                at,
                format!(
                    "source.preset {other:?} is unknown: standard-webhooks and api-key are known"
                ),
            );
            return None;
        }
    };
    let (name, tenant) = (name?, tenant?.value);
    let principal = Principal {
        kind: PrincipalKind::Source,
        name: name.value.to_string(),
        tenant,
        roles,
    };
    let caller = Caller {
        name: name.value,
        principal,
        default_target,
        callbacks,
    };
    Some(At {
        value: Source { caller, scheme },
        at: name.at,
    })
}

fn secrets<T>(
    document: &Document<'_>,
    references: &[At<&str>],
    environment: Environment<'_>,
    parse: impl Fn(&str, &str) -> Result<T, crate::signature::SecretError>,
) -> Vec<T> {
    let mut found = Vec::new();
    for reference in references {
        let Some(text) = reference::read(document, reference, environment) else {
            continue;
        };
        match parse(reference.value, &text) {
            Ok(secret) => found.push(secret),
            Err(error) => {
                document.fault(reference.at, format!("secret {}: {error}", reference.value))
            }
        }
    }
    found
}

fn roles(section: &Section<'_>) -> Vec<String> {
    section
        .strings("roles")
        .into_iter()
        .map(|role| role.value.to_owned())
        .collect()
}

fn target(document: &Document<'_>, table: Section<'_>) -> Option<Target> {
    let at = table.at;
    let host = table.parsed::<HostName>("host");
    let gpu = table.parsed::<GpuSelector>("gpu");
    let pool = table.parsed::<PoolName>("pool");
    table.finish();
    match (host, gpu, pool) {
        (Some(host), gpu, None) => Some(Target::Host(HostTarget {
            host: host.value,
            gpu: gpu.map(|gpu| gpu.value),
        })),
        (None, None, Some(pool)) => Some(Target::Pool(PoolTarget { pool: pool.value })),
        _ => {
            document.fault(at, "default_target must be { host = \"…\" }, with a gpu if wanted, or { pool = \"…\" }");
            None
        }
    }
}

/// Reads one `[[token]]`.
pub(super) fn token(document: &Document<'_>, section: Section<'_>) -> Option<At<Token>> {
    let name = section.require("name", section.parsed::<SourceName>("name"));
    let tenant = section.require("tenant", section.parsed::<TenantName>("tenant"));
    let sha256 = section.require("sha256", section.string("sha256"));
    let roles = roles(&section);
    section.finish();
    let sha256 = sha256?;
    let digest = hex::decode(sha256.value)
        .ok()
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    if digest.is_none() {
        document.fault(
            sha256.at,
            "token.sha256 must be the 64 hexadecimal digits that `gpuhook token new` prints",
        );
    }
    let (name, tenant, digest) = (name?, tenant?.value, digest?);
    let key = ApiKey::of_digest(name.value.as_str(), digest);
    let principal = Principal {
        kind: PrincipalKind::Token,
        name: name.value.to_string(),
        tenant,
        roles,
    };
    let caller = Caller {
        name: name.value,
        principal,
        default_target: None,
        callbacks: Vec::new(),
    };
    Some(At {
        value: Token { caller, key },
        at: name.at,
    })
}
