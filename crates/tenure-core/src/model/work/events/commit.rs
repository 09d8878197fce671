//! Partition commits.

use super::parked::ParkedEventRecord;
use super::{TopicRecord, Work};
use crate::port::{
    CommitResult, Event, EventId, Offset, ParkEventRequest, ParkedEventState, PartitionCommit, StoreError,
};
use crate::rules::event::{parked_event_missing, validate_commit};

impl Work {
    /// See [`EventStore::commit_partitions`](crate::port::EventStore::commit_partitions). All in one transaction: if
    /// one commit is invalid, none is applied.
    pub fn commit_partitions(
        &mut self,
        commits: &[PartitionCommit],
        now_ms: i64,
    ) -> Result<Vec<CommitResult>, StoreError> {
        for commit in commits {
            validate_commit(commit)?;
            self.find_events_to_park(commit)?;
        }
        commits.iter().map(|commit| self.commit_partition(commit, now_ms)).collect()
    }

    fn commit_partition(
        &mut self,
        commit: &PartitionCommit,
        now_ms: i64,
    ) -> Result<CommitResult, StoreError> {
        let events = self.find_events_to_park(commit)?;
        let Some(topic) = self.events_state.topics.get_mut(&commit.group.topic) else {
            return Ok(CommitResult::LeaseLost);
        };
        let there = |(id, offset): &&(EventId, Offset)| topic.find(commit.partition, *offset, *id).is_some();
        let done: Vec<_> = commit.processed.iter().filter(there).map(|(id, offset)| (*offset, *id)).collect();
        let Some(group) = topic.groups.get_mut(&commit.group.name) else {
            return Ok(CommitResult::LeaseLost);
        };
        let held =
            |lease: &&mut super::PartitionLeaseRecord| lease.token == commit.token && lease.holder.is_some();
        let Some(lease) = group.lease_mut(commit.partition).filter(held) else {
            return Ok(CommitResult::LeaseLost);
        };
        lease.offset = lease.offset.max(commit.offset.unwrap_or(0));
        lease.done.extend(done);
        let read_to = lease.offset;
        lease.done.retain(|(offset, _)| *offset > read_to);
        for (event, parked) in events.into_iter().zip(&commit.parked) {
            let place = (commit.partition, event.offset, event.id);
            // An event that is already parked stays unchanged, and a dead letter stays one.
            let known = group.parked_events.get(&place);
            if known.is_some_and(|known| known.dead || parked.state == ParkedEventState::Waiting) {
                continue;
            }
            group.parked_events.insert(place, ParkedEventRecord::new(event, &parked.state, now_ms));
        }
        for (id, how) in &commit.parked_results {
            group.settle(commit.partition, *id, how, now_ms);
        }
        Ok(CommitResult::Committed)
    }

    /// The events to park. A missing event is not an error if the member has already lost the partition.
    fn find_events_to_park(&self, commit: &PartitionCommit) -> Result<Vec<Event>, StoreError> {
        let Some((topic, group)) = self.events_state.find_group(&commit.group) else { return Ok(Vec::new()) };
        let lease = group.partition_leases.get(commit.partition as usize);
        if lease.is_none_or(|lease| lease.token != commit.token || lease.holder.is_none()) {
            return Ok(Vec::new());
        }
        let find = |parked: &ParkEventRequest| {
            let event = topic.find(commit.partition, parked.offset, parked.event_id);
            event
                .cloned()
                .ok_or_else(|| parked_event_missing(&commit.group, commit.partition, parked.event_id))
        };
        commit.parked.iter().map(find).collect()
    }
}

impl TopicRecord {
    fn find(&self, partition: u32, offset: Offset, id: EventId) -> Option<&Event> {
        let batch = self.partitions.get(partition as usize)?.batches.get(&offset)?;
        batch.iter().map(|stored| &stored.event).find(|event| event.id == id)
    }
}
