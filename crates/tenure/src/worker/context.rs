//! A claimed task as its handler sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tenure_core::port::{
    ClaimOutcome, ClaimedTask, NewTask, ParentRef, QueueKey, RawJson, SettleResult, Settlement, StoreError,
    Submission, SubmitReceipt, TaskId,
};
use tenure_core::{BootInstant, SessionId, Token, rules::work};

use crate::Error;
use crate::queue::ClaimLossReason;
use crate::queue::context::ClientContext;
use crate::queue::held_claims::ClaimState;

/// A claimed task, passed to its handler. Clones refer to the same task.
///
/// When the claim is lost, the future of the handler is dropped. Threads and tasks that the handler has spawned
/// keep a clone and observe [`cancelled`](Self::cancelled).
#[derive(Clone)]
pub struct TaskContext {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) task: ClaimedTask,
    pub(crate) queue: QueueKey,
    pub(crate) session: SessionId,
    pub(crate) ctx: Arc<ClientContext>,
    pub(crate) claim_state: Arc<ClaimState>,
    /// End of the run time on the local clock, in nanoseconds; 0 means no limit.
    until: AtomicU64,
    /// End of the maximum run time, which heartbeats cannot extend.
    run_limit: BootInstant,
}

impl TaskContext {
    pub(crate) fn new(
        ctx: &Arc<ClientContext>,
        queue: &QueueKey,
        session: &SessionId,
        task: ClaimedTask,
        since: BootInstant,
    ) -> TaskContext {
        let run_limit = task.max_run_ms.map(|most| since + Duration::from_millis(most));
        let claim_state = ClaimState::new();
        ctx.held_claims.attach(session, task.id, task.token, &claim_state);
        let inner = Inner {
            task,
            queue: queue.clone(),
            session: session.clone(),
            ctx: ctx.clone(),
            claim_state,
            until: AtomicU64::new(run_limit.map_or(0, BootInstant::as_nanos)),
            run_limit: run_limit.unwrap_or(BootInstant::from_nanos(u64::MAX)),
        };
        TaskContext { inner: Arc::new(inner) }
    }

    /// Identifier of the task.
    pub fn id(&self) -> TaskId {
        self.inner.task.id
    }

    /// The fencing token of this claim. Pass it with every external write.
    pub fn token(&self) -> Token {
        self.inner.task.token
    }

