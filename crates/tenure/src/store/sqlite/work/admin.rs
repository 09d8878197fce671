//! Administration of queues, tasks and workers.

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{
    BrokerEndpoint, FinishedTask, NewWorker, Notification, Pause, QueueKey, QueueSettings, QueueView,
    RateLimit, TaskFilter, TaskId, TaskState, TaskView, WaitReason, WorkerView,
};
use tenure_core::rules::work::{self, validate_queue, validate_worker};
use tenure_core::{Name, SessionId};

use super::super::SqliteStore;
use super::super::connection::{Transaction, parsed, query};
use super::super::write_transaction::number as token_number;
use super::claim::RateBucket;
use super::views::{queue_view, state, task_view, token, worker_view};
use super::{CallError, json, ms, number};
use crate::runtime;

impl SqliteStore {
    pub(super) async fn queue_views(
        &self,
        namespace: Option<&Name>,
        name: Option<&Name>,
    ) -> Result<Vec<QueueView>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let views = self.queues_in(&mut transaction, namespace, name).await?;
        transaction.commit().await?;
        Ok(views.into_iter().map(|(view, _)| view).collect())
    }

    /// Read queues, each with its row.
    async fn queues_in(
        &self,
        transaction: &mut Transaction,
        namespace: Option<&Name>,
        name: Option<&Name>,
    ) -> Result<Vec<(QueueView, SqliteRow)>, CallError> {
        let select = query(self.queries.get("queue_list"));
        let select = select.bind(namespace.map(Name::as_str)).bind(name.map(Name::as_str));
        let rows = transaction.all(select).await?;
        let ids = rows.iter().map(|row| row.try_get("id")).collect::<sqlx::Result<Vec<i64>>>()?;
        let counts = query(self.queries.get("queue_counts")).bind(json(&ids)?);
        let counts = transaction.all(counts).await?;
        let now = runtime::wall_ms();
        let mut views = Vec::with_capacity(rows.len());
        for (row, id) in rows.into_iter().zip(ids) {
            let mut view = queue_view(&row)?;
            for count in &counts {
                if count.try_get::<i64, _>("queue_id")? != id {
                    continue;
                }
                view.counts.insert(state(count)?, count.try_get::<i64, _>("task_count")?.cast_unsigned());
                if let Some(oldest) = count.try_get::<Option<i64>, _>("oldest_ready_at_ms")? {
                    view.oldest_ready_age_ms = Some((now - oldest).max(0).cast_unsigned());
                }
            }
            views.push((view, row));
        }
        Ok(views)
    }

    pub(super) async fn put_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), CallError> {
        validate_queue(settings)?;
        let mut tx = self.begin_write().await?;
        let set = query(self.queries.get("queue_set"))
            .bind(key.namespace.as_str())
            .bind(key.name.as_str())
            .bind(tx.wall_ms)
            .bind(settings.mode.as_str())
            .bind(settings.fallback.as_str())
            .bind(settings.require_approval)
            .bind(settings.rate.map(|rate| rate.count))
            .bind(settings.rate.map(|rate| ms(rate.per_ms)))
            .bind(settings.max_claimed)
            .bind(ms(settings.preference_window_ms))
            .bind(ms(settings.retention_ms))
            .bind(ms(settings.dead_retention_ms));
        // The new settings may allow more claims, so waiters are notified.
        let queues = tx.transaction.all(set).await?;
        let queues = queues.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<BTreeSet<i64>>>()?;
        let used_until_max = tx.wall_ms + settings.rate.map_or(0, |rate| ms(rate.per_ms));
        for queue in &queues {
            let limit = query(self.queries.get("queue_counters_limit")).bind(*queue).bind(used_until_max);
            tx.transaction.execute(limit).await?;
        }
        tx.notify_queues(&queues).await?;
        Ok(tx.commit().await?)
    }

    pub(super) async fn pause_queue(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, CallError> {
        let mut tx = self.begin_write().await?;
        let get = |name| query(self.queries.get(name)).bind(namespace.as_str());
        let changed = match (queue, pause) {
            (Some(queue), Some(pause)) => {
                let set = get("queue_pause").bind(queue.as_str()).bind(tx.wall_ms);
                let set = set.bind(&pause.paused_by).bind(&pause.reason).bind(pause.paused_at_ms);
                tx.transaction.one(set).await?.is_some()
            }
            (Some(queue), None) => {
                let create = get("queue_create").bind(queue.as_str()).bind(tx.wall_ms);
                tx.transaction.execute(create).await?;
                tx.transaction.one(get("queue_resume").bind(queue.as_str())).await?.is_some()
            }
            (None, Some(pause)) => {
                let set = get("namespace_pause")
                    .bind(&pause.paused_by)
                    .bind(&pause.reason)
                    .bind(pause.paused_at_ms);
                tx.transaction.execute(set).await?.rows_affected() > 0
            }
            (None, None) => tx.transaction.execute(get("namespace_resume")).await?.rows_affected() > 0,
        };
        if changed && pause.is_none() {
            let mut resumed = BTreeSet::new();
            for row in tx.transaction.all(get("namespace_queues")).await? {
                if queue
                    .is_none_or(|queue| row.try_get("name").is_ok_and(|name: &str| name == queue.as_str()))
                {
                    resumed.insert(row.try_get("id")?);
                }
            }
            tx.notify_queues(&resumed).await?;
            if queue.is_none() {
                for row in tx.transaction.all(get("pool_list").bind(None::<&str>)).await? {
                    let key = tenure_core::port::PoolKey::new(namespace.clone(), parsed(&row, "name")?);
                    tx.notifications.push(Notification::PoolChanged(key));
                }
            }
        }
        tx.commit().await?;
        Ok(changed)
    }

    pub(super) async fn task_views(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, CallError> {
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        let states = if states.is_empty() { None } else { Some(json(&states)?) };
        let select = query(self.queries.get("task_list"))
            .bind(filter.before.map_or(i64::MAX, |id| i64::try_from(id.0).unwrap_or(i64::MAX)))
            .bind(filter.namespace.as_ref().map(Name::as_str))
            .bind(filter.queue.as_ref().map(Name::as_str))
            .bind(states)
            .bind(filter.kind.as_deref())
            .bind(filter.worker.as_deref())
            .bind(filter.limit);
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(task_view).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn task_view(
        &self,
        namespace: &Name,
        id: TaskId,
    ) -> Result<Option<TaskView>, CallError> {
        let select = query(self.queries.get("task_get")).bind(namespace.as_str()).bind(number(id.0));
        let row = select.fetch_optional(&self.inner.pools.reads).await?;
        Ok(row.as_ref().map(task_view).transpose()?)
    }

    pub(super) async fn explain_wait(
        &self,
        namespace: &Name,
        id: TaskId,
    ) -> Result<Option<Vec<WaitReason>>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("task_get")).bind(namespace.as_str()).bind(number(id.0));
        let Some(row) = transaction.one(select).await? else {
            transaction.commit().await?;
            return Ok(None);
        };
        let task = task_view(&row)?;
        let mut queues = self.queues_in(&mut transaction, Some(namespace), Some(&task.queue)).await?;
        let (queue, queue_row) = queues.pop().ok_or(sqlx::Error::RowNotFound)?;
        let workers = self.workers_in(&mut transaction, Some(namespace)).await?;
        let parents = query(self.queries.get("task_pending_parents")).bind(number(id.0));
        let mut open_parents = Vec::new();
        for row in transaction.all(parents).await? {
            open_parents.push(TaskId(row.try_get::<i64, _>(0)?.cast_unsigned()));
        }
        let ahead = query(self.queries.get("task_count_ahead"))
            .bind(row.try_get::<i64, _>("queue_id")?)
            .bind(task.effective_at_ms)
            .bind(number(id.0));
        let ahead = transaction.one(ahead).await?.map(|row| row.try_get::<i64, _>(0)).transpose()?;
        let key: Vec<String> = row.try_get::<Option<String>, _>("concurrency_key")?.into_iter().collect();
        let counts = query(self.queries.get("concurrency_key_counts")).bind(json(&key)?);
        let claimed = transaction.one(counts).await?;
        let claimed = claimed.map(|row| row.try_get::<i64, _>("claimed_count")).transpose()?;
        let led = transaction.one(query(self.queries.get("broker_has_leader"))).await?.is_some();
        transaction.commit().await?;
        let now_ms = runtime::wall_ms();
        let used_until_ms = queue_row.try_get("rate_used_until_at_ms")?;
        let next_in = |rate: RateLimit| RateBucket { rate, used_until_ms }.next_at(now_ms) - now_ms;
        let context = work::WaitContext {
            task: &task,
            queue: &queue,
            workers: &workers,
            open_parents: &open_parents,
            ahead: ahead.unwrap_or(0).cast_unsigned(),
            key_claimed: claimed.unwrap_or(0).cast_unsigned(),
            rate_next_in_ms: queue.settings.rate.map(next_in).filter(|ms| *ms > 0).map(i64::cast_unsigned),
            led,
            now_ms,
        };
        Ok(Some(work::wait_reasons(&context)))
    }

    pub(super) async fn list_finished(
        &self,
        key: &QueueKey,
        limit: u32,
    ) -> Result<Vec<FinishedTask>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let find = query(self.queries.get("queue_id")).bind(key.namespace.as_str()).bind(key.name.as_str());
        let queue: Option<i64> = transaction.one(find).await?.map(|row| row.try_get(0)).transpose()?;
        let select = query(self.queries.get("task_list_finished")).bind(queue).bind(limit);
        let rows = transaction.all(select).await?;
        transaction.commit().await?;
        Ok(rows.iter().map(finished).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn put_worker(&self, namespace: &Name, worker: &NewWorker) -> Result<(), CallError> {
        validate_worker(worker)?;
        let mut tx = self.begin_write().await?;
        let put = query(self.queries.get("worker_register"))
            .bind(namespace.as_str())
            .bind(&worker.name)
            .bind(&worker.description)
            .bind(json(&worker.tags)?)
            .bind(json(&worker.task_kinds)?)
            .bind(json(&worker.queues)?)
            .bind(&worker.location)
            .bind(worker.capacity)
            .bind(worker.session.as_ref().map(SessionId::as_str))
            .bind(tx.wall_ms);
        tx.transaction.execute(put).await?;
        Ok(tx.commit().await?)
    }

    pub(super) async fn worker_views(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let views = self.workers_in(&mut transaction, namespace).await?;
        transaction.commit().await?;
        Ok(views)
    }

    async fn workers_in(
        &self,
        transaction: &mut Transaction,
        namespace: Option<&Name>,
    ) -> Result<Vec<WorkerView>, CallError> {
        let select = query(self.queries.get("worker_list")).bind(namespace.map(Name::as_str));
        let (rows, now) = (transaction.all(select).await?, runtime::wall_ms());
        Ok(rows.iter().map(|row| worker_view(row, now)).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn approve_worker(
        &self,
        namespace: &Name,
        worker: &str,
        by: Option<&str>,
    ) -> Result<bool, CallError> {
        let mut tx = self.begin_write().await?;
        let name = if by.is_some() { "worker_approve" } else { "worker_disapprove" };
        let mut set = query(self.queries.get(name)).bind(namespace.as_str()).bind(worker);
        if let Some(by) = by {
            set = set.bind(by).bind(tx.wall_ms);
        }
        let changed = tx.transaction.execute(set).await?.rows_affected() > 0;
        if changed && by.is_some() {
            // The worker may wait for any queue of the namespace.
            let queues = query(self.queries.get("namespace_queues")).bind(namespace.as_str());
            let queues = tx.transaction.all(queues).await?;
            let queues = queues.iter().map(|row| row.try_get("id")).collect::<sqlx::Result<_>>()?;
            tx.notify_queues(&queues).await?;
        }
        tx.commit().await?;
        Ok(changed)
    }

    pub(super) async fn put_broker_endpoint(&self, endpoint: &BrokerEndpoint) -> Result<bool, CallError> {
        let mut tx = self.begin_write().await?;
        let put = query(self.queries.get("broker_endpoint_put"))
            .bind(token_number(endpoint.token))
            .bind(endpoint.session.as_str())
            .bind(&endpoint.address)
            .bind(&endpoint.secret);
        let stored = tx.transaction.execute(put).await?.rows_affected() > 0;
        tx.commit().await?;
        Ok(stored)
    }

    pub(super) async fn get_broker_endpoint(&self) -> Result<Option<BrokerEndpoint>, CallError> {
        let row =
            query(self.queries.get("broker_endpoint_get")).fetch_optional(&self.inner.pools.reads).await?;
        let endpoint = |row: &SqliteRow| {
            Ok(BrokerEndpoint {
                token: token(row, "token")?,
                session: SessionId::from_stored(row.try_get("session")?),
                address: row.try_get("address")?,
                secret: row.try_get("secret")?,
            })
        };
        Ok(row.as_ref().map(endpoint).transpose().map_err(|error: sqlx::Error| error)?)
    }
}

fn finished(row: &SqliteRow) -> sqlx::Result<FinishedTask> {
    let column = |name| row.try_get::<Option<i64>, _>(name);
    let (ready, finished_at) = (column("ready_at_ms")?, row.try_get("finished_at_ms")?);
    // A task that was never claimed has waited until its end.
    let claimed = column("claimed_at_ms")?.filter(|claimed| ready.is_none_or(|ready| ready <= *claimed));
    let since = |from: Option<i64>, to: i64| from.map_or(0, |from| (to - from).max(0).cast_unsigned());
    Ok(FinishedTask {
        kind: row.try_get("kind")?,
        completed: state(row)? == TaskState::Completed,
        finished_at_ms: finished_at,
        wait_ms: since(ready, claimed.unwrap_or(finished_at)),
        run_ms: since(claimed, finished_at),
    })
}
