//! Due schedules.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{DUE_MAX, DueResponse, DueSchedule, ScheduleKey};
use tenure_core::rules::schedule::{OverlapPolicy, UnfinishedRuns, unfinished_runs};

use super::super::SqliteStore;
use super::super::connection::{Transaction, parsed, query};
use super::super::election_admin::json as read_json;
use super::views::tick_state;
use super::{CallError, json};
use crate::runtime;

impl SqliteStore {
    pub(super) async fn due_schedules(&self, limit: u32) -> Result<DueResponse, CallError> {
        let limit = limit.clamp(1, DUE_MAX);
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let now = runtime::wall_ms();
        let due = query(self.queries.get("schedule_due")).bind(now).bind(i64::from(limit) + 1);
        let mut rows = transaction.all(due).await?;
        let next_overdue = rows.get(limit as usize).map(|row| row.try_get("due_at_ms")).transpose()?;
        rows.truncate(limit as usize);
        let next_due_at_ms = match next_overdue {
            Some(due_at_ms) => Some(due_at_ms),
            None => {
                let next = query(self.queries.get("schedule_next_due")).bind(now);
                transaction.one(next).await?.map_or(Ok(None), |row| row.try_get(0))?
            }
        };
        let mut schedules = Vec::with_capacity(rows.len());
        let mut tracked_schedules = Vec::new();
        for row in &rows {
            // Skip a schedule that cannot be read, for example because a newer program wrote it.
            match due_schedule(row) {
                Ok(schedule) => {
                    if schedule.definition.overlap_policy != OverlapPolicy::Allow {
                        tracked_schedules.push((row.try_get::<i64, _>("id")?, schedules.len()));
                    }
                    schedules.push(schedule);
                }
                Err(error) => {
                    let (namespace, name): (&str, &str) = (row.try_get("namespace")?, row.try_get("name")?);
                    tracing::warn!(namespace, name, %error, "schedule is unreadable and does not fire");
                }
            }
        }
        let unfinished_runs = self.unfinished_runs(&mut transaction, &tracked_schedules).await?;
        transaction.commit().await?;
        for (id, index) in tracked_schedules {
            schedules[index].unfinished_runs = unfinished_runs.get(&id).copied().unwrap_or_default();
        }
        Ok(DueResponse { schedules, has_more: next_overdue.is_some(), store_now_at_ms: now, next_due_at_ms })
    }

    /// The unfinished runs of these schedules. Schedules without unfinished runs are missing.
    async fn unfinished_runs(
        &self,
        transaction: &mut Transaction,
        tracked_schedules: &[(i64, usize)],
    ) -> Result<HashMap<i64, UnfinishedRuns>, CallError> {
        if tracked_schedules.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<i64> = tracked_schedules.iter().map(|(id, _)| *id).collect();
        let rows =
            transaction.all(query(self.queries.get("tick_count_unfinished")).bind(json(&ids)?)).await?;
        let unfinished = |row: &SqliteRow| {
            let unfinished = row.try_get::<i64, _>("unfinished")?.cast_unsigned();
            Ok((row.try_get("schedule_id")?, unfinished_runs(unfinished)))
        };
        Ok(rows.iter().map(unfinished).collect::<sqlx::Result<_>>()?)
    }
}

fn due_schedule(row: &SqliteRow) -> sqlx::Result<DueSchedule> {
    Ok(DueSchedule {
        key: ScheduleKey::new(parsed(row, "namespace")?, parsed(row, "name")?),
        version: row.try_get::<i64, _>("version")?.cast_unsigned(),
        definition: read_json(row, "definition")?,
        tick_state: tick_state(row)?.ok_or(sqlx::Error::RowNotFound)?,
        unfinished_runs: UnfinishedRuns::default(),
        consecutive_failures: row.try_get("consecutive_failures")?,
    })
}
