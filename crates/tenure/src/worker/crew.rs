//! What runs a worker: one task that fetches, and as many that work as it may do at once.
//!
//! Claimed tasks wait in a *buffer*. How many is a matter of how long they run: as many as are done in about [`AHEAD`], so that
//! tasks that take no time are claimed by the hundreds, and none is hoarded that takes long. Whoever takes a task out of the
//! buffer checks first that the claim is still ours. What is dropped without a word about it goes back to the queue
//! ([`Held`]): so a worker that is stopped, however, leaves nothing behind.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use tenure_core::SessionId;
use tenure_core::claim::backoff;
use tenure_core::port::{
    CLAIM_MAX, ClaimRefusal, Json, NewWorker, Outcome, Profile, QueueKey, Seat, Settled, Settlement,
    StoreError, TaskId, Trouble,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::report::{Kind, TaskError};
use super::task::TaskContext;
use crate::claims::Stop;
use crate::claims::holdings::{Cell, Handed};
use crate::claims::hub::Hub;
use crate::claims::route::Got;
use crate::metrics;
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::runtime::Draw;

/// How much work is fetched ahead.
const AHEAD: Duration = Duration::from_millis(50);

/// The most tasks that are claimed at once, running or not, unless more run.
const MOST: usize = CLAIM_MAX as usize;

/// From how many on a batch is worth claiming while another is.
const LARGE: usize = 100;

/// How many batches are asked for at once.
pub(crate) const FETCHERS: usize = 2;

/// How long one claim waits for work.
const LONG_POLL: Duration = Duration::from_secs(30);

/// The most words about tasks that the store has not acknowledged, beyond which no task is begun.
const UNACKNOWLEDGED_MAX: usize = 4_000;

/// How long to wait after the first trouble with the store, and at most.
const TROUBLE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(crate) type Handler =
    Arc<dyn Fn(TaskContext) -> BoxFuture<'static, Result<Option<Json>, TaskError>> + Send + Sync>;

pub(crate) struct Crew {
    pub(crate) hub: Arc<Hub>,
    pub(crate) queue: QueueKey,
    pub(crate) card: NewWorker,
    pub(crate) handlers: HashMap<String, Handler>,
    pub(crate) any: Option<Handler>,
    pub(crate) concurrency: usize,
    pub(crate) prefetch: Option<usize>,
    /// Whether it is among the workers that people see.
    pub(crate) listed: bool,
    state: Mutex<State>,
    work: Notify,
    room: Notify,
    draining: watch::Sender<bool>,
    unacknowledged: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    buffer: VecDeque<Held>,
    running: HashMap<TaskId, Arc<Cell>>,
    /// How many are asked for.
    coming: usize,
    /// How long a task takes, of late, in seconds.
    takes: Option<f64>,
}

/// A claimed task. Dropped without a word about it, it goes back.
struct Held {
    context: TaskContext,
    settled: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.settled {
            let inner = &self.context.inner;
            inner.hub.give_back(&inner.queue.namespace, inner.task.id, inner.task.token);
        }
    }
}

/// Tasks that are asked for.
struct Coming<'a> {
    crew: &'a Crew,
    limit: usize,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.crew.locked().coming -= self.limit;
        self.crew.room.notify_one();
    }
}

