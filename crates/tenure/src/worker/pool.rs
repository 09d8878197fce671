//! The tasks that run a worker: fetchers that claim tasks, and one runner per concurrent handler.
//!
//! Claimed tasks wait in a *buffer*. Its size follows from their run time: as many tasks as complete in about
//! [`PREFETCH_WINDOW`], so that short tasks are claimed by the hundred and long ones are not hoarded. A runner
//! checks that the claim is still held before it starts a task. A task that is dropped unsettled returns to its
//! queue ([`BufferedTask`]), so a stopped worker leaves no claims behind.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use tenure_core::SessionId;
use tenure_core::port::{
    CLAIM_MAX, ClaimOutcome, ClaimRefusal, ClaimRequest, ErrorKind, NewWorker, QueueKey, RawJson,
    SettleResult, Settlement, StoreError, TaskId, WorkerProfile,
};
use tenure_core::rules::work::backoff;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::context::TaskContext;
use super::task_error::{TaskError, TaskErrorKind};
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::queue::ClaimLossReason;
use crate::queue::claim_route::RoutedClaim;
use crate::queue::context::ClientContext;
use crate::queue::held_claims::{ClaimState, ClaimedBatch};
use crate::runtime::RuntimeEntropy;
use crate::{callback, metrics};

/// How much work is fetched ahead.
const PREFETCH_WINDOW: Duration = Duration::from_millis(50);

/// Maximum number of claimed tasks, running or buffered, unless the concurrency is higher.
const CLAIMED_MAX: usize = CLAIM_MAX as usize;

/// Batch size from which a second batch is claimed in parallel.
const LARGE_BATCH: usize = 100;

/// Number of concurrent claim requests.
pub(crate) const FETCHERS: usize = 2;

/// How long one claim request waits for tasks.
const LONG_POLL: Duration = Duration::from_secs(30);

/// Maximum number of unconfirmed settlements. Beyond it, no task starts.
const UNACKNOWLEDGED_MAX: usize = 4_000;

/// First and longest delay after a store error.
const ERROR_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(crate) type TaskHandler =
    Arc<dyn Fn(TaskContext) -> BoxFuture<'static, Result<Option<RawJson>, TaskError>> + Send + Sync>;

pub(crate) struct WorkerPool {
    pub(crate) ctx: Arc<ClientContext>,
    pub(crate) queue: QueueKey,
    pub(crate) registration: NewWorker,
    pub(crate) handlers: HashMap<String, TaskHandler>,
    pub(crate) any: Option<TaskHandler>,
    pub(crate) concurrency: usize,
    pub(crate) prefetch: Option<usize>,
    /// Whether the worker is registered and visible to operators.
    pub(crate) listed: bool,
    state: Mutex<State>,
    work: Notify,
    room: Notify,
    draining: watch::Sender<bool>,
    unacknowledged: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    buffer: VecDeque<BufferedTask>,
    running: HashMap<TaskId, Arc<ClaimState>>,
    /// Number of tasks requested by running claims.
    requested: usize,
    /// Moving average of the run time in seconds.
    average_run: Option<f64>,
}

/// A claimed task. If dropped unsettled, it returns to its queue.
struct BufferedTask {
    context: TaskContext,
    settled: bool,
}

impl Drop for BufferedTask {
    fn drop(&mut self) {
        if !self.settled {
            let inner = &self.context.inner;
            inner.ctx.release_task(&inner.queue.namespace, inner.task.id, inner.task.token);
        }
    }
}

/// Counts requested tasks while a claim runs.
struct FetchGuard<'a> {
    pool: &'a WorkerPool,
    limit: usize,
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        self.pool.locked().requested -= self.limit;
        self.pool.room.notify_one();
    }
}

