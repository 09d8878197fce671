//! Elections, seen.
//!
//! Everything here is answered from memory (see [`board`](crate::board)), however many ask. `consistent=true` waits for a
//! look at the store that was sent after the request arrived; all who wait share it.

use std::ops::Bound;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tenure::port::Verb;
use tenure::{ElectionKey, Name};
use utoipa::IntoParams;

use super::given::{At, In};
use super::shape::{self, Candidates, Election, Elections, History, Leader};
use super::shown::{shown, tagged};
use crate::App;
use crate::access::Principal;
use crate::board::{Entry, Seen, TERMS_MAX};
use crate::problem::Problem;

/// How many elections are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (100, 1000);

/// How large a page is at most, unless its first election alone is larger.
const PAGE_BYTES: usize = 1 << 20;

/// Where an election is, and how sure the answer has to be.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Where {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Ask the store, instead of answering with what was seen last.
    #[serde(default)]
    consistent: bool,
}

/// Which elections, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// The tenant; without one, all that you may read.
    namespace: Option<Name>,
    /// How many at most.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Go on after this one: `next` of the page before.
    #[param(example = "default/nightly")]
    after: Option<String>,
    /// Ask the store, instead of answering with what was seen last.
    #[serde(default)]
    consistent: bool,
}

/// Which leader.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichLeader {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Of an election that several may lead: the leader of this slot. Without one, the first that there is.
    slot: Option<u32>,
    /// Ask the store, instead of answering with what was seen last.
    #[serde(default)]
    consistent: bool,
}

/// Which terms.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HowMany {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// How many at most.
    #[param(default = 20, minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// Ask the store, instead of answering with what was seen last.
    #[serde(default)]
    consistent: bool,
}

/// List elections
///
/// By namespace and name; those of one namespace, or all that you may read. A page may have fewer than `limit`, if they
/// are large: go on while there is a `next`.
#[utoipa::path(get, path = "/v1/elections", tag = "elections", params(Which), responses(
    (status = 200, body = Elections)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(which): In<Which>,
) -> Result<Response, Problem> {
    let limit = number("limit", which.limit, PAGE)? as usize;
    let after = which.after.as_deref().map(place).transpose()?;
    if let Some(namespace) = &which.namespace {
        principal.must(Verb::Read, Some(namespace))?;
    }
    let seen = if which.consistent { app.board.look_at_all().await? } else { app.board.known().await? };
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let wanted = |key: &ElectionKey| match &which.namespace {
        Some(namespace) => key.namespace == *namespace,
        None => principal.may(Verb::Read, Some(&key.namespace)),
    };
    let rest = seen.elections.range((from, Bound::Unbounded)).filter(|(key, _)| wanted(key));
    let (mut entries, mut bytes, mut more) = (Vec::<&Entry>::new(), 0, false);
    for (_, entry) in rest {
        let size = shape::whole(entry).len();
        more = entries.len() == limit || (!entries.is_empty() && bytes + size > PAGE_BYTES);
        if more {
            break;
        }
        bytes += size;
        entries.push(entry);
    }
    let last = entries.last().filter(|_| more);
    let next = last.map(|last| shape::place(&last.key.namespace, &last.key.name));
    let page = shape::page(&entries, next);
    Ok(shown(&app, &seen, page))
}

/// Show an election
///
/// Who leads it under which token, who stands, and whether it is paused.
#[utoipa::path(get, path = "/v1/elections/{election}", tag = "elections",
    params(("election" = Name, Path), Where,
        ("if-none-match" = Option<String>, Header, description = "The `ETag` of what you have")),
    responses((status = 200, body = Election, headers(("etag" = String), ("tenure-age-ms" = u64))),
        (status = 304, description = "It is as you have it.")))]
pub(crate) async fn show(
    State(app): State<App>,
    At(election): At<Name>,
    In(at): In<Where>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (seen, entry) = find(&app, at.namespace, election, at.consistent).await?;
    Ok(tagged(&app, &seen, &headers, entry.version(), Some(shape::whole(&entry))))
}

