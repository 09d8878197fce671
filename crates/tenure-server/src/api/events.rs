//! Events: published, looked at, read, streamed.

mod stream;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{EVENT_BYTES_MAX, Event, EventId, NewEvent, Position, Published, ReadAsk, TopicKey, Verb};
use tenure_core::event::{check_events, check_read, units};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::given::{At, Given, In, Unread, parsed};
use super::sense::{of_events, of_group};
use super::sessions::{Within, unfit};
use super::topics::{find, none};
use crate::App;
use crate::metrics;
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// How much one answer carries at most, in bytes of payloads, unless what was published together is more.
pub(super) const ANSWER_MAX: usize = 4 * 1024 * 1024;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .api_large(Need::In(Verb::Publish), routes!(publish))
        .api(Need::In(Verb::Read), routes!(show))
        .api(Need::InAny(&[Verb::Read, Verb::Claim]), routes!(read))
        .api(Need::In(Verb::Read), routes!(stream::stream_topic))
}

/// One event, or many.
#[derive(Debug, ToSchema, Serialize)]
#[serde(untagged)]
#[allow(
    dead_code,
    reason = "read by hand, since what is read into an untagged enum can not keep its payload as text"
)]
pub(crate) enum Publication {
    /// One.
    One(Box<NewEvent>),
    /// Many: all are published, or none, in this order.
    Many(NewEvents),
}

/// Many events.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEvents {
    /// The events.
    events: Vec<NewEvent>,
}

/// What came of many.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishedEvents {
    /// For each event, in their order.
    events: Vec<Published>,
}

/// What came of one, or of many.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PublishedBody {
    /// Of one.
    One(Published),
    /// Of many.
    Many(PublishedEvents),
}

/// What is to be read.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"after": [[0, 0], [1, 0]], "limit": 100}))]
pub(crate) struct Reading {
    /// Each slot, and after which position: 0 is before everything.
    #[schema(value_type = Vec<(u32, u64)>)]
    after: Vec<(u32, Position)>,
    /// How many events at most. What was published together is never cut, so that there may be up to 1000 more.
    #[serde(default = "hundred")]
    #[schema(minimum = 1, maximum = 10000, default = 100)]
    limit: u32,
}

fn hundred() -> u32 {
    100
}

/// Events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventList {
    /// Each slot's in the order of positions, the slots in the order in which they were asked for.
    events: Vec<Event>,
}

/// Publish events
///
/// One (an event as the body), or many (`{"events": […]}`), all or none. Events with the same `key` are read in the order in which
/// they were committed. A payload is JSON (`payload`) or bytes (`payload_base64`). Under an `idempotency_key` that is known in the topic
/// an event is not published again: the answer names the first one, and says that it is not `new`.
#[utoipa::path(post, path = "/v1/topics/{topic}/events", tag = "events", params(("topic" = Name, Path), Within),
    request_body = Publication,
    responses((status = 200, body = PublishedBody, description = "It was there already. Many are answered with `{\"events\": […]}`."),
        (status = 201, body = PublishedBody, description = "It is published. Many are answered with `{\"events\": […]}`."),
        (status = 404, body = Problem, description = "There is no such topic.")))]
pub(crate) async fn publish(
    State(app): State<App>,
    At(topic): At<Name>,
    In(within): In<Within>,
    Unread(body): Unread,
) -> Result<(StatusCode, Json<PublishedBody>), Problem> {
    let topic = TopicKey::new(within.namespace, topic);
    let many = is_many(&body);
    let events = match many {
        true => parsed::<NewEvents>(&body)?.events,
        false => vec![parsed::<NewEvent>(&body)?],
    };
    drop(body);
    if events.is_empty() {
        return Err(unfit("events", "there is nothing to publish").remedy("send one event at least"));
    }
    // How large a payload may be here is for the topic to say.
    check_events(&events, EVENT_BYTES_MAX as u64).map_err(|error| of_events(&error, many))?;
    let published = match app.store.publish(&topic, &events).await {
        Ok(published) => published,
        Err(error) => {
            let problem = Problem::from(error);
            if problem.code == "refused-by-store" {
                // There is no such topic; or else an event is larger than this one takes.
                find(&app, &topic).await?;
                return Err(if many { problem } else { problem.field("payload") });
            }
            return Err(problem);
        }
    };
    metrics::published(&topic, published.iter().filter(|one| one.new).count());
    let status = match published.iter().any(|one| one.new) {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let body = match published.as_slice() {
        [one] if !many => PublishedBody::One(*one),
        _ => PublishedBody::Many(PublishedEvents { events: published }),
    };
    Ok((status, Json(body)))
}

/// Whether the body has several events. What is no JSON is told when it is read.
fn is_many(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Probe {
        #[allow(dead_code, reason = "that it is there is all that matters")]
        events: IgnoredAny,
    }
    serde_json::from_slice::<Probe>(body).is_ok()
}

/// Show an event
///
/// By its number, for as long as it is kept.
#[utoipa::path(get, path = "/v1/topics/{topic}/events/{event}", tag = "events",
    params(("topic" = Name, Path), ("event" = u64, Path), Within),
    responses((status = 200, body = Event), (status = 404, body = Problem, description = "There is no such event, or it is forgotten.")))]
