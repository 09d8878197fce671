//! Tasks, queues and pools of the in-memory store.

use async_trait::async_trait;
use tenure_core::port::{
    BrokerEndpoint, ClaimBatchRequest, ClaimBatchResponse, ClaimRefusal, FinishedTask, MaintenanceRequest,
    MaintenanceResponse, NewResource, NewWorker, Pause, PoolKey, PoolMatchRequest, PoolRequest,
    PoolRequestAction, PoolRequestId, PoolRequestView, PoolSettings, PoolStore, PoolView, QueueKey,
    QueueSettings, QueueView, SettleResult, Settlement, StoreError, Submission, SubmitReceipt, TaskAction,
    TaskAdmin, TaskFilter, TaskId, TaskStore, TaskView, WaitReason, WorkerView,
};
use tenure_core::rules::work::{
    validate_claim_requests, validate_queue, validate_settlements, validate_worker,
};
use tenure_core::{Name, SessionId, Token};

use super::MemoryStore;

#[async_trait]
impl TaskStore for MemoryStore {
    async fn submit(&self, submission: &Submission) -> Result<Vec<SubmitReceipt>, StoreError> {
        self.with_work(|work, _, now| work.submit(submission, now))
    }

    async fn claim(&self, request: &ClaimBatchRequest) -> Result<ClaimBatchResponse, StoreError> {
        validate_claim_requests(&request.requests)?;
        Ok(self.with_work(|work, elections, now| work.claim(request, elections, now)))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        validate_settlements(settlements)?;
        Ok(self.with_work(|work, _, now| work.settle(settlements, now)))
    }

    async fn held_claims(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        Ok(self.lock_state().work.held_claims(session))
    }

    async fn register_queue_waiter(
        &self,
        session: &SessionId,
        queues: &[QueueKey],
    ) -> Result<(), StoreError> {
        self.with_work(|work, _, _| work.register_queue_waiter(session, queues));
        Ok(())
    }

    async fn maintain(&self, request: &MaintenanceRequest) -> Result<MaintenanceResponse, StoreError> {
        Ok(self.with_work(|work, elections, now| work.maintain(request, elections, now)))
    }

    async fn publish_broker_endpoint(&self, endpoint: &BrokerEndpoint) -> Result<bool, StoreError> {
        Ok(self.with_work(|work, elections, _| work.publish_broker_endpoint(endpoint, elections)))
    }

    async fn broker_endpoint(&self) -> Result<Option<BrokerEndpoint>, StoreError> {
        Ok(self.with_work(|work, elections, _| work.broker_endpoint(elections)))
    }
}

#[async_trait]
impl TaskAdmin for MemoryStore {
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        Ok(self.with_work(|work, _, now| work.queues(namespace, now)))
    }

    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        Ok(self.with_work(|work, _, now| work.queue(key, now)))
    }

    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        validate_queue(settings)?;
        self.with_work(|work, _, _| work.set_queue(key, settings));
        Ok(())
    }

    async fn set_queue_paused(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        Ok(self.with_work(|work, _, _| work.set_queue_paused(namespace, queue, pause)))
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        Ok(self.lock_state().work.tasks(filter))
    }

    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        Ok(self.lock_state().work.task(namespace, id))
    }

    async fn apply_task_action(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        order: TaskAction,
    ) -> Result<Vec<TaskId>, StoreError> {
        Ok(self.with_work(|work, _, now| work.apply_task_action(namespace, tasks, order, now)))
    }

    async fn wait_reasons(
        &self,
        namespace: &Name,
        id: TaskId,
    ) -> Result<Option<Vec<WaitReason>>, StoreError> {
        Ok(self.with_work(|work, elections, now| work.wait_reasons(namespace, id, elections, now)))
    }

    async fn finished_tasks(&self, key: &QueueKey, limit: u32) -> Result<Vec<FinishedTask>, StoreError> {
        Ok(self.lock_state().work.finished_tasks(key, limit))
    }

    async fn register_worker(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        validate_worker(worker)?;
        self.with_work(|work, _, now| work.register_worker(namespace, worker, now));
        Ok(())
    }

    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        Ok(self.with_work(|work, elections, now| work.workers(namespace, elections, now)))
    }

    async fn set_worker_approval(
        &self,
        namespace: &Name,
        worker: &str,
        by: Option<&str>,
    ) -> Result<bool, StoreError> {
        Ok(self.with_work(|work, _, _| work.set_worker_approval(namespace, worker, by)))
    }
}

#[async_trait]
impl PoolStore for MemoryStore {
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        Ok(self.with_work(|work, _, now| work.pools(namespace, now)))
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        Ok(self.with_work(|work, _, now| work.pool(key, now)))
    }

    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        self.with_work(|work, _, _| work.set_pool(key, settings))
    }

    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        self.with_work(|work, _, _| work.add_resources(key, resources))
    }

    async fn remove_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        self.with_work(|work, _, _| work.remove_resource(key, name))
    }

    async fn create_pool_request(
        &self,
        key: &PoolKey,
        request: &PoolRequest,
    ) -> Result<PoolRequestView, StoreError> {
        self.with_work(|work, _, now| work.create_pool_request(key, request, now))
    }

    async fn match_pool(
        &self,
        request: &PoolMatchRequest,
    ) -> Result<Result<Vec<PoolRequestView>, ClaimRefusal>, StoreError> {
        Ok(self.with_work(|work, elections, now| work.match_pool(request, elections, now)))
    }

    async fn pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
    ) -> Result<Option<PoolRequestView>, StoreError> {
        Ok(self.with_work(|work, _, now| work.pool_request(namespace, id, now)))
    }

    async fn update_pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
        owner: &str,
        token: Option<Token>,
        handle: PoolRequestAction,
    ) -> Result<bool, StoreError> {
        Ok(self.with_work(|work, _, now| work.update_pool_request(namespace, id, owner, token, handle, now)))
    }
}
