//! `POST /vgpu`: the plain form of one allocation, with an API key. `gpu_id` is an index, a PCI
//! address or a UUID on the source's default target; `vgpu_type` is a profile.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use events::operation::{Allocate, Consumer, HostTarget, Mode, Problem as FieldProblem, Target};
use events::{AllocationKey, GpuSelector, Operation, OperationId, ProfileName};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{body, hooks, prefer, view};
use crate::App;
use crate::config::Caller;
use crate::intake::{self, Arrival};
use crate::plan::Asked;
use crate::problem::Problem;
use crate::signature::refusal::Header;
use crate::signature::{Refusal, standard};

/// Characters of the longest `Idempotency-Key` (Stripe's bound).
const MAX_KEY: usize = 255;
/// Begins the id of a request that brought none; no header value can, since it holds a space.
const FRESH: &str = "fresh ";

/// Answers the door.
pub(super) async fn post(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, mut body) = request.into_parts();
    let max = app.config.max_body_bytes;
    body::check(&head.headers, &mut body, max).await?;
    let caller = match authenticate(&app, &head.headers) {
        Err(problem) if body::is_awaited(&head.headers) => return Err(problem),
        decided => decided,
    };
    let body = body::read(body, max).await?;
    let caller = caller?;
    let id = match idempotency_key(&head.headers)? {
        Some(id) => id,
        None => format!("{FRESH}{}", Uuid::now_v7()),
    };
    let (tenant, wait) = (caller.principal.tenant.clone(), prefer::wait(&head.headers));
    let arrival = Arrival {
        caller,
        id,
        body,
        traceparent: hooks::traceparent(&head.headers),
    };
    let taken = intake::take(&app, arrival, read).await?;
    view::taken(&app, &tenant, taken, wait).await
}

fn authenticate(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    let presented = standard::once(headers, Header::ApiKey);
    let caller = app.api_key_caller(presented.unwrap_or_default());
    match (presented, caller) {
        (Ok(_), Some(caller)) => Ok(caller.clone()),
        (presented, _) => {
            let refusal = presented.err().unwrap_or(Refusal::UnknownKey);
            tracing::warn!(reason = %refusal, "API key refused");
            Err(unauthenticated())
        }
    }
}

fn unauthenticated() -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "Not authenticated",
        "Send a valid key in one X-API-KEY header",
    )
    .with_header(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("ApiKey header=\"X-API-KEY\""),
    )
}

/// `Idempotency-Key`, if there is one.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let malformed = |refusal: Refusal, code| Problem::malformed(code, refusal.to_string());
    let value = match standard::once(headers, Header::IdempotencyKey) {
        Ok(value) => value,
        Err(Refusal::Missing(_)) => return Ok(None),
        Err(refusal) => return Err(malformed(refusal, "duplicate-header")),
    };
    let printable = (1..=MAX_KEY).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(value).ok().filter(|_| printable);
    let text = text
        .ok_or_else(|| malformed(Refusal::MalformedId(Header::IdempotencyKey), "malformed-id"))?;
    Ok(Some(text.to_owned()))
}

fn read(body: &Bytes, arrival: &Arrival) -> Result<Vec<Asked>, Problem> {
    let mut object = hooks::object(body)?;
    let mut problems = Vec::new();
    let gpu = gpu_id(object.remove("gpu_id"), &mut problems);
    let profile = vgpu_type(&mut object, &mut problems);
    for name in object.keys() {
        problem(
            &mut problems,
            &format!("/{name}"),
            "is not a field of this door, which takes gpu_id and vgpu_type",
        );
    }
    let target = match (&arrival.caller.default_target, gpu) {
        (Some(Target::Host(target)), gpu) => Some(Target::Host(HostTarget {
            host: target.host.clone(),
            gpu: gpu.or_else(|| target.gpu.clone()),
        })),
        (Some(Target::Pool(_)), Some(_)) => {
            problem(
                &mut problems,
                "/gpu_id",
                "means nothing where the source's default_target is a pool",
            );
            None
        }
        (target, None) => target.clone(),
        (None, Some(_)) => {
            problem(
                &mut problems,
                "/gpu_id",
                "needs a default_target of the source",
            );
            None
        }
    };
    let id = OperationId(Uuid::now_v7());
    match profile {
        Some(profile) if problems.is_empty() => {
            let operation = Operation::Allocate(Allocate {
                key: allocation_key(arrival, id),
                target,
                profile: Some(profile),
                memory_mib: None,
                compute_percent: None,
                mode: Mode::Vgpu,
                count: 1,
                limits: None,
                ttl_s: None,
                consumer: Consumer::Vm,
            });
            Ok(vec![Asked {
                id,
                operation,
                pointer: String::new(),
            }])
        }
        _ => Err(intake::invalid(problems)),
    }
}

/// From the sender's own key where there is one, so that the allocation can be found again.
fn allocation_key(arrival: &Arrival, id: OperationId) -> AllocationKey {
    let own = if arrival.id.starts_with(FRESH) {
        id.to_string()
    } else {
        let hash = intake::sha256(format!("{}:{}", arrival.caller.name, arrival.id).as_bytes());
        hex::encode(&hash[..16])
    };
    format!("vgpu:{own}")
        .parse()
        .expect("hexadecimal digits and dashes are a key")
}

fn problem(problems: &mut Vec<FieldProblem>, pointer: &str, detail: &str) {
    problems.push(FieldProblem {
        pointer: pointer.to_owned(),
        detail: detail.to_owned(),
    });
}

fn gpu_id(value: Option<Value>, problems: &mut Vec<FieldProblem>) -> Option<GpuSelector> {
    let value = value?;
    let selector = serde_json::from_value(value).ok();
    if selector.is_none() {
        problem(
            problems,
            "/gpu_id",
            "must be a GPU UUID, a PCI address or an index from 0 to 63",
        );
    }
    selector
}

fn vgpu_type(
    object: &mut Map<String, Value>,
    problems: &mut Vec<FieldProblem>,
) -> Option<ProfileName> {
    let profile = match object.remove("vgpu_type") {
        Some(Value::String(text)) => text.parse().ok(),
        _ => None,
    };
    if profile.is_none() {
        problem(problems, "/vgpu_type", "must be a vGPU type, such as T4-4Q");
    }
    profile
}
