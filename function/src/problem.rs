//! Answers other than success: RFC 9457 problem documents with stable codes (webhook facts §11).

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use backplane::StoreError;
use events::operation::Problem as FieldProblem;
use serde::Serialize;

use crate::causes::chain;

/// Media type of problem documents.
const MEDIA_TYPE: &str = "application/problem+json";

/// One answer that is no success.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    /// HTTP status.
    pub(crate) status: StatusCode,
    /// Stable, for programs.
    pub(crate) code: &'static str,
    /// The same for every occurrence of `code`.
    pub(crate) title: &'static str,
    /// About this occurrence, for a person.
    pub(crate) detail: String,
    /// Fields at fault.
    pub(crate) errors: Vec<FieldProblem>,
    /// Beyond content type: `Retry-After`, `WWW-Authenticate`.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

/// As it is written.
#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    instance: &'a str,
    code: &'a str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldProblem],
}

impl Problem {
    /// A problem without fields or headers.
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            status,
            code,
            title,
            detail: detail.into(),
            errors: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// With the fields at fault.
    pub(crate) fn with_errors(mut self, errors: Vec<FieldProblem>) -> Self {
        self.errors = errors;
        self
    }

    /// With a header.
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// With `Retry-After`.
    pub(crate) fn retry_after_s(self, seconds: u32) -> Self {
        self.with_header(header::RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// 400.
    pub(crate) fn malformed(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            code,
            "The request is malformed",
            detail,
        )
    }

    /// 404.
    pub(crate) fn not_found() -> Self {
        let detail = "There is nothing at this path, or not for this caller";
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    /// 422.
    pub(crate) fn unprocessable(
        code: &'static str,
        detail: impl Into<String>,
        errors: Vec<FieldProblem>,
    ) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            code,
            "The operation cannot be accepted",
            detail,
        )
        .with_errors(errors)
    }

    /// 503 for a store that does not answer; the reason goes to the log.
    pub(crate) fn store_unavailable(error: &StoreError) -> Self {
        tracing::error!(error = %chain(error), "store is unavailable");
        let detail = "The store does not answer; nothing was accepted by this request. Send it again, unchanged";
        Self::unavailable("store-unavailable", detail)
    }

    /// 503.
    pub(crate) fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            code,
            "Temporarily unavailable",
            detail,
        )
        .retry_after_s(5)
    }

    /// The document, about one request.
    pub(crate) fn render(&self, instance: &str, request_id: &str) -> Response {
        let document = Document {
            r#type: format!("https://gpuhook.dev/problems/{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            instance,
            code: self.code,
            request_id,
            errors: &self.errors,
        };
        let body = serde_json::to_vec(&document).expect("strings and numbers always serialise");
        let mut response =
            (self.status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        response.headers_mut().extend(self.headers.iter().cloned());
        response
    }
}

/// Carried to the outermost layer, which knows the request's id and path.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}
