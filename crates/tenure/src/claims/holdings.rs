//! What this process has claimed, as far as it knows.
//!
//! The store owns the truth. Two things make ours differ from it. A claim may be called off there (an operator, a deadline):
//! then who runs the task has to be told. And the answer to a claim may be lost on the way: then the store has a claim that lives
//! on our beat and that nobody here works on; it has to be given back. Both are found by asking what the store says we hold
//! ([`Tasks::held`](tenure_core::port::Tasks::held)) and comparing.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::port::{ClaimedTask, Outcome, Settlement, TaskId};
use tenure_core::{Moment, Name, SessionId, Token};
use tokio::sync::Notify;

use super::hub::Hub;

/// Why a claim is no longer ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The session on whose beat it lived is lost, or is not trusted any more.
    SessionLost,
    /// It was called off, or handed to somebody else: by an operator, or because a deadline passed.
    CalledOff,
    /// The task's longest run is over.
    RunOver,
    /// The worker was stopped, and its patience is over.
    Stopped,
}

impl Stop {
    /// A line for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Stop::SessionLost => "the session was lost",
            Stop::CalledOff => "the claim was called off",
            Stop::RunOver => "its run time is over",
            Stop::Stopped => "the worker was stopped",
        }
    }

    fn code(self) -> u8 {
        match self {
            Stop::SessionLost => 1,
            Stop::CalledOff => 2,
            Stop::RunOver => 3,
            Stop::Stopped => 4,
        }
    }

    fn from_code(code: u8) -> Option<Stop> {
        [Stop::SessionLost, Stop::CalledOff, Stop::RunOver, Stop::Stopped]
            .into_iter()
            .find(|stop| stop.code() == code)
    }
}

/// A claim that somebody works on, and whether it still is one.
#[derive(Debug)]
pub(crate) struct Cell {
    stopped: AtomicU8,
    changed: Notify,
    nudged: Notify,
}

impl Cell {
    pub(crate) fn new() -> Arc<Cell> {
        Arc::new(Cell { stopped: AtomicU8::new(0), changed: Notify::new(), nudged: Notify::new() })
    }

    /// Says that the claim is lost; the first reason counts.
    pub(crate) fn stop(&self, why: Stop) {
        let _ = self.stopped.compare_exchange(0, why.code(), Ordering::AcqRel, Ordering::Acquire);
        self.changed.notify_waiters();
    }

    /// Something else about it changed: its deadline.
    pub(crate) fn nudge(&self) {
        self.nudged.notify_waiters();
    }

    pub(crate) async fn nudged(&self) {
        self.nudged.notified().await;
    }

    pub(crate) fn stopped(&self) -> Option<Stop> {
        Stop::from_code(self.stopped.load(Ordering::Acquire))
    }

