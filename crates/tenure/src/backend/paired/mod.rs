//! Two stores as one: elections live in the first, work and data in the second.
//!
//! `tenure serve --elect etcd://… --store postgres://…` elects by etcd and fences its writes in PostgreSQL. A process has *one* session, of one id, in both; it
//! is beaten in both and lives only if both say so. All that is about elections is asked of the *elector*. When it has granted a lease, the *keeper* of the work
//! [adopts](tenure_core::port::Store::adopt) it: it holds the same lease under the same token, so that everything that is guarded by a lease there (a
//! transaction under [`guard`](crate::Leadership::guard), the scheduler's firing, the claims' leader) is guarded by a grant of the elector.
//!
//! # Why it is safe
//!
//! *At most one believes.* Trust comes from the elector's beats alone, read before either store is asked; the other store can only take trust away. So the
//! [rule of trust](tenure_core::lease) holds as on the elector by itself.
//!
//! *No write of an earlier leader is accepted after one of a later leader.* Tokens of one elector only grow. Nobody believes that it leads before its
//! token is adopted, and adopting compares: under the lock of the lease's row, the token must be greater than every one that was adopted from this elector
//! before. So the holders of a row follow each other as the elector granted, whatever the delay between grant and adoption: a leader that was stopped there,
//! and goes on after the next one was adopted, is refused. What is guarded locks the same row and compares token and session: it commits before the next
//! adoption or not at all.
//!
//! *Another elector* (another cluster, one restored from a backup, or no `--elect`) has tokens that do not compare. What it granted is
//! adopted only when the lease is free here or its holder's session is over here; and the last token of each elector is kept for ever, so that going
//! back and forth revives nobody.
//!
//! *The keeper's failover.* A promoted standby may have lost the last adoption, and with it all that was written under it, as a log is lost
//! from its end. A session that was opened before it is over, its leader leads no more, and the next one is adopted before it writes.
//!
//! # When one of them is away
//!
//! Without the keeper no beat counts: it is beaten first, and the elector only after it, so that a process that can not reach the data falls silent to the others, and
//! one of them takes over. Without the elector nobody's beats count either, and whoever leads stops at two thirds of its lease; claims stay with
//! their workers until the elector is back, or has declared them dead.

mod directory;
mod store;
mod work;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::SessionId;
use tenure_core::port::{Backend, Expire, StoreError, Trouble};

/// How often a session that is over is declared dead where the work is, if it still beats there.
const BURIALS: usize = 3;

/// How many sessions' beginnings are remembered; then it begins anew.
const BEGINNINGS_KEPT: usize = 100_000;

/// Elections in one store, all else in another.
///
/// ```
/// use std::sync::Arc;
/// use tenure::backend::memory::Memory;
/// use tenure::backend::paired::Paired;
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let (elector, keeper) = (Memory::new(), Memory::new());
/// let store = Paired::new(Arc::new(elector), Arc::new(keeper))?;
/// let tenure = Tenure::builder().store(store).open().await?;
/// let nightly = tenure.elector("nightly").start().await?;
/// println!("elected under token {}", nightly.elected().await?.token());
/// # drop(nightly); tenure.close().await }
/// ```
#[derive(Clone)]
pub struct Paired {
    elector: Arc<dyn Backend>,
    keeper: Arc<dyn Backend>,
    /// The keeper's epoch as it was seen last, and as each session began on it.
    epoch: Arc<AtomicU32>,
    began: Arc<Mutex<HashMap<SessionId, u32>>>,
}

impl Paired {
    /// Elections by `elector`, all else in `keeper`. Refused if `keeper` can not hold what another store granted.
    pub fn new(elector: Arc<dyn Backend>, keeper: Arc<dyn Backend>) -> Result<Paired, StoreError> {
        if !keeper.adopts() {
            let message = format!(
                "work can not be kept in {} while {} elects: it does not hold leases that were granted elsewhere; use sqlite: or postgres: as the store",
                keeper.promises().backend,
                elector.promises().backend,
            );
            return Err(StoreError::new(Trouble::Request, message));
        }
        Ok(Paired { elector, keeper, epoch: Arc::default(), began: Arc::default() })
    }

    /// The keeper is in this epoch. Whether this session began on it: a later one may have lost what it holds.
    fn is_of_its_time(&self, session: &SessionId, epoch: u32) -> bool {
        self.epoch.store(epoch, Ordering::Relaxed);
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        // Sessions of others that come through a server may end through another one.
        if began.len() >= BEGINNINGS_KEPT {
            began.clear();
        }
        *began.entry(session.clone()).or_insert(epoch) == epoch
    }

    fn forget(&self, session: &SessionId) {
        self.began.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }

    /// Declares a session dead where the work is, once it is over for the elector: it can not come back, so no beat has to be waited for.
    async fn bury(&self, session: &SessionId) -> Result<(), StoreError> {
        self.forget(session);
        for _ in 0..BURIALS {
            let known = self.keeper.sessions(Some(std::slice::from_ref(session))).await?;
            let Some(view) = known.into_iter().find(|view| view.live) else { return Ok(()) };
            let epoch = self.epoch.load(Ordering::Relaxed);
            self.keeper.expire(&Expire { session: session.clone(), epoch, beat: Some(view.beat) }).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::Memory;

    /// A promoted standby may have lost what was adopted: whoever was elected before leads no more, and is elected anew.
    #[test]
    fn a_session_that_began_before_a_promotion_is_over() {
        let paired = Paired::new(Arc::new(Memory::new()), Arc::new(Memory::new())).unwrap();
        let (old, new) = (SessionId::from_stored("old"), SessionId::from_stored("new"));
        assert!(paired.is_of_its_time(&old, 1) && paired.is_of_its_time(&old, 1));
        assert!(paired.is_of_its_time(&new, 2));
        assert!(!paired.is_of_its_time(&old, 2), "it may have lost what it holds");
        assert!(paired.is_of_its_time(&new, 2), "and who came later has not");
    }
}
