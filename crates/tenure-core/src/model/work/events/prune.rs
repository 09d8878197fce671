//! Pruning of old events that all groups have read.

use super::{EventRecord, Offset, TopicRecord, Work};
use crate::model::work::LeaseObservation;
use crate::port::MaintenanceRequest;

impl Work {
    /// See [`EventStore::prune_events`](crate::port::EventStore::prune_events).
    pub fn prune_events(
        &mut self,
        request: &MaintenanceRequest,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> (u64, bool) {
        if !observation.leads(&request.session, request.token) {
            return (0, false);
        }
        self.events_state.topic_waiters.retain(|_, sessions| {
            sessions.retain(|session| observation.is_live(session));
            !sessions.is_empty()
        });
        // Use the lesser of the leader's estimate and the store's clock, so that a forward step of that clock prunes
        // nothing. Without an estimate nothing is pruned.
        let Some(clock_ms) = request.clock_ms.map(|clock| clock.min(now_ms)) else { return (0, false) };
        let (mut pruned, mut more) = (0, false);
        for topic in self.events_state.topics.values_mut() {
            let mut left = request.limit as usize;
            for partition in 0..topic.partitions.len() {
                while let Some(offset) = topic.oldest_over(partition, clock_ms) {
                    if left == 0 {
                        more = true;
                        break;
                    }
                    left -= 1;
                    pruned += topic.prune_batch(partition, offset);
                }
            }
        }
        (pruned, more)
    }
}

impl TopicRecord {
    /// The first commit batch of a partition, if its retention is over.
    fn oldest_over(&self, partition: usize, clock_ms: i64) -> Option<Offset> {
        let (offset, batch) = self.partitions[partition].batches.first_key_value()?;
        let at = batch.first()?.event.published_at_ms;
        let over = |keep_ms: u64| at.saturating_add_unsigned(keep_ms) < clock_ms;
        let read = self.groups.values().all(|group| group.partition_leases[partition].offset >= *offset);
        let gone =
            (read && over(self.settings.retention_ms)) || self.settings.unread_retention_ms.is_some_and(over);
        gone.then_some(*offset)
    }

    /// Prunes a commit batch. Returns the number of its events.
    fn prune_batch(&mut self, partition: usize, offset: Offset) -> u64 {
        let batch: Vec<EventRecord> = self.partitions[partition].batches.remove(&offset).unwrap_or_default();
        self.partitions[partition].start_offset = offset;
        for stored in &batch {
            self.locations.remove(&stored.event.id);
            if let Some(key) = &stored.idempotency_key {
                self.keys.remove(key);
            }
        }
        for group in self.groups.values_mut() {
            group.partition_leases[partition].done.retain(|(its, _)| *its > offset);
        }
        batch.len() as u64
    }
}
