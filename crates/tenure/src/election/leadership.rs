//! The leadership of this process during one term.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::port::LeaderRequestKind;
use tenure_core::rules::lease::LossReason;
use tenure_core::{BootInstant, ElectionKey, SessionId, Timing, Token};
use tokio::sync::{mpsc, watch};

use crate::guard::{Guardable, GuardedLease};
use crate::runtime::Runtime;
use crate::session::driver::DriverMessage;
use crate::{Error, GuardError};

/// Proof of leadership, valid while [`is_leader`](Self::is_leader) returns true.
///
/// A handle means that work is in progress. After a leader request or a loss, this process releases the lease
/// and campaigns again only when every clone is dropped. Drop the handle when the work is done.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let elector = tenure.elector("nightly").start().await?;
/// let leadership = elector.elected().await?;
/// assert!(leadership.is_leader());
/// println!("leading under token {}", leadership.token());
/// leadership.resign().await?;
/// # tenure.close().await }
/// ```
#[derive(Clone)]
pub struct Leadership {
    pub(crate) term: Arc<ActiveTerm>,
    pub(crate) work: Arc<WorkGuard>,
}

/// A term of this process.
pub(crate) struct ActiveTerm {
    pub(crate) election: ElectionKey,
    pub(crate) slot: u32,
    pub(crate) token: Token,
    pub(crate) session: SessionId,
    pub(crate) timing: Timing,
    pub(crate) trust: Arc<SessionTrust>,
    /// Set when the term ends, and never cleared, even if the session is trusted again later.
    pub(crate) ended: AtomicBool,
    pub(crate) state: watch::Sender<ActiveTermState>,
    pub(crate) work: Mutex<std::sync::Weak<WorkGuard>>,
    pub(crate) inbox: mpsc::UnboundedSender<DriverMessage>,
}

/// Events of a term so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveTermState {
    pub(crate) leader_request: Option<LeaderRequestKind>,
    pub(crate) end: Option<TermEnd>,
}

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TermEnd {
    /// Leadership was lost.
    Lost(LossReason),
    /// The process released the lease.
    Released,
}

/// The trust of the session, shared by all its leaderships.
pub(crate) struct SessionTrust {
    until: AtomicU64,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl SessionTrust {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Self {
        SessionTrust { until: AtomicU64::new(0), runtime }
    }

    pub(crate) fn until(&self) -> BootInstant {
        BootInstant::from_nanos(self.until.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, until: BootInstant) {
        self.until.store(until.as_nanos(), Ordering::Release);
    }
}

/// Exists while work runs under a term. Its drop notifies the driver.
pub(crate) struct WorkGuard {
    election: ElectionKey,
    token: Token,
    inbox: mpsc::UnboundedSender<DriverMessage>,
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        // A driver that has ended needs no message.
        let _ = self.inbox.send(DriverMessage::WorkEnded(self.election.clone(), self.token));
    }
}

impl ActiveTerm {
    pub(crate) fn is_leader(&self) -> bool {
        // Read the flag last: the driver sets it before it publishes the deadline of another session. If the
        // flag were read first, a thread stalled between both reads would compare the clock with the deadline
        // of a later session.
        let until = self.trust.until();
        self.trust.runtime.now() < until && !self.ended.load(Ordering::Acquire)
    }

    /// Returns a handle for work under this term.
    fn handle(self: &Arc<Self>) -> Leadership {
        let mut weak = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let work = weak.upgrade().unwrap_or_else(|| {
            let work = Arc::new(WorkGuard {
                election: self.election.clone(),
                token: self.token,
                inbox: self.inbox.clone(),
            });
            *weak = Arc::downgrade(&work);
            work
        });
        Leadership { term: self.clone(), work }
    }

    /// Returns a handle for new work, unless the term is about to finish.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Leadership> {
        self.lead().filter(|_| self.state.borrow().leader_request.is_none())
    }

    /// Returns a handle if this term leads. The handle is created before the check: the driver waits for it
    /// from then on, so the result of the check stays valid.
    pub(crate) fn lead(self: &Arc<Self>) -> Option<Leadership> {
        let handle = self.handle();
        self.is_leader().then_some(handle)
    }

    pub(crate) fn has_workers(&self) -> bool {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
    }

    pub(crate) fn finish(&self, end: TermEnd) {
        self.ended.store(true, Ordering::Release);
        self.state.send_modify(|state| {
            state.end.get_or_insert(end);
        });
    }
}

impl Leadership {
    /// Whether this process leads *now*. Every call compares the clock.
    pub fn is_leader(&self) -> bool {
        self.term.is_leader()
    }

    /// The fencing token. Pass it with every write.
    pub fn token(&self) -> Token {
        self.term.token
    }

    /// The election.
    pub fn election(&self) -> &ElectionKey {
        &self.term.election
    }

