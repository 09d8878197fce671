//! The claims that this process holds, as far as it knows.
//!
//! The store is the authority, and its state can differ in two ways. First, a claim may have been cancelled
//! there (by an operator or a deadline); then the running handler must be told. Second, the response to a claim
//! may have been lost; then the store has a claim on this session that no handler works on, and it must be
//! released. Both are found by comparing with the claims that the store reports for the session
//! ([`TaskStore::held_claims`](tenure_core::port::TaskStore::held_claims)).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::port::{ClaimOutcome, ClaimedTask, Settlement, TaskId};
use tenure_core::{BootInstant, Name, SessionId, Token};
use tokio::sync::Notify;

use super::context::ClientContext;

/// Why a claim is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClaimLossReason {
    /// The session of the claim has ended or is no longer trusted.
    SessionLost,
    /// The claim was cancelled by an operator, or recovered after a deadline.
    Cancelled,
    /// The maximum run time of the task is over.
    RunTimeExceeded,
    /// The worker was stopped and its grace is over.
    WorkerStopped,
}

impl ClaimLossReason {
    /// Text form for log lines and errors.
    pub fn as_str(self) -> &'static str {
        match self {
            ClaimLossReason::SessionLost => "session lost",
            ClaimLossReason::Cancelled => "claim cancelled",
            ClaimLossReason::RunTimeExceeded => "run time exceeded",
            ClaimLossReason::WorkerStopped => "worker stopped",
        }
    }

    fn code(self) -> u8 {
        match self {
            ClaimLossReason::SessionLost => 1,
            ClaimLossReason::Cancelled => 2,
            ClaimLossReason::RunTimeExceeded => 3,
            ClaimLossReason::WorkerStopped => 4,
        }
    }

    fn from_code(code: u8) -> Option<ClaimLossReason> {
        [
            ClaimLossReason::SessionLost,
            ClaimLossReason::Cancelled,
            ClaimLossReason::RunTimeExceeded,
            ClaimLossReason::WorkerStopped,
        ]
        .into_iter()
        .find(|stop| stop.code() == code)
    }
}

/// State of a claim that a handler works on: held, or lost with a reason.
#[derive(Debug)]
pub(crate) struct ClaimState {
    stopped: AtomicU8,
    changed: Notify,
    nudged: Notify,
}

impl ClaimState {
    pub(crate) fn new() -> Arc<ClaimState> {
        Arc::new(ClaimState { stopped: AtomicU8::new(0), changed: Notify::new(), nudged: Notify::new() })
    }

    /// Marks the claim as lost. The first reason wins.
    pub(crate) fn stop(&self, why: ClaimLossReason) {
        let _ = self.stopped.compare_exchange(0, why.code(), Ordering::AcqRel, Ordering::Acquire);
        self.changed.notify_waiters();
    }

    /// Signals that the deadline of the claim changed.
    pub(crate) fn nudge(&self) {
        self.nudged.notify_waiters();
    }

    pub(crate) async fn nudged(&self) {
        self.nudged.notified().await;
    }

    pub(crate) fn stopped(&self) -> Option<ClaimLossReason> {
        ClaimLossReason::from_code(self.stopped.load(Ordering::Acquire))
    }

    /// Completes when the claim is lost.
    pub(crate) async fn wait(&self) -> ClaimLossReason {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(stop) = self.stopped() {
                return stop;
            }
            changed.await;
        }
    }
}

/// One claim held by this process.
struct HeldClaim {
    token: Token,
    session: SessionId,
    /// Set if a handler must be told of the loss.
    state: Option<Arc<ClaimState>>,
}

/// The claims held on the session of this process.
#[derive(Default)]
pub(crate) struct HeldClaims {
    map: Mutex<HashMap<TaskId, HeldClaim>>,
    /// Claims that were released because no caller knew of them. If their response arrives late, they are
    /// dropped.
    rejected: Mutex<HashSet<(TaskId, Token)>>,
}

/// Maximum number of rejected claims to remember. Far more than can be in transit.
const REJECTED_MAX: usize = 100_000;

impl HeldClaims {
    fn locked(&self) -> MutexGuard<'_, HashMap<TaskId, HeldClaim>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds claimed tasks. Removes those from the batch that were released before they arrived.
    pub(crate) fn add(&self, session: &SessionId, batch: &mut ClaimedBatch) {
        let mut map = self.locked();
        let rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        batch.tasks.retain(|task| !rejected.contains(&(task.id, task.token)));
        for task in &batch.tasks {
            let claim = HeldClaim { token: task.token, session: session.clone(), state: None };
            map.insert(task.id, claim);
        }
    }

