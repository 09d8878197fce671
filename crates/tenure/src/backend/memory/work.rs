//! Work in memory: the ledger, asked under the mutex.

use async_trait::async_trait;
use tenure_core::claim::{check_queue, check_seats, check_settlements, check_worker};
use tenure_core::port::{
    ClaimAnswer, ClaimAsk, ClaimRefusal, Desk, Finished, Handle, NewRequest, NewResource, NewWorker, Order,
    Pause, PoolKey, PoolMatch, PoolSettings, PoolView, Pools, Post, QueueKey, QueueSettings, QueueView,
    RequestId, RequestView, Settled, Settlement, StoreError, Submission, Submitted, TaskFilter, TaskId,
    TaskView, Tasks, Tend, Tended, Why, WorkerView,
};
use tenure_core::{Name, SessionId, Token};

use super::Memory;

#[async_trait]
impl Tasks for Memory {
    async fn submit(&self, submission: &Submission) -> Result<Vec<Submitted>, StoreError> {
        self.with_ledger(|ledger, _, now| ledger.submit(submission, now))
    }

    async fn claim(&self, ask: &ClaimAsk) -> Result<ClaimAnswer, StoreError> {
        check_seats(&ask.seats)?;
        Ok(self.with_ledger(|ledger, book, now| ledger.claim(ask, book, now)))
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        check_settlements(settlements)?;
        Ok(self.with_ledger(|ledger, _, now| ledger.settle(settlements, now)))
    }

    async fn held(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        Ok(self.locked().ledger.held(session))
    }

    async fn doze(&self, session: &SessionId, queues: &[QueueKey]) -> Result<(), StoreError> {
        self.with_ledger(|ledger, _, _| ledger.doze(session, queues));
        Ok(())
    }

    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.tend(tend, book, now)))
    }

    async fn put_post(&self, post: &Post) -> Result<bool, StoreError> {
        Ok(self.with_ledger(|ledger, book, _| ledger.put_post(post, book)))
    }

    async fn post(&self) -> Result<Option<Post>, StoreError> {
        Ok(self.with_ledger(|ledger, book, _| ledger.post(book)))
    }
}

#[async_trait]
impl Desk for Memory {
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.queues(namespace, now)))
    }

    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.queue(key, now)))
    }

    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        check_queue(settings)?;
        self.with_ledger(|ledger, _, _| ledger.set_queue(key, settings));
        Ok(())
    }

    async fn set_queue_paused(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        Ok(self.with_ledger(|ledger, _, _| ledger.set_queue_paused(namespace, queue, pause)))
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        Ok(self.locked().ledger.tasks(filter))
    }

    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        Ok(self.locked().ledger.task(namespace, id))
    }

    async fn order(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        order: Order,
    ) -> Result<Vec<TaskId>, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.order(namespace, tasks, order, now)))
    }

    async fn why(&self, namespace: &Name, id: TaskId) -> Result<Option<Vec<Why>>, StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.why(namespace, id, book, now)))
    }

    async fn finished(&self, key: &QueueKey, limit: u32) -> Result<Vec<Finished>, StoreError> {
        Ok(self.locked().ledger.finished(key, limit))
    }

    async fn register(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        check_worker(worker)?;
        self.with_ledger(|ledger, _, now| ledger.register(namespace, worker, now));
        Ok(())
    }

    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.workers(namespace, book, now)))
    }

    async fn approve(&self, namespace: &Name, worker: &str, by: Option<&str>) -> Result<bool, StoreError> {
        Ok(self.with_ledger(|ledger, _, _| ledger.approve(namespace, worker, by)))
    }
}

#[async_trait]
impl Pools for Memory {
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.pools(namespace, now)))
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.pool(key, now)))
    }

    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        self.with_ledger(|ledger, _, _| ledger.set_pool(key, settings))
    }

    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        self.with_ledger(|ledger, _, _| ledger.add_resources(key, resources))
    }

    async fn remove_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        self.with_ledger(|ledger, _, _| ledger.remove_resource(key, name))
    }

    async fn request(&self, key: &PoolKey, request: &NewRequest) -> Result<RequestView, StoreError> {
        self.with_ledger(|ledger, _, now| ledger.request(key, request, now))
    }

    async fn match_pool(
        &self,
        ask: &PoolMatch,
    ) -> Result<Result<Vec<RequestView>, ClaimRefusal>, StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.match_pool(ask, book, now)))
    }

    async fn pool_request(&self, namespace: &Name, id: RequestId) -> Result<Option<RequestView>, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.pool_request(namespace, id, now)))
    }

    async fn handle_request(
        &self,
        namespace: &Name,
        id: RequestId,
        owner: &str,
        token: Option<Token>,
        handle: Handle,
    ) -> Result<bool, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.handle_request(namespace, id, owner, token, handle, now)))
    }
}
