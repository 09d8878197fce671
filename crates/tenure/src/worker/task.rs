//! A task, as its handler has it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tenure_core::port::{
    ClaimedTask, Json, NewTask, Outcome, Parent, QueueKey, Settled, Settlement, StoreError, Submission,
    Submitted, TaskId,
};
use tenure_core::{Moment, SessionId, Token, claim};

use crate::Error;
use crate::claims::Stop;
use crate::claims::holdings::Cell;
use crate::claims::hub::Hub;

/// A claimed task, given to its handler. Clones are the same task.
///
/// When the claim is lost, the handler's future is dropped; what the handler has started elsewhere (threads, spawned tasks)
/// takes a clone along and heeds [`cancelled`](Self::cancelled).
#[derive(Clone)]
pub struct TaskContext {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) task: ClaimedTask,
    pub(crate) queue: QueueKey,
    pub(crate) session: SessionId,
    pub(crate) hub: Arc<Hub>,
    pub(crate) cell: Arc<Cell>,
    /// When its run is over on our own clock, in nanoseconds; nought: never.
    until: AtomicU64,
    /// When its longest run is over, whatever is asked for.
    run_over: Moment,
}

impl TaskContext {
    pub(crate) fn new(
        hub: &Arc<Hub>,
        queue: &QueueKey,
        session: &SessionId,
        task: ClaimedTask,
        since: Moment,
    ) -> TaskContext {
        let run_over = task.max_run_ms.map(|most| since + Duration::from_millis(most));
        let cell = Cell::new();
        hub.holdings.attach(session, task.id, task.token, &cell);
        let inner = Inner {
            task,
            queue: queue.clone(),
            session: session.clone(),
            hub: hub.clone(),
            cell,
            until: AtomicU64::new(run_over.map_or(0, Moment::as_nanos)),
            run_over: run_over.unwrap_or(Moment::from_nanos(u64::MAX)),
        };
        TaskContext { inner: Arc::new(inner) }
    }

    /// Its number.
    pub fn id(&self) -> TaskId {
        self.inner.task.id
    }

    /// The fencing token of this claim: pass it along with every write to the outside.
    pub fn token(&self) -> Token {
        self.inner.task.token
    }

    /// Which attempt this is, counted from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.task.attempt
    }

    /// What is to be done.
    pub fn kind(&self) -> &str {
        &self.inner.task.kind
    }

    /// Its queue.
    pub fn queue(&self) -> &QueueKey {
        &self.inner.queue
    }

    /// All that is known of it.
    pub fn task(&self) -> &ClaimedTask {
        &self.inner.task
    }

    /// What it is to be done with.
    pub fn payload<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        self.inner.task.payload.parse()
    }

    /// Its parents' outputs, by the parents' numbers.
    pub fn inputs(&self) -> &BTreeMap<TaskId, Json> {
        &self.inner.task.inputs
    }

    /// Whether the claim is ours *now*, as far as this process knows: the clock is compared at every call.
    pub fn is_claimed(&self) -> bool {
        self.inner.lost().is_none()
    }

    /// The session on whose beat the claim lives.
    pub fn session(&self) -> &SessionId {
        &self.inner.session
    }

    /// Until when the claim is ours if no further beat is counted; [`Moment::ZERO`] once it is lost. The end of its run is another
    /// matter: [`run_until`](Self::run_until).
    pub fn trusted_until(&self) -> Moment {
        // The trust first: were it read last, it could be that of a later session.
        let until = self.inner.hub.shared.trust.until();
        match self.inner.lost() {
            None | Some(Stop::RunOver) => until,
            Some(_) => Moment::ZERO,
        }
    }

    /// When its run is over, on our own clock; [`extend`](Self::extend) moves it.
    pub fn run_until(&self) -> Option<Moment> {
        self.inner.until()
    }

    /// Completes when the claim is lost.
    pub async fn cancelled(&self) -> Stop {
        self.inner.stopped().await
    }

    /// Says how far it is, for people.
    pub async fn progress(&self, note: impl fmt::Display) -> Result<(), Error> {
        self.say(Outcome::Progress { note: Some(note.to_string()), hold: None }).await
    }

    /// Asks for more time: the claim may last this long from now, but never beyond the task's longest run.
    pub async fn extend(&self, hold: Duration) -> Result<(), Error> {
        // Before sending: the answer's delay must not lengthen the run beyond what the store allows.
        let sent = self.inner.hub.runtime.now();
        self.say(Outcome::Progress { note: None, hold: Some(hold) }).await?;
        let until = (sent + hold).min(self.inner.run_over);
        self.inner.until.store(until.as_nanos(), Ordering::Release);
        self.inner.cell.nudge();
        Ok(())
    }

    /// Submits a task to the same queue that waits until this one is completed, and gets its output as an input.
    pub async fn submit_child(&self, task: NewTask) -> Result<Submitted, Error> {
        self.submit_child_to(&self.inner.queue, task).await
    }

    /// Submits such a task to another queue.
    pub async fn submit_child_to(&self, queue: &QueueKey, mut task: NewTask) -> Result<Submitted, Error> {
        task.parents.push(Parent::Task(self.id()));
        let submission = Submission { queue: queue.clone(), tasks: vec![task] };
        claim::check(&submission).map_err(StoreError::from)?;
        match submission.tasks.into_iter().next() {
            Some(task) => Ok(self.inner.hub.submit_one(queue, task).await?),
            None => Err(Error::Closed),
        }
    }

    async fn say(&self, outcome: Outcome) -> Result<(), Error> {
        match self.inner.hub.settle(self.inner.settlement(outcome)).await? {
            Settled::Now(_) => Ok(()),
            Settled::Lost => {
                self.inner.cell.stop(Stop::CalledOff);
                Err(Error::ClaimLost(self.id()))
            }
        }
    }
}

impl Inner {
    pub(crate) fn settlement(&self, outcome: Outcome) -> Settlement {
        let namespace = self.queue.namespace.clone();
        Settlement { namespace, task: self.task.id, token: self.task.token, outcome }
    }

    /// Why the claim is not ours any more, if so. The clock last, as for a leader.
    pub(crate) fn lost(&self) -> Option<Stop> {
        let session = self.hub.session();
        let trusted = self.hub.shared.trust.until();
        let now = self.hub.runtime.now();
        match self.cell.stopped() {
            Some(stop) => Some(stop),
            None if now >= trusted || session.as_ref() != Some(&self.session) => Some(Stop::SessionLost),
            None if self.until().is_some_and(|until| now >= until) => Some(Stop::RunOver),
            None => None,
        }
    }

    fn until(&self) -> Option<Moment> {
        let until = self.until.load(Ordering::Acquire);
        (until > 0).then(|| Moment::from_nanos(until))
    }

    /// Completes when the claim is lost.
    pub(crate) async fn stopped(&self) -> Stop {
        loop {
            let Some(until) = self.until() else {
                tokio::select! {
                    biased;
                    stop = self.cell.wait() => return stop,
                    () = self.cell.nudged() => continue,
                }
            };
            tokio::select! {
                biased;
                stop = self.cell.wait() => return stop,
                () = self.cell.nudged() => {}
                () = self.hub.runtime.sleep_until(until) => {
                    if self.until().is_some_and(|until| self.hub.runtime.now() >= until) {
                        self.cell.stop(Stop::RunOver);
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
