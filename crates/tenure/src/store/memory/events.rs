//! Events of the in-memory store.

use async_trait::async_trait;
use tenure_core::port::{
    CommitResult, DeadLetterAction, Event, EventAdmin, EventId, EventStore, GroupAssignment, GroupKey,
    GroupSettings, GroupView, JoinGroupRequest, MaintenanceRequest, NewEvent, OffsetChange, ParkedEvent,
    ParkedEventFilter, ParkedKey, PartitionCommit, PartitionOffsets, Pause, PublishReceipt,
    ReadEventsRequest, StartOffset, StoreError, TakePartitionsRequest, TakenPartition, TopicKey,
    TopicSettings, TopicView, WebhookSettings,
};
use tenure_core::{Name, SessionId, Token};

use super::MemoryStore;

#[async_trait]
impl EventStore for MemoryStore {
    async fn publish(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        self.with_work(|work, _, now| work.publish(topic, events, now))
    }

    async fn join_group(&self, join: &JoinGroupRequest) -> Result<GroupAssignment, StoreError> {
        self.with_work(|work, elections, now| work.join_group(join, elections, now))
    }

    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        self.with_work(|work, _, _| work.leave_group(group, session));
        Ok(())
    }

    async fn group_assignment(&self, group: &GroupKey) -> Result<Option<GroupAssignment>, StoreError> {
        Ok(self.with_work(|work, elections, now| work.group_assignment(group, elections, now)))
    }

    async fn take_partitions(&self, take: &TakePartitionsRequest) -> Result<Vec<TakenPartition>, StoreError> {
        self.with_work(|work, elections, now| work.take_partitions(take, elections, now))
    }

    async fn release_partitions(&self, group: &GroupKey, leases: &[(u32, Token)]) -> Result<(), StoreError> {
        self.with_work(|work, _, _| work.release_partitions(group, leases));
        Ok(())
    }

    async fn read_events(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, StoreError> {
        self.lock_state().work.read_events(read)
    }

    async fn commit_partitions(&self, commits: &[PartitionCommit]) -> Result<Vec<CommitResult>, StoreError> {
        self.with_work(|work, _, now| work.commit_partitions(commits, now))
    }

    async fn parked_keys(&self, group: &GroupKey, partition: u32) -> Result<Vec<ParkedKey>, StoreError> {
        Ok(self.with_work(|work, _, now| work.parked_keys(group, partition, now)))
    }

    async fn register_topic_waiter(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        self.with_work(|work, _, _| work.register_topic_waiter(session, topic));
        Ok(())
    }

    async fn prune_events(&self, request: &MaintenanceRequest) -> Result<(u64, bool), StoreError> {
        Ok(self.with_work(|work, elections, now| work.prune_events(request, elections, now)))
    }
}

#[async_trait]
impl EventAdmin for MemoryStore {
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        Ok(self.lock_state().work.topics(namespace))
    }

    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        Ok(self.lock_state().work.topic(key))
    }

    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        self.with_work(|work, _, _| work.set_topic(key, settings))
    }

    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        self.with_work(|work, elections, _| work.delete_topic(key, elections))
    }

    async fn partition_offsets(&self, key: &TopicKey) -> Result<Option<Vec<PartitionOffsets>>, StoreError> {
        Ok(self.lock_state().work.partition_offsets(key))
    }

    async fn event(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        Ok(self.lock_state().work.event(topic, id))
    }

    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        Ok(self.with_work(|work, elections, now| work.groups(namespace, elections, now)))
    }

    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        Ok(self.with_work(|work, elections, now| work.group(key, elections, now)))
    }

    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<bool, StoreError> {
        self.with_work(|work, _, _| work.set_group(key, settings, from))
    }

    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        self.with_work(|work, elections, _| work.delete_group(key, elections))
    }

    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.with_work(|work, _, _| work.set_group_paused(key, pause))
    }

    async fn reset_group(
        &self,
        key: &GroupKey,
        to: StartOffset,
        partition: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<OffsetChange>, StoreError> {
        self.with_work(|work, elections, _| work.reset_group(key, to, partition, dry_run, elections))
    }

    async fn parked_events(&self, filter: &ParkedEventFilter) -> Result<Vec<ParkedEvent>, StoreError> {
        self.with_work(|work, _, now| work.parked_events(filter, now))
    }

    async fn apply_dead_letter_action(
        &self,
        group: &GroupKey,
        events: &[EventId],
        action: DeadLetterAction,
    ) -> Result<Vec<EventId>, StoreError> {
        self.with_work(|work, _, _| work.apply_dead_letter_action(group, events, action))
    }

    async fn set_webhook(&self, key: &GroupKey, webhook: Option<&WebhookSettings>) -> Result<(), StoreError> {
        self.with_work(|work, _, _| work.set_webhook(key, webhook))
    }

    async fn webhooks(&self) -> Result<Vec<(GroupKey, WebhookSettings)>, StoreError> {
        Ok(self.lock_state().work.webhooks())
    }
}
