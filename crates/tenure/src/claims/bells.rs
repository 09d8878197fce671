//! Hints about work and events, passed on to who waits for them in this process.
//!
//! There is one stream of hints per process: the driver reads it, and rings here before the machine hears of it. Nothing is
//! concluded from a ring but that it is worth a look. A ring that nobody waits for is forgotten; a ring that comes while
//! somebody is about to wait is not, because who waits takes hold of the bell *before* the look that finds nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::port::{GroupKey, PoolKey, QueueKey, TopicKey, Wake, claims_election};
use tenure_core::{Name, SessionId};
use tokio::sync::{broadcast, watch};

/// How many deaths the keeper may fall behind before it has to look at all sessions, which it does every beat anyhow.
const DEATHS_KEPT: usize = 1024;

/// Something that rings: who holds a [`watch::Receiver`] of it sees whether it has rung since it last looked.
pub(crate) type Bell = watch::Sender<()>;

/// The bells of this process.
pub(crate) struct Bells {
    queues: Mutex<HashMap<QueueKey, Weak<Bell>>>,
    pools: Mutex<HashMap<PoolKey, Weak<Bell>>>,
    topics: Mutex<HashMap<TopicKey, Weak<Bell>>>,
    groups: Mutex<HashMap<GroupKey, Weak<Bell>>>,
    /// Something changed in any pool, for the keeper.
    pub(crate) any_pool: Bell,
    /// Elections of a namespace changed.
    namespaces: Mutex<HashMap<Name, Weak<Bell>>>,
    /// Claims of our own session were called off.
    pub(crate) recalled: Bell,
    /// The election of the claims' leader changed.
    pub(crate) election: Bell,
    /// Schedules were set.
    pub(crate) schedules: Bell,
    /// Sessions that are gone, for the keeper: whether the store knows that the process died, or it said farewell.
    pub(crate) gone: broadcast::Sender<Wake>,
}

impl Bells {
    pub(crate) fn new() -> Self {
        Bells {
            queues: Mutex::default(),
            pools: Mutex::default(),
            topics: Mutex::default(),
            groups: Mutex::default(),
            any_pool: Bell::new(()),
            namespaces: Mutex::default(),
            recalled: Bell::new(()),
            election: Bell::new(()),
            schedules: Bell::new(()),
            gone: broadcast::Sender::new(DEATHS_KEPT),
        }
    }

    /// Passes a hint on. `session` is this process's own.
    pub(crate) fn ring(&self, wake: &Wake, session: Option<&SessionId>) {
        match wake {
            Wake::Released { election, .. } | Wake::Changed(election) => {
                ring_one(&self.namespaces, &election.namespace);
            }
            // What it held may have been anywhere.
            Wake::Ended(_) | Wake::Died(_) | Wake::Resync => ring_all(&self.namespaces),
            _ => {}
        }
        match wake {
            Wake::Work(queue) => ring_one(&self.queues, queue),
            Wake::Pool(pool) => {
                ring_one(&self.pools, pool);
                swing(&self.any_pool);
            }
            Wake::Events(topic) => ring_one(&self.topics, topic),
            Wake::Group(group) => ring_one(&self.groups, group),
            Wake::Recalled(whose) if Some(whose) == session => swing(&self.recalled),
            Wake::Released { election, .. } | Wake::Changed(election) if *election == claims_election() => {
                swing(&self.election);
            }
            Wake::Schedules => swing(&self.schedules),
            Wake::Died(_) | Wake::Ended(_) => {
                // Nobody keeps: nobody needs to know.
                let _ = self.gone.send(wake.clone());
            }
            Wake::Resync => {
                ring_all(&self.queues);
                ring_all(&self.pools);
                swing(&self.any_pool);
                ring_all(&self.topics);
                ring_all(&self.groups);
                swing(&self.recalled);
                swing(&self.election);
                swing(&self.schedules);
            }
            _ => {}
        }
    }

    /// The bell of the elections of a namespace.
    pub(crate) fn namespace(&self, name: &Name) -> Arc<Bell> {
        take_hold(&self.namespaces, name)
    }

    /// The bell of a queue.
    pub(crate) fn queue(&self, key: &QueueKey) -> Arc<Bell> {
        take_hold(&self.queues, key)
    }

    /// The bell of a pool.
    pub(crate) fn pool(&self, key: &PoolKey) -> Arc<Bell> {
        take_hold(&self.pools, key)
    }

    /// The bell of a topic.
    pub(crate) fn topic(&self, key: &TopicKey) -> Arc<Bell> {
        take_hold(&self.topics, key)
    }

    /// The bell of a group.
    pub(crate) fn group(&self, key: &GroupKey) -> Arc<Bell> {
        take_hold(&self.groups, key)
    }
}

type Map<K> = Mutex<HashMap<K, Weak<Bell>>>;

fn locked<K>(map: &Map<K>) -> MutexGuard<'_, HashMap<K, Weak<Bell>>> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take_hold<K: Hash + Eq + Clone>(map: &Map<K>, key: &K) -> Arc<Bell> {
    let mut map = locked(map);
    if let Some(bell) = map.get(key).and_then(Weak::upgrade) {
        return bell;
    }
    map.retain(|_, bell| bell.strong_count() > 0);
    let bell = Arc::new(Bell::new(()));
    map.insert(key.clone(), Arc::downgrade(&bell));
    bell
}

fn ring_one<K: Hash + Eq>(map: &Map<K>, key: &K) {
    let bell = locked(map).get(key).and_then(Weak::upgrade);
    bell.iter().for_each(|bell| swing(bell));
}

fn ring_all<K>(map: &Map<K>) {
    let bells: Vec<_> = locked(map).values().filter_map(Weak::upgrade).collect();
    bells.iter().for_each(|bell| swing(bell));
}

fn swing(bell: &Bell) {
    bell.send_replace(());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueKey {
        QueueKey::new(tenure_core::Name::default_namespace(), name.parse().unwrap())
    }

    #[test]
    fn a_ring_reaches_its_queue_only_and_a_resync_reaches_all() {
        let bells = Bells::new();
        let (mail, print) = (bells.queue(&queue("mail")), bells.queue(&queue("print")));
        let (mut of_mail, mut of_print) = (mail.subscribe(), print.subscribe());
        bells.ring(&Wake::Work(queue("mail")), None);
        assert!(of_mail.has_changed().unwrap() && !of_print.has_changed().unwrap());
        of_mail.mark_unchanged();
        bells.ring(&Wake::Resync, None);
        assert!(of_mail.has_changed().unwrap() && of_print.has_changed().unwrap());
        of_print.mark_unchanged();
    }

    #[test]
    fn a_recall_of_somebody_else_is_not_ours() {
        let bells = Bells::new();
        let recalled = bells.recalled.subscribe();
        let (ours, theirs) = (SessionId::from_stored("ours"), SessionId::from_stored("theirs"));
        bells.ring(&Wake::Recalled(theirs), Some(&ours));
        assert!(!recalled.has_changed().unwrap());
        bells.ring(&Wake::Recalled(ours.clone()), Some(&ours));
        assert!(recalled.has_changed().unwrap());
    }
}
