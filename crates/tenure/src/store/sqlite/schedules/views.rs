//! Conversion of rows to schedules and ticks.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::Token;
use tenure_core::port::{EventId, ScheduleStats, ScheduleView, TaskId, TickCause, TickOutcome, TickView};
use tenure_core::rules::schedule::ScheduleTickState;

use super::super::columns::{pause, unsigned};
use super::super::connection::{decode_error, parsed};
use super::super::election_admin::json;

/// The tick state of a schedule; `None` if it has no further tick.
pub(super) fn tick_state(row: &SqliteRow) -> sqlx::Result<Option<ScheduleTickState>> {
    let (next_tick_at_ms, last_tick_at_ms): (Option<i64>, Option<i64>) =
        (row.try_get("next_tick_at_ms")?, row.try_get("last_tick_at_ms")?);
    Ok(next_tick_at_ms.map(|next_tick_at_ms| ScheduleTickState { next_tick_at_ms, last_tick_at_ms }))
}

pub(super) fn schedule_view(row: &SqliteRow) -> sqlx::Result<ScheduleView> {
    let count = |column| row.try_get::<i64, _>(column).map(i64::cast_unsigned);
    Ok(ScheduleView {
        namespace: parsed(row, "namespace")?,
        version: count("version")?,
        definition: json(row, "definition")?,
        tick_state: tick_state(row)?,
        due_at_ms: row.try_get("due_at_ms")?,
        paused: pause(row, "paused_by", "paused_reason", "paused_at_ms")?,
        last_error: row.try_get("last_error")?,
        fired_count: count("fired_count")?,
        skipped_count: count("skipped_count")?,
        overlapped_count: count("overlapped_count")?,
        last_fired_at_ms: row.try_get("last_fired_at_ms")?,
        source: row.try_get("source")?,
        webhook_signed: row.try_get::<Option<&str>, _>("secret")?.is_some(),
        created_at_ms: row.try_get("created_at_ms")?,
        updated_at_ms: row.try_get("updated_at_ms")?,
        updated_by: row.try_get("updated_by")?,
    })
}

pub(super) fn tick_view(row: &SqliteRow) -> sqlx::Result<TickView> {
    let (due_at_ms, decided_at_ms): (i64, i64) = (row.try_get("due_at_ms")?, row.try_get("decided_at_ms")?);
    Ok(TickView {
        tick_at_ms: row.try_get("tick_at_ms")?,
        state: match row.try_get("state")? {
            "fired" => TickOutcome::Fired,
            "skipped" => TickOutcome::Skipped,
            "overlapped" => TickOutcome::Overlapped,
            value => return Err(unexpected_value("state", value)),
        },
        cause: match row.try_get("cause")? {
            "schedule" => TickCause::Schedule,
            "backfill" => TickCause::Backfill,
            "trigger" => TickCause::Trigger,
            value => return Err(unexpected_value("cause", value)),
        },
        tick_count: row.try_get::<i64, _>("tick_count")?.cast_unsigned(),
        first_tick_at_ms: row.try_get("first_tick_at_ms")?,
        decided_at_ms,
        lateness_ms: decided_at_ms.saturating_sub(due_at_ms),
        token: unsigned(row, "token")?.map(Token::from_u64),
        decided_by: row.try_get("decided_by")?,
        event_id: unsigned(row, "event_id")?.map(EventId),
        task_id: unsigned(row, "task_id")?.map(TaskId),
    })
}

pub(super) fn schedule_stats(row: &SqliteRow, now: i64) -> sqlx::Result<ScheduleStats> {
    let count = |column| row.try_get::<i64, _>(column).map(i64::cast_unsigned);
    let first_due_at_ms: Option<i64> = row.try_get("first_due_at_ms")?;
    Ok(ScheduleStats {
        namespace: parsed(row, "namespace")?,
        schedule_count: count("schedule_count")?,
        paused_count: count("paused_count")?,
        failing_count: count("failing_count")?,
        overdue_count: count("overdue_count")?,
        max_overdue_ms: first_due_at_ms.map_or(0, |at| now.saturating_sub(at).max(0).cast_unsigned()),
        last_fired_at_ms: row.try_get("last_fired_at_ms")?,
    })
}

fn unexpected_value(column: &str, value: &str) -> sqlx::Error {
    decode_error(column, std::io::Error::other(format!("{value:?} is not a valid value")))
}
