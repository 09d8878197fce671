//! Reads of elections.
//!
//! Responses come from the snapshot (see [`snapshot`](crate::snapshot)). `consistent=true` waits for a store
//! read that was sent after the request arrived; concurrent requests share it.

use std::ops::Bound;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tenure::port::Permission;
use tenure::{ElectionKey, Name};
use utoipa::IntoParams;

use super::conditional::{snapshot_response, tagged_response};
use super::election_types::{self, CandidateList, ElectionList, ElectionResponse, LeaderView, TermList};
use super::extract::{PathParams, QueryParams};
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::snapshot::elections::{CachedElection, ElectionsSnapshot, TERMS_MAX};

/// Default and maximum page size.
const PAGE: (u32, u32) = (100, 1000);

/// Maximum size of a page in bytes, unless its first election alone is larger.
const PAGE_BYTES: usize = 1 << 20;

/// Namespace and consistency of an election query.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ElectionQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Read the store instead of the snapshot.
    #[serde(default)]
    consistent: bool,
}

/// Query of a list of elections.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListElectionsQuery {
    /// Namespace; if omitted, every namespace that the principal may read.
    namespace: Option<Name>,
    /// Maximum number of items.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Cursor: `next_cursor` of the previous page.
    #[param(example = "default/nightly")]
    cursor: Option<String>,
    /// Read the store instead of the snapshot.
    #[serde(default)]
    consistent: bool,
}

/// Query of a leader.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaderQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Slot, for elections with several leaders. If omitted, the leader with the lowest slot.
    slot: Option<u32>,
    /// Read the store instead of the snapshot.
    #[serde(default)]
    consistent: bool,
}

/// Query of terms.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TermHistoryQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Maximum number of items.
    #[param(default = 20, minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// Read the store instead of the snapshot.
    #[serde(default)]
    consistent: bool,
}

/// List elections
///
/// Sorted by namespace and name. A page may have fewer items than `limit` if they are large: continue while
/// `next_cursor` is set.
#[utoipa::path(get, path = "/v1/elections", tag = "elections", params(ListElectionsQuery), responses(
    (status = 200, body = ElectionList)))]
pub(crate) async fn list_elections(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<ListElectionsQuery>,
) -> Result<Response, Problem> {
    let limit = validate_number("limit", query.limit, PAGE)? as usize;
    let after = query.cursor.as_deref().map(parse_cursor).transpose()?;
    if let Some(namespace) = &query.namespace {
        principal.require(Permission::Read, Some(namespace))?;
    }
    let snapshot =
        if query.consistent { app.elections.refresh_all().await? } else { app.elections.ready().await? };
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let wanted = |key: &ElectionKey| match &query.namespace {
        Some(namespace) => key.namespace == *namespace,
        None => principal.may(Permission::Read, Some(&key.namespace)),
    };
    let rest = snapshot.elections.range((from, Bound::Unbounded)).filter(|(key, _)| wanted(key));
    let (mut entries, mut bytes, mut more) = (Vec::<&CachedElection>::new(), 0, false);
    for (_, entry) in rest {
        let size = election_types::election_json(entry).len();
        more = entries.len() == limit || (!entries.is_empty() && bytes + size > PAGE_BYTES);
        if more {
            break;
        }
        bytes += size;
        entries.push(entry);
    }
    let last = entries.last().filter(|_| more);
    let next = last.map(|last| election_types::cursor(&last.key.namespace, &last.key.name));
    let page = election_types::page(&entries, next);
    Ok(snapshot_response(&app, &snapshot, page))
}

/// Get an election
///
/// The leaders with their tokens, the candidates, and the pause.
#[utoipa::path(get, path = "/v1/elections/{election}", tag = "elections",
    params(("election" = Name, Path), ElectionQuery,
        ("if-none-match" = Option<String>, Header, description = "`ETag` of the representation that the client has")),
    responses((status = 200, body = ElectionResponse, headers(("etag" = String), ("tenure-snapshot-age-ms" = u64))),
        (status = 304, description = "Not modified.")))]
pub(crate) async fn get_election(
    State(app): State<App>,
    PathParams(election): PathParams<Name>,
    QueryParams(at): QueryParams<ElectionQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (snapshot, entry) = find(&app, at.namespace, election, at.consistent).await?;
    Ok(tagged_response(
        &app,
        &snapshot,
        &headers,
        entry.version(),
        Some(election_types::election_json(&entry)),
    ))
}

