//! Publishing, and reading.

use std::collections::{BTreeMap, VecDeque};

use super::{Ledger, Slot, Stored, Topic};
use crate::event::{check_events, check_read, slot_of};
use crate::port::{
    Event, EventId, NewEvent, Position, Published, READ_BYTES, ReadAsk, StoreError, TopicKey, UNIT_MAX,
};

impl Ledger {
    /// See [`Events::publish`](crate::port::Events::publish).
    pub fn publish(
        &mut self,
        key: &TopicKey,
        events: &[NewEvent],
        now_ms: i64,
    ) -> Result<Vec<Published>, StoreError> {
        let first = self.outbox.last_event + 1;
        let topic = self.outbox.topic_mut(key)?;
        check_events(events, topic.settings.max_bytes)?;
        let published = topic.publish(events, first, now_ms);
        let new = published.iter().filter(|it| it.new).count();
        self.outbox.last_event += new as u64;
        if new > 0 {
            self.ring_topic(key);
        }
        Ok(published)
    }

    /// See [`Events::read_events`](crate::port::Events::read_events).
    pub fn read_events(&self, read: &ReadAsk) -> Result<Vec<Event>, StoreError> {
        check_read(read)?;
        let topic = self.outbox.topic(&read.topic)?;
        let (mut count, mut bytes) = (0, 0);
        let mut takes = vec![Vec::new(); read.after.len()];
        let mut waiting: VecDeque<usize> = (0..read.after.len()).collect();
        let mut rest: Vec<_> = read.after.iter().map(|(slot, after)| topic.after(*slot, *after)).collect();
        // Unit by unit from slot to slot, so that a long one does not keep the others waiting.
        while let Some(place) = waiting.pop_front() {
            let Some(unit) = rest[place].next() else { continue };
            let weight: usize = unit.iter().map(|stored| stored.event.payload.len()).sum();
            if count >= read.limit as usize || (count > 0 && bytes + weight > READ_BYTES) {
                break;
            }
            (count, bytes) = (count + unit.len(), bytes + weight);
            takes[place].extend(unit.iter().map(|stored| stored.event.clone()));
            waiting.push_back(place);
        }
        Ok(takes.concat())
    }
}

impl Topic {
    fn publish(&mut self, events: &[NewEvent], first: u64, now_ms: i64) -> Vec<Published> {
        let (mut next, mut published) = (first, Vec::with_capacity(events.len()));
        let mut units: BTreeMap<u32, Vec<Stored>> = BTreeMap::new();
        for new in events {
            let known = new.idempotency_key.as_ref().and_then(|key| self.keys.get(key));
            if let Some(id) = known {
                let slot = self.places.get(id).map_or(0, |(slot, _)| *slot);
                published.push(Published { id: *id, slot, new: false });
                continue;
            }
            let id = EventId(next);
            next += 1;
            let slots = self.settings.slots;
            let slot = match &new.key {
                Some(key) => slot_of(key, slots),
                None => u32::try_from(id.0 % u64::from(slots)).unwrap_or(0),
            };
            if let Some(key) = &new.idempotency_key {
                self.keys.insert(key.clone(), id);
            }
            self.places.insert(id, (slot, 0));
            units.entry(slot).or_default().push(stored(new, id, slot, now_ms));
            published.push(Published { id, slot, new: true });
        }
        for (slot, events) in units {
            for unit in events.chunks(UNIT_MAX) {
                self.append(slot, unit.to_vec());
            }
        }
        published
    }

    /// Gives a unit its position. Numbers grow with every call, so the first one's will do.
    fn append(&mut self, slot: u32, mut unit: Vec<Stored>) {
        let position = unit.first().map_or(0, |stored| stored.event.id.0);
        for stored in &mut unit {
            stored.event.position = position;
            self.places.insert(stored.event.id, (slot, position));
        }
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.units.insert(position, unit);
        }
    }

    /// The units of a slot after a position. None, if there is no such slot.
    fn after(&self, slot: u32, after: Position) -> impl Iterator<Item = &Vec<Stored>> {
        let slot = self.slots.get(slot as usize);
        slot.into_iter().flat_map(move |slot| slot.after(after))
    }
}

impl Slot {
    /// The units after a position.
    pub(super) fn after(&self, after: Position) -> impl Iterator<Item = &Vec<Stored>> {
        self.units.range(after.saturating_add(1)..).map(|(_, unit)| unit)
    }
}

fn stored(new: &NewEvent, id: EventId, slot: u32, at_ms: i64) -> Stored {
    let event = Event {
        id,
        slot,
        position: 0,
        key: new.key.clone(),
        kind: new.kind.clone(),
        payload: new.payload.clone(),
        headers: new.headers.clone(),
        leader_token: new.leader_token,
        at_ms,
    };
    Stored { event, idempotency_key: new.idempotency_key.clone() }
}
