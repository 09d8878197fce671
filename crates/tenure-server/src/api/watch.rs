//! Server-sent events: what changes, as it changes.
//!
//! An event `election` has the whole election; an event `term` a term that began or ended. The id of an event says how far
//! its hearer has heard, and means the same on every replica: whoever comes back with `Last-Event-ID` is told the terms that
//! were missed, and how things stand. Terms may be told twice, never out of order. A hearer that does not keep up is
//! told how things stand, and nothing is kept for it meanwhile: all share what they are told. How many elections stand is
//! told in pieces, each made when the last one was taken.

mod stream;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tenure::port::{Term, Verb};
use tenure::{ElectionKey, Name};
use utoipa::{IntoParams, ToSchema};

use self::stream::{Hearing, Watched};
use super::given::{At, In};
use super::sessions::Within;
use super::shape;
use crate::App;
use crate::access::{Principal, Slot};
use crate::board::{Entry, Mark, News, Update};
use crate::problem::Problem;

/// What to watch.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Whole {
    /// The tenant; without one, all that you may read.
    namespace: Option<Name>,
}

/// The data of an event `term`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TermEvent<'a> {
    /// What happened to the term.
    change: TermChange,
    /// The namespace.
    namespace: &'a Name,
    /// The election.
    election: &'a Name,
    #[serde(flatten)]
    term: &'a Term,
}

/// What happened to a term.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TermChange {
    /// It began.
    Began,
    /// It ended.
    Ended,
}

/// Watch an election
///
/// Server-sent events: `election` with the whole election, now and whenever it changes, and `term` for each term that begins
/// or ends. A comment comes every 15 s. With `Last-Event-ID`, the terms that were missed come first. An election that nobody
/// stands for yet may be watched, too.
#[utoipa::path(get, path = "/v1/elections/{election}/watch", tag = "watch",
    params(("election" = Name, Path), Within,
        ("last-event-id" = Option<String>, Header, description = "The id of the last event that was heard, on any replica")),
    responses((status = 200, body = String, content_type = "text/event-stream",
            example = "event: election\nid: 5f0c2a9be1d34787.7h\ndata: {\"name\":\"nightly\",\"leader\":\"web-1\"}\n\n")))]
pub(crate) async fn election(
    State(app): State<App>,
    At(election): At<Name>,
    In(within): In<Within>,
    slot: Slot,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    // First an ear, then a look: nothing falls between the two.
    let ear = app.board.watch(&key).ok_or_else(closing)?;
    let seen = app.board.known().await?;
    let watched = Watched::One(key, last_event(&headers));
    respond(Hearing::new(app.board.clone(), ear, watched, slot.unread(), &seen).await?)
}

/// Watch all elections
///
/// Of one namespace, or all that you may read. As with one election; the ids here go by the store's wall clock.
#[utoipa::path(get, path = "/v1/watch", tag = "watch", params(Whole,
        ("last-event-id" = Option<String>, Header, description = "The id of the last event that was heard, on any replica")),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
pub(crate) async fn all(
    State(app): State<App>,
    principal: Principal,
    In(whole): In<Whole>,
    slot: Slot,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if let Some(namespace) = &whole.namespace {
        principal.must(Verb::Read, Some(namespace))?;
    }
    let ear = app.board.watch_all(whole.namespace.as_ref()).ok_or_else(closing)?;
    let seen = app.board.known().await?;
    let watched = Watched::Many { namespace: whole.namespace, principal, last: last_event(&headers) };
    respond(Hearing::new(app.board.clone(), ear, watched, slot.unread(), &seen).await?)
}

/// How far the hearer says that it has heard. What makes no sense is as good as nothing.
fn last_event(headers: &HeaderMap) -> Option<Mark> {
    let id = headers.get("last-event-id")?.to_str().ok()?;
    // Before the mark there is the version: for people, and for whoever wants to compare.
    id[id.find(['.', '@'])?..].parse().ok()
}

fn respond(hearing: Hearing) -> Result<Response, Problem> {
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(hearing.into_stream())).into_response())
}

pub(super) fn closing() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "closing", "this server is shutting down")
        .remedy("ask another replica")
        .retry_after(1)
}

/// An update as those who watch one election, or many, are told it.
fn frame(update: &Update, many: bool) -> Bytes {
    update.frame(many, |update| {
        let mut text = told(&update.entry.key, &update.news);
        let id = if many { id_of_many(update.mark_ms) } else { id(&update.entry, update.mark_ms) };
        text.extend_from_slice(&whole(&update.entry, &id));
        text.into()
    })
}

/// An election, as an event.
fn whole(entry: &Entry, id: &str) -> Vec<u8> {
    let data = shape::whole(entry);
    [format!("event: election\nid: {id}\ndata: ").as_bytes(), &data, b"\n\n"].concat()
}

/// Terms, as events. They have no id: who has heard of only some of them hears of all again.
fn told(key: &ElectionKey, news: &[News]) -> Vec<u8> {
    let mut text = Vec::new();
    for one in news {
        let change = if matches!(one, News::Began(_)) { TermChange::Began } else { TermChange::Ended };
        let event = TermEvent { change, namespace: &key.namespace, election: &key.name, term: one.term() };
        text.extend_from_slice(b"event: term\ndata: ");
        text.extend_from_slice(&shape::json(&event));
        text.extend_from_slice(b"\n\n");
    }
    text
}

fn id(entry: &Entry, mark_ms: i64) -> String {
    format!("{}{}", entry.version(), Mark::of(entry, mark_ms))
}

fn id_of_many(mark_ms: i64) -> String {
    format!("all{}", Mark::Time(mark_ms))
}