/// Get the leader
///
/// Small response for frequent polling: `200` with the leader, `204` if the election has no leader now, `404`
/// if the election does not exist. With `If-None-Match`, `304` while nothing changed.
#[utoipa::path(get, path = "/v1/elections/{election}/leader", tag = "elections",
    params(("election" = Name, Path), LeaderQuery,
        ("if-none-match" = Option<String>, Header, description = "`ETag` of the representation that the client has")),
    responses((status = 200, body = LeaderView, headers(("etag" = String), ("tenure-snapshot-age-ms" = u64))),
        (status = 204, description = "The election has no leader now."),
        (status = 304, description = "Not modified."),
        (status = 404, body = Problem, description = "The election does not exist.")))]
pub(crate) async fn get_leader(
    State(app): State<App>,
    PathParams(election): PathParams<Name>,
    QueryParams(at): QueryParams<LeaderQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (snapshot, entry) = find(&app, at.namespace, election, at.consistent).await?;
    let body = match at.slot {
        None => entry.leaders_json(|entry| {
            election_types::leaders(entry).first().map(election_types::json).unwrap_or_default()
        }),
        Some(slot) => {
            let leaders = election_types::leaders(&entry);
            leaders.iter().find(|leader| leader.slot == slot).map(election_types::json).unwrap_or_default()
        }
    };
    Ok(tagged_response(&app, &snapshot, &headers, entry.version(), (!body.is_empty()).then_some(body)))
}

/// List candidates
///
/// Best candidate first: by priority, then by name. Observers are ranked too, but never lead.
#[utoipa::path(get, path = "/v1/elections/{election}/candidates", tag = "elections",
    params(("election" = Name, Path), ElectionQuery),
    responses((status = 200, body = CandidateList)))]
pub(crate) async fn list_candidates(
    State(app): State<App>,
    PathParams(election): PathParams<Name>,
    QueryParams(at): QueryParams<ElectionQuery>,
) -> Result<Response, Problem> {
    let (snapshot, entry) = find(&app, at.namespace, election, at.consistent).await?;
    let candidates = election_types::candidates(&entry, &snapshot, app.runtime.now());
    Ok(snapshot_response(&app, &snapshot, election_types::json(&CandidateList { candidates })))
}

/// List terms
///
/// The last terms with their start and end reasons, newest first.
#[utoipa::path(get, path = "/v1/elections/{election}/terms", tag = "elections",
    params(("election" = Name, Path), TermHistoryQuery),
    responses((status = 200, body = TermList)))]
pub(crate) async fn list_terms(
    State(app): State<App>,
    PathParams(election): PathParams<Name>,
    QueryParams(at): QueryParams<TermHistoryQuery>,
) -> Result<Json<TermList>, Problem> {
    let limit = validate_number("limit", at.limit, (20, TERMS_MAX))? as usize;
    let (_, entry) = find(&app, at.namespace, election, at.consistent).await?;
    let terms = app.elections.terms(&entry).await?;
    Ok(Json(TermList { terms: terms.iter().take(limit).cloned().collect() }))
}

/// Find an election in the snapshot.
pub(super) async fn find(
    app: &App,
    namespace: Name,
    name: Name,
    consistent: bool,
) -> Result<(Arc<ElectionsSnapshot>, Arc<CachedElection>), Problem> {
    let key = ElectionKey::new(namespace, name);
    let snapshot =
        if consistent { app.elections.refresh(&key).await? } else { app.elections.ready().await? };
    let entry = snapshot.elections.get(&key).cloned().ok_or_else(|| no_such_election(&key))?;
    Ok((snapshot, entry))
}

/// Problem: the election does not exist.
pub(super) fn no_such_election(key: &ElectionKey) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-election", format!("election {key} does not exist"))
        .field("election")
        .remedy("GET /v1/elections lists elections; a campaign creates one")
}

/// Validate a number and apply its default.
pub(super) fn validate_number(
    field: &str,
    value: Option<u32>,
    (default, most): (u32, u32),
) -> Result<u32, Problem> {
    match value.unwrap_or(default) {
        n if (1..=most).contains(&n) => Ok(n),
        n => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed-query",
            format!("{field} is {n}, which is out of range"),
        )
        .field(field)
        .remedy(format!("choose between 1 and {most}"))),
    }
}

/// Parse a list cursor.
pub(super) fn parse_cursor(text: &str) -> Result<ElectionKey, Problem> {
    let malformed = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-query", detail)
            .field("cursor")
            .remedy("send `next_cursor` of the previous page unchanged")
    };
    let (namespace, name) =
        text.split_once('/').ok_or_else(|| malformed(format!("{text:?} is not NAMESPACE/ELECTION")))?;
    let parse = |name: &str| name.parse::<Name>().map_err(|error| malformed(error.to_string()));
    Ok(ElectionKey::new(parse(namespace)?, parse(name)?))
}
