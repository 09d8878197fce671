//! Stream of a topic: one server-sent event per event.

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
use tenure::port::{ErrorKind, Event, Offset, TopicKey};
use tenure::{BootInstant, Name};
use tenure_core::rules::event::TopicCursor;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;

use crate::App;
use crate::access::RequestPermitHandle;
use crate::api::extract::{PathParams, QueryParams};
use crate::api::topics::no_such_topic;
use crate::api::watch::closing;
use crate::problem::Problem;
use crate::topic_broadcast::{AdaptiveReadSize, EventChunk, TopicBroadcast, build_chunk};

/// Maximum time between two messages.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Comment that keeps an idle stream open.
const KEEP_ALIVE_COMMENT: &str = ": keep-alive\n\n";
/// First chunk of every stream.
const PREAMBLE: &[u8] = b"retry: 1000\n: connected\n\n";
/// Data of the event `reset`, sent if the cursor is not in this store.
const RESET: &str = r#"{"reason":"the last received event is not in this store, which was restored or replaced; the stream continues with new events"}"#;
/// Delay after a store error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Query of an event stream.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventStreamQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// `earliest`, `latest`, or the `id` of a received event to continue after it. `Last-Event-ID` takes
    /// precedence.
    #[param(default = "latest")]
    from: Option<String>,
    /// Only events with this key.
    key: Option<String>,
    /// Only events of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    kind: Option<String>,
}

/// Stream a topic
///
/// Sends one server-sent event per event of the topic, from now on or from the given position. Events with
/// the same key arrive in commit order. After an interruption, send the last `id` as `Last-Event-ID` to any
/// replica: no event is lost. The server keeps no state for a stream; use a consumer group if every event
/// must be processed. Every 15 s the stream sends a comment, or an `id` alone. The event `reset` means that
/// the `id` is beyond the end of the topic because the store was restored: the stream continues with new
/// events.
#[utoipa::path(get, path = "/v1/topics/{topic}/events/stream", tag = "events",
    params(("topic" = Name, Path), EventStreamQuery,
        ("last-event-id" = Option<String>, Header, description = "Id of the last event received, from any replica")),
    responses((status = 200, body = String, content_type = "text/event-stream",
            example = "event: event\nid: AQQABA\ndata: {\"id\":1,\"partition\":0,\"type\":\"order.paid\",\"payload\":{}}\n\n"),
        (status = 404, body = Problem, description = "The topic does not exist.")))]
pub(crate) async fn stream_events(
    State(app): State<App>,
    PathParams(topic): PathParams<Name>,
    QueryParams(what): QueryParams<EventStreamQuery>,
    permit: RequestPermitHandle,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if app.elections.is_closed() {
        return Err(closing());
    }
    let topic = TopicKey::new(what.namespace, topic);
    let last = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?")).filter(|id| !id.is_empty());
    let (broadcast, receiver, head) =
        app.topic_broadcasts.subscribe(&app, &topic).await?.ok_or_else(|| no_such_topic(&topic))?;
    let mut next = VecDeque::from([Bytes::from_static(PREAMBLE)]);
    let mut cursor = match (last, what.from.as_deref()) {
        (Some(id), _) => parse_cursor(&head, id, "last-event-id")?,
        (None, None | Some("latest")) => head.clone(),
        (None, Some("earliest")) => {
            TopicCursor::new(head.after().into_iter().map(|(partition, _)| (partition, 0)))
        }
        (None, Some(id)) => parse_cursor(&head, id, "from")?,
    };
    if let Some(back) = beyond_end(&app, &topic, &head, &cursor).await? {
        next.push_back(format!("event: reset\nid: {back}\ndata: {RESET}\n\n").into());
        cursor = back;
    }
    let (sent, last_sent_at) = (cursor.clone(), app.runtime.now());
    let filter = EventStreamFilter { key: what.key, kind: what.kind };
    let read_size = AdaptiveReadSize::default();
    let unread = permit.unread();
    let subscriber = EventSubscriber {
        app,
        topic,
        receiver,
        broadcast,
        filter,
        cursor,
        sent,
        next,
        live: false,
        read_size,
        last_sent_at,
        unread,
    };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(subscriber.into_stream())).into_response())
}

/// Parse a cursor and complete it with all partitions. A partition missing in the cursor is read from its
/// start.
fn parse_cursor(head: &TopicCursor, id: &str, field: &'static str) -> Result<TopicCursor, Problem> {
    let known: TopicCursor = id.parse().map_err(|error: tenure_core::rules::event::TopicCursorError| {
        Problem::from_message(StatusCode::BAD_REQUEST, "malformed-query", &error.to_string()).field(field)
    })?;
    let known_after: BTreeMap<_, _> = known.after().into_iter().collect();
    if head.after().iter().all(|(partition, _)| known_after.contains_key(partition))
        && known_after.len() == head.after().len()
    {
        // Keep the position inside a commit batch.
        return Ok(known);
    }
    Ok(TopicCursor::new(
        head.after()
            .into_iter()
            .map(|(partition, _)| (partition, known_after.get(&partition).copied().unwrap_or(0))),
    ))
}

/// Cursor to continue from if the given one is beyond the end of the topic, as after a restore or a
/// promotion. A stream that waited until the offsets catch up would lose the events published until then.
async fn beyond_end(
    app: &App,
    topic: &TopicKey,
    head: &TopicCursor,
    cursor: &TopicCursor,
) -> Result<Option<TopicCursor>, Problem> {
    let known: BTreeMap<_, _> = head.after().into_iter().collect();
    let beyond = |ends: &BTreeMap<u32, Offset>| {
        cursor.after().iter().any(|(partition, after)| *after > ends.get(partition).copied().unwrap_or(0))
    };
    // This replica may lag behind the one that sent the cursor, so check against the store.
    if !beyond(&known) {
        return Ok(None);
    }
    let ends = app.store.partition_offsets(topic).await?.ok_or_else(|| no_such_topic(topic))?;
    let ends: BTreeMap<u32, Offset> =
        ends.into_iter().map(|ends| (ends.partition, ends.end_offset)).collect();
    let end = |partition: u32| ends.get(&partition).copied().unwrap_or(0);
    let back = || {
        TopicCursor::new(
            cursor.after().into_iter().map(|(partition, after)| (partition, after.min(end(partition)))),
        )
    };
    Ok(beyond(&ends).then(back))
}