impl Crew {
    pub(crate) fn new(
        hub: Arc<Hub>,
        queue: QueueKey,
        card: NewWorker,
        handlers: HashMap<String, Handler>,
        any: Option<Handler>,
        concurrency: usize,
        prefetch: Option<usize>,
    ) -> Crew {
        Crew {
            hub,
            queue,
            card,
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

    /// Makes the worker known under this session, if it is to be.
    pub(crate) async fn register(&self, session: &SessionId) -> Result<(), StoreError> {
        if !self.listed {
            return Ok(());
        }
        let card = NewWorker { session: Some(session.clone()), ..self.card.clone() };
        self.hub.bounded(self.hub.store.register(&self.queue.namespace, &card)).await
    }

    // ---- fetching

    /// Fetches until the worker drains.
    pub(crate) async fn fetch(self: Arc<Self>, mut registered: Option<SessionId>) {
        let mut draining = self.draining.subscribe();
        let (mut trouble, mut outages) = (TROUBLE.0, OutageLog::default());
        loop {
            let round = async {
                let coming = self.wanted().await;
                let session = self.hub.trusted_session().await;
                if registered.as_ref() != Some(&session) {
                    self.register(&session).await?;
                    registered = Some(session.clone());
                }
                let got = self.hub.claim(&self.queue, self.seat(coming.limit, &session), LONG_POLL).await?;
                // Counted as coming until they are counted as there.
                Ok::<_, StoreError>((got, session, coming))
            };
            let fetched = tokio::select! {
                biased;
                _ = draining.wait_for(|draining| *draining) => return,
                fetched = round => fetched,
                () = self.hub.closed() => return,
            };
            let pause = match fetched {
                Ok((Got::Tasks(handed), session, _coming)) => {
                    self.store(handed, &session);
                    trouble = TROUBLE.0;
                    log_recovery!(outages, self.hub.runtime.now(), queue = %self.queue, "claiming tasks works again");
                    None
                }
                Ok((got, session, _)) => Some(self.refused(&got, &session)),
                Err(error) => {
                    let (now, queue, worker) = (self.hub.runtime.now(), &self.queue, &self.card.name);
                    log_failure!(outages, now, %queue, worker, "claiming tasks failed: {error}");
                    let pause = trouble;
                    trouble = (trouble * 2).min(TROUBLE.1);
                    Some(pause)
                }
            };
            if let Some(pause) = pause {
                tokio::select! {
                    () = self.hub.pause(pause) => {}
                    _ = draining.wait_for(|draining| *draining) => return,
                    () = self.hub.closed() => return,
                }
            }
        }
    }

    fn seat(&self, limit: usize, session: &SessionId) -> Seat {
        let limit = u32::try_from(limit).unwrap_or(CLAIM_MAX);
        let NewWorker { name, kinds, tags, .. } = self.card.clone();
        Seat { worker: Profile { name, kinds, tags }, limit, session: Some(session.clone()), hold_ms: None }
    }

    /// How long to wait after a refusal.
    fn refused(&self, got: &Got, session: &SessionId) -> Duration {
        let (queue, worker) = (&self.queue, &self.card.name);
        match got {
            Got::Refused(ClaimRefusal::NotApproved(_)) => {
                tracing::info!(%queue, worker, "waits for approval: `tenure workers approve {worker}`");
                TROUBLE.1
            }
            Got::Refused(ClaimRefusal::Gone(_)) if self.hub.session().as_ref() == Some(session) => {
                tracing::debug!(%queue, worker, "the session is gone, and we have not heard of it yet");
                self.hub.timing.retry()
            }
            _ => TROUBLE.0,
        }
    }

    /// As many as there is room for, when there is. They count as coming until dropped.
    async fn wanted(&self) -> Coming<'_> {
        loop {
            let room = self.room.notified();
            if let Some(coming) = self.ask_for() {
                return coming;
            }
            room.await;
        }
    }

    fn ask_for(&self) -> Option<Coming<'_>> {
        let mut state = self.locked();
        let limit = self.wants(&state);
        state.coming += limit;
        (limit > 0).then(|| Coming { crew: self, limit })
    }

    fn wants(&self, state: &State) -> usize {
        let ahead = self.prefetch.unwrap_or_else(|| ahead(self.concurrency, state.takes));
        let most = (self.concurrency + ahead).min(MOST.max(self.concurrency));
        let room = most.saturating_sub(state.buffer.len() + state.running.len() + state.coming);
        // By the batch, not by the task; and if batches are large, two, so that one is claimed while the other is done.
        let batch = (ahead / 2).max(1);
        match room {
            _ if room < batch => 0,
            _ if batch >= LARGE => room.min(batch),
            _ => room.min(MOST),
        }
    }

    fn store(self: &Arc<Self>, handed: Handed, session: &SessionId) {
        let since = handed.since();
        // Each is one that goes back by itself before the next is looked at.
        let tasks = handed.take().into_iter();
        let held = tasks.map(|task| Held {
            context: TaskContext::new(&self.hub, &self.queue, session, task, since),
            settled: false,
        });
        let held: Vec<Held> = held.collect();
        let count = held.len();
        let mut state = self.locked();
        state.buffer.extend(held);
        drop(state);
        match count {
            0 => {}
            1 => self.work.notify_one(),
            _ => self.work.notify_waiters(),
        }
    }

    // ---- working

    /// Takes one after the other until the worker drains.
    pub(crate) async fn toil(self: Arc<Self>) {
        while let Some(held) = self.next().await {
            let permit = self.unacknowledged.clone().acquire_owned().await.ok();
            let began = self.hub.runtime.now();
            let id = held.context.id();
            self.work_on(held, permit).await;
            self.done(id, self.hub.runtime.now().since(began));
        }
    }