    /// Rejects this claim if it arrives late. Returns `false` if the claim is already known.
    pub(crate) fn reject_late(&self, task: TaskId, token: Token) -> bool {
        let map = self.locked();
        let unknown = map.get(&task).is_none_or(|claim| claim.token != token);
        if unknown {
            let mut rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
            if rejected.len() >= REJECTED_MAX {
                rejected.clear();
            }
            rejected.insert((task, token));
        }
        unknown
    }

    /// Registers the state that a handler observes.
    pub(crate) fn attach(&self, session: &SessionId, task: TaskId, token: Token, state: &Arc<ClaimState>) {
        let claim = HeldClaim { token, session: session.clone(), state: Some(state.clone()) };
        self.locked().insert(task, claim);
    }

    pub(crate) fn remove(&self, task: TaskId, token: Token) {
        let mut map = self.locked();
        if map.get(&task).is_some_and(|claim| claim.token == token) {
            map.remove(&task);
        }
    }

    pub(crate) fn knows(&self, task: TaskId, token: Token) -> bool {
        self.locked().get(&task).is_some_and(|claim| claim.token == token)
    }

    /// Claims of this session that handlers work on.
    pub(crate) fn with_handler(&self, session: &SessionId) -> Vec<(TaskId, Token)> {
        let map = self.locked();
        let ours = map.iter().filter(|(_, claim)| claim.state.is_some() && claim.session == *session);
        ours.map(|(task, claim)| (*task, claim.token)).collect()
    }

    /// Marks a claim as lost and tells its handler.
    pub(crate) fn lose(&self, task: TaskId, token: Token, why: ClaimLossReason) {
        let mut map = self.locked();
        if let Some(claim) = map.get(&task).filter(|claim| claim.token == token) {
            claim.state.iter().for_each(|state| state.stop(why));
            map.remove(&task);
        }
    }

    /// Marks every claim on another session as lost, and, unless `trusted`, every claim of a handler on this
    /// session. Returns the number of handlers told.
    ///
    /// A claim without a handler is kept as long as its session may recover: its caller works on it.
    pub(crate) fn lose_all_but(&self, session: Option<&SessionId>, trusted: bool) -> usize {
        let mut count = 0;
        self.locked().retain(|_, claim| {
            let ours = Some(&claim.session) == session;
            match &claim.state {
                Some(state) if !ours || !trusted => {
                    state.stop(ClaimLossReason::SessionLost);
                    count += 1;
                    false
                }
                _ => ours,
            }
        });
        count
    }
}

/// Claimed tasks on their way to the caller. If dropped, they return to their queue at once, because their
/// session stays alive.
pub(crate) struct ClaimedBatch {
    ctx: Weak<ClientContext>,
    namespace: Name,
    tasks: Vec<ClaimedTask>,
    /// Lower bound of the claim time, on the local clock.
    since: BootInstant,
}

impl ClaimedBatch {
    pub(crate) fn new(
        ctx: &Arc<ClientContext>,
        namespace: &Name,
        tasks: Vec<ClaimedTask>,
        since: BootInstant,
    ) -> ClaimedBatch {
        ClaimedBatch { ctx: Arc::downgrade(ctx), namespace: namespace.clone(), tasks, since }
    }

    pub(crate) fn since(&self) -> BootInstant {
        self.since
    }

    pub(crate) fn tasks(&self) -> &[ClaimedTask] {
        &self.tasks
    }

    pub(crate) fn namespace(&self) -> &Name {
        &self.namespace
    }

    /// Appends the tasks of another batch of the same queue.
    pub(crate) fn and(mut self, mut other: ClaimedBatch) -> ClaimedBatch {
        self.tasks.append(&mut other.tasks);
        self
    }

    /// Takes the tasks; the caller is responsible for them from now on.
    pub(crate) fn take(mut self) -> Vec<ClaimedTask> {
        std::mem::take(&mut self.tasks)
    }
}

impl Drop for ClaimedBatch {
    fn drop(&mut self) {
        let Some(ctx) = self.ctx.upgrade().filter(|_| !self.tasks.is_empty()) else { return };
        tracing::debug!(tasks = self.tasks.len(), "releasing claimed tasks, their caller is gone");
        for task in self.tasks.drain(..) {
            ctx.release_task(&self.namespace, task.id, task.token);
        }
    }
}

/// The settlement that returns a task to its queue.
pub(crate) fn release(namespace: &Name, task: TaskId, token: Token) -> Settlement {
    Settlement { namespace: namespace.clone(), task, token, outcome: ClaimOutcome::Release }
}