    /// Completes when the claim is lost.
    pub(crate) async fn wait(&self) -> Stop {
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

/// One claim of this process.
struct Holding {
    token: Token,
    session: SessionId,
    /// Set if somebody wants to be told of its loss.
    cell: Option<Arc<Cell>>,
}

/// The claims of this process that live on its own session.
#[derive(Default)]
pub(crate) struct Holdings {
    map: Mutex<HashMap<TaskId, Holding>>,
    /// Claims that were given back because nobody knew of them: whatever comes home late, nobody works on these.
    forsworn: Mutex<HashSet<(TaskId, Token)>>,
}

/// How many forsworn claims are remembered. Far more than can be on their way.
const FORSWORN_MAX: usize = 100_000;

impl Holdings {
    fn locked(&self) -> MutexGuard<'_, HashMap<TaskId, Holding>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes them in, but for those that were forsworn: they are taken out.
    pub(crate) fn add(&self, session: &SessionId, handed: &mut Handed) {
        let mut map = self.locked();
        let forsworn = self.forsworn.lock().unwrap_or_else(PoisonError::into_inner);
        handed.tasks.retain(|task| !forsworn.contains(&(task.id, task.token)));
        for task in &handed.tasks {
            let holding = Holding { token: task.token, session: session.clone(), cell: None };
            map.insert(task.id, holding);
        }
    }

    /// Nobody here works on this claim from now on. `false` if somebody knows of it.
    pub(crate) fn forswear(&self, task: TaskId, token: Token) -> bool {
        let map = self.locked();
        let unknown = map.get(&task).is_none_or(|holding| holding.token != token);
        if unknown {
            let mut forsworn = self.forsworn.lock().unwrap_or_else(PoisonError::into_inner);
            if forsworn.len() >= FORSWORN_MAX {
                forsworn.clear();
            }
            forsworn.insert((task, token));
        }
        unknown
    }

    /// From now on this one wants to be told.
    pub(crate) fn attach(&self, session: &SessionId, task: TaskId, token: Token, cell: &Arc<Cell>) {
        let holding = Holding { token, session: session.clone(), cell: Some(cell.clone()) };
        self.locked().insert(task, holding);
    }

    pub(crate) fn remove(&self, task: TaskId, token: Token) {
        let mut map = self.locked();
        if map.get(&task).is_some_and(|holding| holding.token == token) {
            map.remove(&task);
        }
    }

    pub(crate) fn knows(&self, task: TaskId, token: Token) -> bool {
        self.locked().get(&task).is_some_and(|holding| holding.token == token)
    }

    /// Those that somebody works on, of this session.
    pub(crate) fn attended(&self, session: &SessionId) -> Vec<(TaskId, Token)> {
        let map = self.locked();
        let ours = map.iter().filter(|(_, holding)| holding.cell.is_some() && holding.session == *session);
        ours.map(|(task, holding)| (*task, holding.token)).collect()
    }

    /// This claim is lost: whoever works on it is told.
    pub(crate) fn lose(&self, task: TaskId, token: Token, why: Stop) {
        let mut map = self.locked();
        if let Some(holding) = map.get(&task).filter(|holding| holding.token == token) {
            holding.cell.iter().for_each(|cell| cell.stop(why));
            map.remove(&task);
        }
    }

    /// Every claim on a session for which `lost` holds is lost. How many somebody worked on.
    pub(crate) fn lose_where(&self, why: Stop, lost: impl Fn(&SessionId) -> bool) -> usize {
        let mut count = 0;
        self.locked().retain(|_, holding| {
            let lost = lost(&holding.session);
            if lost && let Some(cell) = &holding.cell {
                cell.stop(why);
                count += 1;
            }
            !lost
        });
        count
    }
}

/// Tasks on their way to who asked for them. If nobody takes them, they go back to their queue at once: their claims live on a
/// session that goes on beating.
pub(crate) struct Handed {
    hub: Weak<Hub>,
    namespace: Name,
    tasks: Vec<ClaimedTask>,
    /// Not later than when they were claimed, on our own clock.
    since: Moment,
}

impl Handed {
    pub(crate) fn new(hub: &Arc<Hub>, namespace: &Name, tasks: Vec<ClaimedTask>, since: Moment) -> Handed {
        Handed { hub: Arc::downgrade(hub), namespace: namespace.clone(), tasks, since }
    }

    pub(crate) fn since(&self) -> Moment {
        self.since
    }

    pub(crate) fn tasks(&self) -> &[ClaimedTask] {
        &self.tasks
    }

    pub(crate) fn namespace(&self) -> &Name {
        &self.namespace
    }

    /// These and those, of one queue.
    pub(crate) fn and(mut self, mut other: Handed) -> Handed {
        self.tasks.append(&mut other.tasks);
        self
    }

    /// Whoever calls this sees to them from now on.
    pub(crate) fn take(mut self) -> Vec<ClaimedTask> {
        std::mem::take(&mut self.tasks)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let Some(hub) = self.hub.upgrade().filter(|_| !self.tasks.is_empty()) else { return };
        tracing::debug!(tasks = self.tasks.len(), "nobody waits for these tasks any more; they go back");
        for task in self.tasks.drain(..) {
            hub.give_back(&self.namespace, task.id, task.token);
        }
    }
}

/// The word for giving a task back.
pub(crate) fn release(namespace: &Name, task: TaskId, token: Token) -> Settlement {
    Settlement { namespace: namespace.clone(), task, token, outcome: Outcome::Release }
}
