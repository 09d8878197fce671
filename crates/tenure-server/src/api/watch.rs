//! Server-sent events for elections.
//!
//! The event `election` contains the whole election; the event `term` a term that started or ended. The id of
//! an event encodes the position of the client and is valid on every replica: with `Last-Event-ID` the client
//! first receives the terms it missed, then the current state. Terms may arrive twice, but never out of
//! order. A client that falls behind receives the current state; nothing is buffered for it, because all
//! clients share the same chunks. The current state of many elections is sent in pieces, each built when the
//! client has read the previous one.

mod stream;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tenure::port::{Permission, Term};
use tenure::{ElectionKey, Name};
use utoipa::{IntoParams, ToSchema};

use self::stream::{ElectionWatcher, WatchTarget};
use super::election_types;
use super::extract::{PathParams, QueryParams};
use super::sessions::NamespaceQuery;
use crate::App;
use crate::access::{Principal, RequestPermitHandle};
use crate::problem::Problem;
use crate::snapshot::elections::{CachedElection, ElectionUpdate, TermMark, TermTransition};

/// Query of a watch.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WatchQuery {
    /// Namespace; if omitted, every namespace that the principal may read.
    namespace: Option<Name>,
}

/// Data of the event `term`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TermEvent<'a> {
    /// Change of the term.
    change: TermChange,
    /// Namespace.
    namespace: &'a Name,
    /// Election.
    election: &'a Name,
    #[serde(flatten)]
    term: &'a Term,
}

/// Change of a term.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TermChange {
    /// The term started.
    Started,
    /// The term ended.
    Ended,
}

/// Watch an election
///
/// Server-sent events: `election` with the whole election, now and whenever it changes, and `term` for each
/// term that starts or ends. A comment is sent every 15 s. With `Last-Event-ID`, missed terms are sent first.
/// An election that does not exist yet can be watched too.
#[utoipa::path(get, path = "/v1/elections/{election}/watch", tag = "watch",
    params(("election" = Name, Path), NamespaceQuery,
        ("last-event-id" = Option<String>, Header, description = "Id of the last event received, from any replica")),
    responses((status = 200, body = String, content_type = "text/event-stream",
            example = "event: election\nid: 5f0c2a9be1d34787.7h\ndata: {\"name\":\"nightly\",\"leader\":\"web-1\"}\n\n")))]
pub(crate) async fn watch_election(
    State(app): State<App>,
    PathParams(election): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    permit: RequestPermitHandle,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    // Subscribe before reading the snapshot, so that no change is missed.
    let receiver = app.elections.watch(&key).ok_or_else(closing)?;
    let snapshot = app.elections.ready().await?;
    let watched = WatchTarget::One(key, last_event(&headers));
    respond(ElectionWatcher::new(app.elections.clone(), receiver, watched, permit.unread(), &snapshot).await?)
}

/// Watch all elections
///
/// Of one namespace, or of all that the principal may read. Same events as for one election; the ids use the
/// store's clock.
#[utoipa::path(get, path = "/v1/watch", tag = "watch", params(WatchQuery,
        ("last-event-id" = Option<String>, Header, description = "Id of the last event received, from any replica")),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(crate) async fn watch_elections(
    State(app): State<App>,
    principal: Principal,
    QueryParams(whole): QueryParams<WatchQuery>,
    permit: RequestPermitHandle,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if let Some(namespace) = &whole.namespace {
        principal.require(Permission::Read, Some(namespace))?;
    }
    let receiver = app.elections.watch_all(whole.namespace.as_ref()).ok_or_else(closing)?;
    let snapshot = app.elections.ready().await?;
    let watched = WatchTarget::Many { namespace: whole.namespace, principal, last: last_event(&headers) };
    respond(ElectionWatcher::new(app.elections.clone(), receiver, watched, permit.unread(), &snapshot).await?)
}

/// Position of the client from `Last-Event-ID`; an invalid id is ignored.
fn last_event(headers: &HeaderMap) -> Option<TermMark> {
    let id = headers.get("last-event-id")?.to_str().ok()?;
    // The part before the mark is the version, which is not needed here.
    id[id.find(['.', '@'])?..].parse().ok()
}

fn respond(watcher: ElectionWatcher) -> Result<Response, Problem> {
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(watcher.into_stream())).into_response())
}

pub(super) fn closing() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "shutting-down", "the server is shutting down")
        .remedy("send the request to another replica")
        .retry_after(1)
}

/// Format an update for watchers of one election, or of many.
fn frame(update: &ElectionUpdate, many: bool) -> Bytes {
    update.frame(many, |update| {
        let mut text = term_frames(&update.entry.key, &update.transitions);
        let id = if many { id_of_many(update.mark_ms) } else { id(&update.entry, update.mark_ms) };
        text.extend_from_slice(&whole(&update.entry, &id));
        text.into()
    })
}

/// Format an election as an event.
fn whole(entry: &CachedElection, id: &str) -> Vec<u8> {
    let data = election_types::election_json(entry);
    [format!("event: election\nid: {id}\ndata: ").as_bytes(), &data, b"\n\n"].concat()
}

/// Format terms as events. They have no id: a client that received only some of them receives all again.
fn term_frames(key: &ElectionKey, transitions: &[TermTransition]) -> Vec<u8> {
    let mut text = Vec::new();
    for one in transitions {
        let change =
            if matches!(one, TermTransition::Started(_)) { TermChange::Started } else { TermChange::Ended };
        let event = TermEvent { change, namespace: &key.namespace, election: &key.name, term: one.term() };
        text.extend_from_slice(b"event: term\ndata: ");
        text.extend_from_slice(&election_types::json(&event));
        text.extend_from_slice(b"\n\n");
    }
    text
}

fn id(entry: &CachedElection, mark_ms: i64) -> String {
    format!("{}{}", entry.version(), TermMark::of(entry, mark_ms))
}

fn id_of_many(mark_ms: i64) -> String {
    format!("all{}", TermMark::Time(mark_ms))
}
