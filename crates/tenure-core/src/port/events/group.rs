//! Consumer groups: members, partition leases, parked events and webhooks.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Event, EventId, Offset, TopicKey};
use crate::port::{Backoff, Pause};
use crate::{Name, SessionId, Token};

/// Identity of a consumer group: a name in a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupKey {
    /// Topic.
    pub topic: TopicKey,
    /// Name of the group.
    pub name: Name,
}

impl GroupKey {
    /// The group `name` of `topic`.
    pub fn new(topic: TopicKey, name: Name) -> Self {
        GroupKey { topic, name }
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.name)
    }
}

/// Where a new group starts, or where a reset moves a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StartOffset {
    /// At the oldest stored event.
    #[default]
    Earliest,
    /// After the newest event.
    Latest,
    /// After this offset.
    Offset(Offset),
    /// At the first event published at or after this instant, in milliseconds since 1970.
    PublishedAtMs(i64),
}

/// Settings of a consumer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct GroupSettings {
    /// Maximum number of attempts before an event becomes a dead letter.
    pub max_attempts: u32,
    /// Backoff between attempts.
    pub backoff: Backoff,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings { max_attempts: 10, backoff: Backoff { initial_ms: 500, max_ms: 60_000 } }
    }
}

/// A request to join a consumer group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinGroupRequest {
    /// Group to join. It is created with default settings if it does not exist; the topic must exist.
    pub group: GroupKey,
    /// Session whose heartbeats keep the member's partitions. Rejected (`ErrorKind::Request`) if it is not live.
    pub session: SessionId,
    /// Name of the member. After a restart, a member with the same name gets its partitions back.
    pub member: String,
    /// Where the group starts, if it is new.
    #[serde(default)]
    pub from: StartOffset,
}

/// Members, partition leases and settings of a group at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupAssignment {
    /// Members with a live session, ordered by session.
    pub members: Vec<GroupMember>,
    /// Leases of all partitions, ordered by partition.
    pub partition_leases: Vec<PartitionLease>,
    /// Settings.
    pub settings: GroupSettings,
    /// Set while the group is paused.
    pub paused: Option<Pause>,
    /// How long the group has had members without interruption, in milliseconds by the store's clock. During the first
    /// [`REBALANCE_DELAY_MS`](crate::rules::event::REBALANCE_DELAY_MS), partitions are kept free for their previous
    /// members.
    pub active_ms: u64,
}

/// A member of a consumer group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupMember {
    /// Session of the member.
    pub session: SessionId,
    /// Name of the member.
    pub name: String,
}

/// The lease of a group on a partition, with its committed offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PartitionLease {
    /// Partition.
    pub partition: u32,
    /// Token of the latest lease; grows with every take and every reset.
    pub token: Token,
    /// Live session that holds the lease. `None` if it is free.
    pub holder: Option<SessionId>,
    /// Name of the current or last member. Empty if no member ever held the lease.
    pub last_member: String,
    /// Committed offset: all events up to it are processed or parked.
    pub committed_offset: Offset,
}

/// A request to take free partitions. Each is taken by compare-and-swap on its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TakePartitionsRequest {
    /// Group.
    pub group: GroupKey,
    /// Session of the member. It must be live and a member of the group.
    pub session: SessionId,
    /// Partitions with their observed tokens.
    pub partitions: Vec<(u32, Token)>,
}

/// A partition lease that was just taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TakenPartition {
    /// Partition.
    pub partition: u32,
    /// New token.
    pub token: Token,
    /// Committed offset.
    pub offset: Offset,
    /// Events after it that are already processed (see [`PartitionCommit::processed`]).
    pub processed_event_ids: Vec<EventId>,
    /// Parked keys of the partition, each with its first event.
    pub parked_keys: Vec<ParkedKey>,
}

/// A request to read events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadEventsRequest {
    /// Topic.
    pub topic: TopicKey,
    /// Partitions, each with the offset to read after.
    pub after: Vec<(u32, Offset)>,
    /// Maximum number of events of all partitions together. Commit batches are not split, so the result may have up
    /// to [`COMMIT_BATCH_MAX`](super::COMMIT_BATCH_MAX) events more.
    pub limit: u32,
}

/// A member's commit for one partition, applied as a whole or not at all. It can run in one transaction with the
/// changes of the handler, if those are in the same store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PartitionCommit {
    /// Group.
    pub group: GroupKey,
    /// Partition.
    pub partition: u32,
    /// Token of the lease. Rejected if the partition was taken or the group reset since.
    pub token: Token,
    /// New committed offset: all events up to it are processed or parked. `None` leaves it unchanged.
    #[serde(default)]
    pub offset: Option<Offset>,
    /// Processed events after the committed offset, each with its offset, by which the store finds the event. They
    /// exist because members process keys in parallel. The store deletes an entry once the committed offset passes it,
    /// and ignores an entry whose event is not at that offset.
    #[serde(default)]
    pub processed: Vec<(EventId, Offset)>,
    /// Events to park: they failed, or an earlier event of their key is parked.
    #[serde(default)]
    pub parked: Vec<ParkEventRequest>,
    /// New states of events that were already parked.
    #[serde(default)]
    pub parked_results: Vec<(EventId, ParkedEventState)>,
}

/// An event to park.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ParkEventRequest {
    /// Event id. The store keeps a copy of the event, so retention does not affect it.
    pub event_id: EventId,
    /// Offset of the event, by which the store finds it.
    pub offset: Offset,
    /// State of the parked event.
    pub state: ParkedEventState,
}

