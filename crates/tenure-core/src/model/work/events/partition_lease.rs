//! Partition leases: take by compare-and-swap, release by token.

use super::Work;
use crate::Token;
use crate::model::work::LeaseObservation;
use crate::port::{GroupKey, StoreError, TakePartitionsRequest, TakenPartition};
use crate::rules::event::validate_take;

impl Work {
    /// See [`EventStore::take_partitions`](crate::port::EventStore::take_partitions).
    pub fn take_partitions(
        &mut self,
        take: &TakePartitionsRequest,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Result<Vec<TakenPartition>, StoreError> {
        validate_take(take)?;
        let Some(group) = self.events_state.find_group_mut(&take.group) else { return Ok(Vec::new()) };
        let name = group.members.get(&take.session).filter(|_| observation.is_live(&take.session)).cloned();
        let Some(name) = name else { return Ok(Vec::new()) };
        let mut taken = Vec::new();
        for (partition, expected_token) in &take.partitions {
            let Some(lease) = group.partition_leases.get_mut(*partition as usize) else { continue };
            if lease.token != *expected_token || lease.holder(observation).is_some() {
                continue;
            }
            lease.token = lease.token.next(observation.epoch());
            lease.holder = Some(take.session.clone());
            group.moves += u64::from(!lease.last.is_empty() && lease.last != name);
            lease.last.clone_from(&name);
            let (token, offset) = (lease.token, lease.offset);
            let done = lease.done.iter().map(|(_, id)| *id).collect();
            taken.push(TakenPartition {
                partition: *partition,
                token,
                offset,
                processed_event_ids: done,
                parked_keys: group.parked_keys(*partition, now_ms),
            });
        }
        Ok(taken)
    }

    /// See [`EventStore::release_partitions`](crate::port::EventStore::release_partitions).
    pub fn release_partitions(&mut self, key: &GroupKey, leases: &[(u32, Token)]) {
        let Some(group) = self.events_state.find_group_mut(key) else { return };
        let mut freed = false;
        for (partition, token) in leases {
            let held = group.lease_mut(*partition).filter(|lease| lease.token == *token);
            freed |= held.is_some_and(|lease| lease.holder.take().is_some());
        }
        if freed {
            self.notify_group(key);
        }
    }
}
