//! Topics: settings and views.

use serde::{Deserialize, Serialize};

use super::{Offset, TopicKey};

/// Default number of partitions of a topic.
pub const DEFAULT_PARTITIONS: u32 = 64;

/// Maximum number of partitions of a topic.
pub const PARTITIONS_MAX: u32 = 1_024;

/// Settings of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TopicSettings {
    /// Number of partitions. It limits how many members of a group can read in parallel. Fixed at creation, because
    /// another number would move keys to other partitions and break their order.
    pub partitions: u32,
    /// Minimum retention of events, whether they were read or not.
    pub retention_ms: u64,
    /// Maximum retention of events that some group has not read. `None` keeps them until every group has read them.
    pub unread_retention_ms: Option<u64>,
    /// Maximum payload size in bytes.
    pub max_payload_bytes: u64,
}

impl Default for TopicSettings {
    fn default() -> Self {
        TopicSettings {
            partitions: DEFAULT_PARTITIONS,
            retention_ms: 7 * 86_400_000,
            unread_retention_ms: None,
            max_payload_bytes: super::EVENT_BYTES_MAX as u64,
        }
    }
}

/// A topic as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopicView {
    /// Namespace and name.
    #[serde(flatten)]
    pub key: TopicKey,
    /// Settings.
    pub settings: TopicSettings,
    /// Approximate number of events.
    pub event_count: u64,
    /// Publication time of the oldest event.
    pub oldest_published_at_ms: Option<i64>,
    /// Publication time of the newest event.
    pub newest_published_at_ms: Option<i64>,
    /// Names of the groups that read the topic.
    pub groups: Vec<crate::Name>,
    /// Transactions that currently hold the lock of a partition and block other commits to it, longest first.
    pub lock_holders: Vec<TopicLockHolder>,
}

/// A transaction that holds the lock of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TopicLockHolder {
    /// Partition.
    pub partition: u32,
    /// Process id in the database server.
    pub pid: i64,
    /// Application name and database user.
    pub client: String,
    /// Current activity: `idle in transaction`, or the statement.
    pub activity: String,
    /// How long the transaction has been open, in milliseconds.
    pub open_ms: u64,
    /// Number of transactions that wait for it.
    pub waiting_transactions: u64,
}

/// Start and end offset of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PartitionOffsets {
    /// Partition.
    pub partition: u32,
    /// Offset before the first stored event.
    pub start_offset: Offset,
    /// Offset of the last event.
    pub end_offset: Offset,
}
