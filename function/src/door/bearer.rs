//! Bearer tokens of the read doors.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::App;
use crate::config::Caller;
use crate::problem::Problem;

/// Whose token the request carries. The answer is the same whether it is missing, malformed or wrong.
pub(super) fn caller<'a>(app: &'a App, headers: &HeaderMap) -> Result<&'a Caller, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let presented = match (values.next(), values.next()) {
        (Some(value), None) => token(value.as_bytes()),
        _ => None,
    };
    // Nothing presented is compared too: the same work, whatever was sent.
    let found = app.token_caller(presented.unwrap_or_default());
    found
        .filter(|_| presented.is_some())
        .ok_or_else(unauthenticated)
}

fn token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"Bearer ")
        .then(|| token.trim_ascii())
}

fn unauthenticated() -> Problem {
    let detail = "Send a valid bearer token: Authorization: Bearer gpht_…";
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "Not authenticated",
        detail,
    )
    .with_header(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Bearer realm=\"gpuhook\""),
    )
}
