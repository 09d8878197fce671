//! Ports of queues, tasks, workers and pools.
//!
//! A claim is a lease on a task. It depends on the session of the worker or, without a session, on a claim timeout.
//! Every settlement names the task and the token of the claim. The store compares both, so a worker that lost its
//! claim cannot change the task any more.
//!
//! [`TaskStore`] has the operations of workers, which are frequent and batched. [`TaskAdmin`] has the administrative
//! operations. [`PoolStore`] has both for pools. A store that supports only elections keeps the default
//! implementations, which return an error of kind `Unsupported`.

mod claim;
mod json;
mod pool;
mod queue;
mod task;

use async_trait::async_trait;

pub use self::claim::{
    CLAIM_BYTES, CLAIM_MAX, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome,
    ClaimRefusal, ClaimRequest, MaintenanceRequest, MaintenanceResponse, SettleResult, Settlement,
    WorkerProfile,
};
pub use self::json::RawJson;
pub use self::pool::{
    BASE_PRIORITY, NewResource, PoolKey, PoolMatchRequest, PoolRequest, PoolRequestAction, PoolRequestId,
    PoolRequestState, PoolRequestView, PoolSettings, PoolView, ResourceView,
};
pub use self::queue::{
    AssignmentMode, BrokerFallback, FinishedTask, KindStats, NewWorker, Percentiles, QueueSettings,
    QueueView, RateLimit, TaskAction, TaskFilter, WaitReason, WorkerView,
};
pub use self::task::{
    AttemptFailure, Backoff, ClaimedTask, DEPTH_MAX, FAILURES_MAX, LIST_MAX, NewTask, PAYLOAD_MAX,
    PRIORITY_MAX, PRIORITY_STEP_MS, ParentRef, QueueKey, SUBMIT_MAX, Submission, SubmitReceipt, TaskId,
    TaskState, TaskView,
};
use super::{ErrorKind, Pause, StoreError};
use crate::{ElectionKey, Name, SessionId, Token};

/// The election of the broker, one per store. Its leader assigns the tasks of exclusive queues and runs maintenance.
pub fn broker_election() -> ElectionKey {
    let name = |s: &str| s.parse::<Name>().expect("a literal name");
    ElectionKey::new(name("tenure"), name("broker"))
}

/// Endpoint at which other processes reach the leader of [`broker_election`].
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerEndpoint {
    /// Token of the leader. An endpoint with an older token is invalid.
    pub token: Token,
    /// Session of the leader.
    pub session: SessionId,
    /// Host and port.
    pub address: String,
    /// Shared secret that authenticates the broker and its clients to each other. Never displayed.
    pub secret: Vec<u8>,
}

/// Store operations of workers. Every call is atomic in the store.
#[async_trait]
pub trait TaskStore: Send + Sync + 'static {
    /// Whether the store supports tasks, events and schedules, and not only elections.
    fn supports_work(&self) -> bool {
        true
    }

    /// Whether the store itself routes claims of exclusive queues to the broker, as a Tenure server does.
    fn routes_to_broker(&self) -> bool {
        false
    }

    /// Submits all tasks or none, and notifies the waiters of the queue. Returns one receipt per task, in order.
    async fn submit(&self, submission: &Submission) -> Result<Vec<SubmitReceipt>, StoreError> {
        let _ = submission;
        work_unsupported()
    }

    /// Claims tasks.
    async fn claim(&self, request: &ClaimBatchRequest) -> Result<ClaimBatchResponse, StoreError> {
        let _ = request;
        work_unsupported()
    }

    /// Applies settlements. Returns one result per settlement, in order.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        let _ = settlements;
        work_unsupported()
    }

    /// Claims of this session. A worker compares them with its running tasks to detect cancellations.
    async fn held_claims(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        let _ = session;
        work_unsupported()
    }

    /// Registers this session as a waiter of the queues. The next submission to one of them sends
    /// [`Notification::QueueReady`](crate::port::Notification::QueueReady). A caller must register *before* its last
    /// claim that finds nothing, so that no submission is missed.
    async fn register_queue_waiter(
        &self,
        session: &SessionId,
        queues: &[QueueKey],
    ) -> Result<(), StoreError> {
        let _ = (session, queues);
        work_unsupported()
    }

    /// Recovers lost claims and prunes old data. Fenced by the lease of the broker.
    async fn maintain(&self, request: &MaintenanceRequest) -> Result<MaintenanceResponse, StoreError> {
        let _ = request;
        work_unsupported()
    }

    /// Publishes the endpoint of the broker. Returns `false` if the session does not lead under that token.
    async fn publish_broker_endpoint(&self, endpoint: &BrokerEndpoint) -> Result<bool, StoreError> {
        let _ = endpoint;
        work_unsupported()
    }

    /// The endpoint of the current broker, if it has published one.
    async fn broker_endpoint(&self) -> Result<Option<BrokerEndpoint>, StoreError> {
        work_unsupported()
    }
}

