//! Passes store notifications on to the waiters of this process.
//!
//! Each process has one stream of notifications. The driver reads it and signals the waiters before the lease
//! machine handles it. A notification only means that a poll may find something. A signal without a waiter is
//! dropped. A signal is not lost between a poll and the wait, because a waiter subscribes *before* the poll
//! that finds nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::port::{GroupKey, Notification, PoolKey, QueueKey, TopicKey, broker_election};
use tenure_core::{Name, SessionId};
use tokio::sync::{broadcast, watch};

/// Ended sessions buffered for maintenance. If it falls behind, it reads all sessions, which it does at every
/// heartbeat anyway.
const ENDED_SESSIONS_BUFFERED: usize = 1024;

/// A channel that signals a change. A [`watch::Receiver`] shows whether it was signalled since the last check.
pub(crate) type NotifyChannel = watch::Sender<()>;

/// The notification channels of this process.
pub(crate) struct Notifier {
    queues: Mutex<HashMap<QueueKey, Weak<NotifyChannel>>>,
    pools: Mutex<HashMap<PoolKey, Weak<NotifyChannel>>>,
    topics: Mutex<HashMap<TopicKey, Weak<NotifyChannel>>>,
    groups: Mutex<HashMap<GroupKey, Weak<NotifyChannel>>>,
    /// Signalled when any pool changed, for maintenance.
    pub(crate) any_pool: NotifyChannel,
    /// Signalled when elections of a namespace changed.
    namespaces: Mutex<HashMap<Name, Weak<NotifyChannel>>>,
    /// Signalled when claims of this process's session were cancelled.
    pub(crate) claims_cancelled: NotifyChannel,
    /// Signalled when the broker election changed.
    pub(crate) election: NotifyChannel,
    /// Signalled when schedules changed.
    pub(crate) schedules: NotifyChannel,
    /// Sessions that ended or died, for maintenance.
    pub(crate) ended_sessions: broadcast::Sender<Notification>,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Notifier {
            queues: Mutex::default(),
            pools: Mutex::default(),
            topics: Mutex::default(),
            groups: Mutex::default(),
            any_pool: NotifyChannel::new(()),
            namespaces: Mutex::default(),
            claims_cancelled: NotifyChannel::new(()),
            election: NotifyChannel::new(()),
            schedules: NotifyChannel::new(()),
            ended_sessions: broadcast::Sender::new(ENDED_SESSIONS_BUFFERED),
        }
    }

    /// Passes a notification on to waiters. `session` is the session of this process.
    pub(crate) fn notify(&self, notification: &Notification, session: Option<&SessionId>) {
        match notification {
            Notification::LeaseReleased { election, .. } | Notification::ElectionChanged(election) => {
                signal_one(&self.namespaces, &election.namespace);
            }
            // The ended session may have held leases in any namespace.
            Notification::SessionEnded(_) | Notification::SessionExpired(_) | Notification::Resync => {
                signal_all(&self.namespaces)
            }
            _ => {}
        }
        match notification {
            Notification::QueueReady(queue) => signal_one(&self.queues, queue),
            Notification::PoolChanged(pool) => {
                signal_one(&self.pools, pool);
                signal(&self.any_pool);
            }
            Notification::TopicPublished(topic) => signal_one(&self.topics, topic),
            Notification::GroupChanged(group) => signal_one(&self.groups, group),
            Notification::ClaimCancelled(owner) if Some(owner) == session => signal(&self.claims_cancelled),
            Notification::LeaseReleased { election, .. } | Notification::ElectionChanged(election)
                if *election == broker_election() =>
            {
                signal(&self.election);
            }
            Notification::SchedulesChanged => signal(&self.schedules),
            Notification::SessionExpired(_) | Notification::SessionEnded(_) => {
                // Without maintenance in this process, the send fails; that is fine.
                let _ = self.ended_sessions.send(notification.clone());
            }
            Notification::Resync => {
                signal_all(&self.queues);
                signal_all(&self.pools);
                signal(&self.any_pool);
                signal_all(&self.topics);
                signal_all(&self.groups);
                signal(&self.claims_cancelled);
                signal(&self.election);
                signal(&self.schedules);
            }
            _ => {}
        }
    }

    /// The channel of the elections of a namespace.
    pub(crate) fn namespace(&self, name: &Name) -> Arc<NotifyChannel> {
        channel_of(&self.namespaces, name)
    }

    /// The channel of a queue.
    pub(crate) fn queue(&self, key: &QueueKey) -> Arc<NotifyChannel> {
        channel_of(&self.queues, key)
    }

    /// The channel of a pool.
    pub(crate) fn pool(&self, key: &PoolKey) -> Arc<NotifyChannel> {
        channel_of(&self.pools, key)
    }

    /// The channel of a topic.
    pub(crate) fn topic(&self, key: &TopicKey) -> Arc<NotifyChannel> {
        channel_of(&self.topics, key)
    }

    /// The channel of a group.
    pub(crate) fn group(&self, key: &GroupKey) -> Arc<NotifyChannel> {
        channel_of(&self.groups, key)
    }
}

type Map<K> = Mutex<HashMap<K, Weak<NotifyChannel>>>;

fn locked<K>(map: &Map<K>) -> MutexGuard<'_, HashMap<K, Weak<NotifyChannel>>> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

fn channel_of<K: Hash + Eq + Clone>(map: &Map<K>, key: &K) -> Arc<NotifyChannel> {
    let mut map = locked(map);
    if let Some(channel) = map.get(key).and_then(Weak::upgrade) {
        return channel;
    }
    map.retain(|_, channel| channel.strong_count() > 0);
    let channel = Arc::new(NotifyChannel::new(()));
    map.insert(key.clone(), Arc::downgrade(&channel));
    channel
}

fn signal_one<K: Hash + Eq>(map: &Map<K>, key: &K) {
    let channel = locked(map).get(key).and_then(Weak::upgrade);
    channel.iter().for_each(|channel| signal(channel));
}

fn signal_all<K>(map: &Map<K>) {
    let channels: Vec<_> = locked(map).values().filter_map(Weak::upgrade).collect();
    channels.iter().for_each(|channel| signal(channel));
}

fn signal(channel: &NotifyChannel) {
    channel.send_replace(());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueKey {
        QueueKey::new(tenure_core::Name::default_namespace(), name.parse().unwrap())
    }

    #[test]
    fn a_notification_reaches_only_its_queue_and_a_resync_reaches_all() {
        let notifier = Notifier::new();
        let (mail, print) = (notifier.queue(&queue("mail")), notifier.queue(&queue("print")));
        let (mut of_mail, mut of_print) = (mail.subscribe(), print.subscribe());
        notifier.notify(&Notification::QueueReady(queue("mail")), None);
        assert!(of_mail.has_changed().unwrap() && !of_print.has_changed().unwrap());
        of_mail.mark_unchanged();
        notifier.notify(&Notification::Resync, None);
        assert!(of_mail.has_changed().unwrap() && of_print.has_changed().unwrap());
        of_print.mark_unchanged();
    }

    #[test]
    fn cancelled_claims_of_another_session_are_not_signalled() {
        let notifier = Notifier::new();
        let claims_cancelled = notifier.claims_cancelled.subscribe();
        let (ours, theirs) = (SessionId::from_stored("ours"), SessionId::from_stored("theirs"));
        notifier.notify(&Notification::ClaimCancelled(theirs), Some(&ours));
        assert!(!claims_cancelled.has_changed().unwrap());
        notifier.notify(&Notification::ClaimCancelled(ours.clone()), Some(&ours));
        assert!(claims_cancelled.has_changed().unwrap());
    }
}
