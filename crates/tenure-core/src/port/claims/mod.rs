//! Work, as it is submitted, claimed and finished; and resources, as they are asked for.
//!
//! A claim is a lease on a task: it hangs on the claimer's session (or on a deadline, for who has none), and whatever is said
//! about it names `(task, token)`. The store compares and swaps on both, so a worker that lost its claim can say nothing
//! more about the task, whoever has it by now.
//!
//! Three traits. [`Tasks`] is the path of workers, hot and batched. [`Desk`] is the path of people. [`Pools`] is both, for
//! resources. A store that only elects leaves them as they are, and says so.

mod claim;
mod json;
mod pool;
mod queue;
mod task;

use async_trait::async_trait;

pub use self::claim::{
    Authority, CLAIM_BYTES, CLAIM_MAX, ClaimAnswer, ClaimAsk, ClaimRefusal, Outcome, Profile, Seat, Settled,
    Settlement, Tend, Tended,
};
pub use self::json::Json;
pub use self::pool::{
    BASE_PRIORITY, Handle, NewRequest, NewResource, PoolKey, PoolMatch, PoolSettings, PoolView, RequestId,
    RequestState, RequestView, ResourceView,
};
pub use self::queue::{
    Fallback, Finished, KindStats, Mode, NewWorker, Order, QueueSettings, QueueView, RateLimit, Spread,
    TaskFilter, Why, WorkerView,
};
pub use self::task::{
    Backoff, ClaimedTask, DEPTH_MAX, FAILURES_KEPT, Failure, LIST_MAX, NewTask, PAYLOAD_MAX, PRIORITY_MAX,
    PRIORITY_STEP_MS, Parent, QueueKey, SUBMIT_MAX, Submission, Submitted, TaskId, TaskState, TaskView,
};
use super::{Pause, StoreError, Trouble};
use crate::{ElectionKey, Name, SessionId, Token};

/// The election whose leader hands out what is exclusive, and recovers what was lost: one for the whole store.
pub fn claims_election() -> ElectionKey {
    let name = |s: &str| s.parse::<Name>().expect("a literal name");
    ElectionKey::new(name("tenure"), name("claims"))
}

/// Where the leader of [`claims_election`] is to be reached by the others.
#[derive(Clone, PartialEq, Eq)]
pub struct Post {
    /// The leader's token: an older post is no use.
    pub token: Token,
    /// Its session.
    pub session: SessionId,
    /// Host and port.
    pub address: String,
    /// What proves to it that we read this here, and to us that it wrote it: never shown to people.
    pub secret: Vec<u8>,
}

/// The path of workers. Every call is atomic in the store.
#[async_trait]
pub trait Tasks: Send + Sync + 'static {
    /// Whether the store keeps anything but elections: tasks, events, schedules.
    fn keeps_work(&self) -> bool {
        true
    }

    /// Whether the store itself sees to it that exclusive queues are asked through their leader: a Tenure server does.
    fn routes_claims(&self) -> bool {
        false
    }

    /// Submits, all or nothing, and rings for who sleeps. One result for each task, in their order.
    async fn submit(&self, submission: &Submission) -> Result<Vec<Submitted>, StoreError> {
        let _ = submission;
        only_elects()
    }

    /// Hands out tasks.
    async fn claim(&self, ask: &ClaimAsk) -> Result<ClaimAnswer, StoreError> {
        let _ = ask;
        only_elects()
    }

    /// Takes in what workers say about their claims; one result for each, in their order.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let _ = settlements;
        only_elects()
    }

    /// What this session has claimed: a worker compares it with what it runs, to learn of what was cancelled.
    async fn held(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        let _ = session;
        only_elects()
    }

    /// Says that this session sleeps until one of these queues has work: the next submission to it rings
    /// ([`Wake::Work`](crate::port::Wake)). To be said *before* the last look that finds nothing.
    async fn doze(&self, session: &SessionId, queues: &[QueueKey]) -> Result<(), StoreError> {
        let _ = (session, queues);
        only_elects()
    }

    /// Recovers what was lost, prunes what is old. Fenced by the keeper's lease.
    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        let _ = tend;
        only_elects()
    }

    /// Says where the leader is to be reached. `false` if it does not lead under that token.
    async fn put_post(&self, post: &Post) -> Result<bool, StoreError> {
        let _ = post;
        only_elects()
    }

    /// Where the leader is to be reached, if it has said so and still leads.
    async fn post(&self) -> Result<Option<Post>, StoreError> {
        only_elects()
    }
}

