//! Work: submitted, claimed and finished by any number of processes.
//!
//! The store owns the truth: a task is claimed by whoever the store says, under the token that it gave. This module is how one
//! process asks, well: calls at the same time share a statement ([`batch`], [`line`]); who finds nothing sleeps and is woken
//! ([`bells`]); what is exclusive goes through the leader ([`route`], [`link`]), who also recovers what was lost ([`keeper`]). When
//! the store is away, callers get its error, nothing is concluded from it, and what it may have done is found out later
//! ([`reconcile`]).

pub(crate) mod batch;
pub(crate) mod bells;
pub(crate) mod holdings;
pub(crate) mod hub;
mod keeper;
pub(crate) mod line;
pub(crate) mod link;
pub(crate) mod reconcile;
pub(crate) mod route;

use std::time::Duration;

use tenure_core::Name;
use tenure_core::claim;
use tenure_core::port::{
    ClaimRefusal, ClaimedTask, NewRequest, NewTask, Outcome, PoolKey, QueueKey, RequestId, RequestView, Seat,
    Settled, Settlement, StoreError, Submission, Submitted,
};

pub use self::holdings::Stop;
use self::route::Got;
use crate::runtime::Draw;
use crate::{Error, Tenure, pool};

/// Tasks and resources of a store, as one process works with them. Clones share everything.
///
/// This is the API one by one: each call is about one task or one worker, and calls that are made at the same time share a
/// statement. A [`Worker`](crate::Worker) does all of this by itself.
///
/// ```
/// # use tenure::{Claimed, Tenure, backend::memory::Memory};
/// use std::time::Duration;
/// use tenure::port::{NewTask, Outcome, Profile, Seat, Settled, Settlement, TaskState};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let (claims, mail) = (tenure.claims(), tenure.queue("mail")?);
///
/// claims.submit(&mail, vec![NewTask::new("welcome")]).await?;
///
/// let worker = Profile { name: "w1".into(), ..Profile::default() };
/// let seat = Seat { worker, limit: 1, session: tenure.session(), hold_ms: None };
/// let Claimed::Tasks(tasks) = claims.claim(&mail, seat, Duration::from_secs(1)).await? else { panic!() };
/// assert_eq!(tasks[0].kind, "welcome");
///
/// let done = Settlement {
///     namespace: mail.namespace.clone(),
///     task: tasks[0].id,
///     token: tasks[0].token,
///     outcome: Outcome::Complete(None),
/// };
/// assert_eq!(claims.settle(done).await?, Settled::Now(TaskState::Completed));
/// # tenure.close().await }
/// ```
#[derive(Clone)]
pub struct Claims {
    tenure: Tenure,
}

/// What came of asking for tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// These, in the order of the queue; none if there was nothing to be had in time.
    Tasks(Vec<ClaimedTask>),
    /// Nothing was handed out, and why.
    Refused(ClaimRefusal),
    /// The queue is exclusive, wants strict order, and its leader can not be reached now. Ask again.
    NotNow,
}

impl Claims {
    pub(crate) fn new(tenure: Tenure) -> Claims {
        Claims { tenure }
    }

    /// Submits tasks to a queue, all or none. Single tasks that are submitted at the same time share a statement.
    pub async fn submit(&self, queue: &QueueKey, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, Error> {
        let hub = self.tenure.hub();
        let mut submission = Submission { queue: queue.clone(), tasks };
        claim::check(&submission).map_err(StoreError::from)?;
        match submission.tasks.pop() {
            None => Ok(Vec::new()),
            Some(task) if submission.tasks.is_empty() => Ok(vec![hub.submit_one(queue, task).await?]),
            Some(task) => {
                submission.tasks.push(task);
                Ok(hub.bounded(hub.store.submit(&submission)).await?)
            }
        }
    }

    /// Asks for tasks, and waits for the first for up to `wait`. Calls at the same time share a statement; in exclusive mode
    /// they go through the leader. Dropped, nothing stays claimed.
    pub async fn claim(&self, queue: &QueueKey, seat: Seat, wait: Duration) -> Result<Claimed, Error> {
        claim::check_seats(std::slice::from_ref(&seat)).map_err(StoreError::from)?;
        Ok(match self.tenure.hub().claim(queue, seat, wait).await? {
            Got::Tasks(handed) => Claimed::Tasks(handed.take()),
            Got::Refused(refusal) => Claimed::Refused(refusal),
            Got::NotNow => Claimed::NotNow,
        })
    }

    /// Says something about a claim. Calls at the same time share a statement. Dropped, it is said all the same.
    pub async fn settle(&self, settlement: Settlement) -> Result<Settled, Error> {
        Ok(self.tenure.hub().settle(settlement).await?)
    }

    /// Says that an attempt failed, and that there shall be another, if there is one left, after what the task's backoff says.
    pub async fn fail(
        &self,
        namespace: &Name,
        task: &ClaimedTask,
        error: impl Into<String>,
        retry: bool,
    ) -> Result<Settled, Error> {
        let after = claim::backoff(task.backoff, task.attempt, &mut Draw(self.tenure.runtime()));
        let outcome = Outcome::Fail { error: error.into(), retry, after };
        self.settle(Settlement { namespace: namespace.clone(), task: task.id, token: task.token, outcome })
            .await
    }

    /// Asks for a resource of a pool, and waits for up to `wait`. What comes back may still be waiting: ask again under the same
    /// key, or call it off. In exclusive mode the leader hands out.
    pub async fn request(
        &self,
        pool: &PoolKey,
        request: &NewRequest,
        wait: Duration,
    ) -> Result<RequestView, Error> {
        pool::request(self.tenure.hub(), pool, request, wait).await
    }

    /// Waits for up to `wait` on a request that was made before; `None` if there is no such request.
    pub async fn await_request(
        &self,
        pool: &PoolKey,
        request: RequestId,
        wait: Duration,
    ) -> Result<Option<RequestView>, Error> {
        pool::wait_on(self.tenure.hub(), pool, request, wait).await
    }

    /// Stands for the election of the one that hands out what is exclusive and recovers what was lost, once per process and for
    /// as long as its session. Workers and servers call it; a process that only submits need not.
    pub async fn stand(&self) -> Result<(), Error> {
        self.stand_with_priority(0).await
    }

    /// Like [`stand`](Self::stand), as a candidate of this priority. Has no effect if this process stands already.
    pub async fn stand_with_priority(&self, priority: i32) -> Result<(), Error> {
        keeper::stand(&self.tenure, priority).await
    }
}