impl WorkerPool {
    pub(crate) fn new(
        ctx: Arc<ClientContext>,
        queue: QueueKey,
        registration: NewWorker,
        handlers: HashMap<String, TaskHandler>,
        any: Option<TaskHandler>,
        concurrency: usize,
        prefetch: Option<usize>,
    ) -> WorkerPool {
        WorkerPool {
            ctx,
            queue,
            registration,
            handlers,
            any,
            concurrency,
            prefetch,
            listed: true,
            state: Mutex::default(),
            work: Notify::new(),
            room: Notify::new(),
            draining: watch::Sender::new(false),
            unacknowledged: Arc::new(Semaphore::new(UNACKNOWLEDGED_MAX)),
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the worker under this session, unless it is unlisted.
    pub(crate) async fn register(&self, session: &SessionId) -> Result<(), StoreError> {
        if !self.listed {
            return Ok(());
        }
        let registration = NewWorker { session: Some(session.clone()), ..self.registration.clone() };
        self.ctx.bounded(self.ctx.store.register_worker(&self.queue.namespace, &registration)).await
    }

    // ---- fetching

    /// Claims tasks until the worker drains.
    pub(crate) async fn fetch(self: Arc<Self>, mut registered: Option<SessionId>) {
        let mut draining = self.draining.subscribe();
        let (mut delay, mut outages) = (ERROR_BACKOFF.0, OutageLog::default());
        loop {
            let round = async {
                let requested = self.wait_for_room().await;
                let session = self.ctx.trusted_session().await;
                if registered.as_ref() != Some(&session) {
                    self.register(&session).await?;
                    registered = Some(session.clone());
                }
                let result = self
                    .ctx
                    .claim(&self.queue, self.claim_request(requested.limit, &session), LONG_POLL)
                    .await?;
                // Keep the guard: the tasks count as requested until they are in the buffer.
                Ok::<_, StoreError>((result, session, requested))
            };
            let fetched = tokio::select! {
                biased;
                _ = draining.wait_for(|draining| *draining) => return,
                fetched = round => fetched,
                () = self.ctx.closed() => return,
            };
            let pause = match fetched {
                Ok((RoutedClaim::Tasks(claimed), session, _requested)) => {
                    self.store(claimed, &session);
                    delay = ERROR_BACKOFF.0;
                    log_recovery!(outages, self.ctx.runtime.now(), queue = %self.queue, "claiming tasks recovered");
                    None
                }
                Ok((result, session, _)) => Some(self.refusal_delay(&result, &session)),
                Err(error) => {
                    let (now, queue, worker) = (self.ctx.runtime.now(), &self.queue, &self.registration.name);
                    log_failure!(outages, now, %queue, worker, "claiming tasks failed: {error}");
                    let pause = delay;
                    delay = (delay * 2).min(ERROR_BACKOFF.1);
                    Some(pause)
                }
            };
            if let Some(pause) = pause {
                tokio::select! {
                    () = self.ctx.pause(pause) => {}
                    _ = draining.wait_for(|draining| *draining) => return,
                    () = self.ctx.closed() => return,
                }
            }
        }
    }

    fn claim_request(&self, limit: usize, session: &SessionId) -> ClaimRequest {
        let limit = u32::try_from(limit).unwrap_or(CLAIM_MAX);
        let NewWorker { name, task_kinds: kinds, tags, .. } = self.registration.clone();
        ClaimRequest {
            worker: WorkerProfile { name, task_kinds: kinds, tags },
            limit,
            session: Some(session.clone()),
            claim_timeout_ms: None,
        }
    }

    /// Delay after a refusal.
    fn refusal_delay(&self, result: &RoutedClaim, session: &SessionId) -> Duration {
        let (queue, worker) = (&self.queue, &self.registration.name);
        match result {
            RoutedClaim::Refused(ClaimRefusal::NotApproved(_)) => {
                tracing::info!(%queue, worker, "worker is not approved; run `tenure workers approve {worker}`");
                ERROR_BACKOFF.1
            }
            RoutedClaim::Refused(ClaimRefusal::SessionEnded(_))
                if self.ctx.session().as_ref() == Some(session) =>
            {
                tracing::debug!(%queue, worker, "claim refused, session ended");
                self.ctx.timing.retry()
            }
            _ => ERROR_BACKOFF.0,
        }
    }

    /// Waits for room in the buffer and returns how many tasks to request. They count as requested until the
    /// guard is dropped.
    async fn wait_for_room(&self) -> FetchGuard<'_> {
        loop {
            let room = self.room.notified();
            if let Some(requested) = self.reserve() {
                return requested;
            }
            room.await;
        }
    }

    fn reserve(&self) -> Option<FetchGuard<'_>> {
        let mut state = self.locked();
        let limit = self.missing(&state);
        state.requested += limit;
        (limit > 0).then(|| FetchGuard { pool: self, limit })
    }

