//! Topics, events and consumer groups.
//!
//! SQLite has one writer at a time, so the order of event ids is the order of commits, and a reader never sees an id before a lower
//! one. The offset of a commit batch is the id of its first event. No other locks are needed.
//!
//! A read first plans with the index alone (`commit_batch_list`): offsets, batch sizes and payload sizes. Then it reads the chosen
//! batches, so that a response never exceeds its limits.
//!
//! A partition lease is free if it has no session or if its session is not live, so the end of a session needs no action. Taking a
//! lease compares the observed token. Committing compares the token of the member, in one transaction with the effects of the handler
//! ([`commit_partition`]); the write lock prevents a takeover before the commit.
//!
//! After the commit, FIFOs notify the sessions that are registered as waiters. Events that were inserted through the view
//! `tenure_publish` or in a transaction of the application are found by polling.

mod commit;
mod group;
mod parked;
mod prune;
mod publish;
mod read;
mod topic;
mod views;

use std::collections::BTreeMap;

use async_trait::async_trait;
use tenure_core::port::{
    CommitResult, DeadLetterAction, Event, EventAdmin, EventId, EventStore, GroupAssignment, GroupKey,
    GroupSettings, GroupView, JoinGroupRequest, MaintenanceRequest, NewEvent, OffsetChange, ParkedEvent,
    ParkedEventFilter, ParkedKey, PartitionCommit, PartitionOffsets, Pause, PublishReceipt,
    ReadEventsRequest, StartOffset, StoreError, TakePartitionsRequest, TakenPartition, TopicKey,
    TopicSettings, TopicView, WebhookSettings,
};
use tenure_core::{Name, SessionId, Token};

use self::views::{group_key, topic_key};
use super::SqliteStore;
use super::call_error::{CallError, ExplainResult, invalid_request, json, ms, number};

pub use commit::commit_partition;
pub(super) use commit::commit_with;
pub use publish::publish;
pub(super) use publish::put as publish_with;

#[async_trait]
impl EventStore for SqliteStore {
    async fn publish(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        self.check_file()?;
        self.publish_events(topic, events).await.with_context(self, "publishing events")
    }

    async fn join_group(&self, join: &JoinGroupRequest) -> Result<GroupAssignment, StoreError> {
        self.check_file()?;
        self.join_consumer_group(join).await.with_context(self, "joining a group")
    }

    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        self.check_file()?;
        self.leave_consumer_group(group, session).await.with_context(self, "leaving a group")
    }

    async fn group_assignment(&self, group: &GroupKey) -> Result<Option<GroupAssignment>, StoreError> {
        self.check_file()?;
        self.get_assignment(group).await.with_context(self, "reading a group")
    }

    async fn take_partitions(&self, take: &TakePartitionsRequest) -> Result<Vec<TakenPartition>, StoreError> {
        self.check_file()?;
        self.take_free_partitions(take).await.with_context(self, "taking partitions")
    }

    async fn release_partitions(&self, group: &GroupKey, leases: &[(u32, Token)]) -> Result<(), StoreError> {
        self.check_file()?;
        self.release_held_partitions(group, leases).await.with_context(self, "releasing partitions")
    }

    async fn read_events(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, StoreError> {
        self.check_file()?;
        self.read_partitions(read).await.with_context(self, "reading events")
    }

    async fn commit_partitions(&self, commits: &[PartitionCommit]) -> Result<Vec<CommitResult>, StoreError> {
        self.check_file()?;
        self.commit_all(commits).await.with_context(self, "committing partitions")
    }

    async fn parked_keys(&self, group: &GroupKey, partition: u32) -> Result<Vec<ParkedKey>, StoreError> {
        let mut keys = self.parked_keys_in(group, &[partition]).await?;
        Ok(keys.remove(&partition).unwrap_or_default())
    }

    async fn parked_keys_in(
        &self,
        group: &GroupKey,
        partitions: &[u32],
    ) -> Result<BTreeMap<u32, Vec<ParkedKey>>, StoreError> {
        self.check_file()?;
        self.list_parked_keys(group, partitions).await.with_context(self, "reading parked keys")
    }

    async fn register_topic_waiter(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        self.check_file()?;
        self.put_topic_waiter(session, topic).await.with_context(self, "registering a topic waiter")
    }

    async fn prune_events(&self, request: &MaintenanceRequest) -> Result<(u64, bool), StoreError> {
        self.check_file()?;
        self.prune_topics(request).await.with_context(self, "pruning events")
    }
}

