//! Start offsets and resets of groups.

use super::{PartitionRecord, Work};
use crate::model::work::LeaseObservation;
use crate::port::{GroupKey, Offset, OffsetChange, StartOffset, StoreError};
use crate::rules::event::{no_such_group, no_such_partition, validate_start_offset};

impl Work {
    /// See [`EventAdmin::reset_group`](crate::port::EventAdmin::reset_group).
    pub fn reset_group(
        &mut self,
        key: &GroupKey,
        to: StartOffset,
        partition: Option<u32>,
        dry_run: bool,
        observation: &dyn LeaseObservation,
    ) -> Result<Vec<OffsetChange>, StoreError> {
        validate_start_offset(&to)?;
        let topic = self.events_state.topics.get_mut(&key.topic).ok_or_else(|| no_such_group(key))?;
        let partitions = topic.settings.partitions;
        let group = topic.groups.get_mut(&key.name).ok_or_else(|| no_such_group(key))?;
        if let Some(partition) = partition.filter(|partition| *partition >= partitions) {
            return Err(no_such_partition(&key.topic, partition, partitions));
        }
        let mut moved = Vec::new();
        for (n, lease) in (0..).zip(&mut group.partition_leases) {
            if partition.is_some_and(|partition| partition != n) {
                continue;
            }
            let to = topic.partitions[n as usize].resolve_offset(to);
            moved.push(OffsetChange { partition: n, from_offset: lease.offset, to_offset: to });
            if dry_run {
                continue;
            }
            // The new token makes the next commit of the current holder fail, which tells it to take the partition
            // again.
            lease.token = lease.token.next(observation.epoch());
            lease.holder = None;
            lease.offset = to;
            lease.done.clear();
            group.parked_events.retain(|(its, offset, _), _| *its != n || *offset <= to);
        }
        if !dry_run {
            self.notify_group(key);
        }
        Ok(moved)
    }
}

impl PartitionRecord {
    /// The offset after which the group reads. It is never beyond the last event, so that no future event is skipped.
    pub(super) fn resolve_offset(&self, begin: StartOffset) -> Offset {
        match begin {
            StartOffset::Earliest => self.start_offset,
            StartOffset::Latest => self.latest(),
            StartOffset::Offset(offset) => offset.clamp(self.start_offset, self.latest()),
            StartOffset::PublishedAtMs(at_ms) => {
                let mut before = self.start_offset;
                for (offset, batch) in &self.batches {
                    if batch.first().is_some_and(|stored| stored.event.published_at_ms >= at_ms) {
                        return before;
                    }
                    before = *offset;
                }
                before
            }
        }
    }
}
