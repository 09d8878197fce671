//! Events in the user's own transaction.

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::port::{CommitResult, NewEvent, PartitionCommit, PublishReceipt, StoreError, TopicKey};

/// A transaction in which events are published and offsets are committed. Implemented for the connections and
/// transactions of each SQL store, on a database with Tenure's tables.
#[async_trait]
pub trait Outbox: Send {
    /// Publishes these events when the transaction commits. After an error, the transaction must be rolled
    /// back.
    async fn publish(
        &mut self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError>;

    /// Commits the offset of a partition if it is held under its token. From then on until the end of the
    /// transaction the partition cannot be taken; where the database supports it, `lease` limits the
    /// transaction. [`CommitResult::LeaseLost`]: nothing was changed; roll back.
    async fn commit_partition(
        &mut self,
        commit: &PartitionCommit,
        lease: Duration,
    ) -> Result<CommitResult, StoreError>;

    /// Commits several partitions, one result for each, with fewer round trips where the database supports it.
    async fn commit_partitions(
        &mut self,
        commits: &[PartitionCommit],
        lease: Duration,
    ) -> Result<Vec<CommitResult>, StoreError> {
        let mut committed = Vec::with_capacity(commits.len());
        for commit in commits {
            committed.push(self.commit_partition(commit, lease).await?);
        }
        Ok(committed)
    }
}
