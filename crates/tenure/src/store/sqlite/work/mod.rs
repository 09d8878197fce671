//! Tasks, queues, workers and pools.
//!
//! Each call is one `BEGIN IMMEDIATE` transaction. SQLite runs one of them at a time, so rows do not change between reading and
//! commit, and no row locks are needed. The code reads rows, applies the rules in Rust, and writes the result with few statements
//! for many rows. Lists are JSON parameters, because every statement costs a round trip to the thread of the connection.
//!
//! Each task is in the partial index of its state. A claim reads the first ready tasks of the requirements that a worker meets
//! (`tenure_task_requirements`), merges them by `effective_at_ms`, and updates them by id. `after_settle.rs` contains the consequences
//! of an ended claim: released or ended children, unblocked tasks with the same concurrency key, and notifications.
//!
//! After the commit, FIFOs notify the sessions that are registered as waiters. A task that was inserted through the view
//! `tenure_submit` or in a transaction of the application is found by polling.

mod admin;
mod after_settle;
mod claim;
mod maintenance;
mod pools;
mod settle;
mod submit;
mod task_action;
mod views;

use async_trait::async_trait;
use tenure_core::port::{
    BrokerEndpoint, ClaimBatchRequest, ClaimBatchResponse, ClaimRefusal, FinishedTask, MaintenanceRequest,
    MaintenanceResponse, NewResource, NewWorker, Pause, PoolKey, PoolMatchRequest, PoolRequest,
    PoolRequestAction, PoolRequestId, PoolRequestView, PoolSettings, PoolStore, PoolView, QueueKey,
    QueueSettings, QueueView, SettleResult, Settlement, StoreError, Submission, SubmitReceipt, TaskAction,
    TaskAdmin, TaskFilter, TaskId, TaskStore, TaskView, WaitReason, WorkerView,
};
use tenure_core::{Name, SessionId, Token};

use super::SqliteStore;
use super::call_error::{CallError, ExplainResult, invalid_request, json, ms, number, span_ms};

pub use submit::submit;
pub(super) use submit::submit_all;

#[async_trait]
impl TaskStore for SqliteStore {
    async fn submit(&self, submission: &Submission) -> Result<Vec<SubmitReceipt>, StoreError> {
        self.check_file()?;
        self.submit_tasks(submission).await.with_context(self, "submitting tasks")
    }

    async fn claim(&self, batch: &ClaimBatchRequest) -> Result<ClaimBatchResponse, StoreError> {
        self.check_file()?;
        self.claim_tasks(batch).await.with_context(self, "claiming tasks")
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        self.check_file()?;
        self.settle_claims(settlements).await.with_context(self, "settling claims")
    }

    async fn held_claims(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        self.check_file()?;
        self.held_claims_of(session).await.with_context(self, "reading claims")
    }

    async fn register_queue_waiter(
        &self,
        session: &SessionId,
        queues: &[QueueKey],
    ) -> Result<(), StoreError> {
        self.check_file()?;
        self.put_queue_waiters(session, queues).await.with_context(self, "registering a queue waiter")
    }

    async fn maintain(&self, request: &MaintenanceRequest) -> Result<MaintenanceResponse, StoreError> {
        self.check_file()?;
        self.maintain_queues(request).await.with_context(self, "running maintenance")
    }

    async fn publish_broker_endpoint(&self, endpoint: &BrokerEndpoint) -> Result<bool, StoreError> {
        self.check_file()?;
        self.put_broker_endpoint(endpoint).await.with_context(self, "publishing the broker endpoint")
    }

    async fn broker_endpoint(&self) -> Result<Option<BrokerEndpoint>, StoreError> {
        self.check_file()?;
        self.get_broker_endpoint().await.with_context(self, "reading the broker endpoint")
    }
}

#[async_trait]
impl TaskAdmin for SqliteStore {
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        self.check_file()?;
        self.queue_views(namespace, None).await.with_context(self, "listing queues")
    }

    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        self.check_file()?;
        let views = self.queue_views(Some(&key.namespace), Some(&key.name)).await;
        views.map(|views| views.into_iter().next()).with_context(self, "reading a queue")
    }

    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        self.check_file()?;
        self.put_queue(key, settings).await.with_context(self, "changing a queue")
    }

    async fn set_queue_paused(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.check_file()?;
        self.pause_queue(namespace, queue, pause).await.with_context(self, "pausing or resuming a queue")
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        self.check_file()?;
        self.task_views(filter).await.with_context(self, "listing tasks")
    }

    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        self.check_file()?;
        self.task_view(namespace, id).await.with_context(self, "reading a task")
    }

    async fn apply_task_action(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        action: TaskAction,
    ) -> Result<Vec<TaskId>, StoreError> {
        self.check_file()?;
        self.apply_to_tasks(namespace, tasks, action).await.with_context(self, "cancelling or retrying tasks")
    }

    async fn wait_reasons(
        &self,
        namespace: &Name,
        id: TaskId,
    ) -> Result<Option<Vec<WaitReason>>, StoreError> {
        self.check_file()?;
        self.explain_wait(namespace, id).await.with_context(self, "explaining why a task waits")
    }

    async fn finished_tasks(&self, key: &QueueKey, limit: u32) -> Result<Vec<FinishedTask>, StoreError> {
        self.check_file()?;
        self.list_finished(key, limit).await.with_context(self, "reading finished tasks")
    }

    async fn register_worker(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        self.check_file()?;
        self.put_worker(namespace, worker).await.with_context(self, "registering a worker")
    }

    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        self.check_file()?;
        self.worker_views(namespace).await.with_context(self, "listing workers")
    }

    async fn set_worker_approval(
        &self,
        namespace: &Name,
        worker: &str,
        by: Option<&str>,
    ) -> Result<bool, StoreError> {
        self.check_file()?;
        self.approve_worker(namespace, worker, by).await.with_context(self, "approving a worker")
    }
}

#[async_trait]
impl PoolStore for SqliteStore {
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        self.check_file()?;
        self.pool_views(namespace, None).await.with_context(self, "listing pools")
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        self.check_file()?;
        let views = self.pool_views(Some(&key.namespace), Some(&key.name)).await;
        views.map(|views| views.into_iter().next()).with_context(self, "reading a pool")
    }

    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        self.check_file()?;
        self.put_pool(key, settings).await.with_context(self, "changing a pool")
    }

    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        self.check_file()?;
        self.put_resources(key, resources).await.with_context(self, "adding resources to a pool")
    }

    async fn remove_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        self.check_file()?;
        self.delete_resource(key, name).await.with_context(self, "removing a resource from a pool")
    }

    async fn create_pool_request(
        &self,
        key: &PoolKey,
        request: &PoolRequest,
    ) -> Result<PoolRequestView, StoreError> {
        self.check_file()?;
        self.put_pool_request(key, request).await.with_context(self, "requesting a resource")
    }

    async fn match_pool(
        &self,
        batch: &PoolMatchRequest,
    ) -> Result<Result<Vec<PoolRequestView>, ClaimRefusal>, StoreError> {
        self.check_file()?;
        self.match_pool_requests(batch).await.with_context(self, "granting resources")
    }

    async fn pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
    ) -> Result<Option<PoolRequestView>, StoreError> {
        self.check_file()?;
        self.get_pool_request(namespace, id).await.with_context(self, "reading a pool request")
    }

    async fn update_pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
        owner: &str,
        token: Option<Token>,
        action: PoolRequestAction,
    ) -> Result<bool, StoreError> {
        self.check_file()?;
        self.update_request(namespace, id, owner, token, action)
            .await
            .with_context(self, "updating a pool request")
    }
}
