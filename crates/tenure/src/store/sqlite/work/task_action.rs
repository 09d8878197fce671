//! Actions of operators on tasks: cancel and retry.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{Notification, TaskAction, TaskId, TaskState};
use tenure_core::{Name, SessionId};

use super::super::SqliteStore;
use super::super::connection::query;
use super::super::write_transaction::WriteTransaction;
use super::after_settle::SettleWrites;
use super::views::state;
use super::{CallError, json, number};

impl SqliteStore {
    pub(super) async fn apply_to_tasks(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        action: TaskAction,
    ) -> Result<Vec<TaskId>, CallError> {
        let ids: BTreeSet<i64> = tasks.iter().map(|id| number(id.0)).collect();
        let mut tx = self.begin_write().await?;
        let select = query(self.queries.get("task_list_by_id")).bind(json(&ids)?).bind(namespace.as_str());
        let rows = tx.transaction.all(select).await?;
        let done = match action {
            TaskAction::Cancel => self.cancel(&mut tx, &rows).await?,
            TaskAction::Retry => self.retry(&mut tx, &rows).await?,
        };
        tx.commit().await?;
        Ok(done.into_iter().map(|id| TaskId(id.cast_unsigned())).collect())
    }

    async fn cancel(
        &self,
        tx: &mut WriteTransaction<'_>,
        rows: &[SqliteRow],
    ) -> Result<BTreeSet<i64>, CallError> {
        let (mut writes, mut ids, mut cancelled_sessions) =
            (SettleWrites::default(), BTreeSet::new(), BTreeSet::new());
        for row in rows {
            let (id, state): (i64, TaskState) = (row.try_get("id")?, state(row)?);
            if state.is_final() {
                continue;
            }
            ids.insert(id);
            writes.end_children(id);
            if matches!(state, TaskState::Claimed | TaskState::Ready) {
                writes.free_concurrency_key(row.try_get("concurrency_key")?);
            }
            if state == TaskState::Claimed {
                cancelled_sessions.extend(row.try_get::<Option<String>, _>("session")?);
                if row.try_get("has_claim_limit")? {
                    writes.mark_ready(row.try_get("queue_id")?);
                }
            }
        }
        if !ids.is_empty() {
            let cancel = query(self.queries.get("task_cancel")).bind(json(&ids)?).bind(tx.wall_ms);
            tx.transaction.execute(cancel).await?;
            ids.extend(tx.write_settled(writes).await?);
        }
        tx.notifications.extend(
            cancelled_sessions.into_iter().map(|id| Notification::ClaimCancelled(SessionId::from(id))),
        );
        Ok(ids)
    }

    /// Retry tasks and the descendants that ended with them. All become waiting; then those without pending parents are released.
    async fn retry(
        &self,
        tx: &mut WriteTransaction<'_>,
        rows: &[SqliteRow],
    ) -> Result<BTreeSet<i64>, CallError> {
        let named = rows.iter().map(|row| row.try_get("id")).collect::<sqlx::Result<BTreeSet<i64>>>()?;
        let named = json(&named)?;
        let select = tx.transaction.all(query(self.queries.get("retry_get")).bind(&named)).await?;
        let mut retry = RetrySet::default();
        for row in &select {
            retry.add(row.try_get("id")?, state(row)?, row.try_get("cascaded_from_id")?);
        }
        if retry.ids.is_empty() {
            return Ok(retry.ids);
        }
        let parents = query(self.queries.get("retry_parents")).bind(json(&retry.ids)?);
        for row in tx.transaction.all(parents).await? {
            let ended_parents = retry.ended_parents.entry(row.try_get("task_id")?).or_default();
            ended_parents.insert(row.try_get("parent_id")?, state(&row)?);
        }
        let still_ended = retry.remove_unfulfillable();
        if !still_ended.is_empty() {
            tx.transaction
                .execute(query(self.queries.get("task_set_cascade")).bind(json(&still_ended)?))
                .await?;
        }
        let ids = json(&retry.ids)?;
        tx.transaction.execute(query(self.queries.get("task_retry")).bind(&ids).bind(&named)).await?;
        let release = query(self.queries.get("task_release_waiting")).bind(&ids).bind(tx.wall_ms);
        let mut ready = BTreeSet::new();
        for row in tx.transaction.all(release).await? {
            if row.try_get::<&str, _>("state")? == "ready" {
                ready.insert(row.try_get("queue_id")?);
            }
        }
        tx.notify_queues(&ready).await?;
        Ok(retry.ids)
    }
}

/// Tasks to retry.
#[derive(Default)]
struct RetrySet {
    ids: BTreeSet<i64>,
    /// Scheduled tasks. They have no unfulfilled parents.
    scheduled: BTreeSet<i64>,
    /// For each task: the parent whose end ended it.
    cascaded_from: BTreeMap<i64, i64>,
    /// For each task: its dead or cancelled parents.
    ended_parents: BTreeMap<i64, BTreeMap<i64, TaskState>>,
}

impl RetrySet {
    fn add(&mut self, id: i64, state: TaskState, cascaded_from_id: Option<i64>) {
        self.ids.insert(id);
        self.cascaded_from.extend(cascaded_from_id.map(|cascaded_from_id| (id, cascaded_from_id)));
        if state == TaskState::Scheduled {
            self.scheduled.insert(id);
        }
    }

    /// Remove tasks with a dead or cancelled parent that is not retried, because they could never start. Returns those of them whose
    /// recorded parent is retried: the task, the other parent and its state.
    fn remove_unfulfillable(&mut self) -> Vec<(i64, i64, &'static str)> {
        let mut removed = BTreeMap::new();
        loop {
            let unfulfillable_parent = |id: &i64| {
                let ended_parents = self.ended_parents.get(id).filter(|_| !self.scheduled.contains(id))?;
                ended_parents
                    .iter()
                    .find(|(parent, _)| !self.ids.contains(parent))
                    .map(|(parent, state)| (*parent, *state))
            };
            let found: Vec<(i64, (i64, TaskState))> =
                self.ids.iter().filter_map(|id| Some((*id, unfulfillable_parent(id)?))).collect();
            if found.is_empty() {
                break;
            }
            for (id, parent) in found {
                self.ids.remove(&id);
                removed.insert(id, parent);
            }
        }
        let ended_by_a_retried_parent = |id: &i64| {
            self.cascaded_from.get(id).is_some_and(|cascaded_from_id| self.ids.contains(cascaded_from_id))
        };
        let changed = removed.into_iter().filter(|(id, _)| ended_by_a_retried_parent(id));
        changed.map(|(id, (parent, state))| (id, parent, state.as_str())).collect()
    }
}
