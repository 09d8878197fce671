//! Events: publish, get, read and stream.

mod stream;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    EVENT_BYTES_MAX, Event, EventId, NewEvent, Offset, Permission, PublishReceipt, ReadEventsRequest,
    TopicKey,
};
use tenure_core::rules::event::{commit_batches, validate_events, validate_read};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::extract::{JsonBody, PathParams, QueryParams, RawJsonBody, parsed};
use super::sessions::{NamespaceQuery, invalid_value};
use super::topics::{find, no_such_topic};
use super::validate::{event_request_problem, publish_problem};
use crate::App;
use crate::metrics;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// Maximum size of a response in bytes of payloads, unless one commit batch is larger.
pub(super) const ANSWER_MAX: usize = 4 * 1024 * 1024;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .api_large(RequiredPermission::In(Permission::Publish), routes!(publish_events))
        .api(RequiredPermission::In(Permission::Read), routes!(get_event))
        .api(RequiredPermission::InAny(&[Permission::Read, Permission::Claim]), routes!(read_events))
        .api(RequiredPermission::In(Permission::Read), routes!(stream::stream_events))
}

/// One event or several.
#[derive(Debug, ToSchema, Serialize)]
#[serde(untagged)]
#[allow(dead_code, reason = "schema only: deserializing an untagged enum would lose the raw payload text")]
pub(crate) enum PublishRequest {
    /// One event.
    One(Box<NewEvent>),
    /// Several events: published in this order, all or none.
    Many(NewEvents),
}

/// Several events.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEvents {
    /// Events.
    events: Vec<NewEvent>,
}

/// Receipts of several events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishedEventList {
    /// Receipt of each event, in request order.
    events: Vec<PublishReceipt>,
}

/// Receipt of one event, or of several.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PublishResponse {
    /// Receipt of one event.
    One(PublishReceipt),
    /// Receipts of several events.
    Many(PublishedEventList),
}

/// Partitions and offsets to read from.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReadEventsRequest, example = json!({"after": [{"partition": 0, "offset": 0}, {"partition": 1, "offset": 0}], "limit": 100}))]
pub(crate) struct ReadEventsRequestJson {
    /// Offset in each partition after which to read; 0 is before the first event.
    after: Vec<PartitionOffset>,
    /// Maximum number of events. Commit batches are never split, so the response may contain up to 1000 more.
    #[serde(default = "hundred")]
    #[schema(minimum = 1, maximum = 10000, default = 100)]
    limit: u32,
}

/// Offset in a partition.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartitionOffset {
    /// Partition.
    partition: u32,
    /// Offset after which to read.
    #[schema(value_type = u64)]
    offset: Offset,
}

fn hundred() -> u32 {
    100
}

/// List of events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventList {
    /// Events of each partition in offset order; partitions in request order.
    events: Vec<Event>,
}

/// Publish events
///
/// Send one event as the body, or several as `{"events": […]}`; several are published all or none. Events
/// with the same `key` are read in commit order. A payload is JSON (`payload`) or bytes (`payload_base64`).
/// If the topic already has the `idempotency_key`, the response has the id of the first event and `created`
/// is false.
#[utoipa::path(post, path = "/v1/topics/{topic}/events", tag = "events", params(("topic" = Name, Path), NamespaceQuery),
    request_body = PublishRequest,
    responses((status = 200, body = PublishResponse, description = "The event existed. Several events are returned as `{\"events\": […]}`."),
        (status = 201, body = PublishResponse, description = "Published. Several events are returned as `{\"events\": […]}`."),
        (status = 404, body = Problem, description = "The topic does not exist.")))]
pub(crate) async fn publish_events(
    State(app): State<App>,
    PathParams(topic): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    RawJsonBody(body): RawJsonBody,
) -> Result<(StatusCode, Json<PublishResponse>), Problem> {
    let topic = TopicKey::new(within.namespace, topic);
    let many = is_many(&body);
    let events = match many {
        true => parsed::<NewEvents>(&body)?.events,
        false => vec![parsed::<NewEvent>(&body)?],
    };
    drop(body);
    if events.is_empty() {
        return Err(invalid_value("events", "the list of events is empty").remedy("send at least one event"));
    }
    // The topic's own payload limit is checked by the store.
    validate_events(&events, EVENT_BYTES_MAX as u64).map_err(|error| publish_problem(&error, many))?;
    let published = match app.store.publish(&topic, &events).await {
        Ok(published) => published,
        Err(error) => {
            let problem = Problem::from(error);
            if problem.code == "rejected-by-store" {
                // The topic does not exist, or the event exceeds its payload limit.
                find(&app, &topic).await?;
                return Err(if many { problem } else { problem.field("payload") });
            }
            return Err(problem);
        }
    };
    metrics::published(&topic, published.iter().filter(|one| one.created).count());
    let status = match published.iter().any(|one| one.created) {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let body = match published.as_slice() {
        [one] if !many => PublishResponse::One(*one),
        _ => PublishResponse::Many(PublishedEventList { events: published }),
    };
    Ok((status, Json(body)))
}

/// Whether the body contains several events. Invalid JSON is reported later, when the body is parsed.
fn is_many(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Probe {
        #[allow(dead_code, reason = "only its presence matters")]
        events: IgnoredAny,
    }
    serde_json::from_slice::<Probe>(body).is_ok()
}

/// Get an event
///
/// By id, within the retention of the topic.
#[utoipa::path(get, path = "/v1/topics/{topic}/events/{event}", tag = "events",
    params(("topic" = Name, Path), ("event" = u64, Path), NamespaceQuery),
    responses((status = 200, body = Event), (status = 404, body = Problem, description = "The event does not exist or was pruned.")))]
