//! Events in the user's own transaction.

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::port::{Committed, NewEvent, Published, ShareCommit, StoreError, TopicKey};

/// A transaction in which events are published, and in which a group says how far it has read. Implemented for the connections and
/// transactions of each SQL backend, on a database with Tenure's tables.
#[async_trait]
pub trait Outbox: Send {
    /// Publishes these events if, and when, the transaction commits. All, or an error upon which it has to be rolled back.
    async fn publish(&mut self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError>;

    /// Says how far a slot is read, if it is held under its token: from here to the end of the transaction it can not be taken, and
    /// where the database can, the transaction is bounded by `lease`. [`Committed::Stale`]: nothing was changed; roll back.
    async fn commit_share(&mut self, commit: &ShareCommit, lease: Duration) -> Result<Committed, StoreError>;

    /// Says it of several slots, one result for each; with fewer round trips where the database can.
    async fn commit_shares(
        &mut self,
        commits: &[ShareCommit],
        lease: Duration,
    ) -> Result<Vec<Committed>, StoreError> {
        let mut committed = Vec::with_capacity(commits.len());
        for commit in commits {
            committed.push(self.commit_share(commit, lease).await?);
        }
        Ok(committed)
    }
}
