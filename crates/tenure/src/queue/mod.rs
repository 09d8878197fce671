//! Tasks: submission, claims and settlement.
//!
//! The store decides which worker holds a task, under which token. This module is the client of one process.
//! Concurrent calls share one statement ([`batcher`], [`wait_queue`]). A claim that finds no
//! task waits for a notification ([`notifier`]). Claims of exclusive queues go through the
//! broker ([`claim_route`], [`broker`]), which also recovers lost claims ([`maintenance`]). When the store
//! fails, callers get its error. A failed call may still have claimed tasks; [`reconcile`] finds and releases
//! them later.

pub(crate) mod batcher;
pub(crate) mod broker;
pub(crate) mod claim_route;
pub(crate) mod context;
pub(crate) mod held_claims;
mod maintenance;
pub(crate) mod notifier;
pub(crate) mod reconcile;
pub(crate) mod wait_queue;

use std::time::Duration;

use tenure_core::Name;
use tenure_core::port::{
    ClaimOutcome, ClaimRefusal, ClaimRequest, ClaimedTask, NewTask, PoolKey, PoolRequest, PoolRequestId,
    PoolRequestView, QueueKey, SettleResult, Settlement, StoreError, Submission, SubmitReceipt,
};
use tenure_core::rules::work;

use self::claim_route::RoutedClaim;
pub use self::held_claims::ClaimLossReason;
use crate::runtime::RuntimeEntropy;
use crate::{Error, Tenure, pool};

/// Client for single tasks and pool requests of a store. Clones share everything.
///
/// Each call concerns one task or one worker; concurrent calls share a statement. A [`Worker`](crate::Worker)
/// does all of this by itself.
///
/// ```
/// # use tenure::{ClaimResult, Tenure, store::memory::MemoryStore};
/// use std::time::Duration;
/// use tenure::port::{ClaimOutcome, ClaimRequest, NewTask, SettleResult, Settlement, TaskState, WorkerProfile};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let (tasks, mail) = (tenure.tasks(), tenure.queue("mail")?);
///
/// tasks.submit(&mail, vec![NewTask::new("welcome")]).await?;
///
/// let worker = WorkerProfile { name: "w1".into(), ..WorkerProfile::default() };
/// let request = ClaimRequest { worker, limit: 1, session: tenure.session(), claim_timeout_ms: None };
/// let ClaimResult::Tasks(claimed) = tasks.claim(&mail, request, Duration::from_secs(1)).await? else { panic!() };
/// assert_eq!(claimed[0].kind, "welcome");
///
/// let done = Settlement {
///     namespace: mail.namespace.clone(),
///     task: claimed[0].id,
///     token: claimed[0].token,
///     outcome: ClaimOutcome::Complete(None),
/// };
/// assert_eq!(tasks.settle(done).await?, SettleResult::Applied(TaskState::Completed));
/// # tenure.close().await }
/// ```
#[derive(Clone)]
pub struct TaskClient {
    tenure: Tenure,
}

/// Result of a claim request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimResult {
    /// The claimed tasks, in the order of the queue. Empty if no task became available in time.
    Tasks(Vec<ClaimedTask>),
    /// The store refused the claim, with the reason.
    Refused(ClaimRefusal),
    /// The queue is exclusive without a fallback, and its broker cannot be reached now. Retry later.
    NoBroker,
}

impl TaskClient {
    pub(crate) fn new(tenure: Tenure) -> TaskClient {
        TaskClient { tenure }
    }

    /// Submits tasks to a queue, all or none. Concurrent submissions of single tasks share a statement.
    pub async fn submit(&self, queue: &QueueKey, tasks: Vec<NewTask>) -> Result<Vec<SubmitReceipt>, Error> {
        let ctx = self.tenure.ctx();
        let mut submission = Submission { queue: queue.clone(), tasks };
        work::validate_submission(&submission).map_err(StoreError::from)?;
        match submission.tasks.pop() {
            None => Ok(Vec::new()),
            Some(task) if submission.tasks.is_empty() => Ok(vec![ctx.submit_one(queue, task).await?]),
            Some(task) => {
                submission.tasks.push(task);
                Ok(ctx.bounded(ctx.store.submit(&submission)).await?)
            }
        }
    }

    /// Claims tasks. Waits up to `wait` for the first one. Concurrent calls share a statement; claims of an
    /// exclusive queue go through the broker. If the future is dropped, nothing stays claimed.
    pub async fn claim(
        &self,
        queue: &QueueKey,
        request: ClaimRequest,
        wait: Duration,
    ) -> Result<ClaimResult, Error> {
        work::validate_claim_requests(std::slice::from_ref(&request)).map_err(StoreError::from)?;
        Ok(match self.tenure.ctx().claim(queue, request, wait).await? {
            RoutedClaim::Tasks(claimed) => ClaimResult::Tasks(claimed.take()),
            RoutedClaim::Refused(refusal) => ClaimResult::Refused(refusal),
            RoutedClaim::NoBroker => ClaimResult::NoBroker,
        })
    }

    /// Settles a claim: completes, fails or releases the task, or sends a heartbeat. Concurrent calls share a
    /// statement. The settlement is sent even if the future is dropped. Repeating it after an error is safe.
    pub async fn settle(&self, settlement: Settlement) -> Result<SettleResult, Error> {
        Ok(self.tenure.ctx().settle(settlement).await?)
    }

    /// Reports a failed attempt. If `retry` is set and attempts are left, the task runs again after its
    /// backoff.
    pub async fn fail(
        &self,
        namespace: &Name,
        task: &ClaimedTask,
        error: impl Into<String>,
        retry: bool,
    ) -> Result<SettleResult, Error> {
        let after = work::backoff(task.backoff, task.attempt, &mut RuntimeEntropy(self.tenure.runtime()));
        let outcome = ClaimOutcome::Fail { error: error.into(), retry, retry_in: after };
        self.settle(Settlement { namespace: namespace.clone(), task: task.id, token: task.token, outcome })
            .await
    }

    /// Requests a resource of a pool and waits up to `wait`. The returned request may still be waiting: call
    /// again with the same idempotency key, or cancel it. For an exclusive pool, the broker assigns the
    /// resource.
    pub async fn request(
        &self,
        pool: &PoolKey,
        request: &PoolRequest,
        wait: Duration,
    ) -> Result<PoolRequestView, Error> {
        pool::request(self.tenure.ctx(), pool, request, wait).await
    }

    /// Waits up to `wait` for an existing pool request. Returns `None` if it does not exist.
    pub async fn wait_for_pool_request(
        &self,
        pool: &PoolKey,
        request: PoolRequestId,
        wait: Duration,
    ) -> Result<Option<PoolRequestView>, Error> {
        pool::wait_for_existing(self.tenure.ctx(), pool, request, wait).await
    }

    /// Makes this process a candidate for broker and maintenance until its session ends. Later calls have no effect.
    /// Workers, consumers and servers call this; a process that only submits tasks need not.
    pub async fn campaign_for_maintenance(&self) -> Result<(), Error> {
        self.campaign_for_maintenance_with_priority(0).await
    }

    /// Campaigns like [`campaign_for_maintenance`](Self::campaign_for_maintenance) with this priority. Has no
    /// effect if this process is already a candidate.
    pub async fn campaign_for_maintenance_with_priority(&self, priority: i32) -> Result<(), Error> {
        maintenance::campaign(&self.tenure, priority).await
    }
}
