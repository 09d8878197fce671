//! Pruning of old ticks and of the ticks of deleted schedules.

use std::collections::BTreeMap;

use sqlx::Row;
use tenure_core::port::TICK_RETENTION_MS;
use tenure_core::{SessionId, Token};

use super::super::SqliteStore;
use super::super::connection::query;
use super::super::write_transaction::WriteTransaction;
use super::{CallError, json};
use crate::runtime;

impl SqliteStore {
    pub(super) async fn prune_old_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), CallError> {
        let limit = limit.max(1);
        // Usually there is nothing to prune; then the write lock is not needed.
        let old = query(self.queries.get("tick_has_old")).bind(runtime::wall_ms() - TICK_RETENTION_MS);
        let old = old.fetch_one(&self.inner.pools.reads).await?;
        if !old.try_get::<bool, _>("has_old")? {
            return Ok((0, false));
        }
        let mut tx = self.begin_write().await?;
        if tx.scheduler(session, token).await?.is_none() {
            tx.commit().await?;
            return Ok((0, false));
        }
        let before = tx.wall_ms - TICK_RETENTION_MS;
        let mut pruned = tx.prune_old_ticks(before, limit).await?;
        let mut remaining = limit - u32::try_from(pruned).unwrap_or(limit).min(limit);
        if remaining > 0 {
            let prune = query(self.queries.get("skipped_tick_prune")).bind(before).bind(remaining);
            let deleted = tx.transaction.execute(prune).await?.rows_affected();
            pruned += deleted;
            remaining -= u32::try_from(deleted).unwrap_or(remaining).min(remaining);
        }
        let orphaned = query(self.queries.get("orphaned_tick_list")).bind(remaining);
        for row in tx.transaction.all(orphaned).await? {
            if remaining > 0 {
                let deleted = tx.delete_ticks(row.try_get("schedule_id")?, remaining).await?;
                pruned += deleted;
                remaining -= u32::try_from(deleted).unwrap_or(remaining).min(remaining);
            }
        }
        tx.commit().await?;
        Ok((pruned, remaining == 0))
    }

    /// Delete at most `limit` ticks of a deleted schedule. Returns the number.
    pub(super) async fn delete_orphaned_ticks(&self, schedule: i64, limit: u32) -> Result<u64, CallError> {
        let mut tx = self.begin_write().await?;
        let deleted = tx.delete_ticks(schedule, limit).await?;
        tx.commit().await?;
        Ok(deleted)
    }
}

impl WriteTransaction<'_> {
    /// Prune old ticks, and record the newest pruned tick of each schedule.
    async fn prune_old_ticks(&mut self, before: i64, limit: u32) -> Result<u64, CallError> {
        let prune = query(self.store.queries.get("tick_prune")).bind(before).bind(limit);
        let rows = self.transaction.all(prune).await?;
        let mut newest: BTreeMap<i64, i64> = BTreeMap::new();
        for row in &rows {
            // Manual ticks are not part of the schedule.
            if !row.try_get::<bool, _>("manual")? {
                let (schedule, tick_at_ms): (i64, i64) =
                    (row.try_get("schedule_id")?, row.try_get("tick_at_ms")?);
                newest
                    .entry(schedule)
                    .and_modify(|newest| *newest = tick_at_ms.max(*newest))
                    .or_insert(tick_at_ms);
            }
        }
        if !newest.is_empty() {
            let newest: Vec<(i64, i64)> = newest.into_iter().collect();
            let update = query(self.store.queries.get("schedule_set_pruned_until")).bind(json(&newest)?);
            self.transaction.execute(update).await?;
        }
        Ok(rows.len() as u64)
    }

    async fn delete_ticks(&mut self, schedule: i64, limit: u32) -> Result<u64, CallError> {
        let (mut deleted, limit) = (0, u64::from(limit));
        for name in ["tick_delete_schedule", "skipped_tick_delete_schedule"] {
            let delete = query(self.store.queries.get(name)).bind(schedule);
            let delete = delete.bind(super::number(limit.saturating_sub(deleted)));
            deleted += self.transaction.execute(delete).await?.rows_affected();
        }
        if deleted < limit {
            let delete_orphan = query(self.store.queries.get("orphaned_tick_delete")).bind(schedule);
            self.transaction.execute(delete_orphan).await?;
        }
        Ok(deleted)
    }
}