/// Administrative operations on queues, tasks and workers.
#[async_trait]
pub trait TaskAdmin: Send + Sync + 'static {
    /// The queues of one namespace, or of all.
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        let _ = namespace;
        work_unsupported()
    }

    /// One queue. `None` if it does not exist.
    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        let _ = key;
        work_unsupported()
    }

    /// Creates a queue or changes its settings. Tasks are neither lost nor duplicated by a change.
    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        let _ = (key, settings);
        work_unsupported()
    }

    /// Pauses or resumes a queue, creating it if needed. With `None` as the queue, pauses or resumes the whole
    /// namespace, including its pools. Returns `false` if the state is unchanged.
    async fn set_queue_paused(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let _ = (namespace, queue, pause);
        work_unsupported()
    }

    /// Tasks that match the filter, newest first.
    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        let _ = filter;
        work_unsupported()
    }

    /// One task.
    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        let _ = (namespace, id);
        work_unsupported()
    }

    /// Cancels or retries tasks. Returns the ids of all changed tasks, including children that changed with their
    /// parents.
    async fn apply_task_action(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        order: TaskAction,
    ) -> Result<Vec<TaskId>, StoreError> {
        let _ = (namespace, tasks, order);
        work_unsupported()
    }

    /// All known reasons why a pending task is not claimed. `None` if the task does not exist.
    async fn wait_reasons(
        &self,
        namespace: &Name,
        id: TaskId,
    ) -> Result<Option<Vec<WaitReason>>, StoreError> {
        let _ = (namespace, id);
        work_unsupported()
    }

    /// The latest finished tasks of a queue, at most `limit`.
    async fn finished_tasks(&self, key: &QueueKey, limit: u32) -> Result<Vec<FinishedTask>, StoreError> {
        let _ = (key, limit);
        work_unsupported()
    }

    /// Registers a worker or updates its registration.
    async fn register_worker(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        let _ = (namespace, worker);
        work_unsupported()
    }

    /// The workers of one namespace, or of all.
    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        let _ = namespace;
        work_unsupported()
    }

    /// Approves a worker (`by` names the principal) or revokes the approval (`None`). The worker need not be
    /// registered. Returns `false` if the state is unchanged.
    async fn set_worker_approval(
        &self,
        namespace: &Name,
        worker: &str,
        by: Option<&str>,
    ) -> Result<bool, StoreError> {
        let _ = (namespace, worker, by);
        work_unsupported()
    }
}

/// Store operations on pools, resources and pool requests.
#[async_trait]
pub trait PoolStore: Send + Sync + 'static {
    /// The pools of one namespace, or of all, with their resources and waiting requests.
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        let _ = namespace;
        work_unsupported()
    }

    /// One pool.
    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        let _ = key;
        work_unsupported()
    }

    /// Creates a pool or changes its settings.
    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        let _ = (key, settings);
        work_unsupported()
    }

    /// Adds resources to a pool, creating it if needed, or changes existing resources.
    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        let _ = (key, resources);
        work_unsupported()
    }

    /// Removes a resource from a pool. Returns `false` if it does not exist; fails with kind `Request` while a
    /// request holds it.
    async fn remove_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        let _ = (key, name);
        work_unsupported()
    }

    /// Creates a waiting request. [`match_pool`](Self::match_pool) grants it. A call with the same idempotency key
    /// returns the existing request.
    async fn create_pool_request(
        &self,
        key: &PoolKey,
        request: &PoolRequest,
    ) -> Result<PoolRequestView, StoreError> {
        let _ = (key, request);
        work_unsupported()
    }

    /// Grants free resources to waiting requests and sends
    /// [`Notification::PoolChanged`](crate::port::Notification::PoolChanged).
    async fn match_pool(
        &self,
        request: &PoolMatchRequest,
    ) -> Result<Result<Vec<PoolRequestView>, ClaimRefusal>, StoreError> {
        let _ = request;
        work_unsupported()
    }

    /// One request.
    async fn pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
    ) -> Result<Option<PoolRequestView>, StoreError> {
        let _ = (namespace, id);
        work_unsupported()
    }

    /// Applies an action of the owner to a request. `token` is the token of the grant, or `None` for a waiting
    /// request. Returns `false`, and changes nothing, if the request is not in that state under that token.
    async fn update_pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
        owner: &str,
        token: Option<Token>,
        handle: PoolRequestAction,
    ) -> Result<bool, StoreError> {
        let _ = (namespace, id, owner, token, handle);
        work_unsupported()
    }
}

fn work_unsupported<T>() -> Result<T, StoreError> {
    Err(StoreError::new(
        ErrorKind::Unsupported,
        "this store supports only elections, not tasks; use sqlite:, postgres:// or a Tenure server with such \
         a store",
    ))
}
