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
use tenure::Name;
use tenure::port::{Event, TopicKey, Trouble};
use tenure_core::event::Cursor;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;

use crate::App;
use crate::api::given::{At, In};
use crate::api::topics::none;
use crate::api::watch::closing;
use crate::problem::Problem;
use crate::tails::{Said, Tail, said};

/// How long nothing is said at most.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What is said then.
const STILL_HERE: &str = ": still here\n\n";
/// What is said first.
const WELCOME: &[u8] = b"retry: 1000\n: welcome\n\n";
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
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if app.board.is_closed() {
        return Err(closing());
    }
    let topic = TopicKey::new(what.namespace, topic);
    let last = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?")).filter(|id| !id.is_empty());
    let tail = app.tails.of(&app, &topic).await?.ok_or_else(|| none(&topic))?;
    let (ear, head) = tail.listen();
    let cursor = match (last, what.from.as_deref()) {
        (Some(id), _) => at(&head, id, "last-event-id")?,
        (None, None | Some("latest")) => head,
        (None, Some("earliest")) => Cursor::new(head.after().into_iter().map(|(slot, _)| (slot, 0))),
        (None, Some(id)) => at(&head, id, "from")?,
    };
    let told = cursor.clone();
    let filter = Filter { key: what.key, kind: what.kind };
    let next = VecDeque::from([Bytes::from_static(WELCOME)]);
    let hearer = Hearer { app, topic, ear, _tail: tail, filter, cursor, told, next, live: false };
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
    _tail: Arc<Tail>,
    filter: Filter,
    /// Up to where it has heard, filtered or not.
    cursor: Cursor,
    /// Up to where it was told that it has.
    told: Cursor,
    /// What is about to be said.
    next: VecDeque<Bytes>,
    /// Whether it hears what all hear; otherwise it reads for itself.
    live: bool,
}

impl Hearer {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(Box::new(self), |mut hearer| async move {
            let said = hearer.say().await?;
            Some((Ok(said), hearer))
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
            if !self.live {
                if !self.catch_up().await? {
                    return Some(self.still_here());
                }
                continue;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.ear.recv()).await {
                Err(_) => return Some(self.still_here()),
                Ok(Ok(said)) => self.hear(&said),
                Ok(Err(RecvError::Lagged(_))) => self.live = false,
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    /// Reads for itself; whether it could. `None` if the topic is gone.
    async fn catch_up(&mut self) -> Option<bool> {
        match self.app.tails.read(&self.app, &self.topic, &self.cursor).await {
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
