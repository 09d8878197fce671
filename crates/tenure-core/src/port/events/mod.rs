//! Ports of topics, events and consumer groups.
//!
//! A publisher publishes an event in its own transaction. The key of the event determines the partition
//! ([`partition_for_key`](crate::rules::event::partition_for_key)). Offsets inside a partition grow in commit order, so
//! a reader that has read up to an offset has missed nothing before it. A consumer group has one lease per partition,
//! with a token and a committed offset. A commit names the token, and the store compares it in the same transaction. A
//! member that lost a partition therefore cannot move its offset, and the rest of that transaction is rolled back.
//!
//! A failed event is parked, together with the later events of its key. The committed offset advances past them.
//!
//! [`EventStore`] has the operations of publishers and members, [`EventAdmin`] the administrative operations.

mod event;
mod group;
mod json;
mod topic;

use std::collections::BTreeMap;

use async_trait::async_trait;

pub use self::event::{
    COMMIT_BATCH_MAX, EVENT_BYTES_MAX, Event, EventId, HEADERS_MAX, KEY_MAX, NewEvent, Offset, PUBLISH_MAX,
    Payload, PublishReceipt, READ_BYTES, TopicKey,
};
pub use self::group::{
    CommitResult, DeadLetterAction, GROUPS_MAX, GroupAssignment, GroupKey, GroupMember, GroupSettings,
    GroupView, JoinGroupRequest, LAG_COUNT_MAX, OffsetChange, ParkEventRequest, ParkedEvent,
    ParkedEventFilter, ParkedEventState, ParkedKey, PartitionCommit, PartitionLease, PartitionView,
    ReadEventsRequest, StartOffset, TakePartitionsRequest, TakenPartition, Webhook, WebhookSettings,
};
pub use self::topic::{
    DEFAULT_PARTITIONS, PARTITIONS_MAX, PartitionOffsets, TopicLockHolder, TopicSettings, TopicView,
};
use super::{ErrorKind, MaintenanceRequest, Pause, StoreError};
use crate::{Name, SessionId, Token};

/// Store operations of publishers and group members. Every call is atomic in the store.
#[async_trait]
pub trait EventStore: Send + Sync + 'static {
    /// Publishes all events or none, in this order, and notifies the waiters of the topic. Returns one receipt per
    /// event, in order. If the topic does not exist, the call fails with kind `Request`.
    async fn publish(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        let _ = (topic, events);
        no_events()
    }

    /// Joins a group, or repeats the join, and notifies the other members
    /// ([`Notification::GroupChanged`](crate::port::Notification::GroupChanged)).
    async fn join_group(&self, join: &JoinGroupRequest) -> Result<GroupAssignment, StoreError> {
        let _ = join;
        no_events()
    }

    /// Leaves a group: releases the partitions of the session and notifies the other members.
    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        let _ = (group, session);
        no_events()
    }

    /// Members and partition leases of a group. `None` if the group does not exist.
    async fn group_assignment(&self, group: &GroupKey) -> Result<Option<GroupAssignment>, StoreError> {
        let _ = group;
        no_events()
    }

    /// Takes free partitions. Returns those that were taken.
    async fn take_partitions(&self, take: &TakePartitionsRequest) -> Result<Vec<TakenPartition>, StoreError> {
        let _ = take;
        no_events()
    }

    /// Releases partitions that are held under the given tokens, and notifies the other members.
    async fn release_partitions(&self, group: &GroupKey, leases: &[(u32, Token)]) -> Result<(), StoreError> {
        let _ = (group, leases);
        no_events()
    }

    /// Reads whole commit batches, ordered by offset within each partition. Serves the partitions in the given order
    /// and returns at least one batch of each partition that has any, as far as the limit allows. Skips no committed
    /// event.
    async fn read_events(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, StoreError> {
        let _ = read;
        no_events()
    }

    /// Applies commits and returns one result per commit, in order. The store may apply them in one transaction or in
    /// one transaction each.
    async fn commit_partitions(&self, commits: &[PartitionCommit]) -> Result<Vec<CommitResult>, StoreError> {
        let _ = commits;
        no_events()
    }

    /// Parked keys of a partition of a group; the same data as [`TakenPartition::parked_keys`].
    async fn parked_keys(&self, group: &GroupKey, partition: u32) -> Result<Vec<ParkedKey>, StoreError> {
        let _ = (group, partition);
        no_events()
    }

    /// Parked keys of several partitions. Partitions without parked keys may be missing in the result.
    async fn parked_keys_in(
        &self,
        group: &GroupKey,
        partitions: &[u32],
    ) -> Result<BTreeMap<u32, Vec<ParkedKey>>, StoreError> {
        let mut keys = BTreeMap::new();
        for partition in partitions {
            keys.insert(*partition, self.parked_keys(group, *partition).await?);
        }
        Ok(keys)
    }

    /// Registers this session as a waiter of the topic. The next commit to the topic sends
    /// [`Notification::TopicPublished`](crate::port::Notification::TopicPublished). A caller must register *before*
    /// its last read that finds nothing, so that no event is missed.
    async fn register_topic_waiter(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        let _ = (session, topic);
        no_events()
    }

    /// Prunes old events that all groups have read, at most `limit` commit batches per topic. Returns how many were
    /// pruned and whether more remain. Fenced by the lease of the broker.
    async fn prune_events(&self, request: &MaintenanceRequest) -> Result<(u64, bool), StoreError> {
        let _ = request;
        no_events()
    }
}

