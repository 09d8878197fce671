//! Topics, as people set and see them.

use serde::{Deserialize, Serialize};

use super::{Position, TopicKey};

/// How many slots a topic has unless it says otherwise.
pub const SLOTS: u32 = 64;

/// The most slots of a topic.
pub const SLOTS_MAX: u32 = 1_024;

/// How a topic is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TopicSettings {
    /// Into how many slots its keys are spread: at most so many members share a group's work. Fixed when the topic is made:
    /// another number would move keys to other slots, past what is in them.
    pub slots: u32,
    /// For how long events are kept, at least, whoever has read them.
    pub keep_ms: u64,
    /// For how long an event is kept that some group has not read. `None`: until it has.
    pub keep_unread_ms: Option<u64>,
    /// The longest payload, in bytes.
    pub max_bytes: u64,
}

impl Default for TopicSettings {
    fn default() -> Self {
        TopicSettings {
            slots: SLOTS,
            keep_ms: 7 * 86_400_000,
            keep_unread_ms: None,
            max_bytes: super::EVENT_BYTES_MAX as u64,
        }
    }
}

/// A topic as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopicView {
    /// Which.
    #[serde(flatten)]
    pub key: TopicKey,
    /// How it is set.
    pub settings: TopicSettings,
    /// How many events it has, about.
    pub events: u64,
    /// When the oldest of them was published.
    pub oldest_at_ms: Option<i64>,
    /// When the newest was.
    pub newest_at_ms: Option<i64>,
    /// The groups that read it, by name.
    pub groups: Vec<crate::Name>,
    /// Transactions that hold the lock of a slot at this moment, and keep others from committing to it. Longest first.
    pub blockers: Vec<Blocker>,
}

/// A transaction that holds the lock of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Blocker {
    /// The slot.
    pub slot: u32,
    /// The server process.
    pub pid: i64,
    /// What its program calls itself, and who it is logged in as.
    pub who: String,
    /// What it does: `idle in transaction`, or the statement.
    pub doing: String,
    /// For how long its transaction has been open, in milliseconds.
    pub since_ms: u64,
    /// How many others wait for it.
    pub waiting: u64,
}

/// The ends of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SlotEnds {
    /// Which.
    pub slot: u32,
    /// The position before the first event that is kept.
    pub earliest: Position,
    /// The position of the last event.
    pub latest: Position,
}
