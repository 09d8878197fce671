//! From one store to another, with no moment of two leaders.
//!
//! Elections of two stores know nothing of each other. While candidates move from one to the other, each leads only while it leads in
//! *both*: those who still ask the old store alone are kept out by its lease, those who ask the new one alone by that of the new one. See
//! `docs/MOVING.md` for the steps.
//!
//! The second store is asked only by whoever leads in the first, so there is one candidate at a time, and no candidate waits for another in a
//! circle; unless half of the candidates ask them in the other order. Then one that leads in its first store and does not come to lead in the second within a
//! few leases gives the first back, each after another while, until one of them has both.

use std::time::Duration;

use tenure_core::port::AskKind;
use tenure_core::{Moment, Token};

use crate::{Elector, ElectorBuilder, Error, Leadership, Over};

/// How many leases a candidate waits for the second store: a dead holder is waited out after one that was watched from the start.
const PATIENCE: u32 = 2;

/// How soon a candidacy is made again that the last one is still leaving.
const AGAIN: Duration = Duration::from_millis(20);

/// A candidate that leads only while it leads in two stores, asked in this order.
///
/// ```
/// # use tenure::{Moving, Tenure, backend::memory::Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let old = Tenure::builder().store(Memory::new()).open().await?;
/// let new = Tenure::builder().store(Memory::new()).open().await?;
/// let moving = Moving::new(old.elector("nightly").start().await?, move || new.elector("nightly"));
/// let both = moving.elected().await?;
/// assert!(both.is_leader());
/// let (old, new) = both.tokens();
/// println!("leading under token {old} of the old store and {new} of the new one");
/// both.resign().await
/// # }
/// ```
pub struct Moving {
    first: Elector,
    second: Box<dyn Fn() -> ElectorBuilder + Send + Sync>,
}

/// Leadership in both stores, valid as long as both are trusted. What is said of [`Leadership`] holds for it.
pub struct Both {
    // Dropped in this order: the next one asks the first store first, and is then not kept waiting by the second.
    second: Leadership,
    candidate: Elector,
    first: Leadership,
}

impl Moving {
    /// A candidate that stands in the first store, and in the second by `second` whenever it leads in the first.
    pub fn new(first: Elector, second: impl Fn() -> ElectorBuilder + Send + Sync + 'static) -> Moving {
        Moving { first, second: Box::new(second) }
    }

    /// The candidate in the first store.
    pub fn first(&self) -> &Elector {
        &self.first
    }

    /// Waits until this process leads in both.
    pub async fn elected(&self) -> Result<Both, Error> {
        loop {
            let first = self.first.elected().await?;
            let runtime = self.first.tenure().runtime();
            let lease = self.first.tenure().timing().lease();
            let more = runtime.random() % u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX).max(1);
            let patience = runtime.now() + lease * PATIENCE + Duration::from_nanos(more);
            let found = tokio::select! {
                biased;
                _ = first.lost() => None,
                _ = first.asked() => None,
                () = runtime.sleep_until(patience) => None,
                second = self.second() => Some(second?),
            };
            match found {
                Some((candidate, second)) => return Ok(Both { second, candidate, first }),
                // Whoever leads in the second may be waiting for the first.
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
                // Of the last time in office, which is still being given back.
                Err(Error::AlreadyStanding(_)) => {
                    let runtime = self.first.tenure().runtime();
                    runtime.sleep_until(runtime.now() + AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Both {
    /// Whether this process leads in both *now*.
    pub fn is_leader(&self) -> bool {
        self.first.is_leader() && self.second.is_leader()
    }

    /// The leadership in the first store.
    pub fn first(&self) -> &Leadership {
        &self.first
    }

    /// The leadership in the second store.
    pub fn second(&self) -> &Leadership {
        &self.second
    }

    /// The tokens of the first and of the second store. Each only grows, and they do not compare: what is fenced while candidates move
    /// is fenced by both, under a name for each.
    pub fn tokens(&self) -> (Token, Token) {
        (self.first.token(), self.second.token())
    }

    /// Until when both are trusted if no further beat is counted.
    pub fn trusted_until(&self) -> Moment {
        self.first.trusted_until().min(self.second.trusted_until())
    }

    /// Completes when this process does not lead in both any longer. Stop the work then.
    pub async fn lost(&self) -> Over {
        tokio::select! {
            over = self.first.lost() => over,
            over = self.second.lost() => over,
        }
    }

    /// Completes when somebody asks the leader of either to finish.
    pub async fn asked(&self) -> AskKind {
        tokio::select! {
            kind = self.first.asked() => kind,
            kind = self.second.asked() => kind,
        }
    }

    /// Gives both back, the second first; the candidate goes on standing in the first.
    pub async fn resign(self) -> Result<(), Error> {
        let Both { second, candidate, first } = self;
        drop(second);
        let left = candidate.stop().await;
        first.resign().await.and(left)
    }
}
