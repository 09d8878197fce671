//! Being a soft leader, for as long as it lasts.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tenure_core::{ElectionKey, Moment};
use tokio::sync::{mpsc, watch};

use super::elector::Wish;
use crate::{Error, runtime};

/// Soft leadership: as far as this process has heard, nobody better leads. **Others may lead at the same time**, on another side of
/// a netsplit for as long as it lasts.
///
/// So it has no token, and is of no use where somebody must be the only one. That is checked when you compile:
///
/// ```compile_fail,E0599
/// # fn work(soft: tenure::backend::gossip::SoftLeadership) {
/// let token = soft.token(); // there is none
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # async fn work(soft: tenure::backend::gossip::SoftLeadership) {
/// async fn migrate_database(leadership: tenure::Leadership) { /* must be alone */ }
/// migrate_database(soft).await;
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # async fn work(soft: tenure::backend::gossip::SoftLeadership, tx: &mut impl tenure::Guarded) {
/// soft.guard(tx).await; // no transaction can be tied to it
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # async fn work(soft: tenure::backend::gossip::SoftLeadership, tx: &mut impl tenure::Fenced) {
/// tenure::fence(tx, "reports", soft).await; // nor is there anything to fence with
/// # }
/// ```
///
/// What it is good for: work that is harmless if two do it for a while, and costly if all do it all the time. Warming caches,
/// sending beacons, choosing who polls.
///
/// ```
/// # use tenure::backend::gossip::{Gossip, GossipOptions};
/// # use tenure_core::soft::Pace; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let ms = Duration::from_millis;
/// # let options = GossipOptions::new("127.0.0.1:0").pace(Pace::new(ms(10), ms(500), ms(50)).unwrap());
/// let gossip = Gossip::join(options).await?;
/// let elector = gossip.elector("cache-warmer").start().await?;
/// let soft = elector.elected().await?;
/// assert!(soft.is_leader());
/// # gossip.leave().await;
/// # Ok(()) }
/// ```
///
/// Holding it says that work is going on: others are told that this process leads until every clone has been dropped.
#[derive(Clone)]
pub struct SoftLeadership {
    term: Arc<SoftTerm>,
    work: Arc<SoftWork>,
}

/// Why a soft term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SoftOver {
    /// Somebody better is ready, or leads.
    Outranked,
    /// This process was stopped for too long, or its gossip was.
    Doubt,
    /// It was given up.
    GivenUp,
}

impl SoftOver {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            SoftOver::Outranked => "somebody better is there",
            SoftOver::Doubt => "nothing was heard of the others in time",
            SoftOver::GivenUp => "given up",
        }
    }
}

/// One soft term of this process.
pub(super) struct SoftTerm {
    election: ElectionKey,
    until: AtomicU64,
    ended: AtomicBool,
    over: watch::Sender<Option<SoftOver>>,
    work: Mutex<Weak<SoftWork>>,
    wishes: mpsc::UnboundedSender<Wish>,
}

/// Lives while somebody works under a term.
pub(super) struct SoftWork {
    wishes: mpsc::UnboundedSender<Wish>,
}

impl Drop for SoftWork {
    fn drop(&mut self) {
        // A candidate that is gone needs no telling.
        let _ = self.wishes.send(Wish::WorkEnded);
    }
}

impl SoftTerm {
    pub(super) fn new(
        election: ElectionKey,
        until: Moment,
        wishes: mpsc::UnboundedSender<Wish>,
    ) -> Arc<Self> {
        Arc::new(SoftTerm {
            election,
            until: AtomicU64::new(until.as_nanos()),
            ended: AtomicBool::new(false),
            over: watch::Sender::new(None),
            work: Mutex::default(),
            wishes,
        })
    }

    pub(super) fn trust(&self, until: Moment) {
        self.until.store(until.as_nanos(), Ordering::Release);
    }

    pub(super) fn end(&self, why: SoftOver) {
        self.ended.store(true, Ordering::Release);
        self.over.send_modify(|over| {
            over.get_or_insert(why);
        });
    }

    pub(super) fn is_leader(&self) -> bool {
        runtime::now() < self.until() && !self.ended.load(Ordering::Acquire)
    }

    pub(super) fn has_workers(&self) -> bool {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
    }

    /// A handle for somebody who works under this term, if it leads. The handle comes first: from here on it is waited for.
    pub(super) fn lead(self: &Arc<Self>) -> Option<SoftLeadership> {
        let mut weak = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let work = weak.upgrade().unwrap_or_else(|| {
            let work = Arc::new(SoftWork { wishes: self.wishes.clone() });
            *weak = Arc::downgrade(&work);
            work
        });
        drop(weak);
        let handle = SoftLeadership { term: self.clone(), work };
        self.is_leader().then_some(handle)
    }

    fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }
}

impl SoftLeadership {
    /// Whether this process leads *now*, as far as it has heard. The clock is compared at every call.
    pub fn is_leader(&self) -> bool {
        self.term.is_leader()
    }

    /// The election.
    pub fn election(&self) -> &ElectionKey {
        &self.term.election
    }

    /// Until when this process may go on if it hears nothing further.
    pub fn trusted_until(&self) -> Moment {
        if self.term.ended.load(Ordering::Acquire) { Moment::ZERO } else { self.term.until() }
    }

    /// Completes when this process leads no longer. Stop the work then.
    pub async fn lost(&self) -> SoftOver {
        let mut over = self.term.over.subscribe();
        loop {
            if let Some(over) = *over.borrow_and_update() {
                return over;
            }
            let until = self.term.until();
            if runtime::now() >= until {
                return SoftOver::Doubt;
            }
            tokio::select! {
                changed = over.changed() => if changed.is_err() { return SoftOver::Doubt },
                () = runtime::sleep_until(until) => {}
            }
        }
    }

    /// Steps down, and queues up behind the others of the same priority. Completes when this term is over here; others are told once
    /// every other clone of this handle is dropped too.
    pub async fn resign(self) -> Result<(), Error> {
        let SoftLeadership { term, work } = self;
        let mut over = term.over.subscribe();
        term.wishes.send(Wish::Resign).map_err(|_| Error::Closed)?;
        drop(work);
        over.wait_for(Option::is_some).await.map(|_| ()).map_err(|_| Error::Closed)
    }
}

impl fmt::Debug for SoftLeadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftLeadership")
            .field("election", &self.term.election.to_string())
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}
