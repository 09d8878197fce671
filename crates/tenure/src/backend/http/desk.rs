//! Queues, tasks and workers, for people.

use async_trait::async_trait;
use http::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tenure_core::Name;
use tenure_core::port::{
    Desk, Finished, NewWorker, Order, Pause, QueueKey, QueueSettings, QueueView, StoreError, TaskFilter,
    TaskId, TaskView, Why, WorkerView,
};

use super::Http;
use super::caller::{bare, get, part, send};
use super::claims::{of, within};

/// How many queues are asked for at once.
const QUEUES_PAGE: u32 = 1000;
/// How many tasks are asked for at once.
const TASKS_PAGE: u32 = 200;
/// How many tasks are named at once.
const IDS_MAX: usize = 1000;
/// How many finished tasks are looked at.
const FINISHED_MAX: u32 = 10_000;

#[derive(Deserialize)]
pub(super) struct Changed {
    pub(super) changed: bool,
}

#[derive(Deserialize)]
struct Queues {
    queues: Vec<QueueView>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct TaskPage {
    tasks: Vec<TaskView>,
    next: Option<TaskId>,
}

#[derive(Deserialize)]
struct Ordered {
    tasks: Vec<TaskId>,
}

#[derive(Deserialize)]
struct Reasons {
    why: Vec<Why>,
}

#[derive(Deserialize)]
struct FinishedTasks {
    finished: Vec<Finished>,
}

#[derive(Deserialize)]
struct Workers {
    workers: Vec<WorkerView>,
}

#[async_trait]
impl Desk for Http {
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        let (mut all, mut after) = (Vec::new(), String::new());
        let only = also("namespace", namespace.map(Name::as_str));
        loop {
            let path = format!("/v1/queues?consistent=true&limit={QUEUES_PAGE}{only}{after}");
            let page: Queues = self.caller.call(&get(path)).await?.read()?;
            all.extend(page.queues);
            match page.next {
                Some(next) => after = also("after", Some(&next)),
                None => return Ok(all),
            }
        }
    }

    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        let answer = self.caller.call(&get(of(key, ""))).await?;
        if answer.says("no-such-queue") { Ok(None) } else { answer.read().map(Some) }
    }

    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        let answer = self.caller.call(&send(Method::PUT, of(key, ""), settings)).await?;
        answer.read().map(|_: IgnoredAny| ())
    }

    async fn set_queue_paused(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let place = match queue {
            Some(queue) => format!("/v1/queues/{}", part(queue.as_str())),
            None => "/v1/namespace".into(),
        };
        let mut call = match pause {
            Some(pause) => send(Method::POST, within(&format!("{place}/pause"), namespace), pause),
            None => bare(Method::POST, within(&format!("{place}/resume"), namespace)),
        };
        // Whoever paused it with a try whose answer was lost would be told that it was paused already.
        call.again = false;
        self.caller.call(&call).await?.read().map(|answer: Changed| answer.changed)
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        let states = filter.states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(",");
        let only = [
            also("namespace", filter.namespace.as_ref().map(Name::as_str)),
            also("queue", filter.queue.as_ref().map(Name::as_str)),
            also("state", Some(states.as_str()).filter(|states| !states.is_empty())),
            also("kind", filter.kind.as_deref()),
            also("worker", filter.worker.as_deref()),
        ];
        let only = only.concat();
        let (mut all, mut before) = (Vec::new(), filter.before);
        let wanted = filter.limit as usize;
        while all.len() < wanted {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(TASKS_PAGE).min(TASKS_PAGE);
            let from = before.map(|id| format!("&before={id}")).unwrap_or_default();
            let path = format!("/v1/tasks?limit={limit}{only}{from}");
            let page: TaskPage = self.caller.call(&get(path)).await?.read()?;
            all.extend(page.tasks);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        Ok(all)
    }

    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        let answer = self.caller.call(&get(within(&format!("/v1/tasks/{id}"), namespace))).await?;
        if answer.says("no-such-task") { Ok(None) } else { answer.read().map(Some) }
    }

    async fn order(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        order: Order,
    ) -> Result<Vec<TaskId>, StoreError> {
        let word = match order {
            Order::Cancel => "cancel",
            Order::Retry => "retry",
        };
        let path = within(&format!("/v1/tasks/{word}"), namespace);
        let mut all = Vec::new();
        for ids in tasks.chunks(IDS_MAX) {
            let mut call = send(Method::POST, path.clone(), &json!({ "ids": ids }));
            // What a try whose answer was lost did would not be told.
            call.again = false;
            let ordered: Ordered = self.caller.call(&call).await?.read()?;
            all.extend(ordered.tasks);
        }
        Ok(all)
    }

    async fn why(&self, namespace: &Name, id: TaskId) -> Result<Option<Vec<Why>>, StoreError> {
        let answer = self.caller.call(&get(within(&format!("/v1/tasks/{id}/why"), namespace))).await?;
        if answer.says("no-such-task") {
            return Ok(None);
        }
        answer.read().map(|reasons: Reasons| Some(reasons.why))
    }

    async fn finished(&self, key: &QueueKey, limit: u32) -> Result<Vec<Finished>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let path = format!("{}&limit={}", of(key, "/finished"), limit.min(FINISHED_MAX));
        self.caller.call(&get(path)).await?.read().map(|finished: FinishedTasks| finished.finished)
    }

    async fn register(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        let path = within(&format!("/v1/workers/{}", part(&worker.name)), namespace);
        self.caller.call(&send(Method::PUT, path, worker)).await?.done()
    }

    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        let path = match namespace {
            Some(namespace) => within("/v1/workers", namespace),
            None => "/v1/workers".into(),
        };
        self.caller.call(&get(path)).await?.read().map(|workers: Workers| workers.workers)
    }

    async fn approve(&self, namespace: &Name, worker: &str, by: Option<&str>) -> Result<bool, StoreError> {
        let at = |word: &str| within(&format!("/v1/workers/{}/{word}", part(worker)), namespace);
        let mut call = match by {
            Some(by) => send(Method::POST, at("approve"), &json!({ "by": by })),
            None => bare(Method::POST, at("disapprove")),
        };
        call.again = false;
        self.caller.call(&call).await?.read().map(|answer: Changed| answer.changed)
    }
}

/// One more part of a query, if there is something to say.
pub(super) fn also(name: &str, value: Option<&str>) -> String {
    value.map(|value| format!("&{name}={}", part(value))).unwrap_or_default()
}
