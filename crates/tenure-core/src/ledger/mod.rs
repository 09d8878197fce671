//! The reference store of work, events and schedules: tasks, queues, workers and pools, topics and groups, and ticks, as a pure
//! value.
//!
//! `Ledger` is to [`Tasks`](crate::port::Tasks), [`Desk`](crate::port::Desk), [`Pools`](crate::port::Pools),
//! [`Events`](crate::port::Events), [`Bureau`](crate::port::Bureau), [`Scheduling`](crate::port::Scheduling) and
//! [`Calendar`](crate::port::Calendar) what [`Book`] is to elections: the truth of a store in memory, and what every other one is
//! held to. It has no clock: the store's wall clock is an argument (`now_ms`). It knows no
//! sessions either: who lives and who leads it asks a [`Witness`].
//!
//! A task is *waiting* for its parents, *scheduled* for its time, *ready*, *held* back by its concurrency key, *claimed*, and
//! at last *completed*, *dead* or *cancelled*. All changes go through one place (`change`), where the lists are kept: whatever
//! becomes ready rings for who sleeps, whatever ends lets in who was held back.

mod change;
mod claim;
mod desk;
mod events;
mod order;
mod pool;
mod pool_match;
mod queue;
mod rate;
mod schedules;
mod settle;
mod submit;
mod task;
mod tend;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::change::Crowd;
use self::events::Outbox;
use self::pool::{Pool, Request};
pub use self::pool::{another_owner, held_resource, no_such_pool};
use self::queue::Queue;
use self::schedules::Agenda;
pub use self::submit::{hopeless_parent, no_such_parent};
use self::task::Task;
use self::worker::Worker;
use crate::book::Book;
use crate::port::{
    Pause, PoolKey, Post, QueueKey, RequestId, SessionView, TaskId, Wake, claims_election, scheduler_election,
};
use crate::{Name, SessionId, Token};

/// The whole content of a store, as far as work, events and schedules go.
///
/// ```
/// use tenure_core::Name;
/// use tenure_core::ledger::{Ledger, Nobody};
/// use tenure_core::port::{Authority, ClaimAnswer, ClaimAsk, NewTask, Outcome, Profile, QueueKey, Seat};
/// use tenure_core::port::{Settled, Settlement, Submission, TaskState};
///
/// let mut ledger = Ledger::default();
/// let queue = QueueKey::new(Name::default_namespace(), "mail".parse().unwrap());
/// ledger.submit(&Submission { queue: queue.clone(), tasks: vec![NewTask::new("welcome")] }, 0).unwrap();
///
/// let worker = Profile { name: "w1".into(), ..Profile::default() };
/// let seats = vec![Seat { worker, limit: 10, session: None, hold_ms: Some(60_000) }];
/// let ask = ClaimAsk { queue: queue.clone(), authority: Authority::Direct, seats };
/// let ClaimAnswer::Served { tasks, .. } = ledger.claim(&ask, &Nobody, 5) else { panic!("refused") };
/// let claimed = &tasks[0][0];
///
/// let (task, token) = (claimed.id, claimed.token);
/// let done = Settlement { namespace: queue.namespace, task, token, outcome: Outcome::Complete(None) };
/// assert_eq!(ledger.settle(&[done], 9), [Settled::Now(TaskState::Completed)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    queues: BTreeMap<QueueKey, Queue>,
    tasks: BTreeMap<TaskId, Task>,
    claimed: BTreeSet<TaskId>,
    /// Idempotency keys, for as long as their tasks are remembered.
    keys: BTreeMap<(QueueKey, String), TaskId>,
    /// Concurrency keys, while a task with one is claimed or held.
    crowds: BTreeMap<(Name, String), Crowd>,
    paused: BTreeMap<Name, Pause>,
    workers: BTreeMap<(Name, String), Worker>,
    approvals: BTreeMap<(Name, String), String>,
    dozers: BTreeMap<QueueKey, BTreeSet<SessionId>>,
    pools: BTreeMap<PoolKey, Pool>,
    requests: BTreeMap<RequestId, Request>,
    post: Option<Pinned>,
    outbox: Outbox,
    agenda: Agenda,
    last_task: u64,
    last_request: u64,
    wakes: Vec<Wake>,
}

/// A post whose secret is shown to nobody.
#[derive(Clone)]
struct Pinned(Post);

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.0.session, self.0.address)
    }
}

/// Who knows the sessions: in a store, the other half of it.
pub trait Witness {
    /// The session, if it is known, living or not.
    fn session(&self, id: &SessionId) -> Option<&SessionView>;

    /// Who leads the claims' election, and under which token.
    fn leader(&self) -> Option<(SessionId, Token)>;

    /// What the leader of the scheduler's election is called, if it is this session under this token.
    fn scheduler(&self, session: &SessionId, token: Token) -> Option<String>;

    /// The store's epoch.
    fn epoch(&self) -> u32;

    /// Whether the session lives.
    fn is_live(&self, id: &SessionId) -> bool {
        self.session(id).is_some_and(|session| session.live)
    }

    /// Whether this session leads under this token, and lives.
    fn leads(&self, session: &SessionId, token: Token) -> bool {
        self.is_live(session) && self.leader().is_some_and(|it| it == (session.clone(), token))
    }
}

/// A witness who knows nobody: for stores without sessions, and for examples.
#[derive(Clone, Copy, Debug)]
pub struct Nobody;

impl Witness for Nobody {
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

impl Witness for Book {
    fn session(&self, id: &SessionId) -> Option<&SessionView> {
        Book::session(self, id)
    }

    fn leader(&self) -> Option<(SessionId, Token)> {
        let view = self.election(&claims_election())?;
        view.leases.iter().find_map(|lease| Some((lease.holder.as_ref()?.id.clone(), lease.token)))
    }

    fn scheduler(&self, session: &SessionId, token: Token) -> Option<String> {
        let view = self.election(&scheduler_election())?;
        let held = view.leases.iter().filter(|lease| lease.token == token && !lease.is_free());
        let holder = held.filter_map(|lease| lease.holder.as_ref()).find(|holder| holder.id == *session)?;
        Some(view.candidate(session).map_or_else(|| holder.name.clone(), |candidate| candidate.id.clone()))
    }

    fn epoch(&self) -> u32 {
        Book::epoch(self)
    }
}

impl Ledger {
    /// The hints since the last call.
    pub fn drain_wakes(&mut self) -> Vec<Wake> {
        std::mem::take(&mut self.wakes)
    }

    /// See [`Tasks::doze`](crate::port::Tasks::doze).
    pub fn doze(&mut self, session: &SessionId, queues: &[QueueKey]) {
        for queue in queues {
            self.dozers.entry(queue.clone()).or_default().insert(session.clone());
        }
    }

    /// See [`Tasks::put_post`](crate::port::Tasks::put_post).
    pub fn put_post(&mut self, post: &Post, witness: &dyn Witness) -> bool {
        let leads = witness.leads(&post.session, post.token);
        if leads {
            self.post = Some(Pinned(post.clone()));
        }
        leads
    }

    /// See [`Tasks::post`](crate::port::Tasks::post).
    pub fn post(&self, witness: &dyn Witness) -> Option<Post> {
        let Pinned(post) = self.post.clone()?;
        witness.leads(&post.session, post.token).then_some(post)
    }

    /// Rings for who sleeps until this queue has work, if anybody does.
    fn ring(&mut self, queue: &QueueKey) {
        if self.dozers.remove(queue).is_some() {
            self.wakes.push(Wake::Work(queue.clone()));
        }
    }
}
