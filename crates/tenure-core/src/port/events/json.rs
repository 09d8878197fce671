//! JSON forms of events. They are deserialized manually, because serde's `flatten` does not preserve the text of a
//! payload.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};

use super::{Event, EventId, NewEvent, Offset, ParkedEvent, Payload};
use crate::Token;
use crate::port::RawJson;

/// JSON form of an event to publish.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewEventJson {
    key: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "present")]
    payload: Option<RawJson>,
    payload_base64: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    idempotency_key: Option<String>,
    leader_token: Option<Token>,
}

impl TryFrom<NewEventJson> for NewEvent {
    type Error = String;
    fn try_from(event: NewEventJson) -> Result<NewEvent, String> {
        let NewEventJson { key, kind, payload, payload_base64, headers, idempotency_key, leader_token } =
            event;
        let payload = one_of(payload, payload_base64)?.unwrap_or_default();
        Ok(NewEvent { key, event_type: kind, payload, headers, idempotency_key, leader_token })
    }
}

/// JSON form of a stored event.
#[derive(Deserialize)]
pub(super) struct EventJson {
    id: EventId,
    partition: u32,
    offset: Offset,
    key: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "present")]
    payload: Option<RawJson>,
    payload_base64: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    leader_token: Option<Token>,
    published_at_ms: i64,
}

impl TryFrom<EventJson> for Event {
    type Error = String;
    fn try_from(event: EventJson) -> Result<Event, String> {
        let EventJson {
            id,
            partition,
            offset,
            key,
            kind,
            payload,
            payload_base64,
            headers,
            leader_token,
            published_at_ms,
        } = event;
        let payload =
            one_of(payload, payload_base64)?.ok_or("an event needs `payload` or `payload_base64`")?;
        Ok(Event {
            id,
            partition,
            offset,
            key,
            event_type: kind,
            payload,
            headers,
            leader_token,
            published_at_ms,
        })
    }
}

/// JSON form of a parked event.
#[derive(Deserialize)]
pub(super) struct ParkedEventJson {
    id: EventId,
    partition: u32,
    offset: Offset,
    key: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "present")]
    payload: Option<RawJson>,
    payload_base64: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    leader_token: Option<Token>,
    published_at_ms: i64,
    dead: bool,
    attempts: u32,
    last_error: String,
    last_failed_at_ms: i64,
    retry_in_ms: Option<u64>,
    waiting_behind_count: u64,
}

impl TryFrom<ParkedEventJson> for ParkedEvent {
    type Error = String;
    fn try_from(parked: ParkedEventJson) -> Result<ParkedEvent, String> {
        let event = EventJson {
            id: parked.id,
            partition: parked.partition,
            offset: parked.offset,
            key: parked.key,
            kind: parked.kind,
            payload: parked.payload,
            payload_base64: parked.payload_base64,
            headers: parked.headers,
            leader_token: parked.leader_token,
            published_at_ms: parked.published_at_ms,
        };
        Ok(ParkedEvent {
            event: event.try_into()?,
            dead: parked.dead,
            attempts: parked.attempts,
            last_error: parked.last_error,
            last_failed_at_ms: parked.last_failed_at_ms,
            retry_in_ms: parked.retry_in_ms,
            waiting_behind_count: parked.waiting_behind_count,
        })
    }
}

/// Distinguishes a payload of `null` from a missing one.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RawJson>, D::Error> {
    RawJson::deserialize(from).map(Some)
}

fn one_of(json: Option<RawJson>, base64: Option<String>) -> Result<Option<Payload>, String> {
    match (json, base64) {
        (Some(_), Some(_)) => {
            Err("an event has one payload: give `payload` or `payload_base64`, not both".into())
        }
        (Some(json), None) => Ok(Some(Payload::Json(json))),
        (None, Some(text)) => {
            let bytes = STANDARD
                .decode(text)
                .map_err(|error| format!("`payload_base64` is not valid base64: {error}"))?;
            Ok(Some(Payload::Bytes(bytes)))
        }
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_round_trip() {
        let text = r#"{"id":1,"partition":2,"offset":3,"key":null,"type":"a","payload":{"n":  12345678901234567890.25},"published_at_ms":4}"#;
        let event: Event = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), text);
        let bytes = Event { payload: Payload::Bytes(vec![0, 255]), ..event.clone() };
        let text = serde_json::to_string(&bytes).unwrap();
        assert!(text.contains(r#""payload_base64":"AP8=""#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), bytes);
        let nothing = Event { payload: Payload::Json("null".parse().unwrap()), ..event.clone() };
        let text = serde_json::to_string(&nothing).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), nothing);
        let parked = ParkedEvent {
            event,
            dead: false,
            attempts: 1,
            last_error: "no".into(),
            last_failed_at_ms: 5,
            retry_in_ms: Some(6),
            waiting_behind_count: 7,
        };
        let text = serde_json::to_string(&parked).unwrap();
        assert_eq!(serde_json::from_str::<ParkedEvent>(&text).unwrap(), parked);
    }

    #[test]
    fn a_new_event_has_one_payload_or_an_empty_object() {
        let new = |text: &str| serde_json::from_str::<NewEvent>(text);
        let event = NewEvent { key: Some("k".into()), ..NewEvent::new("a") };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(new(&text).unwrap(), event);
        assert_eq!(new(r#"{"type":"a"}"#).unwrap(), NewEvent::new("a"));
        assert_eq!(
            new(r#"{"type":"a","payload_base64":"AP8="}"#).unwrap().payload,
            Payload::Bytes(vec![0, 255])
        );
        for bad in [
            r#"{"payload":1}"#,
            r#"{"type":"a","payload":1,"payload_base64":"AP8="}"#,
            r#"{"type":"a","payload_base64":"%"}"#,
            r#"{"type":"a","colour":1}"#,
        ] {
            assert!(new(bad).is_err(), "{bad}");
        }
    }
}