/// The path of people.
#[async_trait]
pub trait Desk: Send + Sync + 'static {
    /// The queues of a namespace, or of all.
    async fn queues(&self, namespace: Option<&Name>) -> Result<Vec<QueueView>, StoreError> {
        let _ = namespace;
        only_elects()
    }

    /// One queue; `None` if it was never used.
    async fn queue(&self, key: &QueueKey) -> Result<Option<QueueView>, StoreError> {
        let _ = key;
        only_elects()
    }

    /// Makes a queue, or sets it anew. Nothing is lost or doubled, whatever changes.
    async fn set_queue(&self, key: &QueueKey, settings: &QueueSettings) -> Result<(), StoreError> {
        let _ = (key, settings);
        only_elects()
    }

    /// Pauses or resumes a queue (made, if it is not there), or with `None` as the queue everything of the namespace, pools
    /// included. `false` if it was so already.
    async fn set_queue_paused(
        &self,
        namespace: &Name,
        queue: Option<&Name>,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let _ = (namespace, queue, pause);
        only_elects()
    }

    /// Tasks, the newest first.
    async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskView>, StoreError> {
        let _ = filter;
        only_elects()
    }

    /// One task.
    async fn task(&self, namespace: &Name, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        let _ = (namespace, id);
        only_elects()
    }

    /// Cancels or retries tasks. Those on which it had an effect, those that shared a fate included.
    async fn order(
        &self,
        namespace: &Name,
        tasks: &[TaskId],
        order: Order,
    ) -> Result<Vec<TaskId>, StoreError> {
        let _ = (namespace, tasks, order);
        only_elects()
    }

    /// What keeps a waiting task from being claimed, everything that is known; `None` if there is no such task.
    async fn why(&self, namespace: &Name, id: TaskId) -> Result<Option<Vec<Why>>, StoreError> {
        let _ = (namespace, id);
        only_elects()
    }

    /// The last finished tasks of a queue, at most `limit`.
    async fn finished(&self, key: &QueueKey, limit: u32) -> Result<Vec<Finished>, StoreError> {
        let _ = (key, limit);
        only_elects()
    }

    /// A worker makes itself known, or says what changed.
    async fn register(&self, namespace: &Name, worker: &NewWorker) -> Result<(), StoreError> {
        let _ = (namespace, worker);
        only_elects()
    }

    /// The workers of a namespace, or of all.
    async fn workers(&self, namespace: Option<&Name>) -> Result<Vec<WorkerView>, StoreError> {
        let _ = namespace;
        only_elects()
    }

    /// Approves a worker (by whom), known yet or not, or withdraws it. `false` if it was so already.
    async fn approve(&self, namespace: &Name, worker: &str, by: Option<&str>) -> Result<bool, StoreError> {
        let _ = (namespace, worker, by);
        only_elects()
    }
}

/// Resources and who waits for them.
#[async_trait]
pub trait Pools: Send + Sync + 'static {
    /// The pools of a namespace, or of all, with what is in them.
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        let _ = namespace;
        only_elects()
    }

    /// One pool.
    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        let _ = key;
        only_elects()
    }

    /// Makes a pool, or sets it anew.
    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        let _ = (key, settings);
        only_elects()
    }

    /// Puts resources into a pool (made, if it is not there), or changes those that are there.
    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        let _ = (key, resources);
        only_elects()
    }

    /// Takes a resource out of a pool. `false` if it is not there; an error of kind `Request` if somebody has it.
    async fn remove_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        let _ = (key, name);
        only_elects()
    }

    /// Asks for a resource: the request waits. Nothing is handed out yet ([`match_pool`](Self::match_pool)). The same key again:
    /// the same request.
    async fn request(&self, key: &PoolKey, request: &NewRequest) -> Result<RequestView, StoreError> {
        let _ = (key, request);
        only_elects()
    }

    /// Hands out what is free, and wakes who got it ([`Wake::Pool`](crate::port::Wake)).
    async fn match_pool(
        &self,
        ask: &PoolMatch,
    ) -> Result<Result<Vec<RequestView>, ClaimRefusal>, StoreError> {
        let _ = ask;
        only_elects()
    }

    /// A request, as it stands.
    async fn pool_request(&self, namespace: &Name, id: RequestId) -> Result<Option<RequestView>, StoreError> {
        let _ = (namespace, id);
        only_elects()
    }

    /// What its owner does with a request: `token` is that of the grant, `None` while it waits. `false` if it is not held (or
    /// does not wait) under that: nothing was changed.
    async fn handle_request(
        &self,
        namespace: &Name,
        id: RequestId,
        owner: &str,
        token: Option<Token>,
        handle: Handle,
    ) -> Result<bool, StoreError> {
        let _ = (namespace, id, owner, token, handle);
        only_elects()
    }
}

fn only_elects<T>() -> Result<T, StoreError> {
    Err(StoreError::new(
        Trouble::Unsupported,
        "this store elects leaders and keeps no tasks; use sqlite:, postgres:// or a Tenure server on one of them",
    ))
}
