//! What workers say about their claims.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::claim::check_settlements;
use tenure_core::port::{Json, Outcome, Settled, Settlement, TaskState};

use super::super::connection::query;
use super::super::{Sqlite, directory};
use super::follow::{Ends, Standing};
use super::views::state;
use super::{Failed, json, number, span_ms};

impl Sqlite {
    pub(super) async fn settle_claims(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, Failed> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        check_settlements(settlements)?;
        let ids: Vec<i64> = settlements.iter().map(|it| number(it.task.0)).collect();
        let ids = json(&ids)?;
        let mut change = self.change().await?;
        let rows = change.transaction.all(query(self.queries.get("settle_look")).bind(ids)).await?;
        let mut tasks = HashMap::with_capacity(rows.len());
        for row in &rows {
            let task = standing(row)?;
            tasks.insert(task.id, task);
        }
        let mut ends = Ends::default();
        // In their order: what one says of a task changes what the next may say of it.
        let mut settled = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let task = tasks.get_mut(&number(settlement.task.0));
            settled.push(match task {
                Some(task) => settle(&mut ends, task, settlement, change.wall_ms)?,
                None => Settled::Lost,
            });
        }
        change.write_ends(ends).await?;
        change.commit().await?;
        Ok(settled)
    }
}

fn settle<'a>(
    ends: &mut Ends<'a>,
    task: &mut Standing,
    settlement: &'a Settlement,
    now: i64,
) -> sqlx::Result<Settled> {
    if task.namespace != settlement.namespace.as_str() || task.token != number(settlement.token.as_u64()) {
        return Ok(Settled::Lost);
    }
    let again = task.state == TaskState::Completed && matches!(settlement.outcome, Outcome::Complete(_));
    if again {
        // The first answer was lost.
        return Ok(Settled::Now(TaskState::Completed));
    }
    if task.state != TaskState::Claimed {
        return Ok(Settled::Lost);
    }
    Ok(Settled::Now(match &settlement.outcome {
        Outcome::Complete(output) => ends.complete(task, output.as_ref().map(Json::as_str)),
        Outcome::Fail { error, retry, after } => ends.fail(task, error, *retry, span_ms(*after), now)?,
        Outcome::Release => ends.release(task)?,
        Outcome::Progress { note, hold } => {
            ends.go_on(task, note.as_deref(), hold.map(span_ms));
            TaskState::Claimed
        }
    }))
}

/// A row of `settle_look` or `claims_lost`.
pub(super) fn standing(row: &SqliteRow) -> sqlx::Result<Standing> {
    Ok(Standing {
        id: row.try_get("id")?,
        queue: row.try_get("queue")?,
        namespace: row.try_get("namespace")?,
        token: row.try_get("token")?,
        state: state(row)?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        worker: row.try_get("worker")?,
        concurrency: row.try_get("concurrency")?,
        failures: directory::json(row, "failures")?,
        has_children: row.try_get("has_children")?,
        limited: row.try_get("limited")?,
    })
}
