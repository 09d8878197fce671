//! Reference implementation of queues, workers, pools, topics, groups and schedules, without I/O.
//!
//! [`Work`] models [`TaskStore`](crate::port::TaskStore), [`TaskAdmin`](crate::port::TaskAdmin),
//! [`PoolStore`](crate::port::PoolStore), [`EventStore`](crate::port::EventStore),
//! [`EventAdmin`](crate::port::EventAdmin), [`ScheduleStore`](crate::port::ScheduleStore) and
//! [`ScheduleAdmin`](crate::port::ScheduleAdmin), as [`Elections`](crate::model::Elections) models elections. Every
//! other store must behave like it. It has no clock: the store's wall clock is an argument (`now_ms`). It has no
//! sessions: a [`LeaseObservation`] tells which sessions are live and which lead.
//!
//! A task is *waiting* for its parents, *scheduled* for a time, *ready*, *blocked* by its concurrency key, *claimed*,
//! and finally *completed*, *dead* or *cancelled*. All transitions go through one function (`change`), which updates
//! the indexes. A task that becomes ready notifies the waiters of its queue; a claim that ends unblocks other tasks
//! of its concurrency key.

mod claim;
mod events;
mod maintenance;
mod pool;
mod pool_match;
mod queue;
mod rate;
mod schedules;
mod settle;
mod submit;
mod task;
mod task_action;
mod task_admin;
#[cfg(test)]
mod tests;
mod transition;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::events::EventsState;
use self::pool::{PoolRecord, PoolRequestRecord};
pub use self::pool::{no_such_pool, owner_mismatch, resource_in_use};
use self::queue::QueueRecord;
use self::schedules::SchedulesState;
pub use self::submit::{no_such_parent, unfulfillable_parent};
use self::task::TaskRecord;
use self::transition::ConcurrencyKeyState;
use self::worker::WorkerRecord;
use crate::model::elections::Elections;
use crate::port::{
    BrokerEndpoint, Notification, Pause, PoolKey, PoolRequestId, QueueKey, SessionView, TaskId,
    broker_election, scheduler_election,
};
use crate::{Name, SessionId, Token};

/// The state of a store for work, events and schedules.
///
/// ```
/// use tenure_core::Name;
/// use tenure_core::model::work::{NoLeases, Work};
/// use tenure_core::port::{ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRequest};
/// use tenure_core::port::{NewTask, QueueKey, SettleResult, Settlement, Submission, TaskState, WorkerProfile};
///
/// let mut work = Work::default();
/// let queue = QueueKey::new(Name::default_namespace(), "mail".parse().unwrap());
/// work.submit(&Submission { queue: queue.clone(), tasks: vec![NewTask::new("welcome")] }, 0).unwrap();
///
/// let worker = WorkerProfile { name: "w1".into(), ..WorkerProfile::default() };
/// let requests = vec![ClaimRequest { worker, limit: 10, session: None, claim_timeout_ms: Some(60_000) }];
/// let batch = ClaimBatchRequest { queue: queue.clone(), authority: ClaimAuthority::Direct, requests };
/// let ClaimBatchResponse::Served { tasks, .. } = work.claim(&batch, &NoLeases, 5) else { panic!("refused") };
/// let claimed = &tasks[0][0];
///
/// let (task, token) = (claimed.id, claimed.token);
/// let done = Settlement { namespace: queue.namespace, task, token, outcome: ClaimOutcome::Complete(None) };
/// assert_eq!(work.settle(&[done], 9), [SettleResult::Applied(TaskState::Completed)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Work {
    queues: BTreeMap<QueueKey, QueueRecord>,
    tasks: BTreeMap<TaskId, TaskRecord>,
    claimed: BTreeSet<TaskId>,
    /// Idempotency keys, kept as long as their tasks.
    keys: BTreeMap<(QueueKey, String), TaskId>,
    /// Concurrency keys with a claimed or blocked task.
    key_states: BTreeMap<(Name, String), ConcurrencyKeyState>,
    paused: BTreeMap<Name, Pause>,
    workers: BTreeMap<(Name, String), WorkerRecord>,
    approvals: BTreeMap<(Name, String), String>,
    queue_waiters: BTreeMap<QueueKey, BTreeSet<SessionId>>,
    pools: BTreeMap<PoolKey, PoolRecord>,
    requests: BTreeMap<PoolRequestId, PoolRequestRecord>,
    post: Option<RedactedBrokerEndpoint>,
    events_state: EventsState,
    schedules_state: SchedulesState,
    last_task: u64,
    last_request: u64,
    notifications: Vec<Notification>,
}