/// Filter of an event stream.
struct EventStreamFilter {
    key: Option<String>,
    kind: Option<String>,
}

impl EventStreamFilter {
    fn passes(&self, event: &Event) -> bool {
        (self.key.is_none() || self.key == event.key)
            && self.kind.as_ref().is_none_or(|kind| *kind == event.event_type)
    }
}

/// Subscriber of an event stream.
struct EventSubscriber {
    app: App,
    topic: TopicKey,
    receiver: broadcast::Receiver<Arc<EventChunk>>,
    /// Broadcast, kept alive while a subscriber exists.
    broadcast: Arc<TopicBroadcast>,
    filter: EventStreamFilter,
    /// Position up to which the subscriber has read, including events that the filter dropped.
    cursor: TopicCursor,
    /// Position that the client was last sent.
    sent: TopicCursor,
    /// Chunks to send.
    next: VecDeque<Bytes>,
    /// Whether the subscriber receives the broadcast; otherwise it reads by itself.
    live: bool,
    /// Number of events per read.
    read_size: AdaptiveReadSize,
    /// When the last chunk was sent.
    last_sent_at: BootInstant,
    /// Bytes of the chunks to send.
    unread: crate::limits::Bytes,
}

impl EventSubscriber {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        let closing = self.app.closing.subscribe();
        stream::unfold((Box::new(self), closing), |(mut subscriber, mut closing)| async move {
            let chunk = tokio::select! {
                chunk = subscriber.next_chunk() => chunk?,
                // The server shuts down: the client continues at another replica.
                _ = closing.wait_for(|closing| *closing) => return None,
            };
            subscriber.last_sent_at = subscriber.app.runtime.now();
            Some((Ok(chunk), (subscriber, closing)))
        })
    }

    /// Next chunk; `None` at the end of the stream.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            if let Some(next) = self.next.pop_front() {
                return Some(next);
            }
            // Free the memory of a long backlog.
            self.next = VecDeque::new();
            self.unread.clear();
            if !self.live {
                let quiet = self.app.runtime.now() >= self.last_sent_at + KEEP_ALIVE;
                // If the filter drops all events for a while, the keep-alive tells the client its new
                // position.
                if !self.catch_up().await? || (quiet && self.next.is_empty()) {
                    return Some(self.keep_alive());
                }
                self.count(1)?;
                continue;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.receiver.recv()).await {
                Err(_) => return Some(self.keep_alive()),
                Ok(Ok(chunk)) => {
                    self.receive(&chunk);
                    // All subscribers share the chunk.
                    self.count(self.broadcast.subscriber_count())?;
                }
                Ok(Err(RecvError::Lagged(_))) => self.live = false,
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    /// Charge the chunks to the client's memory limit, divided by the number of subscribers that share them;
    /// `None` if the client has too many unread bytes.
    fn count(&mut self, sharers: usize) -> Option<()> {
        let bytes: usize = self.next.iter().map(Bytes::len).sum();
        self.unread.grow(bytes / sharers).ok()
    }

    /// Read from the store; false if that failed, `None` if the topic was deleted.
    async fn catch_up(&mut self) -> Option<bool> {
        match self.app.topic_broadcasts.read(&self.app, &self.topic, &self.cursor, &mut self.read_size).await
        {
            Ok(events) => {
                self.live = events.is_empty();
                // Skip the part of a commit batch that was sent already. The cursor advances over all events,
                // so the loop ends.
                let passed = self.cursor.clone();
                let mut chunk = build_chunk(self.cursor.clone(), events);
                chunk.events.retain(|(event, _)| !passed.has_passed(event));
                self.queue(&chunk.events, chunk.after);
                Some(true)
            }
            Err(error) if error.kind == ErrorKind::Request => None,
            Err(_) => {
                self.app.runtime.sleep_until(self.app.runtime.now() + RETRY_DELAY).await;
                Some(false)
            }
        }
    }

    fn receive(&mut self, chunk: &EventChunk) {
        if self.cursor == chunk.before {
            // The subscriber is at the broadcast's position and shares its chunks.
            return self.queue(&chunk.events, chunk.after.clone());
        }
        let new = chunk.events.iter().map(|(event, _)| event).filter(|event| !self.cursor.has_passed(event));
        let chunk = build_chunk(self.cursor.clone(), new.cloned().collect());
        self.queue(&chunk.events, chunk.after);
    }

    fn queue(&mut self, events: &[(Event, Bytes)], after: TopicCursor) {
        let requested = events.iter().filter(|(event, _)| self.filter.passes(event));
        self.next.extend(requested.map(|(_, frame)| frame.clone()));
        if events.last().is_some_and(|(event, _)| self.filter.passes(event)) {
            self.sent = after.clone();
        }
        self.cursor = after;
    }

    /// Keep-alive: the current position if the client does not know it, otherwise a comment.
    fn keep_alive(&mut self) -> Bytes {
        if self.sent == self.cursor {
            return Bytes::from_static(KEEP_ALIVE_COMMENT.as_bytes());
        }
        self.sent = self.cursor.clone();
        format!("id: {}\n\n", self.cursor).into()
    }
}
