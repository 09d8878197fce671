//! An event: what is published, and what is read.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::port::Json;
use crate::{Name, Token};

/// The longest payload, in bytes, unless the topic allows less.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// The most events of one call.
pub const PUBLISH_MAX: usize = 10_000;

/// The most bytes of one call, and of one read unless its first unit alone has more.
pub const READ_BYTES: usize = 16 << 20;

/// The most events that are delivered together because they were published together.
pub const UNIT_MAX: usize = 1_000;

/// The longest key, type, header name or idempotency key, in bytes.
pub const KEY_MAX: usize = 512;

/// The most headers of one event, and the most bytes of them all.
pub const HEADERS_MAX: (usize, usize) = (64, 16 << 10);

/// Which topic: a name within a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopicKey {
    /// The tenant.
    pub namespace: Name,
    /// The topic's name in it.
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

/// An event's number, given by the store, unique in it: what makes its handling idempotent.
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

/// A place in a slot. Positions grow in the order of commits, with gaps; 0 is before everything. Events that were published
/// in one transaction share one, up to [`UNIT_MAX`] of them.
pub type Position = u64;

/// What an event carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Payload {
    /// A JSON value.
    #[serde(rename = "payload")]
    Json(Json),
    /// Bytes, in base64 on the wire.
    #[serde(rename = "payload_base64", with = "in_base64")]
    #[cfg_attr(feature = "schema", schema(value_type = String, format = "byte"))]
    Bytes(Vec<u8>),
}

impl Default for Payload {
    fn default() -> Self {
        Payload::Json(Json::default())
    }
}

impl Payload {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Json(json) => json.as_str().len(),
            Payload::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An event to be published. `NewEvent::new("order.paid")` is an ordinary one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "super::wire::NewEventIn")]
pub struct NewEvent {
    /// Events with the same key are delivered in the order of their commits. `None`: in any order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: String,
    /// With what.
    #[serde(flatten)]
    pub payload: Payload,
    /// More about it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(required = false))]
    pub headers: BTreeMap<String, String>,
    /// Published again under the same idempotency key (within the topic, for as long as the first is kept): the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Under which token it was published, if it was by a leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_token: Option<Token>,
}

impl NewEvent {
    /// An ordinary event of this type.
    pub fn new(kind: impl Into<String>) -> NewEvent {
        NewEvent { kind: kind.into(), ..NewEvent::default() }
    }
}

/// What came of publishing an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Published {
    /// The event's number.
    pub id: EventId,
    /// In which slot it lies.
    pub slot: u32,
    /// Whether it is new; otherwise it was there already under the same idempotency key.
    pub new: bool,
}

/// An event, as it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "super::wire::EventIn")]
pub struct Event {
    /// Which.
    pub id: EventId,
    /// In which slot.
    pub slot: u32,
    /// Where in it.
    pub position: Position,
    /// Its key.
    pub key: Option<String>,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: String,
    /// With what.
    #[serde(flatten)]
    pub payload: Payload,
    /// More about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Under which token it was published, if it was by a leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_token: Option<Token>,
    /// When it was published (in PostgreSQL: committed), by the store's wall clock, in milliseconds since 1970.
    pub at_ms: i64,
}

/// Bytes as base64 text.
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
