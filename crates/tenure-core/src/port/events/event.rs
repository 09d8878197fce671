//! Events: publishing and reading.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::port::RawJson;
use crate::{Name, Token};

/// Maximum payload size in bytes. A topic may allow less.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of events in one call.
pub const PUBLISH_MAX: usize = 10_000;

/// Maximum bytes of one publish call, and of one read unless its first commit batch alone exceeds it.
pub const READ_BYTES: usize = 16 << 20;

/// Maximum number of events in one commit batch.
pub const COMMIT_BATCH_MAX: usize = 1_000;

/// Maximum length of a key, type, header name or idempotency key, in bytes.
pub const KEY_MAX: usize = 512;

/// Maximum number of headers of an event, and their maximum total size in bytes.
pub const HEADERS_MAX: (usize, usize) = (64, 16 << 10);

/// Identity of a topic: a name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopicKey {
    /// Namespace.
    pub namespace: Name,
    /// Name of the topic.
    pub name: Name,
}

impl TopicKey {
    /// The topic `name` of `namespace`.
    pub fn new(namespace: Name, name: Name) -> Self {
        TopicKey { namespace, name }
    }
}

impl fmt::Display for TopicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "default" => write!(f, "{}", self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// Id of an event, unique in the store. Handlers can use it for idempotency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = u64, example = 42))]
pub struct EventId(pub u64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Offset of a commit batch in a partition. Offsets grow in commit order, with gaps; 0 precedes all events. The
/// events of one transaction in one partition share an offset, up to [`COMMIT_BATCH_MAX`] of them.
pub type Offset = u64;

/// Payload of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Payload {
    /// A JSON value.
    #[serde(rename = "payload")]
    Json(RawJson),
    /// Bytes, serialized as base64.
    #[serde(rename = "payload_base64", with = "in_base64")]
    #[cfg_attr(feature = "schema", schema(value_type = String, format = "byte"))]
    Bytes(Vec<u8>),
}

impl Default for Payload {
    fn default() -> Self {
        Payload::Json(RawJson::default())
    }
}

impl Payload {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Json(json) => json.as_str().len(),
            Payload::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An event to publish. `NewEvent::new("order.paid")` has default options.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "super::json::NewEventJson")]
pub struct NewEvent {
    /// Key. Events with the same key are delivered in commit order; events without a key in any order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Payload.
    #[serde(flatten)]
    pub payload: Payload,
    /// Headers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub headers: BTreeMap<String, String>,
    /// Idempotency key. A second publication with the same key to the same topic returns the first event, as long as
    /// that one is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Token of the leader that published it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_token: Option<Token>,
}

impl NewEvent {
    /// An event of this type with default options.
    pub fn new(kind: impl Into<String>) -> NewEvent {
        NewEvent { event_type: kind.into(), ..NewEvent::default() }
    }
}

/// The result of publishing an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PublishReceipt {
    /// Event id.
    pub id: EventId,
    /// Partition of the event.
    pub partition: u32,
    /// Whether the event was created; otherwise an event with the same idempotency key existed.
    pub created: bool,
}

/// A stored event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "super::json::EventJson")]
pub struct Event {
    /// Event id.
    pub id: EventId,
    /// Partition.
    pub partition: u32,
    /// Offset in the partition.
    pub offset: Offset,
    /// Key.
    pub key: Option<String>,
    /// Type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Payload.
    #[serde(flatten)]
    pub payload: Payload,
    /// Headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Token of the leader that published it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_token: Option<Token>,
    /// Time of publication (in PostgreSQL, of the commit), by the store's wall clock, in milliseconds since 1970.
    pub published_at_ms: i64,
}

/// Bytes serialized as base64 text.
mod in_base64 {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}
