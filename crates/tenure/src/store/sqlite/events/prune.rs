//! Pruning of old events.

use std::collections::BTreeMap;

use sqlx::Row;
use tenure_core::port::MaintenanceRequest;

use super::super::SqliteStore;
use super::super::connection::{Transaction, query};
use super::super::write_transaction::number as token_number;
use super::{CallError, json, number};
use crate::runtime;

/// A partition whose first events may be pruned.
struct PrunablePartition {
    partition: u32,
    /// Every group has committed this offset.
    min_committed_offset: i64,
    /// Read events that were published before this instant may be pruned.
    before: i64,
    /// All events that were published before this instant may be pruned.
    before_unread: i64,
}

impl PrunablePartition {
    fn is_prunable(&self, offset: i64, published_at_ms: i64) -> bool {
        (offset <= self.min_committed_offset && published_at_ms < self.before)
            || published_at_ms < self.before_unread
    }
}

impl SqliteStore {
    pub(super) async fn prune_topics(&self, request: &MaintenanceRequest) -> Result<(u64, bool), CallError> {
        // The lower clock counts, so that a clock that was set forward prunes nothing early. Without a trusted clock, nothing is
        // pruned.
        let Some(clock) = request.clock_ms.map(|clock| clock.min(runtime::wall_ms())) else {
            return Ok((0, false));
        };
        // Usually there is nothing to prune; then the write lock is not needed.
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let nothing = self.prunable_partitions(&mut transaction, clock).await?.is_empty();
        let orphaned_topics = transaction.all(query(self.queries.get("orphaned_event_topics"))).await?;
        transaction.commit().await?;
        if nothing && orphaned_topics.is_empty() {
            return Ok((0, false));
        }
        let mut tx = self.begin_write().await?;
        let is_leader = query(self.queries.get("broker_is_leader"))
            .bind(request.session.as_str())
            .bind(token_number(request.token));
        let (mut pruned, mut has_more) = (0, false);
        if tx.transaction.one(is_leader).await?.is_some() {
            for row in &orphaned_topics {
                let delete = query(self.queries.get("topic_delete_events"));
                let delete = delete.bind(row.try_get::<i64, _>("topic_id")?).bind(request.limit.max(1));
                has_more |= tx.transaction.execute(delete).await?.rows_affected() > 0;
            }
            // Read again under the write lock: an operator may have reset a group.
            for (topic, partitions) in self.prunable_partitions(&mut tx.transaction, clock).await? {
                let limit = request.limit.max(1);
                let (events, more) =
                    self.prune_partitions(&mut tx.transaction, topic, &partitions, limit).await?;
                pruned += events;
                has_more |= more;
            }
        }
        tx.commit().await?;
        Ok((pruned, has_more))
    }

    /// The partitions whose first events may be pruned, by topic.
    async fn prunable_partitions(
        &self,
        transaction: &mut Transaction,
        clock: i64,
    ) -> Result<BTreeMap<i64, Vec<PrunablePartition>>, CallError> {
        let mut topics: BTreeMap<i64, Vec<PrunablePartition>> = BTreeMap::new();
        for row in transaction.all(query(self.queries.get("event_list_oldest"))).await? {
            let unread_retention_ms: Option<i64> = row.try_get("unread_retention_ms")?;
            let old = PrunablePartition {
                partition: row.try_get("partition")?,
                min_committed_offset: row
                    .try_get::<Option<i64>, _>("min_committed_offset")?
                    .unwrap_or(i64::MAX),
                before: clock.saturating_sub(row.try_get("retention_ms")?),
                before_unread: unread_retention_ms
                    .map_or(i64::MIN, |retention_ms| clock.saturating_sub(retention_ms)),
            };
            let first = (row.try_get("event_offset")?, row.try_get("published_at_ms")?);
            if let (Some(offset), Some(published_at_ms)) = first
                && old.is_prunable(offset, published_at_ms)
            {
                topics.entry(row.try_get("topic_id")?).or_default().push(old);
            }
        }
        Ok(topics)
    }

    /// Prune old commit batches from the start of each partition, at most `limit` in total. Returns the number of events, and whether
    /// more may be pruned.
    async fn prune_partitions(
        &self,
        transaction: &mut Transaction,
        topic: i64,
        partitions: &[PrunablePartition],
        limit: u32,
    ) -> Result<(u64, bool), CallError> {
        let (mut left, mut has_more, mut start_offsets) = (limit, false, Vec::new());
        for old in partitions {
            let first = query(self.queries.get("commit_batch_list_first")).bind(topic).bind(old.partition);
            // Read one more than allowed, to learn whether there are more.
            let mut start_offset = None;
            for row in transaction.all(first.bind(i64::from(left) + 1)).await? {
                let (offset, published_at_ms): (i64, i64) =
                    (row.try_get("event_offset")?, row.try_get("published_at_ms")?);
                if !old.is_prunable(offset, published_at_ms) {
                    break;
                }
                if left == 0 {
                    has_more = true;
                    break;
                }
                left -= 1;
                start_offset = Some((old.partition, offset));
            }
            start_offsets.extend(start_offset);
        }
        let start_offsets = json(&start_offsets)?;
        let get = |name| query(self.queries.get(name)).bind(topic).bind(&start_offsets);
        let pruned = transaction.execute(get("event_prune")).await?.rows_affected();
        for name in ["partition_start_offset_set", "processed_event_delete_pruned"] {
            transaction.execute(get(name)).await?;
        }
        let count = query(self.queries.get("topic_add_event_count")).bind(topic).bind(-number(pruned));
        transaction.execute(count).await?;
        Ok((pruned, has_more))
    }
}
