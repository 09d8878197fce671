//! Topics: settings and views.

use std::collections::BTreeMap;

use super::{PartitionRecord, TopicRecord, Work};
use crate::Name;
use crate::model::work::LeaseObservation;
use crate::port::{
    Event, EventId, GroupKey, Notification, PartitionOffsets, StoreError, TopicKey, TopicSettings, TopicView,
};
use crate::rules::event::{has_members, partitions_are_fixed, validate_topic};

impl Work {
    /// See [`EventAdmin::set_topic`](crate::port::EventAdmin::set_topic).
    pub fn set_topic(&mut self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        validate_topic(settings)?;
        match self.events_state.topics.get_mut(key) {
            Some(topic) if topic.settings.partitions != settings.partitions => {
                Err(partitions_are_fixed(key, topic.settings.partitions, settings.partitions))
            }
            Some(topic) => {
                topic.settings = *settings;
                Ok(false)
            }
            None => {
                self.events_state.topics.insert(key.clone(), TopicRecord::new(settings));
                Ok(true)
            }
        }
    }

    /// See [`EventAdmin::delete_topic`](crate::port::EventAdmin::delete_topic).
    pub fn delete_topic(
        &mut self,
        key: &TopicKey,
        observation: &dyn LeaseObservation,
    ) -> Result<bool, StoreError> {
        let Some(topic) = self.events_state.topics.get(key) else { return Ok(false) };
        let groups: Vec<GroupKey> =
            topic.groups.keys().map(|name| GroupKey::new(key.clone(), name.clone())).collect();
        for group in &groups {
            self.require_no_members(group, observation)?;
        }
        self.events_state.topics.remove(key);
        self.events_state.topic_waiters.remove(key);
        self.notifications.extend(groups.into_iter().map(Notification::GroupChanged));
        Ok(true)
    }

    /// Rejects the call while a group has live members.
    pub(super) fn require_no_members(
        &self,
        key: &GroupKey,
        observation: &dyn LeaseObservation,
    ) -> Result<(), StoreError> {
        let members = self.events_state.find_group(key).map_or(0, |(_, group)| group.live(observation).len());
        if members > 0 { Err(has_members(key, members)) } else { Ok(()) }
    }

    /// See [`EventAdmin::topics`](crate::port::EventAdmin::topics).
    pub fn topics(&self, namespace: Option<&Name>) -> Vec<TopicView> {
        let matches_filter = |key: &&TopicKey| namespace.is_none_or(|namespace| key.namespace == *namespace);
        self.events_state.topics.keys().filter(matches_filter).filter_map(|key| self.topic(key)).collect()
    }

    /// See [`EventAdmin::topic`](crate::port::EventAdmin::topic).
    pub fn topic(&self, key: &TopicKey) -> Option<TopicView> {
        let topic = self.events_state.topics.get(key)?;
        let (oldest, newest) = (
            topic.partitions.iter().filter_map(PartitionRecord::oldest_at),
            topic.partitions.iter().filter_map(PartitionRecord::newest_at),
        );
        Some(TopicView {
            key: key.clone(),
            settings: topic.settings,
            event_count: topic.locations.len() as u64,
            oldest_published_at_ms: oldest.min(),
            newest_published_at_ms: newest.max(),
            groups: topic.groups.keys().cloned().collect(),
            lock_holders: Vec::new(),
        })
    }

    /// Settings of a topic, if it exists.
    pub(in crate::model::work) fn topic_settings(&self, key: &TopicKey) -> Option<&TopicSettings> {
        self.events_state.topics.get(key).map(|topic| &topic.settings)
    }

    /// See [`EventAdmin::partition_offsets`](crate::port::EventAdmin::partition_offsets).
    pub fn partition_offsets(&self, key: &TopicKey) -> Option<Vec<PartitionOffsets>> {
        let partitions = (0..).zip(&self.events_state.topics.get(key)?.partitions);
        let ends = partitions.map(|(partition, it)| PartitionOffsets {
            partition,
            start_offset: it.start_offset,
            end_offset: it.latest(),
        });
        Some(ends.collect())
    }

    /// See [`EventAdmin::event`](crate::port::EventAdmin::event).
    pub fn event(&self, key: &TopicKey, id: EventId) -> Option<Event> {
        let topic = self.events_state.topics.get(key)?;
        let (partition, offset) = topic.locations.get(&id)?;
        let batch = topic.partitions.get(*partition as usize)?.batches.get(offset)?;
        batch.iter().find(|stored| stored.event.id == id).map(|stored| stored.event.clone())
    }
}

impl TopicRecord {
    fn new(settings: &TopicSettings) -> TopicRecord {
        TopicRecord {
            settings: *settings,
            partitions: vec![PartitionRecord::default(); settings.partitions as usize],
            locations: BTreeMap::new(),
            keys: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }
}

impl PartitionRecord {
    /// Publication time of the first stored event.
    fn oldest_at(&self) -> Option<i64> {
        self.batches.first_key_value()?.1.first().map(|stored| stored.event.published_at_ms)
    }

    /// Publication time of the last stored event.
    fn newest_at(&self) -> Option<i64> {
        self.batches.last_key_value()?.1.last().map(|stored| stored.event.published_at_ms)
    }
}
