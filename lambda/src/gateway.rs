//! HTTP events as requests, and answers as Lambda wants them.
//!
//! Payload 2.0 (HTTP APIs, function URLs), payload 1.0 (REST APIs) and load balancers give the same
//! request. The event is read by hand: the stock crates panic on bad base64 and fail the whole event on
//! a control character in a header (webhook facts §2, §10 rows 55, 56); here that is a 400.

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};

/// RFC 7240.
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Why an event is no request: a stable code, and a sentence for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Malformed {
    /// As problem documents have it.
    pub code: &'static str,
    /// For people.
    pub detail: &'static str,
}

/// The request of an event.
///
/// # Errors
/// What no HTTP server would have let through.
pub fn request(event: &Value) -> Result<Request<Body>, Malformed> {
    let headers = headers(event)?;
    let (method, target) = target(event)?;
    let body = body(event)?;
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = method;
    *request.uri_mut() = target;
    *request.headers_mut() = headers;
    Ok(request)
}

fn malformed(code: &'static str, detail: &'static str) -> Malformed {
    Malformed { code, detail }
}

fn target(event: &Value) -> Result<(Method, Uri), Malformed> {
    let no_request = malformed("malformed-request", "The event names no method and path");
    let (method, path, query) = match &event["requestContext"]["http"]["method"] {
        Value::String(method) => {
            let query = event["rawQueryString"].as_str().unwrap_or_default();
            (method, &event["rawPath"], query.to_owned())
        }
        _ => {
            let method = event["httpMethod"].as_str();
            let method = method.ok_or(no_request)?;
            let path = &event["path"];
            let target = (method.parse(), path.as_str(), query_of_1_0(event));
            return uri(target.0.ok(), target.1, &target.2).ok_or(no_request);
        }
    };
    uri(method.parse().ok(), path.as_str(), &query).ok_or(no_request)
}

fn uri(method: Option<Method>, path: Option<&str>, query: &str) -> Option<(Method, Uri)> {
    let path = escaped(path?, b"/%:@!$&'()*+,;=-._~");
    let query = escaped(query, b"/?%:@!$&'()*+,;=-._~");
    let target = if query.is_empty() {
        path
    } else {
        format!("{path}?{query}")
    };
    Some((method?, target.parse().ok()?))
}

/// Some carriers decode what they pass on; what may not stand in a URI is encoded (again).
fn escaped(text: &str, plain: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// Payload 1.0 gives decoded parameters only; a load balancer gives them as they came.
fn query_of_1_0(event: &Value) -> String {
    let is_raw = event["requestContext"]["elb"].is_object();
    let plain: &[u8] = if is_raw { b"-._~%+" } else { b"-._~" };
    let encode = |text: &str| escaped(text, plain);
    let mut pairs = Vec::new();
    if let Some(lists) = event["multiValueQueryStringParameters"].as_object() {
        for (name, values) in lists {
            for value in values.as_array().into_iter().flatten() {
                let value = value.as_str().unwrap_or_default();
                pairs.push(format!("{}={}", encode(name), encode(value)));
            }
        }
    } else if let Some(single) = event["queryStringParameters"].as_object() {
        for (name, value) in single {
            let value = value.as_str().unwrap_or_default();
            pairs.push(format!("{}={}", encode(name), encode(value)));
        }
    }
    pairs.join("&")
}

/// Every header as often as the carrier says. Payload 2.0 joins repetitions with commas, which the doors
/// refuse as they refuse repetitions.
fn headers(event: &Value) -> Result<HeaderMap, Malformed> {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &Value| {
        let refused = malformed(
            "malformed-header",
            "A header has a name or value that HTTP does not allow",
        );
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused)?;
        let value = value.as_str().ok_or(refused)?;
        let value = HeaderValue::from_str(value).map_err(|_| refused)?;
        headers.append(name, value);
        Ok(())
    };
    if let Some(lists) = event["multiValueHeaders"].as_object() {
        for (name, values) in lists {
            for value in values.as_array().into_iter().flatten() {
                add(name, value)?;
            }
        }
    } else if let Some(single) = event["headers"].as_object() {
        for (name, value) in single {
            add(name, value)?;
        }
    }
    // Lambda has the whole body: how it came here is over. Nobody waits here (`Prefer: wait`): that would
    // keep a sandbox, and could end past the gateway's patience.
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, PREFER] {
        headers.remove(name);
    }
    Ok(headers)
}

/// The body's bytes as the sender had them: decoded once, and only if the event says so.
fn body(event: &Value) -> Result<Vec<u8>, Malformed> {
    let text = match &event["body"] {
        Value::Null => "",
        Value::String(text) => text,
        _ => return Err(malformed("malformed-body", "The event's body is no text")),
    };
    if event["isBase64Encoded"] != Value::Bool(true) {
        return Ok(text.as_bytes().to_vec());
    }
    STANDARD
        .decode(text)
        .map_err(|_| malformed("malformed-body", "The event's body is not base64"))
}

/// The answer to an event that is no request.
#[must_use]
pub fn refusal(malformed: Malformed) -> Value {
    let problem = json!({
        "type": "about:blank", "title": "Malformed request", "status": 400,
        "code": malformed.code, "detail": malformed.detail,
    });
    json!({
        "statusCode": 400, "headers": {"content-type": "application/problem+json"},
        "body": problem.to_string(), "isBase64Encoded": false,
    })
}

/// A response as every carrier takes it.
pub async fn answer(response: Response) -> Value {
    let (head, body) = response.into_parts();
    let (status, bytes) = match body.collect().await {
        Ok(bytes) => (head.status, bytes.to_bytes()),
        // Our own bodies are in memory.
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Default::default()),
    };
    let mut headers = Map::new();
    for name in head.headers.keys().filter(|name| *name != CONNECTION) {
        let values = head.headers.get_all(name).iter();
        let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
        headers.insert(name.to_string(), values.join(",").into());
    }
    let (text, is_base64) = match std::str::from_utf8(&bytes) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (STANDARD.encode(&bytes), true),
    };
    json!({"statusCode": status.as_u16(), "headers": headers, "body": text, "isBase64Encoded": is_base64})
}
