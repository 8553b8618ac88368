//! Around every request: an id, a deadline, one log line, and problems written out. The log knows
//! the route and never the path: paths hold keys.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

use super::prefer;
use crate::framing::Ambiguous;
use crate::problem::Problem;

/// Longest that a request may take, beyond what it asked to wait for.
const DEADLINE: Duration = Duration::from_secs(20);

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Runs a request.
pub(super) async fn around(request: Request, next: Next) -> Response {
    let (start, id) = (Instant::now(), Uuid::now_v7().to_string());
    let method = request.method().clone();
    let instance = request.uri().path().to_owned();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map(|route| route.as_str().to_owned());
    let deadline = DEADLINE + prefer::wait(request.headers());
    // The framing watch ends with chunks, and with it the connection.
    let chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let ambiguous = request.extensions().get::<Ambiguous>().is_some();
    let mut response = if ambiguous {
        let detail = "The body's length can be read in two ways; send one Content-Length, or Transfer-Encoding: chunked";
        Problem::malformed("malformed-framing", detail).into_response()
    } else {
        run(request, next, deadline).await
    };
    let mut code = "";
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        code = problem.code;
        let allow = response.headers().get(header::ALLOW).cloned();
        response = problem.render(&instance, &id);
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    if chunked || ambiguous {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    tracing::info!(
        request.id = %id, request.method = %method, request.route = route.as_deref().unwrap_or("none"),
        response.status = response.status().as_u16(), response.code = code,
        duration_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX), "request answered"
    );
    response
}

async fn run(request: Request, next: Next, deadline: Duration) -> Response {
    let response = tokio::time::timeout(deadline, next.run(request)).await;
    response.unwrap_or_else(|_| {
        let detail = "The request took too long and was given up; send it again, unchanged";
        Problem::unavailable("deadline", detail).into_response()
    })
}
