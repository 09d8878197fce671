//! What the leader forgets: ticks that are old, and those of schedules that were deleted.

use std::collections::BTreeMap;

use sqlx::Row;
use tenure_core::port::TICKS_KEPT_MS;
use tenure_core::{SessionId, Token};

use super::super::Sqlite;
use super::super::change::Change;
use super::super::connection::query;
use super::{Failed, json};
use crate::runtime;

impl Sqlite {
    pub(super) async fn forget_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), Failed> {
        let limit = limit.max(1);
        // Mostly there is nothing, and for that nobody has to wait.
        let old = query(self.queries.get("tick_old")).bind(runtime::wall_ms() - TICKS_KEPT_MS);
        let old = old.fetch_one(&self.inner.pools.reads).await?;
        if !old.try_get::<bool, _>("old")? {
            return Ok((0, false));
        }
        let mut change = self.change().await?;
        if change.scheduler(session, token).await?.is_none() {
            change.commit().await?;
            return Ok((0, false));
        }
        let before = change.wall_ms - TICKS_KEPT_MS;
        let mut forgotten = change.forget_ticks(before, limit).await?;
        let mut left = limit - u32::try_from(forgotten).unwrap_or(limit).min(limit);
        if left > 0 {
            let forget = query(self.queries.get("skip_forget")).bind(before).bind(left);
            let gone = change.transaction.execute(forget).await?.rows_affected();
            forgotten += gone;
            left -= u32::try_from(gone).unwrap_or(left).min(left);
        }
        let strays = query(self.queries.get("stray_list")).bind(left);
        for row in change.transaction.all(strays).await? {
            if left > 0 {
                let gone = change.clear_ticks(row.try_get("schedule")?, left).await?;
                forgotten += gone;
                left -= u32::try_from(gone).unwrap_or(left).min(left);
            }
        }
        change.commit().await?;
        Ok((forgotten, left == 0))
    }

    /// Clears away what a deleted schedule left, at most so much; how much.
    pub(super) async fn clear_stray(&self, schedule: i64, limit: u32) -> Result<u64, Failed> {
        let mut change = self.change().await?;
        let gone = change.clear_ticks(schedule, limit).await?;
        change.commit().await?;
        Ok(gone)
    }
}

impl Change<'_> {
    /// Forgets ticks, and notes down how far back nothing is known.
    async fn forget_ticks(&mut self, before: i64, limit: u32) -> Result<u64, Failed> {
        let forget = query(self.store.queries.get("tick_forget")).bind(before).bind(limit);
        let rows = self.transaction.all(forget).await?;
        let mut newest: BTreeMap<i64, i64> = BTreeMap::new();
        for row in &rows {
            // What somebody wanted at that moment is none of the timetable's.
            if !row.try_get::<bool, _>("by_hand")? {
                let (schedule, at): (i64, i64) = (row.try_get("schedule")?, row.try_get("tick_at")?);
                newest.entry(schedule).and_modify(|newest| *newest = at.max(*newest)).or_insert(at);
            }
        }
        if !newest.is_empty() {
            let newest: Vec<(i64, i64)> = newest.into_iter().collect();
            let note = query(self.store.queries.get("tick_forgotten")).bind(json(&newest)?);
            self.transaction.execute(note).await?;
        }
        Ok(rows.len() as u64)
    }

    async fn clear_ticks(&mut self, schedule: i64, limit: u32) -> Result<u64, Failed> {
        let (mut gone, limit) = (0, u64::from(limit));
        for name in ["tick_clear", "skip_clear"] {
            let clear = query(self.store.queries.get(name)).bind(schedule);
            let clear = clear.bind(super::number(limit.saturating_sub(gone)));
            gone += self.transaction.execute(clear).await?.rows_affected();
        }
        if gone < limit {
            let done = query(self.store.queries.get("stray_done")).bind(schedule);
            self.transaction.execute(done).await?;
        }
        Ok(gone)
    }
}
