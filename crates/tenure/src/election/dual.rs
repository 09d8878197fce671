//! Leadership in two stores, to move candidates from one store to another without a moment of two leaders.
//!
//! Elections of two stores are independent. While candidates move from one store to the other, each leads only
//! while it leads in *both*: the lease of the old store excludes candidates that use only the old store, and
//! the lease of the new store excludes candidates that use only the new one. `docs/MOVING.md` describes the
//! steps.
//!
//! Only the leader of the first store joins the second election, so the second election has one such candidate
//! at a time and there is no circular wait. If some candidates use the two stores in the opposite order, two
//! candidates can wait for each other. So a candidate that leads in its first store, but does not lead in its
//! second within a few leases, releases the first one. The waiting times are random, so one candidate eventually
//! leads in both.

use std::time::Duration;

use tenure_core::port::LeaderRequestKind;
use tenure_core::{BootInstant, Token};

use crate::{Elector, ElectorBuilder, Error, Leadership, TermEnd};

/// How many leases a candidate waits for the second store. A dead holder is taken over after one lease.
const SECOND_WAIT_LEASES: u32 = 2;

/// Delay before joining again while the previous candidacy is still leaving.
const REJOIN_DELAY: Duration = Duration::from_millis(20);

/// A candidate that leads only while it leads in two stores, joined in this order.
///
/// ```
/// # use tenure::{DualElector, Tenure, store::memory::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let old = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let new = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let elector = DualElector::new(old.elector("nightly").start().await?, move || new.elector("nightly"));
/// let leadership = elector.elected().await?;
/// assert!(leadership.is_leader());
/// let (old, new) = leadership.tokens();
/// println!("leading under token {old} of the old store and {new} of the new one");
/// leadership.resign().await
/// # }
/// ```
pub struct DualElector {
    first: Elector,
    second: Box<dyn Fn() -> ElectorBuilder + Send + Sync>,
}

/// Leadership in both stores, valid while both are trusted. The rules of [`Leadership`] apply.
pub struct DualLeadership {
    // Fields drop in this order: the next candidate joins the first store first and must then find the second
    // free.
    second: Leadership,
    candidate: Elector,
    first: Leadership,
}

impl DualElector {
    /// Creates a candidate from an elector in the first store, and `second`, which builds the candidate in the
    /// second store whenever this process leads in the first.
    pub fn new(first: Elector, second: impl Fn() -> ElectorBuilder + Send + Sync + 'static) -> DualElector {
        DualElector { first, second: Box::new(second) }
    }

    /// The candidate in the first store.
    pub fn first(&self) -> &Elector {
        &self.first
    }

    /// Waits until this process leads in both stores.
    pub async fn elected(&self) -> Result<DualLeadership, Error> {
        loop {
            let first = self.first.elected().await?;
            let runtime = self.first.tenure().runtime();
            let lease = self.first.tenure().timing().lease();
            let more = runtime.random() % u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX).max(1);
            let give_up_at = runtime.now() + lease * SECOND_WAIT_LEASES + Duration::from_nanos(more);
            let found = tokio::select! {
                biased;
                _ = first.lost() => None,
                _ = first.leader_request() => None,
                () = runtime.sleep_until(give_up_at) => None,
                second = self.second() => Some(second?),
            };
            match found {
                Some((candidate, second)) => return Ok(DualLeadership { second, candidate, first }),
                // Release the first store: the leader of the second store may be waiting for it.
                None => first.resign().await?,
            }
        }
    }

    async fn second(&self) -> Result<(Elector, Leadership), Error> {
        loop {
            match (self.second)().start().await {
                Ok(candidate) => {
                    let leadership = candidate.elected().await?;
                    return Ok((candidate, leadership));
                }
                // The previous candidacy is still leaving.
                Err(Error::AlreadyCandidate(_)) => {
                    let runtime = self.first.tenure().runtime();
                    runtime.sleep_until(runtime.now() + REJOIN_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl DualLeadership {
    /// Whether this process leads in both stores *now*.
    pub fn is_leader(&self) -> bool {
        self.first.is_leader() && self.second.is_leader()
    }

    /// Leadership in the first store.
    pub fn first(&self) -> &Leadership {
        &self.first
    }

    /// Leadership in the second store.
    pub fn second(&self) -> &Leadership {
        &self.second
    }

    /// Tokens of the first and of the second store. Each only grows; they cannot be compared with each other.
    /// While candidates move, fence with both, under one name for each.
    pub fn tokens(&self) -> (Token, Token) {
        (self.first.token(), self.second.token())
    }

    /// The instant until which both are trusted if no further heartbeat succeeds.
    pub fn trusted_until(&self) -> BootInstant {
        self.first.trusted_until().min(self.second.trusted_until())
    }

    /// Completes when this process no longer leads in both stores. Stop the work then.
    pub async fn lost(&self) -> TermEnd {
        tokio::select! {
            end = self.first.lost() => end,
            end = self.second.lost() => end,
        }
    }

    /// Completes when the leader of either election receives a request to step down.
    pub async fn leader_request(&self) -> LeaderRequestKind {
        tokio::select! {
            kind = self.first.leader_request() => kind,
            kind = self.second.leader_request() => kind,
        }
    }

    /// Releases both leases, the second one first. Remains a candidate in the first store.
    pub async fn resign(self) -> Result<(), Error> {
        let DualLeadership { second, candidate, first } = self;
        drop(second);
        let stopped = candidate.stop().await;
        first.resign().await.and(stopped)
    }
}