    async fn next(&self) -> Option<Held> {
        loop {
            let work = self.work.notified();
            tokio::pin!(work);
            work.as_mut().enable();
            if *self.draining.borrow() {
                return None;
            }
            if let Some(held) = self.take() {
                return Some(held);
            }
            work.await;
        }
    }

    fn take(&self) -> Option<Held> {
        let mut state = self.locked();
        let held = state.buffer.pop_front()?;
        state.running.insert(held.context.id(), held.context.inner.cell.clone());
        let (wants, more) = (self.wants(&state) > 0, !state.buffer.is_empty());
        drop(state);
        if wants {
            self.room.notify_one();
        }
        if more {
            // Who was woken for one passes it on.
            self.work.notify_one();
        }
        Some(held)
    }

    fn done(&self, id: TaskId, took: Duration) {
        metrics::ran(&self.queue, took);
        let mut state = self.locked();
        state.running.remove(&id);
        let took = took.as_secs_f64();
        state.takes = Some(state.takes.map_or(took, |takes| takes * 0.9 + took * 0.1));
        let wants = self.wants(&state) > 0;
        drop(state);
        if wants {
            self.room.notify_one();
        }
    }

    async fn work_on(self: &Arc<Self>, mut held: Held, permit: Option<OwnedSemaphorePermit>) {
        let inner = held.context.inner.clone();
        if let Some(stop) = inner.lost() {
            tracing::debug!(task = %inner.task.id, "not begun: {}", stop.as_str());
            return;
        }
        let result = {
            let context = held.context.clone();
            let handled = AssertUnwindSafe(self.handle(context)).catch_unwind();
            tokio::select! {
                biased;
                stop = inner.stopped() => Err(stop),
                result = handled => Ok(result.unwrap_or_else(|panic| Err(TaskError::fail(message_of(&*panic))))),
            }
        };
        let outcome = match result {
            Ok(Ok(output)) => Outcome::Complete(output),
            Ok(Err(error)) => self.failure(&inner.task, error),
            Err(Stop::RunOver) => self.failure(&inner.task, TaskError::fail("its run time is over")),
            // It was begun, and may be why: the attempt counts, as it does when the session is found dead.
            Err(stop @ Stop::SessionLost) => self.failure(
                &inner.task,
                TaskError::retry_after(Duration::ZERO, format!("lost: {} while it ran", stop.as_str())),
            ),
            Err(stop) => {
                // If the claim is ours after all, it goes back: a word under a lost token changes nothing.
                tracing::info!(task = %inner.task.id, queue = %self.queue, "handler stopped: {}", stop.as_str());
                return;
            }
        };
        held.settled = true;
        self.acknowledge(inner.settlement(outcome), permit);
    }

    async fn handle(&self, context: TaskContext) -> Result<Option<Json>, TaskError> {
        let kind = context.kind();
        let only = || if self.handlers.len() == 1 { self.handlers.values().next() } else { None };
        let handler = self.handlers.get(kind).or(self.any.as_ref());
        match handler.or_else(|| if kind.is_empty() { only() } else { None }) {
            Some(handler) => handler(context).await,
            None => Err(TaskError::fail(format!(
                "worker {} has no handler for tasks of kind `{kind}`; give it one with `.handler(…)`",
                self.card.name
            ))),
        }
    }

    fn failure(&self, task: &tenure_core::port::ClaimedTask, error: TaskError) -> Outcome {
        let TaskError { kind, message } = error;
        let after = || backoff(task.backoff, task.attempt, &mut Draw(self.hub.runtime.as_ref()));
        let (retry, after) = match kind {
            Kind::Release => return Outcome::Release,
            Kind::Retry => (true, after()),
            Kind::RetryAfter(after) => (true, after),
            Kind::ForGood => (false, Duration::ZERO),
        };
        tracing::info!(task = %task.id, attempt = task.attempt, queue = %self.queue, "task failed: {message}");
        Outcome::Fail { error: message, retry, after }
    }

    /// Says it. Nobody waits for the answer, but not too many are outstanding.
    fn acknowledge(self: &Arc<Self>, settlement: Settlement, permit: Option<OwnedSemaphorePermit>) {
        let (crew, again) = (self.clone(), settlement.clone());
        let reply = Box::new(move |result| match result {
            Ok(settled) => crew.acknowledged(&again, settled, permit),
            Err(error) => {
                tracing::warn!(task = %again.task, "not acknowledged, saying it again: {error}");
                let handle = crew.hub.handle.clone();
                handle.spawn(crew.insist(again, permit));
            }
        });
        self.hub.settler.say(settlement, reply);
    }

