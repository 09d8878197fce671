//! Soft leadership of this process.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tenure_core::{BootInstant, ElectionKey};
use tokio::sync::{mpsc, watch};

use super::elector::SoftElectorMessage;
use crate::{Error, runtime};

/// Soft leadership: as far as this process knows, no better candidate leads. **Another process may lead at the same
/// time**, on another side of a network split for as long as the split lasts.
///
/// Soft leadership has no token and must not protect work that requires exclusion. The compiler enforces this:
///
/// ```compile_fail,E0599
/// # fn work(soft: tenure::store::gossip::SoftLeadership) {
/// let token = soft.token(); // no such method
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # async fn work(soft: tenure::store::gossip::SoftLeadership) {
/// async fn migrate_database(leadership: tenure::Leadership) { /* must be exclusive */ }
/// migrate_database(soft).await;
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # async fn work(soft: tenure::store::gossip::SoftLeadership, tx: &mut impl tenure::Guardable) {
/// soft.guard(tx).await; // cannot guard a transaction
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # async fn work(soft: tenure::store::gossip::SoftLeadership, tx: &mut impl tenure::Fenceable) {
/// tenure::fence(tx, "reports", soft).await; // has no fencing token
/// # }
/// ```
///
/// Use it for work that is harmless if two processes do it for a while and costly if all processes always do it:
/// warming caches, sending beacons, electing a poller.
///
/// ```
/// # use tenure::store::gossip::{Gossip, GossipOptions};
/// # use tenure_core::rules::soft::GossipTiming; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let ms = Duration::from_millis;
/// # let options = GossipOptions::new("127.0.0.1:0").timing(GossipTiming::new(ms(10), ms(500), ms(50)).unwrap());
/// let gossip = Gossip::join(options).await?;
/// let elector = gossip.elector("cache-warmer").start().await?;
/// let soft = elector.elected().await?;
/// assert!(soft.is_leader());
/// # gossip.leave().await;
/// # Ok(()) }
/// ```
///
/// While a clone of the handle exists, work counts as running, and other members see this process as leader.
#[derive(Clone)]
pub struct SoftLeadership {
    term: Arc<SoftTerm>,
    work: Arc<SoftWorkGuard>,
}

/// Why a soft term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SoftTermEnd {
    /// A better candidate is ready or leads.
    Outranked,
    /// This process or its gossip was paused for too long.
    TrustExpired,
    /// This process resigned or withdrew.
    Resigned,
}

impl SoftTermEnd {
    /// Description of the reason.
    pub fn as_str(self) -> &'static str {
        match self {
            SoftTermEnd::Outranked => "a better candidate is ready",
            SoftTermEnd::TrustExpired => "no gossip was received in time",
            SoftTermEnd::Resigned => "resigned",
        }
    }
}

/// A soft term of this process.
pub(super) struct SoftTerm {
    election: ElectionKey,
    until: AtomicU64,
    ended: AtomicBool,
    end_reason: watch::Sender<Option<SoftTermEnd>>,
    work: Mutex<Weak<SoftWorkGuard>>,
    messages: mpsc::UnboundedSender<SoftElectorMessage>,
}

/// Exists while work runs under a term.
pub(super) struct SoftWorkGuard {
    messages: mpsc::UnboundedSender<SoftElectorMessage>,
}

impl Drop for SoftWorkGuard {
    fn drop(&mut self) {
        // The send fails only if the candidate has ended already.
        let _ = self.messages.send(SoftElectorMessage::WorkEnded);
    }
}

impl SoftTerm {
    pub(super) fn new(
        election: ElectionKey,
        until: BootInstant,
        messages: mpsc::UnboundedSender<SoftElectorMessage>,
    ) -> Arc<Self> {
        Arc::new(SoftTerm {
            election,
            until: AtomicU64::new(until.as_nanos()),
            ended: AtomicBool::new(false),
            end_reason: watch::Sender::new(None),
            work: Mutex::default(),
            messages,
        })
    }

    pub(super) fn trust(&self, until: BootInstant) {
        self.until.store(until.as_nanos(), Ordering::Release);
    }

    pub(super) fn end(&self, why: SoftTermEnd) {
        self.ended.store(true, Ordering::Release);
        self.end_reason.send_modify(|end_reason| {
            end_reason.get_or_insert(why);
        });
    }

    pub(super) fn is_leader(&self) -> bool {
        runtime::now() < self.until() && !self.ended.load(Ordering::Acquire)
    }

    pub(super) fn has_workers(&self) -> bool {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
    }

    /// Create a handle for work under this term, if it still leads. The handle is created before the check, so that the
    /// candidate waits for it.
    pub(super) fn lead(self: &Arc<Self>) -> Option<SoftLeadership> {
        let mut weak = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let work = weak.upgrade().unwrap_or_else(|| {
            let work = Arc::new(SoftWorkGuard { messages: self.messages.clone() });
            *weak = Arc::downgrade(&work);
            work
        });
        drop(weak);
        let handle = SoftLeadership { term: self.clone(), work };
        self.is_leader().then_some(handle)
    }

    fn until(&self) -> BootInstant {
        BootInstant::from_nanos(self.until.load(Ordering::Acquire))
    }
}

impl SoftLeadership {
    /// Whether this process leads now, as far as it knows. Each call compares the clock.
    pub fn is_leader(&self) -> bool {
        self.term.is_leader()
    }

    /// Key of the election.
    pub fn election(&self) -> &ElectionKey {
        &self.term.election
    }

    /// Until when this process may continue if it receives no further gossip.
    pub fn trusted_until(&self) -> BootInstant {
        if self.term.ended.load(Ordering::Acquire) { BootInstant::ZERO } else { self.term.until() }
    }

    /// Complete when this process no longer leads. Stop the work then.
    pub async fn lost(&self) -> SoftTermEnd {
        let mut end_reason = self.term.end_reason.subscribe();
        loop {
            if let Some(end_reason) = *end_reason.borrow_and_update() {
                return end_reason;
            }
            let until = self.term.until();
            if runtime::now() >= until {
                return SoftTermEnd::TrustExpired;
            }
            tokio::select! {
                changed = end_reason.changed() => if changed.is_err() { return SoftTermEnd::TrustExpired },
                () = runtime::sleep_until(until) => {}
            }
        }
    }

    /// Step down and rejoin behind the other candidates of the same priority. Completes when the term has ended in this
    /// process. Other members learn of it once every other clone of this handle is dropped.
    pub async fn resign(self) -> Result<(), Error> {
        let SoftLeadership { term, work } = self;
        let mut end_reason = term.end_reason.subscribe();
        term.messages.send(SoftElectorMessage::Resign).map_err(|_| Error::Closed)?;
        drop(work);
        end_reason.wait_for(Option::is_some).await.map(|_| ()).map_err(|_| Error::Closed)
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
