//! Administrative operations on queues, tasks and workers through a server.

use async_trait::async_trait;
use http::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tenure_core::Name;
use tenure_core::port::{
    FinishedTask, NewWorker, Pause, QueueKey, QueueSettings, QueueView, StoreError, TaskAction, TaskAdmin,
    TaskFilter, TaskId, TaskView, WaitReason, WorkerView,
};

use super::HttpStore;
use super::client::{bare, get, part, send};
use super::tasks::{internal, of, within};

/// Page size of queues.
const QUEUES_PAGE: u32 = 1000;
/// Page size of tasks.
const TASKS_PAGE: u32 = 200;
/// Maximum number of task ids in one request.
const IDS_MAX: usize = 1000;
/// Maximum number of finished tasks in statistics.
const FINISHED_MAX: u32 = 10_000;

#[derive(Deserialize)]
pub(super) struct ChangeResponse {
    pub(super) changed: bool,
}

#[derive(Deserialize)]
struct QueueList {
    queues: Vec<QueueView>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct TaskList {
    tasks: Vec<TaskView>,
    next_cursor: Option<TaskId>,
}

#[derive(Deserialize)]
struct BulkTaskResponse {
    tasks: Vec<TaskId>,
}

#[derive(Deserialize)]
struct WhyResponse {
    reasons: Vec<WaitReason>,
}

#[derive(Deserialize)]
struct FinishedTasks {
    finished: Vec<FinishedTask>,
}

#[derive(Deserialize)]
struct WorkerList {
    workers: Vec<WorkerView>,
}

#[async_trait]
impl TaskAdmin for HttpStore {
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        let (mut all, mut after) = (Vec::new(), String::new());
        let only = query_param("namespace", namespace.map(Name::as_str));
        loop {
            let path = format!("/v1/queues?consistent=true&limit={QUEUES_PAGE}{only}{after}");
            let page: QueueList = self.client.call(&get(path)).await?.read()?;
            all.extend(page.queues);
            match page.next_cursor {
                Some(next) => after = query_param("cursor", Some(&next)),
                None => return Ok(all),
            }
        }
    }

    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        let response = self.client.call(&get(of(key, ""))).await?;
        if response.says("no-such-queue") { Ok(None) } else { response.read().map(Some) }
    }

    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        let response = self.client.call(&send(Method::PUT, of(key, ""), settings)).await?;
        response.read().map(|_: IgnoredAny| ())
    }

    async fn set_queue_paused(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let path = |verb: &str| match queue {
            Some(queue) => within(&format!("/v1/queues/{}/{verb}", part(queue.as_str())), namespace),
            None => format!("/v1/namespaces/{}/{verb}", part(namespace.as_str())),
        };
        let mut call = match pause {
            Some(pause) => send(Method::POST, path("pause"), &pause_request(pause)),
            None => bare(Method::POST, path("resume")),
        };
        // No retry: after a lost response the second attempt would report `changed: false`.
        call.again = false;
        self.client.call(&call).await?.read().map(|response: ChangeResponse| response.changed)
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        let states = filter.states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(",");
        let only = [
            query_param("namespace", filter.namespace.as_ref().map(Name::as_str)),
            query_param("queue", filter.queue.as_ref().map(Name::as_str)),
            query_param("state", Some(states.as_str()).filter(|states| !states.is_empty())),
            query_param("kind", filter.kind.as_deref()),
            query_param("worker", filter.worker.as_deref()),
        ];
        let only = only.concat();
        let (mut all, mut before) = (Vec::new(), filter.before);
        let wanted = filter.limit as usize;
        while all.len() < wanted {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(TASKS_PAGE).min(TASKS_PAGE);
            let from = before.map(|id| format!("&cursor={id}")).unwrap_or_default();
            let path = format!("/v1/tasks?limit={limit}{only}{from}");
            let page: TaskList = self.client.call(&get(path)).await?.read()?;
            all.extend(page.tasks);
            before = page.next_cursor;
            if before.is_none() {
                break;
            }
        }
        Ok(all)
    }

    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        let response = self.client.call(&get(within(&format!("/v1/tasks/{id}"), namespace))).await?;
        if response.says("no-such-task") { Ok(None) } else { response.read().map(Some) }
    }

    async fn apply_task_action(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        action: TaskAction,
    ) -> Result<Vec<TaskId>, StoreError> {
        let word = match action {
            TaskAction::Cancel => "cancel",
            TaskAction::Retry => "retry",
        };
        let path = within(&format!("/v1/tasks/{word}"), namespace);
        let mut all = Vec::new();
        for ids in tasks.chunks(IDS_MAX) {
            let mut call = send(Method::POST, path.clone(), &json!({ "task_ids": ids }));
            // No retry: the response must list what this call changed.
            call.again = false;
            let bulk: BulkTaskResponse = self.client.call(&call).await?.read()?;
            all.extend(bulk.tasks);
        }
        Ok(all)
    }

    async fn wait_reasons(
        &self,
        namespace: &Name,
        id: TaskId,
    ) -> Result<Option<Vec<WaitReason>>, StoreError> {
        let response = self.client.call(&get(within(&format!("/v1/tasks/{id}/why"), namespace))).await?;
        if response.says("no-such-task") {
            return Ok(None);
        }
        response.read().map(|reasons: WhyResponse| Some(reasons.reasons))
    }

    async fn finished_tasks(&self, key: &QueueKey, limit: u32) -> Result<Vec<FinishedTask>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let path = format!("{}&limit={}", internal(key, "/finished-tasks"), limit.min(FINISHED_MAX));
        self.client.call(&get(path)).await?.read().map(|finished: FinishedTasks| finished.finished)
    }

    async fn register_worker(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        let path = within(&format!("/v1/workers/{}", part(&worker.name)), namespace);
        self.client.call(&send(Method::PUT, path, worker)).await?.done()
    }

    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        let path = match namespace {
            Some(namespace) => within("/v1/workers", namespace),
            None => "/v1/workers".into(),
        };
        self.client.call(&get(path)).await?.read().map(|workers: WorkerList| workers.workers)
    }

    async fn set_worker_approval(
        &self,
        namespace: &Name,
        worker: &str,
        by: Option<&str>,
    ) -> Result<bool, StoreError> {
        let at = |word: &str| within(&format!("/v1/workers/{}/{word}", part(worker)), namespace);
        let mut call = match by {
            Some(by) => send(Method::POST, at("approve"), &json!({ "on_behalf_of": by })),
            None => bare(Method::POST, at("revoke-approval")),
        };
        call.again = false;
        self.client.call(&call).await?.read().map(|response: ChangeResponse| response.changed)
    }
}

/// Body of a pause request.
pub(super) fn pause_request(pause: &Pause) -> serde_json::Value {
    json!({ "reason": pause.reason, "on_behalf_of": pause.paused_by, "paused_at_ms": pause.paused_at_ms })
}

/// Query parameter, or nothing if there is no value.
pub(super) fn query_param(name: &str, value: Option<&str>) -> String {
    value.map(|value| format!("&{name}={}", part(value))).unwrap_or_default()
}