#[async_trait]
impl EventAdmin for SqliteStore {
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        self.check_file()?;
        self.topic_views(namespace, None).await.with_context(self, "listing topics")
    }

    async fn topic_names(&self, namespace: Option<&Name>) -> Result<Vec<TopicKey>, StoreError> {
        self.check_file()?;
        self.names("topic_names", namespace, topic_key).await.with_context(self, "listing topics")
    }

    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        self.check_file()?;
        let views = self.topic_views(Some(&key.namespace), Some(&key.name)).await;
        views.map(|views| views.into_iter().next()).with_context(self, "reading a topic")
    }

    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        self.check_file()?;
        self.put_topic(key, settings).await.with_context(self, "changing a topic")
    }

    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        self.check_file()?;
        self.remove_topic(key).await.with_context(self, "deleting a topic")
    }

    async fn partition_offsets(&self, key: &TopicKey) -> Result<Option<Vec<PartitionOffsets>>, StoreError> {
        self.check_file()?;
        self.get_partition_offsets(key).await.with_context(self, "reading partition offsets")
    }

    async fn event(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        self.check_file()?;
        self.event_view(topic, id).await.with_context(self, "reading an event")
    }

    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        self.check_file()?;
        self.group_views(namespace, None).await.with_context(self, "listing groups")
    }

    async fn group_names(&self, namespace: Option<&Name>) -> Result<Vec<GroupKey>, StoreError> {
        self.check_file()?;
        self.names("group_names", namespace, group_key).await.with_context(self, "listing groups")
    }

    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        self.check_file()?;
        let views = self.group_views(Some(&key.topic.namespace), Some((&key.topic.name, &key.name))).await;
        views.map(|views| views.into_iter().next()).with_context(self, "reading a group")
    }

    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<bool, StoreError> {
        self.check_file()?;
        self.set_group_settings(key, settings, from).await.with_context(self, "changing a group")
    }

    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        self.check_file()?;
        self.remove_group(key).await.with_context(self, "deleting a group")
    }

    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.check_file()?;
        self.pause_group(key, pause).await.with_context(self, "pausing or resuming a group")
    }

    async fn reset_group(
        &self,
        key: &GroupKey,
        to: StartOffset,
        partition: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<OffsetChange>, StoreError> {
        self.check_file()?;
        self.reset_offsets(key, to, partition, dry_run)
            .await
            .with_context(self, "resetting the offsets of a group")
    }

    async fn parked_events(&self, filter: &ParkedEventFilter) -> Result<Vec<ParkedEvent>, StoreError> {
        self.check_file()?;
        self.list_parked_events(filter).await.with_context(self, "listing parked events")
    }

    async fn apply_dead_letter_action(
        &self,
        group: &GroupKey,
        events: &[EventId],
        action: DeadLetterAction,
    ) -> Result<Vec<EventId>, StoreError> {
        self.check_file()?;
        self.apply_to_dead_letters(group, events, action)
            .await
            .with_context(self, "replaying or dropping dead letters")
    }

    async fn set_webhook(&self, key: &GroupKey, webhook: Option<&WebhookSettings>) -> Result<(), StoreError> {
        self.check_file()?;
        self.put_webhook(key, webhook).await.with_context(self, "setting a webhook")
    }

    async fn webhooks(&self) -> Result<Vec<(GroupKey, WebhookSettings)>, StoreError> {
        self.check_file()?;
        self.list_webhooks().await.with_context(self, "listing webhooks")
    }
}
