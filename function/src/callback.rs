//! Callbacks: results, signed and posted to configured endpoints.
//!
//! The body was fixed when the result was settled; each attempt signs it afresh, under the same id
//! and its own timestamp (field F24). What an attempt may reach is in [`address`], how it reaches it
//! in `exchange`, and what follows from it in [`schedule`].

pub mod endpoint;

pub mod address;

pub mod trust;

pub mod resolver;

pub mod signature;

pub mod exchange;

pub mod schedule;

use std::collections::BTreeMap;
use std::sync::Arc;

use backplane::Clock;
use backplane::store::{Attempt, DueCallback};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::http::response::Parts;
use hyper::{Method, Request};

use crate::causes::chain;
use endpoint::Endpoint;
use exchange::Limits;
use resolver::Resolver;
use schedule::Heard;

/// Attempts callbacks. Knows the endpoints; keeps nothing between attempts.
pub struct Callbacks {
    endpoints: BTreeMap<String, Endpoint>,
    resolver: Arc<dyn Resolver>,
    clock: Arc<dyn Clock>,
    limits: Limits,
}

impl Callbacks {
    /// For these endpoints, whose names are unique.
    #[must_use]
    pub fn new(
        endpoints: Vec<Endpoint>,
        resolver: Arc<dyn Resolver>,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Self {
        let named = |endpoint: Endpoint| (endpoint.name().to_owned(), endpoint);
        Self {
            endpoints: endpoints.into_iter().map(named).collect(),
            resolver,
            clock,
            limits,
        }
    }

    /// Longest time that one attempt takes.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Makes one attempt and says what follows from it. Never fails: a callback that cannot be
    /// attempted is one that is tried again.
    pub async fn attempt(&self, due: &DueCallback) -> Attempt {
        let attempt = due.attempts.saturating_add(1);
        let heard = match self.endpoints.get(&due.endpoint) {
            Some(endpoint) => self.post(endpoint, due).await,
            // Its block may come back with the next start; until then the schedule goes on.
            None => Heard::Nothing("endpoint is not configured".to_owned()),
        };
        let decided = schedule::decide(&due.webhook_id, attempt, &heard, self.clock.now_ms());
        log(due, attempt, &decided);
        decided
    }

    async fn post(&self, endpoint: &Endpoint, due: &DueCallback) -> Heard {
        let request = match request(endpoint, due, self.clock.now_s()) {
            Ok(request) => request,
            Err(error) => return Heard::Nothing(format!("request cannot be made: {error}")),
        };
        let answer = exchange::post(endpoint, &*self.resolver, &self.limits, request).await;
        match answer {
            Ok(head) => Heard::Status {
                code: head.status.as_u16(),
                retry_after_s: retry_after_s(&head, self.clock.now_s()),
            },
            Err(error) => Heard::Nothing(chain(&error)),
        }
    }
}

fn request(
    endpoint: &Endpoint,
    due: &DueCallback,
    now_s: i64,
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let body = Bytes::from(due.body.clone());
    let signature = signature::header(
        &endpoint.secrets,
        &endpoint.keys,
        &due.webhook_id,
        now_s,
        &body,
    );
    let destination = endpoint.destination();
    Request::builder()
        .method(Method::POST)
        .uri(&destination.path)
        .header(HOST, &destination.authority)
        .header(CONTENT_TYPE, "application/cloudevents+json")
        .header(USER_AGENT, concat!("gpuhook/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, HeaderValue::from_static("close"))
        .header("webhook-id", &due.webhook_id)
        .header("webhook-timestamp", now_s)
        .header("webhook-signature", signature)
        .body(Full::new(body))
}

/// `Retry-After` in seconds from now; both forms of RFC 9110 §10.2.3.
fn retry_after_s(head: &Parts, now_s: i64) -> Option<i64> {
    let text = head.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(i64::from(seconds));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new();
    let at = date.parse_timestamp(text).ok()?;
    Some(at.as_second().saturating_sub(now_s))
}

/// Names, counts and statuses; never a URL, a header or a body.
fn log(due: &DueCallback, attempt: u32, decided: &Attempt) {
    let (endpoint, id) = (&due.endpoint, &due.webhook_id);
    match decided {
        Attempt::Delivered => {
            tracing::info!(callback.endpoint = %endpoint, callback.id = %id, attempt, "callback delivered");
        }
        Attempt::RetryAt(at_ms, reason) => {
            tracing::warn!(callback.endpoint = %endpoint, callback.id = %id, attempt, %reason, retry_at_ms = at_ms, "callback failed, to be tried again");
        }
        Attempt::Parked(reason) => {
            tracing::error!(callback.endpoint = %endpoint, callback.id = %id, attempt, %reason, "callback given up; it is kept for an operator");
        }
    }
}
