//! What this process remembers: of its own sessions, of who takes part in what, and of the time of the cluster.
//!
//! The first two save looking, and are never needed. The third is: a cluster that was restored from a backup does not know the last grants
//! and beats. It is another cluster if it was given another token, and then its id says so; but one that was restored under the same name and at
//! the same addresses has the same id. Then its *revision* tells: answers to transactions are linearizable, so of two calls that follow each other
//! the second never shows a smaller one, unless what was written since the backup is gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::port::SessionView;
use tenure_core::{ElectionKey, Moment, SessionId};

use super::message::Header;

/// Of how many elections it is remembered who takes part.
const CASTS_KEPT: usize = 10_000;

/// What this process remembers.
#[derive(Default)]
pub(super) struct Memo {
    sessions: Mutex<HashMap<SessionId, Known>>,
    casts: Mutex<HashMap<ElectionKey, BTreeSet<SessionId>>>,
    time: Mutex<Time>,
}

/// A session of ours.
#[derive(Clone)]
pub(super) struct Known {
    /// The revision of its last beat.
    pub(super) revision: i64,
    /// The etcd lease it hangs on, and when that was last kept.
    pub(super) lease: i64,
    pub(super) kept: Moment,
    pub(super) view: SessionView,
    /// The elections that it ever had to do with.
    pub(super) elections: BTreeSet<ElectionKey>,
}

/// The time of the cluster, as this process has seen it.
#[derive(Default)]
struct Time {
    cluster: Option<u64>,
    /// How often it went back.
    number: u32,
    /// The greatest revision that was seen since.
    highest: i64,
    /// The greatest revision that was seen before it went back.
    lost: i64,
}

/// How far the cluster was when something was asked of it.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    number: u32,
    highest: i64,
}

impl Memo {
    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Known>> {
        locked(&self.sessions)
    }

    pub(super) fn known(&self, id: &SessionId) -> Option<Known> {
        self.sessions().get(id).cloned()
    }

    pub(super) fn elections(&self, id: &SessionId) -> Option<Vec<ElectionKey>> {
        self.sessions().get(id).map(|known| known.elections.iter().cloned().collect())
    }

    pub(super) fn saw(&self, id: &SessionId, key: &ElectionKey) {
        if let Some(known) = self.sessions().get_mut(id) {
            known.elections.insert(key.clone());
        }
    }

    /// Who took part in an election when it was last read.
    pub(super) fn cast(&self, key: &ElectionKey) -> BTreeSet<SessionId> {
        locked(&self.casts).get(key).cloned().unwrap_or_default()
    }

    pub(super) fn remember_cast(&self, key: &ElectionKey, cast: BTreeSet<SessionId>) {
        let mut casts = locked(&self.casts);
        if casts.len() >= CASTS_KEPT {
            casts.clear();
        }
        casts.insert(key.clone(), cast);
    }

    /// To be called before something is asked.
    pub(super) fn asking(&self) -> Asked {
        let time = locked(&self.time);
        Asked { number: time.number, highest: time.highest }
    }

    /// Of which time an answer is: 0 until the cluster goes back.
    pub(super) fn told(&self, asked: Asked, header: &Header) -> u32 {
        let mut time = locked(&self.time);
        if time.number != asked.number {
            // Somebody else has noticed meanwhile, and nobody knows which side this answer is of.
            return time.number;
        }
        let is_another = time.cluster.is_some_and(|cluster| cluster != header.cluster_id);
        if is_another || header.revision < asked.highest {
            time.go_back();
            time.highest = header.revision;
        }
        time.cluster = Some(header.cluster_id);
        time.highest = time.highest.max(header.revision);
        time.number
    }

    /// A beat that was counted is not there any more.
    pub(super) fn went_back(&self, asked: Asked) {
        let mut time = locked(&self.time);
        if time.number == asked.number {
            time.go_back();
        }
    }

    /// The cluster that answered last.
    pub(super) fn cluster(&self) -> Option<u64> {
        locked(&self.time).cluster
    }

    /// The greatest revision that was seen before the cluster went back: tokens must be greater.
    pub(super) fn lost(&self) -> i64 {
        locked(&self.time).lost
    }
}

impl Time {
    fn go_back(&mut self) {
        self.number += 1;
        self.lost = self.lost.max(self.highest);
        tracing::error!(
            revision = self.highest,
            "etcd has gone back: it was restored from a backup, or this is another cluster. Nobody is believed to lead any more, \
             and nobody leads until every leader of before must have stopped"
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
    fn time_goes_on_while_revisions_grow_and_answers_may_overtake_each_other() {
        let memo = Memo::default();
        let (first, second) = (memo.asking(), memo.asking());
        assert_eq!(memo.told(second, &header(1, 9)), 0);
        assert_eq!(memo.told(first, &header(1, 7)), 0, "it was asked before the other was answered");
        assert_eq!(memo.told(memo.asking(), &header(1, 9)), 0);
    }

    #[test]
    fn a_revision_that_goes_back_is_another_time_and_is_noticed_once() {
        let memo = Memo::default();
        assert_eq!(memo.told(memo.asking(), &header(1, 9)), 0);
        let (first, second) = (memo.asking(), memo.asking());
        assert_eq!(memo.told(first, &header(1, 8)), 1);
        assert_eq!(memo.told(second, &header(1, 8)), 1);
        assert_eq!((memo.told(memo.asking(), &header(1, 8)), memo.lost()), (1, 9));
    }

    #[test]
    fn another_cluster_is_another_time_also_if_it_is_ahead() {
        let memo = Memo::default();
        assert_eq!(memo.told(memo.asking(), &header(1, 9)), 0);
        assert_eq!(memo.told(memo.asking(), &header(2, 90)), 1);
        assert_eq!(memo.told(memo.asking(), &header(2, 91)), 1);
    }
}
