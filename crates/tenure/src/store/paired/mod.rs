//! Two stores as one: elections in the first (the election store), everything else in the second (the data store).
//!
//! `tenure serve --election-store etcd://… --store postgres://…` elects with etcd and fences its writes in PostgreSQL. A process has one
//! session with the same id in both stores. It sends heartbeats to both, and it is live only if both stores agree. Every election call
//! goes to the election store. When the election store grants a lease, the data store
//! [adopts](tenure_core::port::ElectionStore::adopt_lease) it: it holds the same lease under the same token. So every check of a lease in
//! the data store (a transaction under [`guard`](crate::Leadership::guard), the scheduler, the broker) depends on a grant of the
//! election store.
//!
//! # Safety
//!
//! *At most one leader trusts its lease.* Trust comes from heartbeats to the election store alone, measured from before either store is
//! called. The data store can only end trust. So the [rule of trust](tenure_core::lease) holds as for the election store alone.
//!
//! *The data store rejects writes of former leaders.* Tokens of one election store only grow. A leader does not trust its lease before the
//! data store has adopted the token. Adoption locks the row of the lease and requires a token higher than every token that was adopted
//! from this election store before. So the holders of a row follow the order of grants, regardless of the delay between grant and
//! adoption: a leader that was stopped in between is rejected if a later one was adopted. A guarded transaction locks the same row and
//! compares token and session, so it commits before the next adoption or not at all.
//!
//! *Another election store* (another cluster, a restored one, or none) has tokens that do not compare. Its grant is adopted only if the
//! lease is free or the session of its holder has ended in the data store. The last token of each election store is kept permanently, so
//! that switching back cannot revive a former leader.
//!
//! *Failover of the data store.* A promoted standby may have lost the last adoption and all writes under it. A session that started before
//! the promotion ends, its leader stops, and the next leader is adopted before it writes.
//!
//! # Outages
//!
//! Without the data store, no heartbeat counts: a process sends it to the data store first and to the election store afterwards. So a
//! process that cannot reach the data becomes silent, and another candidate takes over. Without the election store, no heartbeat counts
//! either, and leaders stop at two thirds of their lease. Claims stay with their workers until the election store returns or expires
//! them.

mod admin;
mod store;
mod work;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::SessionId;
use tenure_core::port::{ErrorKind, ExpireSessionRequest, Store, StoreError};

/// Attempts to expire an ended session in the data store while it still sends heartbeats there.
const EXPIRE_ATTEMPTS: usize = 3;

/// Maximum number of remembered sessions. The list is cleared when it is full.
const REMEMBERED_SESSIONS_MAX: usize = 100_000;

/// Elections in one store, everything else in another.
///
/// ```
/// use std::sync::Arc;
/// use tenure::store::memory::MemoryStore;
/// use tenure::store::paired::PairedStore;
/// use tenure::Tenure;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let (election_store, data_store) = (MemoryStore::new(), MemoryStore::new());
/// let store = PairedStore::new(Arc::new(election_store), Arc::new(data_store))?;
/// let tenure = Tenure::builder().store(store).open().await?;
/// let nightly = tenure.elector("nightly").start().await?;
/// println!("elected under token {}", nightly.elected().await?.token());
/// # drop(nightly); tenure.close().await }
/// ```
#[derive(Clone)]
pub struct PairedStore {
    election_store: Arc<dyn Store>,
    data_store: Arc<dyn Store>,
    /// The last known epoch of the data store.
    epoch: Arc<AtomicU32>,
    /// The epoch of the data store in which each session started.
    start_epochs: Arc<Mutex<HashMap<SessionId, u32>>>,
}

impl PairedStore {
    /// Use `election_store` for elections and `data_store` for everything else. Fails if `data_store` cannot adopt leases.
    pub fn new(
        election_store: Arc<dyn Store>,
        data_store: Arc<dyn Store>,
    ) -> Result<PairedStore, StoreError> {
        if !data_store.supports_adoption() {
            let message = format!(
                "{} cannot be the store while {} is the election store: it cannot adopt leases; use sqlite: or postgres: as the store",
                data_store.guarantees().backend,
                election_store.guarantees().backend,
            );
            return Err(StoreError::new(ErrorKind::Request, message));
        }
        Ok(PairedStore { election_store, data_store, epoch: Arc::default(), start_epochs: Arc::default() })
    }

    /// Record the epoch of the data store. Returns whether the session started in it: a later epoch may have lost its leases.
    fn is_in_start_epoch(&self, session: &SessionId, epoch: u32) -> bool {
        self.epoch.store(epoch, Ordering::Relaxed);
        let mut start_epochs = self.start_epochs.lock().unwrap_or_else(PoisonError::into_inner);
        // Sessions of remote clients may end through another server, so entries can remain.
        if start_epochs.len() >= REMEMBERED_SESSIONS_MAX {
            start_epochs.clear();
        }
        *start_epochs.entry(session.clone()).or_insert(epoch) == epoch
    }

    fn forget_start_epoch(&self, session: &SessionId) {
        self.start_epochs.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
    }

    /// Expire a session in the data store after it has ended in the election store. An ended session cannot return, so its current
    /// heartbeat count is used.
    async fn expire_in_data_store(&self, session: &SessionId) -> Result<(), StoreError> {
        self.forget_start_epoch(session);
        for _ in 0..EXPIRE_ATTEMPTS {
            let known = self.data_store.sessions(Some(std::slice::from_ref(session))).await?;
            let Some(view) = known.into_iter().find(|view| view.live) else { return Ok(()) };
            let epoch = self.epoch.load(Ordering::Relaxed);
            self.data_store
                .expire_session(&ExpireSessionRequest {
                    session: session.clone(),
                    epoch,
                    heartbeat_count: Some(view.heartbeat_count),
                })
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    /// A promoted standby may have lost adopted leases, so sessions from before the promotion must end.
    #[test]
    fn a_session_from_before_a_promotion_ends() {
        let paired = PairedStore::new(Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new())).unwrap();
        let (old, new) = (SessionId::from_stored("old"), SessionId::from_stored("new"));
        assert!(paired.is_in_start_epoch(&old, 1) && paired.is_in_start_epoch(&old, 1));
        assert!(paired.is_in_start_epoch(&new, 2));
        assert!(!paired.is_in_start_epoch(&old, 2), "it may have lost its leases");
        assert!(paired.is_in_start_epoch(&new, 2), "a later session has not");
    }
}