    fn missing(&self, state: &State) -> usize {
        let ahead = self.prefetch.unwrap_or_else(|| ahead(self.concurrency, state.average_run));
        let most = (self.concurrency + ahead).min(CLAIMED_MAX.max(self.concurrency));
        let room = most.saturating_sub(state.buffer.len() + state.running.len() + state.requested);
        // Request whole batches, not single tasks. With large batches use two, so that one is claimed while the
        // other is processed.
        let batch = (ahead / 2).max(1);
        match room {
            _ if room < batch => 0,
            _ if batch >= LARGE_BATCH => room.min(batch),
            _ => room.min(CLAIMED_MAX),
        }
    }

    fn store(self: &Arc<Self>, claimed: ClaimedBatch, session: &SessionId) {
        let since = claimed.since();
        // Wrap each task first, so that it returns to its queue if the rest panics.
        let tasks = claimed.take().into_iter();
        let buffered = tasks.map(|task| BufferedTask {
            context: TaskContext::new(&self.ctx, &self.queue, session, task, since),
            settled: false,
        });
        let buffered: Vec<BufferedTask> = buffered.collect();
        let count = buffered.len();
        let mut state = self.locked();
        state.buffer.extend(buffered);
        drop(state);
        match count {
            0 => {}
            1 => self.work.notify_one(),
            _ => self.work.notify_waiters(),
        }
    }

    // ---- running

    /// Runs tasks one after the other until the worker drains.
    pub(crate) async fn run_tasks(self: Arc<Self>) {
        while let Some(buffered) = self.next().await {
            let permit = self.unacknowledged.clone().acquire_owned().await.ok();
            let began = self.ctx.runtime.now();
            let id = buffered.context.id();
            self.run_task(buffered, permit).await;
            self.done(id, self.ctx.runtime.now().since(began));
        }
    }

    async fn next(&self) -> Option<BufferedTask> {
        loop {
            let work = self.work.notified();
            tokio::pin!(work);
            work.as_mut().enable();
            if *self.draining.borrow() {
                return None;
            }
            if let Some(buffered) = self.take() {
                return Some(buffered);
            }
            work.await;
        }
    }

    fn take(&self) -> Option<BufferedTask> {
        let mut state = self.locked();
        let buffered = state.buffer.pop_front()?;
        state.running.insert(buffered.context.id(), buffered.context.inner.claim_state.clone());
        let (missing, more) = (self.missing(&state) > 0, !state.buffer.is_empty());
        drop(state);
        if missing {
            self.room.notify_one();
        }
        if more {
            // A runner that was woken for one task wakes the next runner.
            self.work.notify_one();
        }
        Some(buffered)
    }

    fn done(&self, id: TaskId, took: Duration) {
        metrics::task_ran(&self.queue, took);
        let mut state = self.locked();
        state.running.remove(&id);
        let took = took.as_secs_f64();
        state.average_run =
            Some(state.average_run.map_or(took, |average_run| average_run * 0.9 + took * 0.1));
        let missing = self.missing(&state) > 0;
        drop(state);
        if missing {
            self.room.notify_one();
        }
    }

