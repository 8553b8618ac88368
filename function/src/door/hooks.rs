//! `POST /v1/hooks/{source}`: signed webhooks.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use events::json::{self, JsonError};
use events::operation::Problem as FieldProblem;
use events::{Operation, OperationId};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{body, prefer, view};
use crate::App;
use crate::intake::{self, Arrival};
use crate::plan::Asked;
use crate::problem::Problem;
use crate::signature::{Refusal, standard};

/// Operations of one delivery: they are accepted in one transaction.
const MAX_OPERATIONS: usize = 32;

/// Answers the door.
pub(super) async fn post(
    State(app): State<Arc<App>>,
    source: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, mut body) = request.into_parts();
    let max = app.config.max_body_bytes;
    body::check(&head.headers, &mut body, max).await?;
    let is_refused = standard::check_head(&head.headers).is_err();
    let body = if is_refused && body::is_awaited(&head.headers) {
        Bytes::new()
    } else {
        body::read(body, max).await?
    };
    let source = source.map(|Path(source)| source).unwrap_or_default();
    let arrival = authenticate(&app, &source, &head.headers, body)?;
    let (tenant, wait) = (
        arrival.caller.principal.tenant.clone(),
        prefer::wait(&head.headers),
    );
    let taken = intake::take(&app, arrival, read).await?;
    view::taken(&app, &tenant, taken, wait).await
}

fn authenticate(
    app: &App,
    source: &str,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Arrival, Problem> {
    let now_s = app.clock.now_s();
    let Some((caller, secrets, tolerance_s)) = app.webhook_source(source) else {
        // The same work as for a bad signature, so that time does not tell which sources exist. What
        // the path says is not logged: paths hold keys.
        let _ = standard::verify(headers, &body, &app.decoys, 0, now_s);
        let hash = hex::encode(intake::sha256(&body));
        tracing::warn!(reason = "no such source", body.bytes = body.len(), body.sha256 = %hash, "webhook refused");
        return Err(Problem::not_found());
    };
    match standard::verify(headers, &body, secrets, tolerance_s, now_s) {
        Ok(verified) => {
            tracing::debug!(source.name = %caller.name, secret.name = verified.secret, "signature verified");
            let (id, traceparent) = (verified.id.to_owned(), traceparent(headers));
            Ok(Arrival {
                caller: caller.clone(),
                id,
                body,
                traceparent,
            })
        }
        Err(refusal) => {
            // Enough to find the sender's mistake with (field F29), and nothing of what was sent.
            let hash = hex::encode(intake::sha256(&body));
            let names: Vec<_> = secrets.iter().map(|secret| secret.name.as_str()).collect();
            tracing::warn!(
                source.name = %caller.name, reason = %refusal, body.bytes = body.len(), body.sha256 = %hash,
                secrets = ?names, "webhook refused"
            );
            Err(refused(refusal))
        }
    }
}

/// A malformed request is told what is malformed; everything else gets the one answer that strangers
/// get (adnanh/webhook#85).
fn refused(refusal: Refusal) -> Problem {
    if refusal.is_malformed() {
        let code = if matches!(refusal, Refusal::Repeated(_)) {
            "duplicate-header"
        } else {
            "malformed-id"
        };
        return Problem::malformed(code, refusal.to_string());
    }
    let detail = "Sign the exact bytes sent as of Standard Webhooks: webhook-id, webhook-timestamp (seconds, now) and webhook-signature, each once";
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "Not authenticated",
        detail,
    )
    .with_header(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Signature headers=\"webhook-signature\""),
    )
}

/// W3C trace context, if it has its fixed form.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let plain = text.len() == 55
        && text
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f' | b'-'));
    plain.then(|| text.to_owned())
}

/// One operation, or `{"operations": [...]}`.
fn read(body: &Bytes, _: &Arrival) -> Result<Vec<Asked>, Problem> {
    let object = object(body)?;
    if object.contains_key("op") || !object.contains_key("operations") {
        let asked = operation(Value::Object(object), String::new()).map_err(intake::invalid)?;
        return Ok(vec![asked]);
    }
    let one = |pointer: &str, detail: &str| {
        intake::invalid(vec![FieldProblem {
            pointer: pointer.to_owned(),
            detail: detail.to_owned(),
        }])
    };
    if object.len() > 1 {
        return Err(one("", "beside operations there must be no other field"));
    }
    let Some(Value::Array(items)) = object.into_iter().next().map(|(_, value)| value) else {
        return Err(one("/operations", "must be a list"));
    };
    if items.len() > MAX_OPERATIONS {
        return Err(one("/operations", "must hold at most 32 operations"));
    }
    let (mut asked, mut problems) = (Vec::new(), Vec::new());
    for (position, item) in items.into_iter().enumerate() {
        match operation(item, format!("/operations/{position}")) {
            Ok(operation) => asked.push(operation),
            Err(found) => problems.extend(found),
        }
    }
    if problems.is_empty() {
        Ok(asked)
    } else {
        Err(intake::invalid(problems))
    }
}

fn operation(value: Value, pointer: String) -> Result<Asked, Vec<FieldProblem>> {
    match Operation::from_value(value) {
        Ok(operation) => Ok(Asked {
            id: OperationId(Uuid::now_v7()),
            operation,
            pointer,
        }),
        Err(mut problems) => {
            problems
                .iter_mut()
                .for_each(|problem| problem.pointer.insert_str(0, &pointer));
            Err(problems)
        }
    }
}

/// Strict JSON; which of its faults is malformed and which merely too much is a matter of status.
pub(super) fn object(body: &Bytes) -> Result<Map<String, Value>, Problem> {
    json::parse_object(body).map_err(|error| match error {
        JsonError::Empty => Problem::malformed("empty-body", error.to_string()),
        JsonError::Limit(text) if is_size(text) => {
            Problem::unprocessable("too-large-value", text, Vec::new())
        }
        JsonError::NotAnObject | JsonError::Limit(_) | JsonError::Malformed { .. } => {
            Problem::malformed("malformed-json", error.to_string())
        }
    })
}

/// Caps on strings, keys, counts and integers are 422; duplicate keys, depth, and numbers that no
/// float holds are 400 (webhook facts §10, rows 36 to 45).
fn is_size(limit: &str) -> bool {
    limit.contains("longer than") || limit.contains("more than")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_are_no_object_have_their_documented_status() {
        let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(40), "]".repeat(40));
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(9000));
        let long_key = format!(r#"{{"{}":1}}"#, "x".repeat(300));
        let many = format!(r#"{{"a":[{}0]}}"#, "0,".repeat(1024));
        for (body, status) in [
            ("", 400),
            ("[]", 400),
            ("null", 400),
            ("{", 400),
            (r#"{"a":1,"a":2}"#, 400),
            (r#"{"a":1e400}"#, 400),
            (r#"{"a":18446744073709551616}"#, 422),
            (r#"{"a":-9223372036854775809}"#, 422),
            (deep.as_str(), 400),
            (long.as_str(), 422),
            (long_key.as_str(), 422),
            (many.as_str(), 422),
        ] {
            let problem = object(&Bytes::copy_from_slice(body.as_bytes())).unwrap_err();
            assert_eq!(problem.status.as_u16(), status, "{body:.40}: {problem:?}");
        }
    }
}