    /// The slot that is held.
    pub fn slot(&self) -> u32 {
        self.term.slot
    }

    /// The session that holds the lease.
    pub fn session(&self) -> &SessionId {
        &self.term.session
    }

    /// The instant until which leadership is trusted if no further heartbeat succeeds.
    pub fn trusted_until(&self) -> BootInstant {
        // Read the flag last, as in `is_leader`.
        let until = self.term.trust.until();
        if self.term.ended.load(Ordering::Acquire) { BootInstant::ZERO } else { until }
    }

    /// Completes when this process no longer leads. Stop the work then.
    pub async fn lost(&self) -> TermEnd {
        let mut state = self.term.state.subscribe();
        loop {
            if let Some(end) = state.borrow_and_update().end {
                return end;
            }
            let until = self.term.trust.until();
            if self.term.trust.runtime.now() >= until {
                return TermEnd::Lost(LossReason::TrustExpired);
            }
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return TermEnd::Lost(LossReason::TrustExpired) },
                () = self.term.trust.runtime.sleep_until(until) => {}
            }
        }
    }

    /// Completes when the leader receives a request to step down, from an operator or a candidate of higher
    /// priority. This process still leads. Finish the work, then drop this handle or call
    /// [`resign`](Self::resign).
    pub async fn leader_request(&self) -> LeaderRequestKind {
        let mut state = self.term.state.subscribe();
        loop {
            if let Some(kind) = state.borrow_and_update().leader_request.clone() {
                return kind;
            }
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether a leader request has arrived.
    pub(crate) fn has_leader_request(&self) -> bool {
        self.term.state.borrow().leader_request.is_some()
    }

    /// Ties a transaction to this leadership: it can commit only while the lease is held.
    ///
    /// Call it first in the transaction. A takeover waits for the commit; the database ends a transaction that
    /// is idle for longer than the lease.
    pub async fn guard(&self, tx: &mut impl Guardable) -> Result<(), GuardError> {
        if !self.is_leader() {
            return Err(GuardError::Untrusted(self.term.election.clone()));
        }
        tx.guard(&self.guarded_lease()).await
    }

    /// The lease data that a guard checks, for transactions made elsewhere: `tenure.guard(…)` in SQL takes the
    /// same values.
    pub fn guarded_lease(&self) -> GuardedLease {
        GuardedLease {
            election: self.term.election.clone(),
            slot: self.term.slot,
            token: self.term.token,
            session: self.term.session.clone(),
            lease: self.term.timing.lease(),
        }
    }

    /// Ends this term so that another candidate can lead; the elector remains a candidate. Completes when the
    /// term has ended in this process. The lease is released when every other clone of this handle is dropped.
    pub async fn resign(self) -> Result<(), Error> {
        let Leadership { term, work } = self;
        let mut state = term.state.subscribe();
        term.inbox
            .send(DriverMessage::Resign(term.election.clone(), Some(term.token)))
            .map_err(|_| Error::Closed)?;
        drop(work);
        state.wait_for(|state| state.end.is_some()).await.map(|_| ()).map_err(|_| Error::Closed)
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

    /// A runtime that stalls the thread where it reads the clock: meanwhile the term ends, and a later session
    /// is trusted.
    struct StallingRuntime(OnceLock<Arc<ActiveTerm>>);

    const LATE: BootInstant = BootInstant::from_nanos(100);

    impl Runtime for StallingRuntime {
        fn now(&self) -> BootInstant {
            let term = self.0.get().expect("the term is set");
            term.ended.store(true, Ordering::Release);
            term.trust.set(BootInstant::from_nanos(LATE.as_nanos() * 2));
            LATE
        }

        fn wall_ms(&self) -> i64 {
            0
        }

        fn sleep_until<'a>(&'a self, _: BootInstant) -> futures_core::future::BoxFuture<'a, ()> {
            Box::pin(std::future::pending())
        }

        fn random(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_stalled_thread_does_not_use_the_trust_of_a_later_session() {
        let runtime = Arc::new(StallingRuntime(OnceLock::new()));
        let trust = Arc::new(SessionTrust::new(runtime.clone()));
        trust.set(BootInstant::from_nanos(1));
        let term = Arc::new(ActiveTerm {
            election: ElectionKey::new("default".parse().unwrap(), "nightly".parse().unwrap()),
            slot: 0,
            token: Token::ZERO,
            session: SessionId::from_stored("mine"),
            timing: Timing::default(),
            trust,
            ended: AtomicBool::new(false),
            state: watch::Sender::new(ActiveTermState::default()),
            work: Mutex::default(),
            inbox: mpsc::unbounded_channel().0,
        });
        assert!(runtime.0.set(term.clone()).is_ok());
        assert!(!term.is_leader());
    }
}