    async fn run_task(self: &Arc<Self>, mut buffered: BufferedTask, permit: Option<OwnedSemaphorePermit>) {
        let inner = buffered.context.inner.clone();
        if let Some(stop) = inner.lost() {
            tracing::debug!(task = %inner.task.id, "task not started: {}", stop.as_str());
            return;
        }
        let result = {
            let context = buffered.context.clone();
            let handled = AssertUnwindSafe(self.handle(context)).catch_unwind();
            tokio::select! {
                biased;
                stop = inner.stopped() => Err(stop),
                result = handled => Ok(result.unwrap_or_else(|panic| {
                    callback::report("task handler", &*panic);
                    Err(TaskError::fail(callback::panic_message(&*panic)))
                })),
            }
        };
        let outcome = match result {
            Ok(Ok(output)) => ClaimOutcome::Complete(output),
            Ok(Err(error)) => self.failure(&inner.task, error),
            Err(ClaimLossReason::RunTimeExceeded) => {
                self.failure(&inner.task, TaskError::fail("run time exceeded"))
            }
            // The task was started and may have caused the loss: the attempt counts, as when maintenance finds
            // the session dead.
            Err(stop @ ClaimLossReason::SessionLost) => self.failure(
                &inner.task,
                TaskError::retry_in(
                    Duration::ZERO,
                    format!("claim lost: {} while the task ran", stop.as_str()),
                ),
            ),
            Err(stop) => {
                // Dropping `buffered` releases the task if the claim is still held. A release under a lost token
                // changes nothing.
                tracing::info!(task = %inner.task.id, queue = %self.queue, "handler stopped: {}", stop.as_str());
                return;
            }
        };
        buffered.settled = true;
        self.acknowledge(inner.settlement(outcome), permit);
    }

    async fn handle(&self, context: TaskContext) -> Result<Option<RawJson>, TaskError> {
        let kind = context.kind();
        let only = || if self.handlers.len() == 1 { self.handlers.values().next() } else { None };
        let handler = self.handlers.get(kind).or(self.any.as_ref());
        match handler.or_else(|| if kind.is_empty() { only() } else { None }) {
            Some(handler) => handler(context).await,
            None => Err(TaskError::fail(format!(
                "worker {} has no handler for tasks of kind `{kind}`; set one with `.handler(…)`",
                self.registration.name
            ))),
        }
    }

    fn failure(&self, task: &tenure_core::port::ClaimedTask, error: TaskError) -> ClaimOutcome {
        let TaskError { kind, message } = error;
        let after = || backoff(task.backoff, task.attempt, &mut RuntimeEntropy(self.ctx.runtime.as_ref()));
        let (retry, after) = match kind {
            TaskErrorKind::Release => return ClaimOutcome::Release,
            TaskErrorKind::Retry => (true, after()),
            TaskErrorKind::RetryIn(after) => (true, after),
            TaskErrorKind::Permanent => (false, Duration::ZERO),
        };
        tracing::info!(task = %task.id, attempt = task.attempt, queue = %self.queue, "task failed: {message}");
        ClaimOutcome::Fail { error: message, retry, retry_in: after }
    }

    /// Sends a settlement without waiting for the response. The number of unconfirmed settlements is limited.
    fn acknowledge(self: &Arc<Self>, settlement: Settlement, permit: Option<OwnedSemaphorePermit>) {
        let (pool, retry) = (self.clone(), settlement.clone());
        let reply = Box::new(move |result| match result {
            Ok(settled) => pool.acknowledged(&retry, settled, permit),
            Err(error) => {
                tracing::warn!(task = %retry.task, "settlement not confirmed, retrying: {error}");
                let handle = pool.ctx.handle.clone();
                handle.spawn(pool.retry_settlement(retry, permit));
            }
        });
        self.ctx.settler.enqueue(settlement, reply);
    }