/// State of a parked event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ParkedEventState {
    /// Processed. Allowed only for an event that was already parked.
    Processed,
    /// Waits behind an earlier event of its key.
    Waiting,
    /// Failed; another attempt follows.
    Retry {
        /// Number of attempts.
        attempts: u32,
        /// Delay before the next attempt, in milliseconds. The caller has already applied the jitter.
        retry_in_ms: u64,
        /// Error message.
        error: String,
    },
    /// A dead letter: failed permanently. Its key stays parked until an operator replays or drops the event.
    Dead {
        /// Number of attempts.
        attempts: u32,
        /// Error message.
        error: String,
    },
}

/// A parked key of a partition, with its first event. An event without a key is parked alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ParkedKey {
    /// The key.
    pub key: Option<String>,
    /// First parked event of the key.
    pub event_id: EventId,
    /// Number of attempts of that event.
    pub attempts: u32,
    /// Delay before the next attempt, in milliseconds; 0 if it is due. `None` if the event is a dead letter.
    pub retry_in_ms: Option<u64>,
}

/// The result of a [`PartitionCommit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CommitResult {
    /// The commit was applied.
    Committed,
    /// The partition is not held under this token. Nothing was changed.
    LeaseLost,
}

/// A parked event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "super::json::ParkedEventJson")]
pub struct ParkedEvent {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// Whether it is a dead letter.
    pub dead: bool,
    /// Number of attempts.
    pub attempts: u32,
    /// Last error. Empty if the event only waits behind another one.
    pub last_error: String,
    /// When it was parked or last failed, by the store's wall clock.
    pub last_failed_at_ms: i64,
    /// Delay before the next attempt, in milliseconds. `None` if it is a dead letter or waits behind another event.
    pub retry_in_ms: Option<u64>,
    /// Number of events of its key that wait behind it, counted up to 1,000.
    pub waiting_behind_count: u64,
}

/// Which parked events to list, ordered by event id. Events of one key are ordered by offset, the order of their
/// processing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedEventFilter {
    /// Group.
    pub group: GroupKey,
    /// Only dead letters.
    pub dead: bool,
    /// Only events of this partition.
    pub partition: Option<u32>,
    /// Only events of this key.
    pub key: Option<String>,
    /// Continue after this event id.
    pub after: Option<EventId>,
    /// Maximum number of events.
    pub limit: u32,
}

impl ParkedEventFilter {
    /// A filter for the first parked event whose id is at least `event`.
    pub fn from(group: GroupKey, event: EventId) -> ParkedEventFilter {
        let after = event.0.checked_sub(1).map(EventId);
        ParkedEventFilter { group, dead: false, partition: None, key: None, after, limit: 1 }
    }
}

/// An operator's action on dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterAction {
    /// Resets the attempts and tries the event again; the events behind it follow in order.
    Replay,
    /// Drops the event; the events behind it follow in order.
    Drop,
}

/// A consumer group as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupView {
    /// Topic and name.
    #[serde(flatten)]
    pub key: GroupKey,
    /// Settings.
    pub settings: GroupSettings,
    /// Set while the group is paused.
    pub paused: Option<Pause>,
    /// Members with a live session.
    pub members: Vec<GroupMember>,
    /// Partitions, ordered by number.
    pub partitions: Vec<PartitionView>,
    /// Number of parked events that are not dead letters.
    pub parked_event_count: u64,
    /// Number of dead letters.
    pub dead_letter_count: u64,
    /// Number of partitions that ever moved from one member name to another.
    pub rebalanced_partition_count: u64,
    /// Webhook of the group, if it has one.
    pub webhook: Option<Webhook>,
}

impl GroupView {
    /// Number of unread events in all partitions, and whether the number is exact.
    pub fn lag(&self) -> (u64, bool) {
        self.partitions.iter().fold((0, true), |(sum, exact), partition| {
            (sum + partition.lag_events, exact && partition.lag_exact)
        })
    }

    /// A copy for display: the query of the webhook URL, which may contain a secret, is removed.
    pub fn redacted(mut self) -> GroupView {
        if let Some(webhook) = &mut self.webhook {
            webhook.url = webhook.redacted_url();
        }
        self
    }
}

/// A partition of a group, with its lag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PartitionView {
    /// Lease and committed offset.
    #[serde(flatten)]
    pub partition_lease: PartitionLease,
    /// Offset of the last event in the partition.
    pub end_offset: Offset,
    /// Number of unread events.
    pub lag_events: u64,
    /// Whether the number is exact. Counting stops at [`LAG_COUNT_MAX`].
    pub lag_exact: bool,
    /// Age of the oldest unread event, in milliseconds by the store's clock.
    pub lag_ms: u64,
}

/// Maximum number of groups of a topic. A reader creates a group by naming it, and every group delays the pruning of
/// events that it has not read.
pub const GROUPS_MAX: usize = 256;

/// Maximum number of unread events counted per partition.
pub const LAG_COUNT_MAX: u64 = 10_000;

/// Webhook of a group, with its signing secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WebhookSettings {
    /// URL that receives one `POST` per event.
    pub url: String,
    /// Signing secret. Never returned.
    pub secret: String,
    /// Timeout of a request.
    pub timeout_ms: u64,
}

/// Webhook of a group, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Webhook {
    /// URL that receives one `POST` per event.
    pub url: String,
    /// Timeout of a request.
    pub timeout_ms: u64,
}

impl Webhook {
    /// The URL for display, without its query, which may contain a secret.
    pub fn redacted_url(&self) -> String {
        match self.url.split_once(['?', '#']) {
            Some((plain, _)) => format!("{plain}?…"),
            None => self.url.clone(),
        }
    }
}

/// The change that a reset made, or would make, to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OffsetChange {
    /// Partition.
    pub partition: u32,
    /// Committed offset before the reset.
    pub from_offset: Offset,
    /// Committed offset after the reset.
    pub to_offset: Offset,
}
