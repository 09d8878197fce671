//! A topic, streamed: server-sent events, one for each event.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tenure::port::{Event, Position, TopicKey, Trouble};
use tenure::{Moment, Name};
use tenure_core::event::Cursor;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;

use crate::App;
use crate::access::Slot;
use crate::api::given::{At, In};
use crate::api::topics::none;
use crate::api::watch::closing;
use crate::problem::Problem;
use crate::tails::{Pace, Said, Tail, said};

/// How long nothing is said at most.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What is said then.
const STILL_HERE: &str = ": still here\n\n";
/// What is said first.
const WELCOME: &[u8] = b"retry: 1000\n: welcome\n\n";
/// What is said to one whose place is not in this store.
const RESET: &str = r#"{"reason":"what was heard last is not in this store: it was restored, or is another; this goes on with what comes"}"#;
/// How long to wait after trouble with the store.
const TROUBLE: Duration = Duration::from_secs(1);

/// What is to be streamed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct What {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// `earliest`, `latest`, or the `id` of an event of a stream, to go on after it. `Last-Event-ID` has precedence.
    #[param(default = "latest")]
    from: Option<String>,
    /// Only events of this key.
    key: Option<String>,
    /// Only events of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    kind: Option<String>,
}

/// Stream a topic
///
/// Server-sent events, one for each event of the topic, from now on or from wherever you say. Those of one key come in the order in which
/// they were committed. After a break, send the last `id` as `Last-Event-ID` to any replica, and nothing is missed. Nothing is
/// remembered of who streams: groups are for those who have to handle everything. A comment, or an `id` alone, comes every 15 s.
/// An event `reset` says that the `id` is ahead of all that there is, since the store was restored: it goes on with what comes.
#[utoipa::path(get, path = "/v1/topics/{topic}/stream", tag = "events",
    params(("topic" = Name, Path), What,
        ("last-event-id" = Option<String>, Header, description = "The id of the last event that was heard, on any replica")),
    responses((status = 200, body = String, content_type = "text/event-stream",
            example = "event: event\nid: AQQABA\ndata: {\"id\":1,\"slot\":0,\"type\":\"order.paid\",\"payload\":{}}\n\n"),
        (status = 404, body = Problem, description = "There is no such topic.")))]
pub(crate) async fn stream_topic(
    State(app): State<App>,
    At(topic): At<Name>,
    In(what): In<What>,
    slot: Slot,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if app.board.is_closed() {
        return Err(closing());
    }
    let topic = TopicKey::new(what.namespace, topic);
    let last = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?")).filter(|id| !id.is_empty());
    let (tail, ear, head) = app.tails.of(&app, &topic).await?.ok_or_else(|| none(&topic))?;
    let mut next = VecDeque::from([Bytes::from_static(WELCOME)]);
    let mut cursor = match (last, what.from.as_deref()) {
        (Some(id), _) => at(&head, id, "last-event-id")?,
        (None, None | Some("latest")) => head.clone(),
        (None, Some("earliest")) => Cursor::new(head.after().into_iter().map(|(slot, _)| (slot, 0))),
        (None, Some(id)) => at(&head, id, "from")?,
    };
    if let Some(back) = ahead(&app, &topic, &head, &cursor).await? {
        next.push_back(format!("event: reset\nid: {back}\ndata: {RESET}\n\n").into());
        cursor = back;
    }
    let (told, spoke) = (cursor.clone(), app.runtime.now());
    let filter = Filter { key: what.key, kind: what.kind };
    let pace = Pace::default();
    let unread = slot.unread();
    let hearer =
        Hearer { app, topic, ear, tail, filter, cursor, told, next, live: false, pace, spoke, unread };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(hearer.into_stream())).into_response())
}

/// A place that somebody was at, in all slots that there are. A slot that it does not know of is read from its beginning.
fn at(head: &Cursor, id: &str, field: &'static str) -> Result<Cursor, Problem> {
    let known: Cursor = id.parse().map_err(|error: tenure_core::event::CursorError| {
        Problem::told(StatusCode::BAD_REQUEST, "malformed-query", &error.to_string()).field(field)
    })?;
    let known_after: BTreeMap<_, _> = known.after().into_iter().collect();
    if head.after().iter().all(|(slot, _)| known_after.contains_key(slot))
        && known_after.len() == head.after().len()
    {
        // With the place within a unit, if it had one.
        return Ok(known);
    }
    Ok(Cursor::new(
        head.after().into_iter().map(|(slot, _)| (slot, known_after.get(&slot).copied().unwrap_or(0))),
    ))
}

/// Where to go on, if a place is ahead of what there is: it is of another life of this store, from before it was restored or
/// promoted. To wait until the numbers are reached would be to miss, in silence, what is published until then.
async fn ahead(
    app: &App,
    topic: &TopicKey,
    head: &Cursor,
    cursor: &Cursor,
) -> Result<Option<Cursor>, Problem> {
    let known: BTreeMap<_, _> = head.after().into_iter().collect();
    let beyond = |ends: &BTreeMap<u32, Position>| {
        cursor.after().iter().any(|(slot, after)| *after > ends.get(slot).copied().unwrap_or(0))
    };
    // Another replica may have been ahead of this one: the store knows.
    if !beyond(&known) {
        return Ok(None);
    }
    let ends = app.store.slot_ends(topic).await?.ok_or_else(|| none(topic))?;
    let ends: BTreeMap<u32, Position> = ends.into_iter().map(|ends| (ends.slot, ends.latest)).collect();
    let end = |slot: u32| ends.get(&slot).copied().unwrap_or(0);
    let back = || Cursor::new(cursor.after().into_iter().map(|(slot, after)| (slot, after.min(end(slot)))));
    Ok(beyond(&ends).then(back))
}

