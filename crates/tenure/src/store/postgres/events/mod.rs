//! Events: published in the transaction of the publisher, read in order by groups.
//!
//! **State.** The tables hold all state; a process keeps none. The database assigns offsets at commit, under the lock of
//! the partition (`migrations/0001/events/publish.sql` explains why readers never skip an event). A commit of a partition
//! compares its token in the database, in the transaction of the handler. Operations that need several reads in one round
//! trip are functions in the database.
//!
//! **Locks.** A committing publisher locks the rows of its partitions in `topic_partitions`, in order. A change of a group
//! locks the row of the group. A call that takes, releases, resets or commits a partition lease locks the row of the lease.
//! A take waits for a locked lease for a moment and then skips it.

mod admin;
mod commit;
mod groups;
mod publish;
mod read;

use std::collections::BTreeMap;

use async_trait::async_trait;
use tenure_core::port::{
    CommitResult, Event, EventStore, GroupAssignment, GroupKey, JoinGroupRequest, MaintenanceRequest,
    NewEvent, ParkedKey, PartitionCommit, PublishReceipt, ReadEventsRequest, StoreError,
    TakePartitionsRequest, TakenPartition, TopicKey,
};
use tenure_core::{SessionId, Token};

pub use self::commit::{commit_partition, commit_partitions};
pub use self::publish::publish;
pub(super) use self::publish::{Columns, numbers, some_numbers, some_texts, to_bigint};
use super::PostgresStore;
use super::value::Value;

#[async_trait]
impl EventStore for PostgresStore {
    async fn publish(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        self.publish_events(topic, events).await
    }

    async fn join_group(&self, join: &JoinGroupRequest) -> Result<GroupAssignment, StoreError> {
        self.join(join).await
    }

    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        self.leave(group, session).await
    }

    async fn group_assignment(&self, group: &GroupKey) -> Result<Option<GroupAssignment>, StoreError> {
        self.get_assignment(group).await
    }

    async fn take_partitions(&self, take: &TakePartitionsRequest) -> Result<Vec<TakenPartition>, StoreError> {
        self.take_leases(take).await
    }

    async fn release_partitions(
        &self,
        group: &GroupKey,
        partitions: &[(u32, Token)],
    ) -> Result<(), StoreError> {
        self.release_leases(group, partitions).await
    }

    async fn read_events(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, StoreError> {
        self.read_partitions(read).await
    }

    async fn commit_partitions(&self, commits: &[PartitionCommit]) -> Result<Vec<CommitResult>, StoreError> {
        self.commit_all(commits).await
    }

    async fn parked_keys(&self, group: &GroupKey, partition: u32) -> Result<Vec<ParkedKey>, StoreError> {
        self.list_parked_keys(group, partition).await
    }

    async fn parked_keys_in(
        &self,
        group: &GroupKey,
        partitions: &[u32],
    ) -> Result<BTreeMap<u32, Vec<ParkedKey>>, StoreError> {
        self.list_parked_keys_in(group, partitions).await
    }

    async fn register_topic_waiter(&self, _session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        self.register_waiter(topic).await
    }

    async fn prune_events(&self, request: &MaintenanceRequest) -> Result<(u64, bool), StoreError> {
        self.prune_old_events(request).await
    }
}

/// Namespace and name.
fn topic(key: &TopicKey) -> [Value<'_>; 2] {
    [key.namespace.as_str().into(), key.name.as_str().into()]
}

/// Namespace, topic and name.
fn group(key: &GroupKey) -> [Value<'_>; 3] {
    [key.topic.namespace.as_str().into(), key.topic.name.as_str().into(), key.name.as_str().into()]
}