pub(crate) async fn show(
    State(app): State<App>,
    At((topic, event)): At<(Name, u64)>,
    In(within): In<Within>,
) -> Result<Json<Event>, Problem> {
    let topic = TopicKey::new(within.namespace, topic);
    let found = app.store.event(&topic, plausible_event(event)?).await?;
    match found {
        Some(event) => Ok(Json(event)),
        None => {
            find(&app, &topic).await?;
            Err(no_event(event))
        }
    }
}

/// Read events
///
/// After a position in each slot, as `ends` tells them. Nothing that is committed is skipped: go on after the last position of each slot.
#[utoipa::path(post, path = "/v1/topics/{topic}/read", tag = "events", params(("topic" = Name, Path), Within),
    request_body = Reading,
    responses((status = 200, body = EventList), (status = 404, body = Problem, description = "There is no such topic.")))]
pub(crate) async fn read(
    State(app): State<App>,
    At(topic): At<Name>,
    In(within): In<Within>,
    Given(Reading { after, limit }): Given<Reading>,
) -> Result<Json<EventList>, Problem> {
    let topic = TopicKey::new(within.namespace, topic);
    let ask = ReadAsk { topic, after, limit };
    check_read(&ask).map_err(|error| of_group(&error, "after"))?;
    let _large = app.limits.large_answer().await?;
    let events = match app.store.read_events(&ask).await {
        Ok(events) => events,
        Err(error) => return Err(of_topic(&app, &ask.topic, error).await),
    };
    Ok(Json(EventList { events: fitting(events, ANSWER_MAX) }))
}

/// As many of what was read as fit into so many bytes of payloads: whole units of each slot, a unit of one slot after a unit of another, so that a slot
/// with much in it does not keep the others waiting. The first does in any case.
pub(crate) fn fitting(events: Vec<Event>, most: usize) -> Vec<Event> {
    let size = |unit: &[Event]| unit.iter().map(|event| event.payload.len()).sum::<usize>();
    if size(&events) <= most {
        return events;
    }
    let slots: Vec<Vec<&[Event]>> =
        events.chunk_by(|a, b| a.slot == b.slot).map(|slot| units(slot).collect()).collect();
    let (mut bytes, mut taken) = (0, vec![0; slots.len()]);
    let longest = slots.iter().map(Vec::len).max().unwrap_or(0);
    'full: for round in 0..longest {
        for (slot, taken) in slots.iter().zip(&mut taken) {
            let Some(unit) = slot.get(round) else { continue };
            if bytes > 0 && bytes + size(unit) > most {
                break 'full;
            }
            bytes += size(unit);
            *taken = round + 1;
        }
    }
    let fit =
        slots.iter().zip(taken).flat_map(|(slot, taken)| slot[..taken].iter().flat_map(|unit| unit.iter()));
    fit.cloned().collect()
}

/// What a store has against something about a topic: there is none, if that is so.
pub(super) async fn of_topic(app: &App, topic: &TopicKey, error: tenure::port::StoreError) -> Problem {
    let problem = Problem::from(error);
    if problem.code != "refused-by-store" {
        return problem;
    }
    match app.store.topic(topic).await {
        Ok(None) => none(topic),
        _ => problem,
    }
}

/// An event's number, if it can be one.
pub(super) fn plausible_event(event: u64) -> Result<EventId, Problem> {
    if i64::try_from(event).is_ok() { Ok(EventId(event)) } else { Err(no_event(event)) }
}

pub(crate) fn no_event(event: u64) -> Problem {
    let detail = format!("there is no event {event} in this topic, or it is read and forgotten");
    Problem::new(StatusCode::NOT_FOUND, "no-such-event", detail)
        .field("event")
        .remedy("what was published says its number; the topic's settings say how long events are kept")
}

#[cfg(test)]
mod tests {
    use tenure::port::Payload;

    use super::*;

    #[test]
    fn an_answer_carries_whole_units_of_all_slots_as_far_as_they_fit() {
        let event = |slot: u32, position: u64, mib: usize| Event {
            id: EventId(position),
            slot,
            position,
            key: None,
            kind: String::new(),
            payload: Payload::Bytes(vec![0; mib << 20]),
            headers: Default::default(),
            leader_token: None,
            at_ms: 0,
        };
        let places = |events: &[Event]| events.iter().map(|it| (it.slot, it.position)).collect::<Vec<_>>();
        let small = vec![event(0, 1, 1), event(0, 2, 1), event(3, 3, 1)];
        assert_eq!(fitting(small.clone(), ANSWER_MAX), small);
        // A long slot does not keep the other waiting.
        let long: Vec<_> = (1..9).map(|n| event(0, n, 1)).chain([event(3, 9, 1), event(3, 10, 1)]).collect();
        assert_eq!(places(&fitting(long, ANSWER_MAX)), [(0, 1), (0, 2), (3, 9), (3, 10)]);
        // What was published together stays together, and is told in any case.
        let unit = vec![event(0, 1, 3), event(0, 1, 3), event(0, 2, 1)];
        assert_eq!(places(&fitting(unit, ANSWER_MAX)), [(0, 1), (0, 1)]);
    }
}
