//! Being the leader, for as long as it lasts.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::lease::Loss;
use tenure_core::port::AskKind;
use tenure_core::{ElectionKey, Moment, SessionId, Timing, Token};
use tokio::sync::{mpsc, watch};

use crate::driver::Message;
use crate::guard::{Claim, Guarded};
use crate::runtime::Runtime;
use crate::{Error, GuardError};

/// Proof of leadership, valid as long as it is trusted.
///
/// Holding it says that work is going on: after the leader was asked to finish, or lost its leadership, this process
/// gives the lease back, and campaigns again, only when every clone has been dropped. Drop it when the work is done.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let elector = tenure.elector("nightly").start().await?;
/// let leadership = elector.elected().await?;
/// assert!(leadership.is_leader());
/// println!("leading under token {}", leadership.token());
/// leadership.resign().await?;
/// # tenure.close().await }
/// ```
#[derive(Clone)]
pub struct Leadership {
    pub(crate) term: Arc<Term>,
    pub(crate) work: Arc<Work>,
}

/// One time in office of this process.
pub(crate) struct Term {
    pub(crate) election: ElectionKey,
    pub(crate) slot: u32,
    pub(crate) token: Token,
    pub(crate) session: SessionId,
    pub(crate) timing: Timing,
    pub(crate) trust: Arc<Trust>,
    /// Set once and for ever when the term is over, even if the session is trusted again later.
    pub(crate) ended: AtomicBool,
    pub(crate) state: watch::Sender<TermState>,
    pub(crate) work: Mutex<std::sync::Weak<Work>>,
    pub(crate) inbox: mpsc::UnboundedSender<Message>,
}

/// What happened to a term so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct TermState {
    pub(crate) asked: Option<AskKind>,
    pub(crate) over: Option<Over>,
}

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Over {
    /// It was lost.
    Lost(Loss),
    /// The process gave it up.
    GivenUp,
}

/// Trust of the session, shared by all its leaderships.
pub(crate) struct Trust {
    until: AtomicU64,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl Trust {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Self {
        Trust { until: AtomicU64::new(0), runtime }
    }

    pub(crate) fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, until: Moment) {
        self.until.store(until.as_nanos(), Ordering::Release);
    }
}

/// Lives while somebody works under a term; its end is told to the driver.
pub(crate) struct Work {
    election: ElectionKey,
    token: Token,
    inbox: mpsc::UnboundedSender<Message>,
}

impl Drop for Work {
    fn drop(&mut self) {
        // A driver that is gone needs no telling.
        let _ = self.inbox.send(Message::WorkEnded(self.election.clone(), self.token));
    }
}

impl Term {
    pub(crate) fn is_leader(&self) -> bool {
        // The flag last: the driver sets it before it publishes a deadline that is not this term's. Were it read first, a
        // thread that is stopped in between would compare the clock with the deadline of a later session.
        let until = self.trust.until();
        self.trust.runtime.now() < until && !self.ended.load(Ordering::Acquire)
    }

    /// A handle for somebody who works under this term.
    fn handle(self: &Arc<Self>) -> Leadership {
        let mut weak = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let work = weak.upgrade().unwrap_or_else(|| {
            let work = Arc::new(Work {
                election: self.election.clone(),
                token: self.token,
                inbox: self.inbox.clone(),
            });
            *weak = Arc::downgrade(&work);
            work
        });
        Leadership { term: self.clone(), work }
    }

    /// A handle for work that is to begin: not under a term that is to finish.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Leadership> {
        self.lead().filter(|_| self.state.borrow().asked.is_none())
    }

    /// A handle, if this term leads. The handle comes first: from here on the driver waits for it, so that what is seen
    /// afterwards stays so.
    pub(crate) fn lead(self: &Arc<Self>) -> Option<Leadership> {
        let handle = self.handle();
        self.is_leader().then_some(handle)
    }

    pub(crate) fn has_workers(&self) -> bool {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
    }

    pub(crate) fn end(&self, over: Over) {
        self.ended.store(true, Ordering::Release);
        self.state.send_modify(|state| {
            state.over.get_or_insert(over);
        });
    }
}

impl Leadership {
    /// Whether this process leads *now*. The clock is compared at every call; nothing is remembered.
    pub fn is_leader(&self) -> bool {
        self.term.is_leader()
    }

    /// The fencing token: pass it along with every write.
    pub fn token(&self) -> Token {
        self.term.token
    }

    /// The election.
    pub fn election(&self) -> &ElectionKey {
        &self.term.election
    }

