//! Tasks, queues, workers and pools.
//!
//! Each call is one `BEGIN IMMEDIATE` transaction, of which SQLite runs one at a time: what it reads stays so until it commits,
//! and there is nothing to lock. So rules are applied here, to rows that were read, and what comes of them is written in a
//! few statements, each for many rows: lists go in as JSON, since every statement is a trip to the connection's thread.
//!
//! A task is in the index of its state. To claim is to read the heads of the demands that a worker fits (`tenure_demands`),
//! merge them by `effective_at`, and update by number. What follows when a claim ends is in `follow.rs`: children that are let
//! go or share a fate, others with the same concurrency key, sleepers to be rung for.
//!
//! Who sleeps is rung for by FIFO after the commit, if a row says that somebody does. A task that comes through the view
//! `tenure_submit`, or in a transaction of the user's, is found by polling.

mod claim;
mod desk;
mod follow;
mod orders;
mod pools;
mod settle;
mod submit;
mod tend;
mod views;

use async_trait::async_trait;
use tenure_core::port::{
    ClaimAnswer, ClaimAsk, ClaimRefusal, Desk, Finished, Handle, NewRequest, NewResource, NewWorker, Order,
    Pause, PoolKey, PoolMatch, PoolSettings, PoolView, Pools, Post, QueueKey, QueueSettings, QueueView,
    RequestId, RequestView, Settled, Settlement, StoreError, Submission, Submitted, TaskFilter, TaskId,
    TaskView, Tasks, Tend, Tended, Why, WorkerView,
};
use tenure_core::{Name, SessionId, Token};

use super::Sqlite;
use super::call::{Failed, Told, json, ms, nonsense, number, span_ms};

pub(super) use submit::put_all as submit_with;
pub use submit::submit;

#[async_trait]
impl Tasks for Sqlite {
    async fn submit(&self, submission: &Submission) -> Result<Vec<Submitted>, StoreError> {
        self.in_place()?;
        self.submit_tasks(submission).await.told(self, "submitting tasks")
    }

    async fn claim(&self, ask: &ClaimAsk) -> Result<ClaimAnswer, StoreError> {
        self.in_place()?;
        self.hand_out(ask).await.told(self, "claiming tasks")
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        self.in_place()?;
        self.settle_claims(settlements).await.told(self, "settling claims")
    }

    async fn held(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        self.in_place()?;
        self.claims_of(session).await.told(self, "reading claims")
    }

    async fn doze(&self, session: &SessionId, queues: &[QueueKey]) -> Result<(), StoreError> {
        self.in_place()?;
        self.put_dozers(session, queues).await.told(self, "saying who sleeps")
    }

    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        self.in_place()?;
        self.tend_all(tend).await.told(self, "recovering what was lost")
    }

    async fn put_post(&self, post: &Post) -> Result<bool, StoreError> {
        self.in_place()?;
        self.keep_post(post).await.told(self, "saying where the leader is")
    }

    async fn post(&self) -> Result<Option<Post>, StoreError> {
        self.in_place()?;
        self.find_post().await.told(self, "asking where the leader is")
    }
}

#[async_trait]
impl Desk for Sqlite {
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        self.in_place()?;
        self.queue_views(namespace, None).await.told(self, "listing queues")
    }

    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        self.in_place()?;
        let views = self.queue_views(Some(&key.namespace), Some(&key.name)).await;
        views.map(|views| views.into_iter().next()).told(self, "looking at a queue")
    }

    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        self.in_place()?;
        self.keep_queue(key, settings).await.told(self, "setting a queue")
    }

    async fn set_queue_paused(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.in_place()?;
        self.pause_queue(namespace, queue, pause).await.told(self, "pausing or resuming a queue")
    }

    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        self.in_place()?;
        self.task_views(filter).await.told(self, "listing tasks")
    }

    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        self.in_place()?;
        self.task_view(namespace, id).await.told(self, "looking at a task")
    }

    async fn order(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        order: Order,
    ) -> Result<Vec<TaskId>, StoreError> {
        self.in_place()?;
        self.order_tasks(namespace, tasks, order).await.told(self, "cancelling or retrying tasks")
    }

    async fn why(&self, namespace: &Name, id: TaskId) -> Result<Option<Vec<Why>>, StoreError> {
        self.in_place()?;
        self.why_not(namespace, id).await.told(self, "finding out why a task waits")
    }

    async fn finished(&self, key: &QueueKey, limit: u32) -> Result<Vec<Finished>, StoreError> {
        self.in_place()?;
        self.last_finished(key, limit).await.told(self, "reading finished tasks")
    }

    async fn register(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        self.in_place()?;
        self.put_worker(namespace, worker).await.told(self, "registering a worker")
    }

    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        self.in_place()?;
        self.worker_views(namespace).await.told(self, "listing workers")
    }

    async fn approve(&self, namespace: &Name, worker: &str, by: Option<&str>) -> Result<bool, StoreError> {
        self.in_place()?;
        self.approve_worker(namespace, worker, by).await.told(self, "approving a worker")
    }
}

#[async_trait]
impl Pools for Sqlite {
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        self.in_place()?;
        self.pool_views(namespace, None).await.told(self, "listing pools")
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        self.in_place()?;
        let views = self.pool_views(Some(&key.namespace), Some(&key.name)).await;
        views.map(|views| views.into_iter().next()).told(self, "looking at a pool")
    }

    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        self.in_place()?;
        self.keep_pool(key, settings).await.told(self, "setting a pool")
    }

    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        self.in_place()?;
        self.put_resources(key, resources).await.told(self, "putting resources into a pool")
    }

    async fn remove_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        self.in_place()?;
        self.take_resource(key, name).await.told(self, "taking a resource out of a pool")
    }

    async fn request(&self, key: &PoolKey, request: &NewRequest) -> Result<RequestView, StoreError> {
        self.in_place()?;
        self.put_request(key, request).await.told(self, "asking for a resource")
    }

    async fn match_pool(
        &self,
        ask: &PoolMatch,
    ) -> Result<Result<Vec<RequestView>, ClaimRefusal>, StoreError> {
        self.in_place()?;
        self.match_requests(ask).await.told(self, "handing out resources")
    }

    async fn pool_request(&self, namespace: &Name, id: RequestId) -> Result<Option<RequestView>, StoreError> {
        self.in_place()?;
        self.request_view(namespace, id).await.told(self, "looking at a request")
    }

    async fn handle_request(
        &self,
        namespace: &Name,
        id: RequestId,
        owner: &str,
        token: Option<Token>,
        handle: Handle,
    ) -> Result<bool, StoreError> {
        self.in_place()?;
        self.handle(namespace, id, owner, token, handle).await.told(self, "handling a request")
    }
}
