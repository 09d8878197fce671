//! Validation of events, before a store receives them.

use super::text::{EventTextError, check_control, check_text, check_word};
use crate::port::{
    DEPTH_MAX, EVENT_BYTES_MAX, ErrorKind, HEADERS_MAX, NewEvent, PUBLISH_MAX, Payload, READ_BYTES,
    StoreError,
};
use crate::rules::work::shown;

/// Why events were rejected. Nothing was published. Indexes count from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Too many events.
    #[error("{0} events exceed the maximum of {PUBLISH_MAX} per call; split them")]
    TooMany(usize),
    /// The total size is too large.
    #[error("the events have {0} bytes in total, more than the maximum of {READ_BYTES} per call; split them")]
    TooMuch(usize),
    /// A payload is too large.
    #[error(
        "event {place}: the payload has {bytes} bytes; this topic allows at most {most}. Store the data \
         elsewhere and publish a reference, or raise `max_payload_bytes` of the topic (up to \
         {EVENT_BYTES_MAX})"
    )]
    TooLarge {
        /// Index of the event.
        place: usize,
        /// Size of the payload.
        bytes: usize,
        /// Maximum size.
        most: u64,
    },
    /// A payload is nested too deeply.
    #[error("event {place}: the payload is nested {depth} levels deep; the maximum is {DEPTH_MAX}")]
    TooDeep {
        /// Index of the event.
        place: usize,
        /// Nesting depth.
        depth: usize,
    },
    /// A key, type or header is invalid.
    #[error("event {place}: {what} {shown} {problem}", shown = shown(value))]
    Word {
        /// Index of the event.
        place: usize,
        /// Name of the value.
        what: &'static str,
        /// The text.
        value: String,
        /// Problem with the text.
        problem: EventTextError,
    },
    /// Too many headers.
    #[error("event {place}: {count} headers exceed the maximum of {}", HEADERS_MAX.0)]
    Headers {
        /// Index of the event.
        place: usize,
        /// Number of headers.
        count: usize,
    },
    /// The headers are too large.
    #[error(
        "event {place}: the headers have {bytes} bytes, more than the maximum of {}; put the data into the \
         payload",
        HEADERS_MAX.1
    )]
    HeaderBytes {
        /// Index of the event.
        place: usize,
        /// Size of the headers.
        bytes: usize,
    },
    /// The leader token is out of range.
    #[error("event {place}: leader_token is {token}, which no store granted; use the token of a lease")]
    Token {
        /// Index of the event.
        place: usize,
        /// The token.
        token: u64,
    },
}

impl From<PublishError> for StoreError {
    fn from(error: PublishError) -> StoreError {
        StoreError::new(ErrorKind::Request, error.to_string())
    }
}

/// Validates events for a topic with this maximum payload size
/// ([`TopicSettings::max_payload_bytes`](crate::port::TopicSettings)).
///
/// ```
/// use tenure_core::rules::event::validate_events;
/// use tenure_core::port::{EVENT_BYTES_MAX, NewEvent};
///
/// let nameless = NewEvent { key: Some("".into()), ..NewEvent::new("order.paid") };
/// let error = validate_events(&[NewEvent::new("a"), nameless], EVENT_BYTES_MAX as u64).unwrap_err();
/// assert!(error.to_string().starts_with("event 1: key \"\" is empty; omit it"));
/// ```
pub fn validate_events(events: &[NewEvent], max_bytes: u64) -> Result<(), PublishError> {
    if events.len() > PUBLISH_MAX {
        return Err(PublishError::TooMany(events.len()));
    }
    events.iter().enumerate().try_for_each(|(place, event)| check_event(place, event, max_bytes))?;
    let bytes = events.iter().map(weight).sum();
    if bytes > READ_BYTES { Err(PublishError::TooMuch(bytes)) } else { Ok(()) }
}

/// Size of an event in bytes.
pub fn weight(event: &NewEvent) -> usize {
    event.payload.len()
        + event.event_type.len()
        + event.key.as_ref().map_or(0, String::len)
        + header_bytes(event)
}

fn header_bytes(event: &NewEvent) -> usize {
    event.headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

fn check_event(place: usize, event: &NewEvent, max_bytes: u64) -> Result<(), PublishError> {
    let (bytes, most) = (event.payload.len(), max_bytes.min(EVENT_BYTES_MAX as u64));
    if bytes as u64 > most {
        return Err(PublishError::TooLarge { place, bytes, most });
    }
    if let Payload::Json(json) = &event.payload {
        let depth = json.depth();
        if depth > DEPTH_MAX {
            return Err(PublishError::TooDeep { place, depth });
        }
    }
    let refused = |what, value: &str| {
        let value = value.to_string();
        move |problem| PublishError::Word { place, what, value, problem }
    };
    check_text(&event.event_type).map_err(refused("type", &event.event_type))?;
    for (what, word) in [("key", &event.key), ("idempotency key", &event.idempotency_key)] {
        word.iter().try_for_each(|word| check_word(word).map_err(refused(what, word)))?;
    }
    if event.headers.len() > HEADERS_MAX.0 {
        return Err(PublishError::Headers { place, count: event.headers.len() });
    }
    for (name, value) in &event.headers {
        check_word(name).map_err(refused("header name", name))?;
        // The size of header values is limited in total.
        check_control(value).map_err(refused("header value", value))?;
    }
    let bytes = header_bytes(event);
    if bytes > HEADERS_MAX.1 {
        return Err(PublishError::HeaderBytes { place, bytes });
    }
    match event.leader_token.map(crate::Token::as_u64) {
        Some(token) if token > i64::MAX as u64 => Err(PublishError::Token { place, token }),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "validate_publish_tests.rs"]
mod tests;