/// Show the leader
///
/// A small answer for those who ask often: `200` and the leader, `204` if nobody leads just now, `404` if nobody ever
/// stood. With `If-None-Match`, `304` while nothing has changed.
#[utoipa::path(get, path = "/v1/elections/{election}/leader", tag = "elections",
    params(("election" = Name, Path), WhichLeader,
        ("if-none-match" = Option<String>, Header, description = "The `ETag` of what you have")),
    responses((status = 200, body = Leader, headers(("etag" = String), ("tenure-age-ms" = u64))),
        (status = 204, description = "Nobody leads just now."),
        (status = 304, description = "It is as you have it."),
        (status = 404, body = Problem, description = "Nobody ever stood for it.")))]
pub(crate) async fn leader(
    State(app): State<App>,
    At(election): At<Name>,
    In(at): In<WhichLeader>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (seen, entry) = find(&app, at.namespace, election, at.consistent).await?;
    let body = match at.slot {
        None => entry.leader(|entry| shape::leaders(entry).first().map(shape::json).unwrap_or_default()),
        Some(slot) => {
            let leaders = shape::leaders(&entry);
            leaders.iter().find(|leader| leader.slot == slot).map(shape::json).unwrap_or_default()
        }
    };
    Ok(tagged(&app, &seen, &headers, entry.version(), (!body.is_empty()).then_some(body)))
}

/// List candidates
///
/// The best first: by priority, then by id. Observers stand at their place and never lead.
#[utoipa::path(get, path = "/v1/elections/{election}/candidates", tag = "elections",
    params(("election" = Name, Path), Where),
    responses((status = 200, body = Candidates)))]
pub(crate) async fn candidates(
    State(app): State<App>,
    At(election): At<Name>,
    In(at): In<Where>,
) -> Result<Response, Problem> {
    let (seen, entry) = find(&app, at.namespace, election, at.consistent).await?;
    let candidates = shape::candidates(&entry, &seen, app.runtime.now());
    Ok(shown(&app, &seen, shape::json(&Candidates { candidates })))
}

/// List the last terms
///
/// Who led from when to when, how they came to and how it ended; the newest first.
#[utoipa::path(get, path = "/v1/elections/{election}/history", tag = "elections",
    params(("election" = Name, Path), HowMany),
    responses((status = 200, body = History)))]
pub(crate) async fn history(
    State(app): State<App>,
    At(election): At<Name>,
    In(at): In<HowMany>,
) -> Result<Json<History>, Problem> {
    let limit = number("limit", at.limit, (20, TERMS_MAX))? as usize;
    let (_, entry) = find(&app, at.namespace, election, at.consistent).await?;
    let terms = app.board.terms(&entry).await?;
    Ok(Json(History { terms: terms.iter().take(limit).cloned().collect() }))
}

/// An election, and what else was seen with it.
pub(super) async fn find(
    app: &App,
    namespace: Name,
    name: Name,
    consistent: bool,
) -> Result<(Arc<Seen>, Arc<Entry>), Problem> {
    let key = ElectionKey::new(namespace, name);
    let seen = if consistent { app.board.look(&key).await? } else { app.board.known().await? };
    let entry = seen.elections.get(&key).cloned().ok_or_else(|| none(&key))?;
    Ok((seen, entry))
}

/// There is no such election.
pub(super) fn none(key: &ElectionKey) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-election", format!("nobody ever stood for {key}"))
        .field("election")
        .remedy("GET /v1/elections lists those that there are; a campaign makes one")
}

/// A number within its bounds, or its default.
pub(super) fn number(field: &str, given: Option<u32>, (default, most): (u32, u32)) -> Result<u32, Problem> {
    match given.unwrap_or(default) {
        n if (1..=most).contains(&n) => Ok(n),
        n => Err(Problem::new(StatusCode::BAD_REQUEST, "malformed-query", format!("{field} is {n}"))
            .field(field)
            .remedy(format!("choose between 1 and {most}"))),
    }
}

/// Where a page goes on.
pub(super) fn place(text: &str) -> Result<ElectionKey, Problem> {
    let malformed = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-query", detail)
            .field("after")
            .remedy("give `next` of the page before, as it was")
    };
    let (namespace, name) =
        text.split_once('/').ok_or_else(|| malformed(format!("{text:?} is not NAMESPACE/ELECTION")))?;
    let parse = |name: &str| name.parse::<Name>().map_err(|error| malformed(error.to_string()));
    Ok(ElectionKey::new(parse(namespace)?, parse(name)?))
}
