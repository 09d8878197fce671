//! Topics, as people make and see them.

use std::collections::BTreeMap;

use super::{Ledger, Slot, Topic};
use crate::Name;
use crate::event::{check_topic, has_members, slots_are_fixed};
use crate::ledger::Witness;
use crate::port::{Event, EventId, GroupKey, SlotEnds, StoreError, TopicKey, TopicSettings, TopicView, Wake};

impl Ledger {
    /// See [`Bureau::set_topic`](crate::port::Bureau::set_topic).
    pub fn set_topic(&mut self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        check_topic(settings)?;
        match self.outbox.topics.get_mut(key) {
            Some(topic) if topic.settings.slots != settings.slots => {
                Err(slots_are_fixed(key, topic.settings.slots, settings.slots))
            }
            Some(topic) => {
                topic.settings = *settings;
                Ok(false)
            }
            None => {
                self.outbox.topics.insert(key.clone(), Topic::new(settings));
                Ok(true)
            }
        }
    }

    /// See [`Bureau::delete_topic`](crate::port::Bureau::delete_topic).
    pub fn delete_topic(&mut self, key: &TopicKey, witness: &dyn Witness) -> Result<bool, StoreError> {
        let Some(topic) = self.outbox.topics.get(key) else { return Ok(false) };
        let groups: Vec<GroupKey> =
            topic.groups.keys().map(|name| GroupKey::new(key.clone(), name.clone())).collect();
        for group in &groups {
            self.check_deserted(group, witness)?;
        }
        self.outbox.topics.remove(key);
        self.outbox.dozers.remove(key);
        self.wakes.extend(groups.into_iter().map(Wake::Group));
        Ok(true)
    }

    /// Refuses while a group has live members.
    pub(super) fn check_deserted(&self, key: &GroupKey, witness: &dyn Witness) -> Result<(), StoreError> {
        let members = self.outbox.find_group(key).map_or(0, |(_, group)| group.live(witness).len());
        if members > 0 { Err(has_members(key, members)) } else { Ok(()) }
    }

    /// See [`Bureau::topics`](crate::port::Bureau::topics).
    pub fn topics(&self, namespace: Option<&Name>) -> Vec<TopicView> {
        let wanted = |key: &&TopicKey| namespace.is_none_or(|namespace| key.namespace == *namespace);
        self.outbox.topics.keys().filter(wanted).filter_map(|key| self.topic(key)).collect()
    }

    /// See [`Bureau::topic`](crate::port::Bureau::topic).
    pub fn topic(&self, key: &TopicKey) -> Option<TopicView> {
        let topic = self.outbox.topics.get(key)?;
        let (oldest, newest) =
            (topic.slots.iter().filter_map(Slot::oldest_at), topic.slots.iter().filter_map(Slot::newest_at));
        Some(TopicView {
            key: key.clone(),
            settings: topic.settings,
            events: topic.places.len() as u64,
            oldest_at_ms: oldest.min(),
            newest_at_ms: newest.max(),
            groups: topic.groups.keys().cloned().collect(),
            blockers: Vec::new(),
        })
    }

    /// How a topic is set, if it is there.
    pub(in crate::ledger) fn topic_settings(&self, key: &TopicKey) -> Option<&TopicSettings> {
        self.outbox.topics.get(key).map(|topic| &topic.settings)
    }

    /// See [`Bureau::slot_ends`](crate::port::Bureau::slot_ends).
    pub fn slot_ends(&self, key: &TopicKey) -> Option<Vec<SlotEnds>> {
        let slots = (0..).zip(&self.outbox.topics.get(key)?.slots);
        let ends = slots.map(|(slot, it)| SlotEnds { slot, earliest: it.floor, latest: it.latest() });
        Some(ends.collect())
    }

    /// See [`Bureau::event`](crate::port::Bureau::event).
    pub fn event(&self, key: &TopicKey, id: EventId) -> Option<Event> {
        let topic = self.outbox.topics.get(key)?;
        let (slot, position) = topic.places.get(&id)?;
        let unit = topic.slots.get(*slot as usize)?.units.get(position)?;
        unit.iter().find(|stored| stored.event.id == id).map(|stored| stored.event.clone())
    }
}

impl Topic {
    fn new(settings: &TopicSettings) -> Topic {
        Topic {
            settings: *settings,
            slots: vec![Slot::default(); settings.slots as usize],
            places: BTreeMap::new(),
            keys: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }
}

impl Slot {
    /// When the first event that is kept was published.
    fn oldest_at(&self) -> Option<i64> {
        self.units.first_key_value()?.1.first().map(|stored| stored.event.at_ms)
    }

    /// When the last one was.
    fn newest_at(&self) -> Option<i64> {
        self.units.last_key_value()?.1.last().map(|stored| stored.event.at_ms)
    }
}
