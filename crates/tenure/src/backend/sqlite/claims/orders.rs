//! What operators do with tasks.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{Order, TaskId, TaskState, Wake};
use tenure_core::{Name, SessionId};

use super::super::Sqlite;
use super::super::change::Change;
use super::super::connection::query;
use super::follow::Ends;
use super::views::state;
use super::{Failed, json, number};

impl Sqlite {
    pub(super) async fn order_tasks(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        order: Order,
    ) -> Result<Vec<TaskId>, Failed> {
        let ids: BTreeSet<i64> = tasks.iter().map(|id| number(id.0)).collect();
        let mut change = self.change().await?;
        let look = query(self.queries.get("order_look")).bind(json(&ids)?).bind(namespace.as_str());
        let rows = change.transaction.all(look).await?;
        let done = match order {
            Order::Cancel => self.cancel(&mut change, &rows).await?,
            Order::Retry => self.retry(&mut change, &rows).await?,
        };
        change.commit().await?;
        Ok(done.into_iter().map(|id| TaskId(id.cast_unsigned())).collect())
    }

    async fn cancel(&self, change: &mut Change<'_>, rows: &[SqliteRow]) -> Result<BTreeSet<i64>, Failed> {
        let (mut ends, mut ids, mut recalled) = (Ends::default(), BTreeSet::new(), BTreeSet::new());
        for row in rows {
            let (id, state): (i64, TaskState) = (row.try_get("id")?, state(row)?);
            if state.is_final() {
                continue;
            }
            ids.insert(id);
            ends.doom(id);
            if matches!(state, TaskState::Claimed | TaskState::Ready) {
                ends.made_way(row.try_get("concurrency")?);
            }
            if state == TaskState::Claimed {
                recalled.extend(row.try_get::<Option<String>, _>("session")?);
                if row.try_get("limited")? {
                    ends.made_ready(row.try_get("queue")?);
                }
            }
        }
        if !ids.is_empty() {
            let cancel = query(self.queries.get("task_cancel")).bind(json(&ids)?).bind(change.wall_ms);
            change.transaction.execute(cancel).await?;
            ids.extend(change.write_ends(ends).await?);
        }
        change.wakes.extend(recalled.into_iter().map(|id| Wake::Recalled(SessionId::from(id))));
        Ok(ids)
    }

    /// Those that may come back, and those that shared their fate, wait; then those that wait for nobody go on.
    async fn retry(&self, change: &mut Change<'_>, rows: &[SqliteRow]) -> Result<BTreeSet<i64>, Failed> {
        let named = rows.iter().map(|row| row.try_get("id")).collect::<sqlx::Result<BTreeSet<i64>>>()?;
        let named = json(&named)?;
        let look = change.transaction.all(query(self.queries.get("retry_look")).bind(&named)).await?;
        let mut back = Revival::default();
        for row in &look {
            back.add(row.try_get("id")?, state(row)?, row.try_get("fate")?);
        }
        if back.ids.is_empty() {
            return Ok(back.ids);
        }
        let parents = query(self.queries.get("retry_parents")).bind(json(&back.ids)?);
        for row in change.transaction.all(parents).await? {
            let lost = back.lost.entry(row.try_get("child")?).or_default();
            lost.insert(row.try_get("parent")?, state(&row)?);
        }
        let kept_down = back.sift();
        if !kept_down.is_empty() {
            change
                .transaction
                .execute(query(self.queries.get("task_refate")).bind(json(&kept_down)?))
                .await?;
        }
        let ids = json(&back.ids)?;
        change.transaction.execute(query(self.queries.get("task_retry")).bind(&ids).bind(&named)).await?;
        let go = query(self.queries.get("task_let_go")).bind(&ids).bind(change.wall_ms);
        let mut ready = BTreeSet::new();
        for row in change.transaction.all(go).await? {
            if row.try_get::<&str, _>("state")? == "ready" {
                ready.insert(row.try_get("queue")?);
            }
        }
        change.wake(&ready).await?;
        Ok(back.ids)
    }
}

/// Tasks that may come back.
#[derive(Default)]
struct Revival {
    ids: BTreeSet<i64>,
    /// Those that are not over: they need nobody's leave.
    scheduled: BTreeSet<i64>,
    /// With whom each fell.
    fates: BTreeMap<i64, i64>,
    /// By child: its parents that are dead or cancelled.
    lost: BTreeMap<i64, BTreeMap<i64, TaskState>>,
}

impl Revival {
    fn add(&mut self, id: i64, state: TaskState, fate: Option<i64>) {
        self.ids.insert(id);
        self.fates.extend(fate.map(|fate| (id, fate)));
        if state == TaskState::Scheduled {
            self.scheduled.insert(id);
        }
    }

    /// Leaves out those that a parent would keep for ever: one that is over, and does not come back itself. Those that fell with
    /// one that does come back share the fate of another: child, parent and what became of it.
    fn sift(&mut self) -> Vec<(i64, i64, &'static str)> {
        let mut left_out = BTreeMap::new();
        loop {
            let hopeless = |id: &i64| {
                let lost = self.lost.get(id).filter(|_| !self.scheduled.contains(id))?;
                lost.iter()
                    .find(|(parent, _)| !self.ids.contains(parent))
                    .map(|(parent, state)| (*parent, *state))
            };
            let found: Vec<(i64, (i64, TaskState))> =
                self.ids.iter().filter_map(|id| Some((*id, hopeless(id)?))).collect();
            if found.is_empty() {
                break;
            }
            for (id, parent) in found {
                self.ids.remove(&id);
                left_out.insert(id, parent);
            }
        }
        let fell_with_one_that_is_back =
            |id: &i64| self.fates.get(id).is_some_and(|fate| self.ids.contains(fate));
        let refated = left_out.into_iter().filter(|(id, _)| fell_with_one_that_is_back(id));
        refated.map(|(id, (parent, state))| (id, parent, state.as_str())).collect()
    }
}
