//! Publishing and reading of events.

use std::collections::{BTreeMap, VecDeque};

use super::{EventRecord, PartitionRecord, TopicRecord, Work};
use crate::port::{
    COMMIT_BATCH_MAX, Event, EventId, NewEvent, Offset, PublishReceipt, READ_BYTES, ReadEventsRequest,
    StoreError, TopicKey,
};
use crate::rules::event::{partition_for_key, validate_events, validate_read};

impl Work {
    /// See [`EventStore::publish`](crate::port::EventStore::publish).
    pub fn publish(
        &mut self,
        key: &TopicKey,
        events: &[NewEvent],
        now_ms: i64,
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        let first = self.events_state.last_event + 1;
        let topic = self.events_state.topic_mut(key)?;
        validate_events(events, topic.settings.max_payload_bytes)?;
        let published = topic.publish(events, first, now_ms);
        let new = published.iter().filter(|it| it.created).count();
        self.events_state.last_event += new as u64;
        if new > 0 {
            self.notify_topic(key);
        }
        Ok(published)
    }

    /// See [`EventStore::read_events`](crate::port::EventStore::read_events).
    pub fn read_events(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, StoreError> {
        validate_read(read)?;
        let topic = self.events_state.topic(&read.topic)?;
        let (mut count, mut bytes) = (0, 0);
        let mut takes = vec![Vec::new(); read.after.len()];
        let mut waiting: VecDeque<usize> = (0..read.after.len()).collect();
        let mut rest: Vec<_> =
            read.after.iter().map(|(partition, after)| topic.after(*partition, *after)).collect();
        // Read one batch per partition in turn, so that a partition with many events does not delay the others.
        while let Some(index) = waiting.pop_front() {
            let Some(batch) = rest[index].next() else { continue };
            let weight: usize = batch.iter().map(|stored| stored.event.payload.len()).sum();
            if count >= read.limit as usize || (count > 0 && bytes + weight > READ_BYTES) {
                break;
            }
            (count, bytes) = (count + batch.len(), bytes + weight);
            takes[index].extend(batch.iter().map(|stored| stored.event.clone()));
            waiting.push_back(index);
        }
        Ok(takes.concat())
    }
}

impl TopicRecord {
    fn publish(&mut self, events: &[NewEvent], first: u64, now_ms: i64) -> Vec<PublishReceipt> {
        let (mut next, mut published) = (first, Vec::with_capacity(events.len()));
        let mut batches: BTreeMap<u32, Vec<EventRecord>> = BTreeMap::new();
        for new in events {
            let known = new.idempotency_key.as_ref().and_then(|key| self.keys.get(key));
            if let Some(id) = known {
                let partition = self.locations.get(id).map_or(0, |(partition, _)| *partition);
                published.push(PublishReceipt { id: *id, partition, created: false });
                continue;
            }
            let id = EventId(next);
            next += 1;
            let partitions = self.settings.partitions;
            let partition = match &new.key {
                Some(key) => partition_for_key(key, partitions),
                None => u32::try_from(id.0 % u64::from(partitions)).unwrap_or(0),
            };
            if let Some(key) = &new.idempotency_key {
                self.keys.insert(key.clone(), id);
            }
            self.locations.insert(id, (partition, 0));
            batches.entry(partition).or_default().push(stored(new, id, partition, now_ms));
            published.push(PublishReceipt { id, partition, created: true });
        }
        for (partition, events) in batches {
            for batch in events.chunks(COMMIT_BATCH_MAX) {
                self.append(partition, batch.to_vec());
            }
        }
        published
    }

    /// Appends a commit batch. Its offset is the id of its first event, because event ids grow with every call.
    fn append(&mut self, partition: u32, mut batch: Vec<EventRecord>) {
        let offset = batch.first().map_or(0, |stored| stored.event.id.0);
        for stored in &mut batch {
            stored.event.offset = offset;
            self.locations.insert(stored.event.id, (partition, offset));
        }
        if let Some(partition) = self.partitions.get_mut(partition as usize) {
            partition.batches.insert(offset, batch);
        }
    }

    /// The commit batches of a partition after an offset. Empty if the partition does not exist.
    fn after(&self, partition: u32, after: Offset) -> impl Iterator<Item = &Vec<EventRecord>> {
        let partition = self.partitions.get(partition as usize);
        partition.into_iter().flat_map(move |partition| partition.after(after))
    }
}

impl PartitionRecord {
    /// The commit batches after an offset.
    pub(super) fn after(&self, after: Offset) -> impl Iterator<Item = &Vec<EventRecord>> {
        self.batches.range(after.saturating_add(1)..).map(|(_, batch)| batch)
    }
}

fn stored(new: &NewEvent, id: EventId, partition: u32, at_ms: i64) -> EventRecord {
    let event = Event {
        id,
        partition,
        offset: 0,
        key: new.key.clone(),
        event_type: new.event_type.clone(),
        payload: new.payload.clone(),
        headers: new.headers.clone(),
        leader_token: new.leader_token,
        published_at_ms: at_ms,
    };
    EventRecord { event, idempotency_key: new.idempotency_key.clone() }
}