/// Administrative operations on topics, groups and dead letters.
#[async_trait]
pub trait EventAdmin: Send + Sync + 'static {
    /// The topics of one namespace, or of all.
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        let _ = namespace;
        no_events()
    }

    /// The names of the topics, in order. Cheaper than [`topics`](Self::topics).
    async fn topic_names(&self, namespace: Option<&Name>) -> Result<Vec<TopicKey>, StoreError> {
        Ok(self.topics(namespace).await?.into_iter().map(|topic| topic.key).collect())
    }

    /// One topic. `None` if it does not exist.
    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        let _ = key;
        no_events()
    }

    /// Creates a topic or changes its settings. Returns `true` if it was created. A change of the number of
    /// partitions is an error of kind `Request`.
    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        let _ = (key, settings);
        no_events()
    }

    /// Deletes a topic with its events and groups. Returns `false` if it does not exist; fails with kind `Request`
    /// while a group has live members.
    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        let _ = key;
        no_events()
    }

    /// Start and end offset of every partition, ordered by partition. `None` if the topic does not exist.
    async fn partition_offsets(&self, key: &TopicKey) -> Result<Option<Vec<PartitionOffsets>>, StoreError> {
        let _ = key;
        no_events()
    }

    /// One event.
    async fn event(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        let _ = (topic, id);
        no_events()
    }

    /// The groups of one namespace, or of all.
    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        let _ = namespace;
        no_events()
    }

    /// The names of the groups, in order.
    async fn group_names(&self, namespace: Option<&Name>) -> Result<Vec<GroupKey>, StoreError> {
        Ok(self.groups(namespace).await?.into_iter().map(|group| group.key).collect())
    }

    /// One group.
    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        let _ = key;
        no_events()
    }

    /// Creates a group that starts at `from`, or changes its settings. Returns `true` if it was created.
    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<bool, StoreError> {
        let _ = (key, settings, from);
        no_events()
    }

    /// Deletes a group with its offsets and parked events. Returns `false` if it does not exist; fails with kind
    /// `Request` while it has live members.
    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        let _ = key;
        no_events()
    }

    /// Pauses or resumes a group. Returns `false` if the state is unchanged.
    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let _ = (key, pause);
        no_events()
    }

    /// Moves the committed offsets of all partitions, or of one, under new tokens. Members lose these partitions and
    /// take them again. Parked events after the new offset are deleted, because they will be read again. With
    /// `dry_run` nothing is changed.
    async fn reset_group(
        &self,
        key: &GroupKey,
        to: StartOffset,
        partition: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<OffsetChange>, StoreError> {
        let _ = (key, to, partition, dry_run);
        no_events()
    }

    /// Parked events that match the filter.
    async fn parked_events(&self, filter: &ParkedEventFilter) -> Result<Vec<ParkedEvent>, StoreError> {
        let _ = filter;
        no_events()
    }

    /// Replays or drops dead letters. Returns the changed ones and notifies the group.
    async fn apply_dead_letter_action(
        &self,
        group: &GroupKey,
        events: &[EventId],
        order: DeadLetterAction,
    ) -> Result<Vec<EventId>, StoreError> {
        let _ = (group, events, order);
        no_events()
    }

    /// Sets or removes the webhook of a group. A store that never returns secrets, such as a Tenure server, keeps its
    /// secret if none is given.
    async fn set_webhook(&self, key: &GroupKey, webhook: Option<&WebhookSettings>) -> Result<(), StoreError> {
        let _ = (key, webhook);
        no_events()
    }

    /// All webhooks with their secrets; for servers.
    async fn webhooks(&self) -> Result<Vec<(GroupKey, WebhookSettings)>, StoreError> {
        no_events()
    }
}

fn no_events<T>() -> Result<T, StoreError> {
    Err(StoreError::new(
        ErrorKind::Unsupported,
        "this store supports only elections, not events; use sqlite:, postgres:// or a Tenure server with \
         such a store",
    ))
}