/// Which events.
struct Filter {
    key: Option<String>,
    kind: Option<String>,
}

impl Filter {
    fn passes(&self, event: &Event) -> bool {
        (self.key.is_none() || self.key == event.key)
            && self.kind.as_ref().is_none_or(|kind| *kind == event.kind)
    }
}

/// One who hears.
struct Hearer {
    app: App,
    topic: TopicKey,
    ear: broadcast::Receiver<Arc<Said>>,
    /// Reads for as long as somebody hears.
    tail: Arc<Tail>,
    filter: Filter,
    /// Up to where it has heard, filtered or not.
    cursor: Cursor,
    /// Up to where it was told that it has.
    told: Cursor,
    /// What is about to be said.
    next: VecDeque<Bytes>,
    /// Whether it hears what all hear; otherwise it reads for itself.
    live: bool,
    /// How many events it reads at once.
    pace: Pace,
    /// When it was last told anything.
    spoke: Moment,
    /// The bytes of what is about to be said.
    unread: crate::limits::Bytes,
}

impl Hearer {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        let closing = self.app.closing.subscribe();
        stream::unfold((Box::new(self), closing), |(mut hearer, mut closing)| async move {
            let said = tokio::select! {
                said = hearer.say() => said?,
                // The server is about to end: whoever hears goes on at another.
                _ = closing.wait_for(|closing| *closing) => return None,
            };
            hearer.spoke = hearer.app.runtime.now();
            Some((Ok(said), (hearer, closing)))
        })
    }

    /// What is said next; `None` when there is nothing more to be said.
    async fn say(&mut self) -> Option<Bytes> {
        loop {
            if let Some(next) = self.next.pop_front() {
                return Some(next);
            }
            // A queue that was long once is not kept.
            self.next = VecDeque::new();
            self.unread.clear();
            if !self.live {
                let quiet = self.app.runtime.now() >= self.spoke + KEEP_ALIVE;
                // However much passes it by, it is told how far it has come.
                if !self.catch_up().await? || (quiet && self.next.is_empty()) {
                    return Some(self.still_here());
                }
                self.count(1)?;
                continue;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.ear.recv()).await {
                Err(_) => return Some(self.still_here()),
                Ok(Ok(said)) => {
                    self.hear(&said);
                    // All who hear it share it.
                    self.count(self.tail.hearers())?;
                }
                Ok(Err(RecvError::Lagged(_))) => self.live = false,
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    /// Puts what is about to be said, which so many share, on the account of the client; `None` if it leaves too much unread.
    fn count(&mut self, sharers: usize) -> Option<()> {
        let bytes: usize = self.next.iter().map(Bytes::len).sum();
        self.unread.grow(bytes / sharers).ok()
    }

    /// Reads for itself; whether it could. `None` if the topic is gone.
    async fn catch_up(&mut self) -> Option<bool> {
        match self.app.tails.read(&self.app, &self.topic, &self.cursor, &mut self.pace).await {
            Ok(events) => {
                self.live = events.is_empty();
                // Of a unit that it has heard a part of, it is told the rest. The cursor passes all, so that this comes to an end.
                let heard = self.cursor.clone();
                let mut said = said(self.cursor.clone(), events);
                said.events.retain(|(event, _)| !heard.has_passed(event));
                self.take(&said.events, said.after);
                Some(true)
            }
            Err(error) if error.kind == Trouble::Request => None,
            Err(_) => {
                self.app.runtime.sleep_until(self.app.runtime.now() + TROUBLE).await;
                Some(false)
            }
        }
    }

    fn hear(&mut self, heard: &Said) {
        if self.cursor == heard.before {
            // Where all are: they are told the same.
            return self.take(&heard.events, heard.after.clone());
        }
        let new = heard.events.iter().map(|(event, _)| event).filter(|event| !self.cursor.has_passed(event));
        let said = said(self.cursor.clone(), new.cloned().collect());
        self.take(&said.events, said.after);
    }

    fn take(&mut self, events: &[(Event, Bytes)], after: Cursor) {
        let wanted = events.iter().filter(|(event, _)| self.filter.passes(event));
        self.next.extend(wanted.map(|(_, frame)| frame.clone()));
        if events.last().is_some_and(|(event, _)| self.filter.passes(event)) {
            self.told = after.clone();
        }
        self.cursor = after;
    }

    /// That nothing was to be said; and how far it has heard, if that is further than it knows.
    fn still_here(&mut self) -> Bytes {
        if self.told == self.cursor {
            return Bytes::from_static(STILL_HERE.as_bytes());
        }
        self.told = self.cursor.clone();
        format!("id: {}\n\n", self.cursor).into()
    }
}