    /// Repeats a settlement until the store confirms it or the claim is lost. Settling twice under one token
    /// has the effect of once.
    async fn retry_settlement(
        self: Arc<Self>,
        mut settlement: Settlement,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let (mut wait, mut rejected) = (ERROR_BACKOFF.0, false);
        loop {
            tokio::select! {
                () = self.ctx.pause(wait) => {}
                () = self.ctx.closed() => return,
            }
            match self.ctx.settler.call(settlement.clone()).await {
                Ok(settled) => return self.acknowledged(&settlement, settled, permit),
                Err(error) if error.kind == ErrorKind::Request && rejected => {
                    tracing::error!(task = %settlement.task, "settlement rejected again, releasing the task: {error}");
                    return self.ctx.release_task(&settlement.namespace, settlement.task, settlement.token);
                }
                Err(error) if error.kind == ErrorKind::Request => {
                    // A retry of the task would fail the same way.
                    tracing::error!(task = %settlement.task, "settlement rejected: {error}");
                    let error = format!("the store rejected the settlement: {error}");
                    settlement.outcome = ClaimOutcome::Fail { error, retry: false, retry_in: Duration::ZERO };
                    rejected = true;
                }
                Err(error) => tracing::debug!(task = %settlement.task, "settlement not confirmed: {error}"),
            }
            wait = (wait * 2).min(ERROR_BACKOFF.1);
        }
    }

    fn acknowledged(
        &self,
        settlement: &Settlement,
        settled: SettleResult,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        metrics::task_settled(
            &settlement.namespace,
            metrics::settlement_outcome(&settlement.outcome),
            settled,
        );
        self.ctx.held_claims.remove(settlement.task, settlement.token);
        if settled == SettleResult::ClaimLost {
            tracing::info!(task = %settlement.task, token = %settlement.token, "claim lost, settlement ignored");
        }
        drop(permit);
    }

    // ---- stopping

    /// Stops claiming, and releases the buffered tasks.
    pub(crate) fn begin_drain(&self) {
        self.draining.send_replace(true);
        let buffer = std::mem::take(&mut self.locked().buffer);
        drop(buffer);
        self.work.notify_waiters();
    }

    /// Stops the running handlers. Returns their number.
    pub(crate) fn abort_running(&self) -> usize {
        let running: Vec<_> = self.locked().running.values().cloned().collect();
        running.iter().for_each(|claim_state| claim_state.stop(ClaimLossReason::WorkerStopped));
        running.len()
    }

    /// Waits until the store has confirmed all settlements.
    pub(crate) async fn all_acknowledged(&self) {
        let all = u32::try_from(UNACKNOWLEDGED_MAX).unwrap_or(u32::MAX);
        let _ = self.unacknowledged.acquire_many(all).await;
        self.ctx.settler.wait_idle().await;
    }
}

/// Number of tasks to fetch beyond the running ones.
fn ahead(concurrency: usize, average_run: Option<f64>) -> usize {
    let Some(average_run) = average_run else { return 0 };
    let done = PREFETCH_WINDOW.as_secs_f64() * concurrency as f64 / average_run.max(1e-6);
    (done as usize).min(CLAIMED_MAX)
}

/// Monitors the claims of all workers of this process: whether their session is trusted, and whether the store
/// cancelled them.
pub(crate) async fn monitor_claims(ctx: Arc<ClientContext>) {
    tokio::join!(watch_trust(ctx.clone()), crate::queue::reconcile::watch_cancelled(ctx));
}

/// Tells handlers when their session is lost or no longer trusted.
async fn watch_trust(ctx: Arc<ClientContext>) {
    let mut sessions = ctx.shared.session.subscribe();
    loop {
        let session = sessions.borrow_and_update().clone();
        let until = ctx.shared.trust.until();
        let trusted = ctx.runtime.now() < until;
        let lost = ctx.held_claims.lose_all_but(session.as_ref(), trusted);
        if lost > 0 {
            tracing::warn!(tasks = lost, "claims lost, session lost or no longer trusted");
        }
        let next = if trusted { until } else { ctx.runtime.now() + ctx.timing.retry() };
        tokio::select! {
            changed = sessions.changed() => if changed.is_err() { return },
            () = ctx.runtime.sleep_until(next) => {}
            () = ctx.closed() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tasks_are_fetched_by_the_hundred_and_long_ones_are_not_hoarded() {
        assert_eq!(ahead(32, None), 0);
        assert_eq!(ahead(32, Some(0.000_001)), 1000);
        assert_eq!(ahead(32, Some(0.01)), 160);
        assert_eq!(ahead(32, Some(60.0)), 0);
        assert_eq!(ahead(1, Some(0.2)), 0);
    }
}
