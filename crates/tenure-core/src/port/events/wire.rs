//! How events are read from JSON. Flat, by hand: a payload that is read through serde's `flatten` can not keep its text.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};

use super::{AsideView, Event, EventId, NewEvent, Payload, Position};
use crate::Token;
use crate::port::Json;

/// An event to be published, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewEventIn {
    key: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "given")]
    payload: Option<Json>,
    payload_base64: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    idempotency_key: Option<String>,
    leader_token: Option<Token>,
}

impl TryFrom<NewEventIn> for NewEvent {
    type Error = String;
    fn try_from(event: NewEventIn) -> Result<NewEvent, String> {
        let NewEventIn { key, kind, payload, payload_base64, headers, idempotency_key, leader_token } = event;
        let payload = one_of(payload, payload_base64)?.unwrap_or_default();
        Ok(NewEvent { key, kind, payload, headers, idempotency_key, leader_token })
    }
}

/// An event, as it is read.
#[derive(Deserialize)]
pub(super) struct EventIn {
    id: EventId,
    slot: u32,
    position: Position,
    key: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "given")]
    payload: Option<Json>,
    payload_base64: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    leader_token: Option<Token>,
    at_ms: i64,
}

impl TryFrom<EventIn> for Event {
    type Error = String;
    fn try_from(event: EventIn) -> Result<Event, String> {
        let EventIn { id, slot, position, key, kind, payload, payload_base64, headers, leader_token, at_ms } =
            event;
        let payload = one_of(payload, payload_base64)?.ok_or("an event has `payload` or `payload_base64`")?;
        Ok(Event { id, slot, position, key, kind, payload, headers, leader_token, at_ms })
    }
}

/// An event that is aside, as it is read.
#[derive(Deserialize)]
pub(super) struct AsideIn {
    id: EventId,
    slot: u32,
    position: Position,
    key: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "given")]
    payload: Option<Json>,
    payload_base64: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    leader_token: Option<Token>,
    at_ms: i64,
    dead: bool,
    attempts: u32,
    error: String,
    failed_at_ms: i64,
    due_in_ms: Option<u64>,
    behind: u64,
}

impl TryFrom<AsideIn> for AsideView {
    type Error = String;
    fn try_from(aside: AsideIn) -> Result<AsideView, String> {
        let event = EventIn {
            id: aside.id,
            slot: aside.slot,
            position: aside.position,
            key: aside.key,
            kind: aside.kind,
            payload: aside.payload,
            payload_base64: aside.payload_base64,
            headers: aside.headers,
            leader_token: aside.leader_token,
            at_ms: aside.at_ms,
        };
        Ok(AsideView {
            event: event.try_into()?,
            dead: aside.dead,
            attempts: aside.attempts,
            error: aside.error,
            failed_at_ms: aside.failed_at_ms,
            due_in_ms: aside.due_in_ms,
            behind: aside.behind,
        })
    }
}

/// What is given is given, and be it `null`.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

fn one_of(json: Option<Json>, base64: Option<String>) -> Result<Option<Payload>, String> {
    match (json, base64) {
        (Some(_), Some(_)) => Err("an event has one payload: `payload` or `payload_base64`".into()),
        (Some(json), None) => Ok(Some(Payload::Json(json))),
        (None, Some(text)) => {
            let bytes =
                STANDARD.decode(text).map_err(|error| format!("`payload_base64` is no base64: {error}"))?;
            Ok(Some(Payload::Bytes(bytes)))
        }
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_come_back_as_they_were_written() {
        let text = r#"{"id":1,"slot":2,"position":3,"key":null,"type":"a","payload":{"n":  12345678901234567890.25},"at_ms":4}"#;
        let event: Event = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), text);
        let bytes = Event { payload: Payload::Bytes(vec![0, 255]), ..event.clone() };
        let text = serde_json::to_string(&bytes).unwrap();
        assert!(text.contains(r#""payload_base64":"AP8=""#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), bytes);
        let nothing = Event { payload: Payload::Json("null".parse().unwrap()), ..event.clone() };
        let text = serde_json::to_string(&nothing).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), nothing);
        let aside = AsideView {
            event,
            dead: false,
            attempts: 1,
            error: "no".into(),
            failed_at_ms: 5,
            due_in_ms: Some(6),
            behind: 7,
        };
        let text = serde_json::to_string(&aside).unwrap();
        assert_eq!(serde_json::from_str::<AsideView>(&text).unwrap(), aside);
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