    /// Says it again until the store has heard it, or the claim is lost. To complete twice under one token is to complete once.
    async fn insist(self: Arc<Self>, mut settlement: Settlement, permit: Option<OwnedSemaphorePermit>) {
        let (mut wait, mut refused) = (TROUBLE.0, false);
        loop {
            tokio::select! {
                () = self.hub.pause(wait) => {}
                () = self.hub.closed() => return,
            }
            match self.hub.settler.call(settlement.clone()).await {
                Ok(settled) => return self.acknowledged(&settlement, settled, permit),
                Err(error) if error.kind == Trouble::Request && refused => {
                    tracing::error!(task = %settlement.task, "the store refuses this too: {error}");
                    return self.hub.give_back(&settlement.namespace, settlement.task, settlement.token);
                }
                Err(error) if error.kind == Trouble::Request => {
                    // Another attempt would say the same.
                    tracing::error!(task = %settlement.task, "the store refuses what was said: {error}");
                    let error = format!("the store refuses what the handler said: {error}");
                    settlement.outcome = Outcome::Fail { error, retry: false, after: Duration::ZERO };
                    refused = true;
                }
                Err(error) => tracing::debug!(task = %settlement.task, "not acknowledged: {error}"),
            }
            wait = (wait * 2).min(TROUBLE.1);
        }
    }

    fn acknowledged(&self, settlement: &Settlement, settled: Settled, permit: Option<OwnedSemaphorePermit>) {
        metrics::settled(&settlement.namespace, metrics::outcome(&settlement.outcome), settled);
        self.hub.holdings.remove(settlement.task, settlement.token);
        if settled == Settled::Lost {
            tracing::info!(task = %settlement.task, token = %settlement.token, "claim lost: what was said does not count");
        }
        drop(permit);
    }

    // ---- stopping

    /// No more tasks: what is not begun goes back, at once.
    pub(crate) fn begin_drain(&self) {
        self.draining.send_replace(true);
        let buffer = std::mem::take(&mut self.locked().buffer);
        drop(buffer);
        self.work.notify_waiters();
    }

    /// Those who still work are to stop now. How many there are.
    pub(crate) fn cut_short(&self) -> usize {
        let running: Vec<_> = self.locked().running.values().cloned().collect();
        running.iter().for_each(|cell| cell.stop(Stop::Stopped));
        running.len()
    }

    /// Waits until the store has acknowledged everything.
    pub(crate) async fn all_acknowledged(&self) {
        let all = u32::try_from(UNACKNOWLEDGED_MAX).unwrap_or(u32::MAX);
        let _ = self.unacknowledged.acquire_many(all).await;
        self.hub.settler.rest().await;
    }
}

/// How many to fetch beyond those that are worked on.
fn ahead(concurrency: usize, takes: Option<f64>) -> usize {
    let Some(takes) = takes else { return 0 };
    let done = AHEAD.as_secs_f64() * concurrency as f64 / takes.max(1e-6);
    (done as usize).min(MOST)
}

/// What a panic says.
fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.as_deref().unwrap_or("no message"))
}

/// Looks after the claims of all workers of a process: whether their session is trusted, and whether they were called off.
pub(crate) async fn attend(hub: Arc<Hub>) {
    tokio::join!(watch_trust(hub.clone()), crate::claims::reconcile::recall(hub));
}

/// Tells the workers when their session is lost, or not trusted any more.
async fn watch_trust(hub: Arc<Hub>) {
    let mut sessions = hub.shared.session.subscribe();
    loop {
        let session = sessions.borrow_and_update().clone();
        let until = hub.shared.trust.until();
        let trusted = hub.runtime.now() < until;
        let lost = hub.holdings.lose_all_but(session.as_ref(), trusted);
        if lost > 0 {
            tracing::warn!(tasks = lost, "claims lost: the session is lost, or not trusted any more");
        }
        let next = if trusted { until } else { hub.runtime.now() + hub.timing.retry() };
        tokio::select! {
            changed = sessions.changed() => if changed.is_err() { return },
            () = hub.runtime.sleep_until(next) => {}
            () = hub.closed() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tasks_are_fetched_by_the_hundreds_and_long_ones_are_not_hoarded() {
        assert_eq!(ahead(32, None), 0);
        assert_eq!(ahead(32, Some(0.000_001)), 1000);
        assert_eq!(ahead(32, Some(0.01)), 160);
        assert_eq!(ahead(32, Some(60.0)), 0);
        assert_eq!(ahead(1, Some(0.2)), 0);
    }
}
