//! Views of consumer groups.

use super::{GroupRecord, TopicRecord, Work};
use crate::Name;
use crate::model::work::LeaseObservation;
use crate::port::{GroupKey, GroupView, LAG_COUNT_MAX, PartitionLease, PartitionView, Webhook};

impl Work {
    /// See [`EventAdmin::groups`](crate::port::EventAdmin::groups).
    pub fn groups(
        &self,
        namespace: Option<&Name>,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Vec<GroupView> {
        let topics = self.events_state.topics.iter();
        let matches_filter =
            topics.filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == *namespace));
        let keys = matches_filter.flat_map(|(key, topic)| {
            topic.groups.keys().map(|name| GroupKey::new(key.clone(), name.clone())).collect::<Vec<_>>()
        });
        keys.filter_map(|key| self.group(&key, observation, now_ms)).collect()
    }

    /// See [`EventAdmin::group`](crate::port::EventAdmin::group).
    pub fn group(
        &self,
        key: &GroupKey,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Option<GroupView> {
        let (topic, group) = self.events_state.find_group(key)?;
        let dead = group.parked_events.values().filter(|row| row.dead).count();
        Some(GroupView {
            key: key.clone(),
            settings: group.settings,
            paused: group.paused.clone(),
            members: group.live(observation),
            partitions: group.partition_views(topic, observation, now_ms),
            parked_event_count: (group.parked_events.len() - dead) as u64,
            dead_letter_count: dead as u64,
            rebalanced_partition_count: group.moves,
            webhook: group
                .webhook
                .as_ref()
                .map(|webhook| Webhook { url: webhook.0.url.clone(), timeout_ms: webhook.0.timeout_ms }),
        })
    }
}

impl GroupRecord {
    fn partition_views(
        &self,
        topic: &TopicRecord,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Vec<PartitionView> {
        let view = |(lease, partition): (PartitionLease, &super::PartitionRecord)| {
            let unread = partition.after(lease.committed_offset).map(|batch| batch.len() as u64).sum::<u64>();
            let oldest = partition
                .after(lease.committed_offset)
                .flatten()
                .map(|stored| stored.event.published_at_ms)
                .next();
            let waits = oldest.map_or(0, |at| now_ms.saturating_sub(at));
            PartitionView {
                end_offset: partition.latest(),
                lag_events: unread.min(LAG_COUNT_MAX),
                lag_exact: unread <= LAG_COUNT_MAX,
                lag_ms: u64::try_from(waits).unwrap_or(0),
                partition_lease: lease,
            }
        };
        self.lease_views(observation).into_iter().zip(&topic.partitions).map(view).collect()
    }
}
