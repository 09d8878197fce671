//! What is due.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{DUE_MAX, DueLook, DueSchedule, ScheduleKey};
use tenure_core::schedule::{Load, Overlap, load_of};

use super::super::Sqlite;
use super::super::connection::{Transaction, parsed, query};
use super::super::directory::json as read_json;
use super::views::progress;
use super::{Failed, json};
use crate::runtime;

impl Sqlite {
    pub(super) async fn due_schedules(&self, limit: u32) -> Result<DueLook, Failed> {
        let limit = limit.clamp(1, DUE_MAX);
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let now = runtime::wall_ms();
        let due = query(self.queries.get("schedule_due")).bind(now).bind(i64::from(limit) + 1);
        let mut rows = transaction.all(due).await?;
        let first_left_out = rows.get(limit as usize).map(|row| row.try_get("due_at")).transpose()?;
        rows.truncate(limit as usize);
        let next_due_ms = match first_left_out {
            Some(due_at) => Some(due_at),
            None => {
                let next = query(self.queries.get("schedule_next_due")).bind(now);
                transaction.one(next).await?.map_or(Ok(None), |row| row.try_get(0))?
            }
        };
        let mut schedules = Vec::with_capacity(rows.len());
        let mut exclusive = Vec::new();
        for row in &rows {
            // One that can not be read, as a newer program may have written it, keeps none of the others waiting.
            match due_schedule(row) {
                Ok(schedule) => {
                    if schedule.definition.overlap != Overlap::Allow {
                        exclusive.push((row.try_get::<i64, _>("id")?, schedules.len()));
                    }
                    schedules.push(schedule);
                }
                Err(error) => {
                    let (namespace, name): (&str, &str) = (row.try_get("namespace")?, row.try_get("name")?);
                    tracing::warn!(namespace, name, %error, "this schedule can not be read, and does not fire");
                }
            }
        }
        let loads = self.loads(&mut transaction, &exclusive).await?;
        transaction.commit().await?;
        for (id, place) in exclusive {
            schedules[place].load = loads.get(&id).copied().unwrap_or_default();
        }
        Ok(DueLook { schedules, more: first_left_out.is_some(), store_ms: now, next_due_ms })
    }

    /// How the runs of these stand, as far as some are not over.
    async fn loads(
        &self,
        transaction: &mut Transaction,
        exclusive: &[(i64, usize)],
    ) -> Result<HashMap<i64, Load>, Failed> {
        if exclusive.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<i64> = exclusive.iter().map(|(id, _)| *id).collect();
        let rows = transaction.all(query(self.queries.get("tick_load")).bind(json(&ids)?)).await?;
        let load = |row: &SqliteRow| {
            let unfinished = row.try_get::<i64, _>("unfinished")?.cast_unsigned();
            Ok((row.try_get("schedule")?, load_of(unfinished)))
        };
        Ok(rows.iter().map(load).collect::<sqlx::Result<_>>()?)
    }
}

fn due_schedule(row: &SqliteRow) -> sqlx::Result<DueSchedule> {
    Ok(DueSchedule {
        key: ScheduleKey::new(parsed(row, "namespace")?, parsed(row, "name")?),
        version: row.try_get::<i64, _>("version")?.cast_unsigned(),
        definition: read_json(row, "definition")?,
        progress: progress(row)?.ok_or(sqlx::Error::RowNotFound)?,
        load: Load::default(),
        strikes: row.try_get("strikes")?,
    })
}
