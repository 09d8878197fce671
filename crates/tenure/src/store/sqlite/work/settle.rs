//! Settling claims.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{ClaimOutcome, RawJson, SettleResult, Settlement, TaskState};
use tenure_core::rules::work::validate_settlements;

use super::super::connection::query;
use super::super::{SqliteStore, election_admin};
use super::after_settle::{ClaimedRow, SettleWrites};
use super::views::state;
use super::{CallError, json, number, span_ms};

impl SqliteStore {
    pub(super) async fn settle_claims(
        &self,
        settlements: &[Settlement],
    ) -> Result<Vec<SettleResult>, CallError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        validate_settlements(settlements)?;
        let ids: Vec<i64> = settlements.iter().map(|it| number(it.task.0)).collect();
        let ids = json(&ids)?;
        let mut tx = self.begin_write().await?;
        let rows = tx.transaction.all(query(self.queries.get("settle_get")).bind(ids)).await?;
        let mut tasks = HashMap::with_capacity(rows.len());
        for row in &rows {
            let task = claimed_row(row)?;
            tasks.insert(task.id, task);
        }
        let mut writes = SettleWrites::default();
        // In order: a settlement changes the state that the next one of the same task sees.
        let mut settled = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let task = tasks.get_mut(&number(settlement.task.0));
            settled.push(match task {
                Some(task) => settle(&mut writes, task, settlement, tx.wall_ms)?,
                None => SettleResult::ClaimLost,
            });
        }
        tx.write_settled(writes).await?;
        tx.commit().await?;
        Ok(settled)
    }
}

fn settle<'a>(
    writes: &mut SettleWrites<'a>,
    task: &mut ClaimedRow,
    settlement: &'a Settlement,
    now: i64,
) -> sqlx::Result<SettleResult> {
    if task.namespace != settlement.namespace.as_str() || task.token != number(settlement.token.as_u64()) {
        return Ok(SettleResult::ClaimLost);
    }
    let already_completed =
        task.state == TaskState::Completed && matches!(settlement.outcome, ClaimOutcome::Complete(_));
    if already_completed {
        // The worker repeats a settlement whose response was lost.
        return Ok(SettleResult::Applied(TaskState::Completed));
    }
    if task.state != TaskState::Claimed {
        return Ok(SettleResult::ClaimLost);
    }
    Ok(SettleResult::Applied(match &settlement.outcome {
        ClaimOutcome::Complete(result) => writes.complete(task, result.as_ref().map(RawJson::as_str)),
        ClaimOutcome::Fail { error, retry, retry_in } => {
            writes.fail(task, error, *retry, span_ms(*retry_in), now)?
        }
        ClaimOutcome::Release => writes.release(task)?,
        ClaimOutcome::Heartbeat { progress, claim_timeout } => {
            writes.heartbeat(task, progress.as_deref(), claim_timeout.map(span_ms));
            TaskState::Claimed
        }
    }))
}

/// A row of `settle_get` or `claim_list_lost`.
pub(super) fn claimed_row(row: &SqliteRow) -> sqlx::Result<ClaimedRow> {
    Ok(ClaimedRow {
        id: row.try_get("id")?,
        queue_id: row.try_get("queue_id")?,
        namespace: row.try_get("namespace")?,
        token: row.try_get("token")?,
        state: state(row)?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        worker: row.try_get("worker")?,
        concurrency_key: row.try_get("concurrency_key")?,
        failures: election_admin::json(row, "failures")?,
        has_children: row.try_get("has_children")?,
        has_claim_limit: row.try_get("has_claim_limit")?,
    })
}
