//! Lists: operations, allocations, hosts.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use backplane::StoreError;
use backplane::store::Page;
use serde::{Deserialize, Serialize};

use super::{bearer, view};
use crate::App;
use crate::problem::Problem;

/// Rows of one page.
const MAX_LIMIT: usize = 200;
const DEFAULT_LIMIT: usize = 50;
/// Characters of the longest cursor.
const MAX_CURSOR: usize = 128;

/// `?limit=&after=`.
#[derive(Debug, Deserialize)]
pub(super) struct Paging {
    limit: Option<usize>,
    after: Option<String>,
}

/// A page as it is written.
#[derive(Serialize)]
struct Listing<T> {
    items: Vec<T>,
    /// Value of `after` for the next page; `null` at the end.
    next: Option<String>,
}

impl Paging {
    fn checked(
        paging: Result<Query<Self>, QueryRejection>,
    ) -> Result<(Option<String>, usize), Problem> {
        let malformed = || {
            let detail = format!(
                "limit must be from 1 to {MAX_LIMIT}, and after the next of an earlier page"
            );
            Problem::malformed("malformed-query", detail)
        };
        let Query(Self { limit, after }) = paging.map_err(|_| malformed())?;
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        let plain = |cursor: &String| {
            cursor.len() <= MAX_CURSOR
                && cursor
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'='))
        };
        if !(1..=MAX_LIMIT).contains(&limit) || !after.as_ref().is_none_or(plain) {
            return Err(malformed());
        }
        Ok((after, limit))
    }
}

fn page<R, T: Serialize>(
    page: Result<Page<R>, StoreError>,
    of: impl Fn(R) -> T,
) -> Result<Response, Problem> {
    let page = page.map_err(|error| Problem::store_unavailable(&error))?;
    Ok(view::ok(Listing {
        items: page.items.into_iter().map(of).collect(),
        next: page.next,
    }))
}

/// `GET /v1/operations`, newest first.
pub(super) async fn operations(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    paging: Result<Query<Paging>, QueryRejection>,
) -> Result<Response, Problem> {
    let tenant = &bearer::caller(&app, &headers)?.principal.tenant;
    let (after, limit) = Paging::checked(paging)?;
    page(
        app.reads.operations(tenant, after.as_deref(), limit).await,
        view::OperationView::of,
    )
}

/// `GET /v1/allocations`, pending and live, newest first.
pub(super) async fn allocations(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    paging: Result<Query<Paging>, QueryRejection>,
) -> Result<Response, Problem> {
    let tenant = &bearer::caller(&app, &headers)?.principal.tenant;
    let (after, limit) = Paging::checked(paging)?;
    page(
        app.reads.allocations(tenant, after.as_deref(), limit).await,
        view::AllocationView::of,
    )
}

/// `GET /v1/hosts`, all of them.
pub(super) async fn hosts(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let tenant = &bearer::caller(&app, &headers)?.principal.tenant;
    let hosts = app
        .reads
        .hosts()
        .await
        .map_err(|error| Problem::store_unavailable(&error))?;
    Ok(view::ok(Listing {
        items: hosts.iter().map(|host| view::host(host, tenant)).collect(),
        next: None,
    }))
}
