//! How rows become schedules and ticks.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::Token;
use tenure_core::port::{Cause, EventId, ScheduleStats, ScheduleView, TaskId, TickState, TickView};
use tenure_core::schedule::Progress;

use super::super::connection::{broken, parsed};
use super::super::directory::json;
use super::super::row::{pause, unsigned};

/// How far a schedule is; `None`: no tick is left.
pub(super) fn progress(row: &SqliteRow) -> sqlx::Result<Option<Progress>> {
    let (next_at, last_at_ms): (Option<i64>, Option<i64>) =
        (row.try_get("next_at")?, row.try_get("last_at")?);
    Ok(next_at.map(|next_at_ms| Progress { next_at_ms, last_at_ms }))
}

pub(super) fn schedule_view(row: &SqliteRow) -> sqlx::Result<ScheduleView> {
    let count = |column| row.try_get::<i64, _>(column).map(i64::cast_unsigned);
    Ok(ScheduleView {
        namespace: parsed(row, "namespace")?,
        version: count("version")?,
        definition: json(row, "definition")?,
        progress: progress(row)?,
        due_ms: row.try_get("due_at")?,
        paused: pause(row, "paused_by", "paused_reason", "paused_at")?,
        trouble: row.try_get("trouble")?,
        fired: count("fired")?,
        skipped: count("skipped")?,
        overlapped: count("overlapped")?,
        last_fired_ms: row.try_get("last_fired_at")?,
        source: row.try_get("source")?,
        signed: row.try_get::<Option<&str>, _>("secret")?.is_some(),
        created_ms: row.try_get("created_at")?,
        updated_ms: row.try_get("updated_at")?,
        updated_by: row.try_get("updated_by")?,
    })
}

pub(super) fn tick_view(row: &SqliteRow) -> sqlx::Result<TickView> {
    let (due_at, decided_ms): (i64, i64) = (row.try_get("due_at")?, row.try_get("decided_at")?);
    Ok(TickView {
        at_ms: row.try_get("tick_at")?,
        state: match row.try_get("state")? {
            "fired" => TickState::Fired,
            "skipped" => TickState::Skipped,
            "overlapped" => TickState::Overlapped,
            word => return Err(strange("state", word)),
        },
        cause: match row.try_get("cause")? {
            "clock" => Cause::Clock,
            "backfill" => Cause::Backfill,
            "trigger" => Cause::Trigger,
            word => return Err(strange("cause", word)),
        },
        count: row.try_get::<i64, _>("ticks")?.cast_unsigned(),
        first_ms: row.try_get("first_at")?,
        decided_ms,
        late_ms: decided_ms.saturating_sub(due_at),
        token: unsigned(row, "token")?.map(Token::from_u64),
        by: row.try_get("decided_by")?,
        event: unsigned(row, "event")?.map(EventId),
        task: unsigned(row, "task")?.map(TaskId),
    })
}

pub(super) fn schedule_stats(row: &SqliteRow, now: i64) -> sqlx::Result<ScheduleStats> {
    let count = |column| row.try_get::<i64, _>(column).map(i64::cast_unsigned);
    let first_due_at: Option<i64> = row.try_get("first_due_at")?;
    Ok(ScheduleStats {
        namespace: parsed(row, "namespace")?,
        schedules: count("schedules")?,
        paused: count("paused")?,
        troubled: count("troubled")?,
        overdue: count("overdue")?,
        overdue_ms: first_due_at.map_or(0, |at| now.saturating_sub(at).max(0).cast_unsigned()),
        last_fired_ms: row.try_get("last_fired_at")?,
    })
}

fn strange(column: &str, word: &str) -> sqlx::Error {
    broken(column, std::io::Error::other(format!("{word:?} is not a word that Tenure writes there")))
}