    /// Which of the election's slots is held.
    pub fn slot(&self) -> u32 {
        self.term.slot
    }

    /// The session that holds the lease.
    pub fn session(&self) -> &SessionId {
        &self.term.session
    }

    /// Until when leadership is trusted if no further beat is counted.
    pub fn trusted_until(&self) -> Moment {
        // The flag last, as in `is_leader`.
        let until = self.term.trust.until();
        if self.term.ended.load(Ordering::Acquire) { Moment::ZERO } else { until }
    }

    /// Completes when this process leads no longer. Stop the work then.
    pub async fn lost(&self) -> Over {
        let mut state = self.term.state.subscribe();
        loop {
            if let Some(over) = state.borrow_and_update().over {
                return over;
            }
            let until = self.term.trust.until();
            if self.term.trust.runtime.now() >= until {
                return Over::Lost(Loss::Doubt);
            }
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return Over::Lost(Loss::Doubt) },
                () = self.term.trust.runtime.sleep_until(until) => {}
            }
        }
    }

    /// Completes when somebody asks the leader to finish: an operator, or a candidate of higher priority. It still
    /// leads. Finish, then drop this handle or [`resign`](Self::resign).
    pub async fn asked(&self) -> AskKind {
        let mut state = self.term.state.subscribe();
        loop {
            if let Some(kind) = state.borrow_and_update().asked.clone() {
                return kind;
            }
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether somebody has asked already.
    pub(crate) fn is_asked(&self) -> bool {
        self.term.state.borrow().asked.is_some()
    }

    /// Ties a transaction to this leadership: it can only commit while the lease is held.
    ///
    /// Call it first in the transaction. A take-over waits for the commit; a transaction that stands still for longer
    /// than the lease is ended by the database.
    pub async fn guard(&self, tx: &mut impl Guarded) -> Result<(), GuardError> {
        if !self.is_leader() {
            return Err(GuardError::Untrusted(self.term.election.clone()));
        }
        tx.guard(&self.claim()).await
    }

    /// What a guard checks, for transactions made elsewhere: `tenure.guard(…)` in SQL takes the same values.
    pub fn claim(&self) -> Claim {
        Claim {
            election: self.term.election.clone(),
            slot: self.term.slot,
            token: self.term.token,
            session: self.term.session.clone(),
            lease: self.term.timing.lease(),
        }
    }

    /// Steps down and lets somebody else lead; the elector goes on standing. Completes when this term is over here;
    /// the lease is given back once every other clone of this handle is dropped too.
    pub async fn resign(self) -> Result<(), Error> {
        let Leadership { term, work } = self;
        let mut state = term.state.subscribe();
        term.inbox
            .send(Message::Resign(term.election.clone(), Some(term.token)))
            .map_err(|_| Error::Closed)?;
        drop(work);
        state.wait_for(|state| state.over.is_some()).await.map(|_| ()).map_err(|_| Error::Closed)
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("election", &self.term.election.to_string())
            .field("token", &self.term.token)
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    /// A thread that is stopped for a long time exactly where it reads the clock: meanwhile the term ends, and the session
    /// of a later one is trusted.
    struct Stopped(OnceLock<Arc<Term>>);

    const LATE: Moment = Moment::from_nanos(100);

    impl Runtime for Stopped {
        fn now(&self) -> Moment {
            let term = self.0.get().expect("the term is there");
            term.ended.store(true, Ordering::Release);
            term.trust.set(Moment::from_nanos(LATE.as_nanos() * 2));
            LATE
        }

        fn wall_ms(&self) -> i64 {
            0
        }

        fn sleep_until<'a>(&'a self, _: Moment) -> futures_core::future::BoxFuture<'a, ()> {
            Box::pin(std::future::pending())
        }

        fn random(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_thread_that_was_stopped_does_not_take_a_later_sessions_trust_for_its_own() {
        let runtime = Arc::new(Stopped(OnceLock::new()));
        let trust = Arc::new(Trust::new(runtime.clone()));
        trust.set(Moment::from_nanos(1));
        let term = Arc::new(Term {
            election: ElectionKey::new("default".parse().unwrap(), "nightly".parse().unwrap()),
            slot: 0,
            token: Token::ZERO,
            session: SessionId::from_stored("mine"),
            timing: Timing::default(),
            trust,
            ended: AtomicBool::new(false),
            state: watch::Sender::new(TermState::default()),
            work: Mutex::default(),
            inbox: mpsc::unbounded_channel().0,
        });
        assert!(runtime.0.set(term.clone()).is_ok());
        assert!(!term.is_leader());
    }
}
