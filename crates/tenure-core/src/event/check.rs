//! What makes no sense in events to be published, found before a store sees it.

use super::text::{WordError, check_control, check_text, check_word};
use crate::claim::shown;
use crate::port::{
    DEPTH_MAX, EVENT_BYTES_MAX, HEADERS_MAX, NewEvent, PUBLISH_MAX, Payload, READ_BYTES, StoreError, Trouble,
};

/// Why events were refused. None was published. Places are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// Too many events.
    #[error("there are {0} events; at most {PUBLISH_MAX} are published together: split them")]
    TooMany(usize),
    /// All together are too long.
    #[error("the events have {0} bytes together; at most {READ_BYTES} are published together: split them")]
    TooMuch(usize),
    /// A payload is too long.
    #[error(
        "event {place}: its payload has {bytes} bytes; this topic takes at most {most}: keep the data elsewhere and give its \
         address, or set the topic's `max_bytes` (up to {EVENT_BYTES_MAX})"
    )]
    TooLarge {
        /// Which event.
        place: usize,
        /// How long the payload is.
        bytes: usize,
        /// How long it may be.
        most: u64,
    },
    /// A payload is too deep.
    #[error(
        "event {place}: lists and objects in its payload lie {depth} deep in each other; at most {DEPTH_MAX} are carried"
    )]
    TooDeep {
        /// Which event.
        place: usize,
        /// How deep it is.
        depth: usize,
    },
    /// A key, type, or header can not be used.
    #[error("event {place}: its {what} {shown} {problem}", shown = shown(value))]
    Word {
        /// Which event.
        place: usize,
        /// What it is.
        what: &'static str,
        /// The text.
        value: String,
        /// What is wrong with it.
        problem: WordError,
    },
    /// Too many headers.
    #[error("event {place}: it has {count} headers; at most {} are allowed", HEADERS_MAX.0)]
    Headers {
        /// Which event.
        place: usize,
        /// How many.
        count: usize,
    },
    /// Headers that are too long.
    #[error(
        "event {place}: its headers have {bytes} bytes; at most {} are allowed: put the data into the payload",
        HEADERS_MAX.1
    )]
    HeaderBytes {
        /// Which event.
        place: usize,
        /// How many bytes.
        bytes: usize,
    },
    /// A token that no store granted.
    #[error("event {place}: its leader's token is {token}; it must be one that a store granted")]
    Token {
        /// Which event.
        place: usize,
        /// The token.
        token: u64,
    },
}

impl From<EventError> for StoreError {
    fn from(error: EventError) -> StoreError {
        StoreError::new(Trouble::Request, error.to_string())
    }
}

/// Refuses events that make no sense, in a topic that takes payloads of so many bytes
/// ([`TopicSettings::max_bytes`](crate::port::TopicSettings)).
///
/// ```
/// use tenure_core::event::check_events;
/// use tenure_core::port::{EVENT_BYTES_MAX, NewEvent};
///
/// let nameless = NewEvent { key: Some("".into()), ..NewEvent::new("order.paid") };
/// let error = check_events(&[NewEvent::new("a"), nameless], EVENT_BYTES_MAX as u64).unwrap_err();
/// assert!(error.to_string().starts_with("event 1: its key \"\" is empty; leave it out"));
/// ```
pub fn check_events(events: &[NewEvent], max_bytes: u64) -> Result<(), EventError> {
    if events.len() > PUBLISH_MAX {
        return Err(EventError::TooMany(events.len()));
    }
    events.iter().enumerate().try_for_each(|(place, event)| check_event(place, event, max_bytes))?;
    let bytes = events.iter().map(weight).sum();
    if bytes > READ_BYTES { Err(EventError::TooMuch(bytes)) } else { Ok(()) }
}

/// How many bytes an event brings along.
pub fn weight(event: &NewEvent) -> usize {
    event.payload.len() + event.kind.len() + event.key.as_ref().map_or(0, String::len) + header_bytes(event)
}

fn header_bytes(event: &NewEvent) -> usize {
    event.headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

fn check_event(place: usize, event: &NewEvent, max_bytes: u64) -> Result<(), EventError> {
    let (bytes, most) = (event.payload.len(), max_bytes.min(EVENT_BYTES_MAX as u64));
    if bytes as u64 > most {
        return Err(EventError::TooLarge { place, bytes, most });
    }
    if let Payload::Json(json) = &event.payload {
        let depth = json.depth();
        if depth > DEPTH_MAX {
            return Err(EventError::TooDeep { place, depth });
        }
    }
    let refused = |what, value: &str| {
        let value = value.to_string();
        move |problem| EventError::Word { place, what, value, problem }
    };
    check_text(&event.kind).map_err(refused("type", &event.kind))?;
    for (what, word) in [("key", &event.key), ("idempotency key", &event.idempotency_key)] {
        word.iter().try_for_each(|word| check_word(word).map_err(refused(what, word)))?;
    }
    if event.headers.len() > HEADERS_MAX.0 {
        return Err(EventError::Headers { place, count: event.headers.len() });
    }
    for (name, value) in &event.headers {
        check_word(name).map_err(refused("header name", name))?;
        // How long values are is counted all together.
        check_control(value).map_err(refused("header value", value))?;
    }
    let bytes = header_bytes(event);
    if bytes > HEADERS_MAX.1 {
        return Err(EventError::HeaderBytes { place, bytes });
    }
    match event.leader_token.map(crate::Token::as_u64) {
        Some(token) if token > i64::MAX as u64 => Err(EventError::Token { place, token }),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