/// A broker endpoint whose `Debug` output hides the secret.
#[derive(Clone)]
struct RedactedBrokerEndpoint(BrokerEndpoint);

impl fmt::Debug for RedactedBrokerEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.0.session, self.0.address)
    }
}

/// Read access to sessions and leases.
pub trait LeaseObservation {
    /// The session, if it is known, live or not.
    fn session(&self, id: &SessionId) -> Option<&SessionView>;

    /// The leader of the broker election and its token.
    fn leader(&self) -> Option<(SessionId, Token)>;

    /// The name of the leader of the scheduler election, if it is this session under this token.
    fn scheduler(&self, session: &SessionId, token: Token) -> Option<String>;

    /// Epoch of the store.
    fn epoch(&self) -> u32;

    /// Whether the session is live.
    fn is_live(&self, id: &SessionId) -> bool {
        self.session(id).is_some_and(|session| session.live)
    }

    /// Whether this session is live and leads the broker election under this token.
    fn leads(&self, session: &SessionId, token: Token) -> bool {
        self.is_live(session) && self.leader().is_some_and(|it| it == (session.clone(), token))
    }
}

/// A lease observation without sessions or leaders, for stores without sessions and for examples.
#[derive(Clone, Copy, Debug)]
pub struct NoLeases;

impl LeaseObservation for NoLeases {
    fn session(&self, _: &SessionId) -> Option<&SessionView> {
        None
    }
    fn leader(&self) -> Option<(SessionId, Token)> {
        None
    }
    fn scheduler(&self, _: &SessionId, _: Token) -> Option<String> {
        None
    }
    fn epoch(&self) -> u32 {
        0
    }
}

impl LeaseObservation for Elections {
    fn session(&self, id: &SessionId) -> Option<&SessionView> {
        Elections::session(self, id)
    }

    fn leader(&self) -> Option<(SessionId, Token)> {
        let view = self.election(&broker_election())?;
        view.leases.iter().find_map(|lease| Some((lease.holder.as_ref()?.id.clone(), lease.token)))
    }

    fn scheduler(&self, session: &SessionId, token: Token) -> Option<String> {
        let view = self.election(&scheduler_election())?;
        let held = view.leases.iter().filter(|lease| lease.token == token && !lease.is_free());
        let holder = held.filter_map(|lease| lease.holder.as_ref()).find(|holder| holder.id == *session)?;
        Some(view.candidate(session).map_or_else(|| holder.name.clone(), |candidate| candidate.name.clone()))
    }

    fn epoch(&self) -> u32 {
        Elections::epoch(self)
    }
}

impl Work {
    /// Notifications since the last call.
    pub fn drain_notifications(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.notifications)
    }

    /// See [`TaskStore::register_queue_waiter`](crate::port::TaskStore::register_queue_waiter).
    pub fn register_queue_waiter(&mut self, session: &SessionId, queues: &[QueueKey]) {
        for queue in queues {
            self.queue_waiters.entry(queue.clone()).or_default().insert(session.clone());
        }
    }

    /// See [`TaskStore::publish_broker_endpoint`](crate::port::TaskStore::publish_broker_endpoint).
    pub fn publish_broker_endpoint(
        &mut self,
        post: &BrokerEndpoint,
        observation: &dyn LeaseObservation,
    ) -> bool {
        let leads = observation.leads(&post.session, post.token);
        if leads {
            self.post = Some(RedactedBrokerEndpoint(post.clone()));
        }
        leads
    }

    /// See [`TaskStore::broker_endpoint`](crate::port::TaskStore::broker_endpoint).
    pub fn broker_endpoint(&self, observation: &dyn LeaseObservation) -> Option<BrokerEndpoint> {
        let RedactedBrokerEndpoint(post) = self.post.clone()?;
        observation.leads(&post.session, post.token).then_some(post)
    }

    /// Notifies the waiters of this queue, if there are any.
    fn notify_queue(&mut self, queue: &QueueKey) {
        if self.queue_waiters.remove(queue).is_some() {
            self.notifications.push(Notification::QueueReady(queue.clone()));
        }
    }
}
