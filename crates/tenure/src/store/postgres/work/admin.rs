//! Operations of operators on queues, tasks and workers.

use async_trait::async_trait;
use tenure_core::Name;
use tenure_core::port::{
    FinishedTask, NewWorker, Pause, QueueKey, QueueSettings, QueueView, StoreError, TaskAction, TaskAdmin,
    TaskFilter, TaskId, TaskState, TaskView, WaitReason, WorkerView,
};
use tenure_core::rules::work::{WaitContext, validate_queue, validate_worker, wait_reasons};

use super::super::message::Message;
use super::super::store::{int, json, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{PostgresStore, from_json, get, get_json};
use super::submit::array;

#[async_trait]
impl TaskAdmin for PostgresStore {
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        let rows = self.call("queue_list", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(|row| from_json(row, "queue")).collect()
    }

    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        let rows = self.call("queue_get", &queue(key)).await?;
        rows.first().map(|row| from_json(row, "queue")).transpose()
    }

    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        validate_queue(settings)?;
        let [namespace, name] = queue(key);
        let message = Message::fresh(&self.queries)
            .then("queue_create", &queue(key))?
            .then("queue_set", &[namespace, name, json(settings)?])?;
        self.shared.calls.run(message).await.map(drop)
    }

    async fn set_queue_paused(
        &self,
        namespace: &Name,
        name: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let (query, key) = match (name, pause) {
            (Some(_), Some(_)) => ("queue_pause", [Some(namespace), name]),
            (Some(_), None) => ("queue_resume", [Some(namespace), name]),
            (None, Some(_)) => ("namespace_pause", [Some(namespace), None]),
            (None, None) => ("namespace_resume", [Some(namespace), None]),
        };
        let mut values: Vec<Value<'_>> = key.into_iter().flatten().map(|name| name.as_str().into()).collect();
        if let Some(Pause { paused_by, reason, paused_at_ms }) = pause {
            values.extend([paused_by.as_str().into(), reason.as_str().into(), Value::Int(*paused_at_ms)]);
        }
        let mut message = Message::fresh(&self.queries);
        if let Some(name) = name {
            // Waits for the claims in progress; later claims see the pause.
            message = message.then("queue_create", &[namespace.as_str().into(), name.as_str().into()])?;
        }
        Ok(!self.shared.calls.run(message.then(query, &values)?).await?.is_empty())
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        let states: Vec<&str> = filter.states.iter().map(|state| TaskState::as_str(*state)).collect();
        let states = states.join(",");
        let values = [
            filter.namespace.as_ref().map(Name::as_str).into(),
            filter.queue.as_ref().map(Name::as_str).into(),
            Some(states.as_str()).filter(|states| !states.is_empty()).into(),
            filter.kind.as_deref().into(),
            filter.worker.as_deref().into(),
            filter.before.map_or(Value::Int(i64::MAX), |id| int(id.0)),
            filter.limit.into(),
        ];
        let rows = self.call("task_list", &values).await?;
        rows.iter().map(|row| from_json(row, "task")).collect()
    }

    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        let rows = self.call("task_get", &[namespace.as_str().into(), int(id.0)]).await?;
        rows.first().map(|row| from_json(row, "task")).transpose()
    }

    async fn apply_task_action(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        action: TaskAction,
    ) -> Result<Vec<TaskId>, StoreError> {
        let query = match action {
            TaskAction::Cancel => "task_cancel",
            TaskAction::Retry => "task_retry",
        };
        let ids = array(tasks.iter().map(|id| id.0));
        let message =
            Message::fresh(&self.queries).then(query, &[namespace.as_str().into(), ids.as_str().into()])?;
        let rows = self.shared.calls.run(message).await?;
        rows.iter().map(|row| Ok(TaskId(number(get::<i64>(row, "id")?, "a task id")?))).collect()
    }

    async fn wait_reasons(
        &self,
        namespace: &Name,
        id: TaskId,
    ) -> Result<Option<Vec<WaitReason>>, StoreError> {
        let rows = self.call("task_explain", &[namespace.as_str().into(), int(id.0)]).await?;
        rows.first().map(explain_wait).transpose()
    }

    async fn finished_tasks(&self, key: &QueueKey, limit: u32) -> Result<Vec<FinishedTask>, StoreError> {
        let [namespace, name] = queue(key);
        let rows = self.call("task_list_finished", &[namespace, name, limit.into()]).await?;
        rows.iter().map(|row| from_json(row, "finished")).collect()
    }

    async fn register_worker(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        validate_worker(worker)?;
        let values = [
            namespace.as_str().into(),
            worker.name.as_str().into(),
            worker.description.as_str().into(),
            json(&worker.tags)?,
            json(&worker.task_kinds)?,
            json(&worker.queues)?,
            worker.location.as_str().into(),
            worker.capacity.into(),
            worker.session.as_ref().map(tenure_core::SessionId::as_str).into(),
        ];
        self.call("worker_register", &values).await.map(drop)
    }

    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        let rows = self.call("worker_list", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(|row| from_json(row, "worker")).collect()
    }

    async fn set_worker_approval(
        &self,
        namespace: &Name,
        worker: &str,
        by: Option<&str>,
    ) -> Result<bool, StoreError> {
        let (namespace, worker) = (namespace.as_str().into(), worker.into());
        let rows = match by {
            Some(by) => self.call("worker_approve", &[namespace, worker, by.into()]).await?,
            None => self.call("worker_disapprove", &[namespace, worker]).await?,
        };
        Ok(!rows.is_empty())
    }
}

/// Namespace and name.
pub(super) fn queue(key: &QueueKey) -> [Value<'_>; 2] {
    [key.namespace.as_str().into(), key.name.as_str().into()]
}

fn explain_wait(row: &PgRow) -> Result<Vec<WaitReason>, StoreError> {
    let count = |column| number(get::<i64>(row, column)?, column);
    let rate: Option<i64> = get(row, "rate_next_in_ms")?;
    Ok(wait_reasons(&WaitContext {
        task: &from_json(row, "task")?,
        queue: &from_json(row, "queue")?,
        workers: &get_json::<Vec<WorkerView>>(row, "workers")?,
        open_parents: &get_json::<Vec<TaskId>>(row, "pending_parents")?,
        ahead: count("tasks_ahead")?,
        key_claimed: count("key_claimed")?,
        rate_next_in_ms: rate.map(|ms| number(ms, "a time")).transpose()?,
        led: get(row, "has_broker")?,
        now_ms: get(row, "now_at_ms")?,
    }))
}