    /// Number of this attempt, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.task.attempt
    }

    /// Kind of the task.
    pub fn kind(&self) -> &str {
        &self.inner.task.kind
    }

    /// Queue of the task.
    pub fn queue(&self) -> &QueueKey {
        &self.inner.queue
    }

    /// All data of the claimed task.
    pub fn task(&self) -> &ClaimedTask {
        &self.inner.task
    }

    /// Deserializes the payload.
    pub fn payload<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        self.inner.task.payload.parse()
    }

    /// Results of the parents, by task identifier.
    pub fn parent_results(&self) -> &BTreeMap<TaskId, RawJson> {
        &self.inner.task.parent_results
    }

    /// Whether the claim is held *now*, as far as this process knows. Every call compares the clock.
    pub fn is_claimed(&self) -> bool {
        self.inner.lost().is_none()
    }

    /// The session of the claim.
    pub fn session(&self) -> &SessionId {
        &self.inner.session
    }

    /// The instant until which the claim is held if no further heartbeat succeeds; [`BootInstant::ZERO`] once
    /// it is lost. Does not include the run time limit: see [`run_until`](Self::run_until).
    pub fn trusted_until(&self) -> BootInstant {
        // Read the deadline before the state of the claim: read later, it could belong to a later session.
        let until = self.inner.ctx.shared.trust.until();
        match self.inner.lost() {
            None | Some(ClaimLossReason::RunTimeExceeded) => until,
            Some(_) => BootInstant::ZERO,
        }
    }

    /// End of the run time on the local clock. [`heartbeat`](Self::heartbeat) moves it.
    pub fn run_until(&self) -> Option<BootInstant> {
        self.inner.until()
    }

    /// Completes when the claim is lost.
    pub async fn cancelled(&self) -> ClaimLossReason {
        self.inner.stopped().await
    }

    /// Stores a progress text for operators. Fails with [`Error::ClaimLost`] if the claim is lost.
    pub async fn progress(&self, progress: impl fmt::Display) -> Result<(), Error> {
        self.settle(ClaimOutcome::Heartbeat { progress: Some(progress.to_string()), claim_timeout: None })
            .await
    }

    /// Restarts the claim timeout with this duration from now, but never beyond the maximum run time of the task.
    /// Fails with [`Error::ClaimLost`] if the claim is lost.
    pub async fn heartbeat(&self, claim_timeout: Duration) -> Result<(), Error> {
        // Read the clock before sending: the delay of the response must not extend the run beyond the limit of
        // the store.
        let sent = self.inner.ctx.runtime.now();
        self.settle(ClaimOutcome::Heartbeat { progress: None, claim_timeout: Some(claim_timeout) }).await?;
        let until = (sent + claim_timeout).min(self.inner.run_limit);
        self.inner.until.store(until.as_nanos(), Ordering::Release);
        self.inner.claim_state.nudge();
        Ok(())
    }

    /// Submits a child task to the same queue. The child waits until this task completes, and receives its result.
    pub async fn submit_child(&self, task: NewTask) -> Result<SubmitReceipt, Error> {
        self.submit_child_to(&self.inner.queue, task).await
    }

    /// Submits a child task to another queue. See [`submit_child`](Self::submit_child).
    pub async fn submit_child_to(&self, queue: &QueueKey, mut task: NewTask) -> Result<SubmitReceipt, Error> {
        task.parents.push(ParentRef::Task(self.id()));
        let submission = Submission { queue: queue.clone(), tasks: vec![task] };
        work::validate_submission(&submission).map_err(StoreError::from)?;
        match submission.tasks.into_iter().next() {
            Some(task) => Ok(self.inner.ctx.submit_one(queue, task).await?),
            None => Err(Error::Closed),
        }
    }

    async fn settle(&self, outcome: ClaimOutcome) -> Result<(), Error> {
        match self.inner.ctx.settle(self.inner.settlement(outcome)).await? {
            SettleResult::Applied(_) => Ok(()),
            SettleResult::ClaimLost => {
                self.inner.claim_state.stop(ClaimLossReason::Cancelled);
                Err(Error::ClaimLost(self.id()))
            }
        }
    }
}

impl Inner {
    pub(crate) fn settlement(&self, outcome: ClaimOutcome) -> Settlement {
        let namespace = self.queue.namespace.clone();
        Settlement { namespace, task: self.task.id, token: self.task.token, outcome }
    }

    /// Returns why the claim is lost, or `None` if it is held. Reads the state of the claim after the clock, as
    /// `Leadership::is_leader` does.
    pub(crate) fn lost(&self) -> Option<ClaimLossReason> {
        let trusted = self.ctx.shared.trust.until();
        let now = self.ctx.runtime.now();
        // Last: the driver publishes a new session before its deadline. A thread that stalls between these reads
        // must not combine the old session with the deadline of the new one.
        let session = self.ctx.session();
        match self.claim_state.stopped() {
            Some(stop) => Some(stop),
            None if now >= trusted || session.as_ref() != Some(&self.session) => {
                Some(ClaimLossReason::SessionLost)
            }
            None if self.until().is_some_and(|until| now >= until) => Some(ClaimLossReason::RunTimeExceeded),
            None => None,
        }
    }

    fn until(&self) -> Option<BootInstant> {
        let until = self.until.load(Ordering::Acquire);
        (until > 0).then(|| BootInstant::from_nanos(until))
    }

    /// Completes when the claim is lost.
    pub(crate) async fn stopped(&self) -> ClaimLossReason {
        loop {
            let Some(until) = self.until() else {
                tokio::select! {
                    biased;
                    stop = self.claim_state.wait() => return stop,
                    () = self.claim_state.nudged() => continue,
                }
            };
            tokio::select! {
                biased;
                stop = self.claim_state.wait() => return stop,
                () = self.claim_state.nudged() => {}
                () = self.ctx.runtime.sleep_until(until) => {
                    if self.until().is_some_and(|until| self.ctx.runtime.now() >= until) {
                        self.claim_state.stop(ClaimLossReason::RunTimeExceeded);
                    }
                }
            }
        }
    }
}

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskContext")
            .field("id", &self.id())
            .field("token", &self.token())
            .field("kind", &self.kind())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
