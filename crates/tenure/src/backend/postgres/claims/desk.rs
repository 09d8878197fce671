//! The path of people.

use async_trait::async_trait;
use tenure_core::Name;
use tenure_core::claim::{Look, check_queue, check_worker, why};
use tenure_core::port::{
    Desk, Finished, NewWorker, Order, Pause, QueueKey, QueueSettings, QueueView, StoreError, TaskFilter,
    TaskId, TaskState, TaskView, Why, WorkerView,
};

use super::super::message::Message;
use super::super::store::{int, json, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{Postgres, from_json, get, get_json};
use super::submit::array;

#[async_trait]
impl Desk for Postgres {
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        let rows = self.call("queue_list", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(|row| from_json(row, "queue")).collect()
    }

    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        let rows = self.call("queue_show", &queue(key)).await?;
        rows.first().map(|row| from_json(row, "queue")).transpose()
    }

    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        check_queue(settings)?;
        let [namespace, name] = queue(key);
        let message = Message::fresh(&self.queries)
            .then("queue_make", &queue(key))?
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
        if let Some(Pause { by, reason, at_ms }) = pause {
            values.extend([by.as_str().into(), reason.as_str().into(), Value::Int(*at_ms)]);
        }
        let mut message = Message::fresh(&self.queries);
        if let Some(name) = name {
            // The claims under way come first; what is asked for from now on finds the pause.
            message = message.then("queue_make", &[namespace.as_str().into(), name.as_str().into()])?;
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
        let rows = self.call("task_show", &[namespace.as_str().into(), int(id.0)]).await?;
        rows.first().map(|row| from_json(row, "task")).transpose()
    }

    async fn order(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        order: Order,
    ) -> Result<Vec<TaskId>, StoreError> {
        let query = match order {
            Order::Cancel => "task_cancel",
            Order::Retry => "task_retry",
        };
        let ids = array(tasks.iter().map(|id| id.0));
        let message =
            Message::fresh(&self.queries).then(query, &[namespace.as_str().into(), ids.as_str().into()])?;
        let rows = self.shared.calls.run(message).await?;
        rows.iter().map(|row| Ok(TaskId(number(get::<i64>(row, "id")?, "a task's number")?))).collect()
    }

    async fn why(&self, namespace: &Name, id: TaskId) -> Result<Option<Vec<Why>>, StoreError> {
        let rows = self.call("task_look", &[namespace.as_str().into(), int(id.0)]).await?;
        rows.first().map(explained).transpose()
    }

    async fn finished(&self, key: &QueueKey, limit: u32) -> Result<Vec<Finished>, StoreError> {
        let [namespace, name] = queue(key);
        let rows = self.call("task_finished", &[namespace, name, limit.into()]).await?;
        rows.iter().map(|row| from_json(row, "finished")).collect()
    }

    async fn register(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        check_worker(worker)?;
        let values = [
            namespace.as_str().into(),
            worker.name.as_str().into(),
            worker.kind.as_str().into(),
            json(&worker.tags)?,
            json(&worker.kinds)?,
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

    async fn approve(&self, namespace: &Name, worker: &str, by: Option<&str>) -> Result<bool, StoreError> {
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

fn explained(row: &PgRow) -> Result<Vec<Why>, StoreError> {
    let count = |column| number(get::<i64>(row, column)?, column);
    let rate: Option<i64> = get(row, "rate_next_ms")?;
    Ok(why(&Look {
        task: &from_json(row, "task")?,
        queue: &from_json(row, "queue")?,
        workers: &get_json::<Vec<WorkerView>>(row, "workers")?,
        open_parents: &get_json::<Vec<TaskId>>(row, "open_parents")?,
        ahead: count("ahead")?,
        key_claimed: count("key_claimed")?,
        rate_next_in_ms: rate.map(|ms| number(ms, "a time")).transpose()?,
        led: get(row, "led")?,
        now_ms: get(row, "now_ms")?,
    }))
}