pub(crate) async fn get_event(
    State(app): State<App>,
    PathParams((topic, event)): PathParams<(Name, u64)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<Event>, Problem> {
    let topic = TopicKey::new(within.namespace, topic);
    let found = app.store.event(&topic, validate_event_id(event)?).await?;
    match found {
        Some(event) => Ok(Json(event)),
        None => {
            find(&app, &topic).await?;
            Err(no_such_event(event))
        }
    }
}

/// Read events
///
/// Reads after an offset in each partition; `GET …/offsets` has the valid range. No committed event is
/// skipped: continue after the last offset of each partition.
#[utoipa::path(post, path = "/v1/topics/{topic}/events/read", tag = "events", params(("topic" = Name, Path), NamespaceQuery),
    request_body = ReadEventsRequestJson,
    responses((status = 200, body = EventList), (status = 404, body = Problem, description = "The topic does not exist.")))]
pub(crate) async fn read_events(
    State(app): State<App>,
    PathParams(topic): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(ReadEventsRequestJson { after, limit }): JsonBody<ReadEventsRequestJson>,
) -> Result<Json<EventList>, Problem> {
    let topic = TopicKey::new(within.namespace, topic);
    let after = after.into_iter().map(|at| (at.partition, at.offset)).collect();
    let read = ReadEventsRequest { topic, after, limit };
    validate_read(&read).map_err(|error| event_request_problem(&error, "after"))?;
    let _large = app.limits.large_response().await?;
    let events = match app.store.read_events(&read).await {
        Ok(events) => events,
        Err(error) => return Err(topic_problem(&app, &read.topic, error).await),
    };
    Ok(Json(EventList { events: limit_size(events, ANSWER_MAX) }))
}

/// Limit events to a size in bytes of payloads. Takes whole commit batches, one partition after another in
/// turn, so that a large partition does not starve the others. The first batch is always included.
pub(crate) fn limit_size(events: Vec<Event>, most: usize) -> Vec<Event> {
    let size = |commit_batch: &[Event]| commit_batch.iter().map(|event| event.payload.len()).sum::<usize>();
    if size(&events) <= most {
        return events;
    }
    let partitions: Vec<Vec<&[Event]>> = events
        .chunk_by(|a, b| a.partition == b.partition)
        .map(|partition| commit_batches(partition).collect())
        .collect();
    let (mut bytes, mut taken) = (0, vec![0; partitions.len()]);
    let longest = partitions.iter().map(Vec::len).max().unwrap_or(0);
    'full: for round in 0..longest {
        for (partition, taken) in partitions.iter().zip(&mut taken) {
            let Some(commit_batch) = partition.get(round) else { continue };
            if bytes > 0 && bytes + size(commit_batch) > most {
                break 'full;
            }
            bytes += size(commit_batch);
            *taken = round + 1;
        }
    }
    let fit = partitions.iter().zip(taken).flat_map(|(partition, taken)| {
        partition[..taken].iter().flat_map(|commit_batch| commit_batch.iter())
    });
    fit.cloned().collect()
}

/// Map a store error about a topic; `no-such-topic` if the topic does not exist.
pub(super) async fn topic_problem(app: &App, topic: &TopicKey, error: tenure::port::StoreError) -> Problem {
    let problem = Problem::from(error);
    if problem.code != "rejected-by-store" {
        return problem;
    }
    match app.store.topic(topic).await {
        Ok(None) => no_such_topic(topic),
        _ => problem,
    }
}

/// Validate an event id.
pub(super) fn validate_event_id(event: u64) -> Result<EventId, Problem> {
    if i64::try_from(event).is_ok() { Ok(EventId(event)) } else { Err(no_such_event(event)) }
}

pub(crate) fn no_such_event(event: u64) -> Problem {
    let detail = format!("event {event} does not exist in this topic, or was pruned");
    Problem::new(StatusCode::NOT_FOUND, "no-such-event", detail)
        .field("event")
        .remedy("use the id from the publish response; the topic's settings have the retention")
}

#[cfg(test)]
mod tests {
    use tenure::port::Payload;

    use super::*;

    #[test]
    fn a_response_contains_whole_commit_batches_of_all_partitions() {
        let event = |partition: u32, offset: u64, mib: usize| Event {
            id: EventId(offset),
            partition,
            offset,
            key: None,
            event_type: String::new(),
            payload: Payload::Bytes(vec![0; mib << 20]),
            headers: Default::default(),
            leader_token: None,
            published_at_ms: 0,
        };
        let places = |events: &[Event]| events.iter().map(|it| (it.partition, it.offset)).collect::<Vec<_>>();
        let small = vec![event(0, 1, 1), event(0, 2, 1), event(3, 3, 1)];
        assert_eq!(limit_size(small.clone(), ANSWER_MAX), small);
        // A long partition does not starve the other.
        let long: Vec<_> = (1..9).map(|n| event(0, n, 1)).chain([event(3, 9, 1), event(3, 10, 1)]).collect();
        assert_eq!(places(&limit_size(long, ANSWER_MAX)), [(0, 1), (0, 2), (3, 9), (3, 10)]);
        // A commit batch is never split, and the first one is always included.
        let commit_batch = vec![event(0, 1, 3), event(0, 1, 3), event(0, 2, 1)];
        assert_eq!(places(&limit_size(commit_batch, ANSWER_MAX)), [(0, 1), (0, 1)]);
    }
}
