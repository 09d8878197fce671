//! Cached sessions and candidates, and detection of a restored cluster.
//!
//! The cached sessions and candidates only save reads. The revision tracking is required for safety: a cluster that was
//! restored from a backup does not know the latest grants and heartbeats. If it was restored with another cluster
//! token, its cluster id differs. If it was restored under the same name and addresses, the id is the same, but its
//! *revision* is lower: responses to transactions are linearizable, so of two consecutive calls the second never
//! reports a lower revision, unless the writes since the backup are lost.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::port::SessionView;
use tenure_core::{BootInstant, ElectionKey, SessionId};

use super::message::Header;

/// Maximum number of elections with cached candidates.
const CANDIDATE_SETS_MAX: usize = 10_000;

/// State that this process caches.
#[derive(Default)]
pub(super) struct EtcdCache {
    sessions: Mutex<HashMap<SessionId, CachedSession>>,
    candidates: Mutex<HashMap<ElectionKey, BTreeSet<SessionId>>>,
    revisions: Mutex<RevisionTracker>,
}

/// A session of this process.
#[derive(Clone)]
pub(super) struct CachedSession {
    /// Revision of its last heartbeat.
    pub(super) revision: i64,
    /// etcd lease of the session, and the time of its last keep-alive.
    pub(super) lease: i64,
    pub(super) lease_kept_at: BootInstant,
    pub(super) view: SessionView,
    /// Elections in which the session has taken part.
    pub(super) elections: BTreeSet<ElectionKey>,
}

/// Revisions of the cluster as this process has seen them.
#[derive(Default)]
struct RevisionTracker {
    cluster: Option<u64>,
    /// Number of detected restores.
    restores: u32,
    /// Highest revision seen since the last restore.
    highest: i64,
    /// Highest revision seen before the last restore.
    lost: i64,
}

/// The revision known before a request was sent.
#[derive(Clone, Copy)]
pub(super) struct RevisionMark {
    restores: u32,
    highest: i64,
}

impl EtcdCache {
    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, CachedSession>> {
        locked(&self.sessions)
    }

    pub(super) fn session(&self, id: &SessionId) -> Option<CachedSession> {
        self.sessions().get(id).cloned()
    }

    pub(super) fn elections(&self, id: &SessionId) -> Option<Vec<ElectionKey>> {
        self.sessions().get(id).map(|known| known.elections.iter().cloned().collect())
    }

    pub(super) fn add_election(&self, id: &SessionId, key: &ElectionKey) {
        if let Some(known) = self.sessions().get_mut(id) {
            known.elections.insert(key.clone());
        }
    }

    /// Sessions that took part in an election at the last read.
    pub(super) fn candidates_of(&self, key: &ElectionKey) -> BTreeSet<SessionId> {
        locked(&self.candidates).get(key).cloned().unwrap_or_default()
    }

    pub(super) fn remember_candidates(&self, key: &ElectionKey, candidates: BTreeSet<SessionId>) {
        let mut cached = locked(&self.candidates);
        if cached.len() >= CANDIDATE_SETS_MAX {
            cached.clear();
        }
        cached.insert(key.clone(), candidates);
    }

    /// Record the known revision; call before sending a request.
    pub(super) fn mark_revision(&self) -> RevisionMark {
        let revisions = locked(&self.revisions);
        RevisionMark { restores: revisions.restores, highest: revisions.highest }
    }

    /// Check a response for a restored cluster. Returns the epoch of the response, which is 0 until the first restore.
    pub(super) fn epoch_of_response(&self, mark: RevisionMark, header: &Header) -> u32 {
        let mut revisions = locked(&self.revisions);
        if revisions.restores != mark.restores {
            // Another call has detected a restore in the meantime, so it is unknown whether this response came before
            // or after it.
            return revisions.restores;
        }
        let is_another = revisions.cluster.is_some_and(|cluster| cluster != header.cluster_id);
        if is_another || header.revision < mark.highest {
            revisions.mark_restored();
            revisions.highest = header.revision;
        }
        revisions.cluster = Some(header.cluster_id);
        revisions.highest = revisions.highest.max(header.revision);
        revisions.restores
    }

    /// A confirmed heartbeat has disappeared: the cluster was restored.
    pub(super) fn mark_restored(&self, mark: RevisionMark) {
        let mut revisions = locked(&self.revisions);
        if revisions.restores == mark.restores {
            revisions.mark_restored();
        }
    }

    /// Id of the cluster that answered last.
    pub(super) fn cluster(&self) -> Option<u64> {
        locked(&self.revisions).cluster
    }

    /// Highest revision seen before a restore; new tokens must be greater.
    pub(super) fn min_token(&self) -> i64 {
        locked(&self.revisions).lost
    }
}

impl RevisionTracker {
    fn mark_restored(&mut self) {
        self.restores += 1;
        self.lost = self.lost.max(self.highest);
        tracing::error!(
            revision = self.highest,
            "etcd revision decreased: the cluster was restored from a backup or replaced. All leases of this process are void, \
             and no lease is granted until the trust of every earlier leader has expired"
        );
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster_id: u64, revision: i64) -> Header {
        Header { cluster_id, revision }
    }

    #[test]
    fn the_epoch_is_unchanged_while_revisions_grow_and_responses_overtake_each_other() {
        let cache = EtcdCache::default();
        let (first, second) = (cache.mark_revision(), cache.mark_revision());
        assert_eq!(cache.epoch_of_response(second, &header(1, 9)), 0);
        assert_eq!(
            cache.epoch_of_response(first, &header(1, 7)),
            0,
            "sent before the other response arrived"
        );
        assert_eq!(cache.epoch_of_response(cache.mark_revision(), &header(1, 9)), 0);
    }

    #[test]
    fn a_lower_revision_starts_a_new_epoch_once() {
        let cache = EtcdCache::default();
        assert_eq!(cache.epoch_of_response(cache.mark_revision(), &header(1, 9)), 0);
        let (first, second) = (cache.mark_revision(), cache.mark_revision());
        assert_eq!(cache.epoch_of_response(first, &header(1, 8)), 1);
        assert_eq!(cache.epoch_of_response(second, &header(1, 8)), 1);
        assert_eq!(
            (cache.epoch_of_response(cache.mark_revision(), &header(1, 8)), cache.min_token()),
            (1, 9)
        );
    }

    #[test]
    fn another_cluster_starts_a_new_epoch_even_if_it_is_ahead() {
        let cache = EtcdCache::default();
        assert_eq!(cache.epoch_of_response(cache.mark_revision(), &header(1, 9)), 0);
        assert_eq!(cache.epoch_of_response(cache.mark_revision(), &header(2, 90)), 1);
        assert_eq!(cache.epoch_of_response(cache.mark_revision(), &header(2, 91)), 1);
    }
}
