//! Topics, their events, and the groups that read them.
//!
//! A partition has *commit batches* by offset: the events that one call published to it. A group has one partition
//! lease per partition, with a token, a holder and a committed offset. A *parked event* is a copy in the group,
//! ordered by partition, offset and id; the first one of a key is the one that is retried.
//!
//! A lease counts as held only while the session of its holder is live. Every access checks this, so ending a session
//! changes nothing in this state.

mod admin;
mod commit;
mod group;
mod parked;
mod partition_lease;
mod prune;
mod publish;
mod reset;
mod topic;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::parked::ParkedEventRecord;
use super::{LeaseObservation, Work};
use crate::port::{
    Event, EventId, GroupKey, GroupMember, GroupSettings, Notification, Offset, Pause, StoreError, TopicKey,
    TopicSettings, WebhookSettings,
};
use crate::rules::event::{no_such_group, no_such_topic};
use crate::{Name, SessionId, Token};

/// All topics, groups and waiters.
#[derive(Clone, Debug, Default)]
pub(super) struct EventsState {
    topics: BTreeMap<TopicKey, TopicRecord>,
    topic_waiters: BTreeMap<TopicKey, BTreeSet<SessionId>>,
    last_event: u64,
}

/// A topic.
#[derive(Clone, Debug)]
struct TopicRecord {
    settings: TopicSettings,
    partitions: Vec<PartitionRecord>,
    /// Partition and offset of each event.
    locations: BTreeMap<EventId, (u32, Offset)>,
    /// Idempotency keys, kept as long as their events.
    keys: BTreeMap<String, EventId>,
    groups: BTreeMap<Name, GroupRecord>,
}

/// A partition of a topic.
#[derive(Clone, Debug, Default)]
struct PartitionRecord {
    /// Commit batches by offset.
    batches: BTreeMap<Offset, Vec<EventRecord>>,
    /// All events up to this offset were pruned.
    start_offset: Offset,
}

/// An event with its idempotency key.
#[derive(Clone, Debug)]
struct EventRecord {
    event: Event,
    idempotency_key: Option<String>,
}

/// A consumer group.
#[derive(Clone, Debug)]
struct GroupRecord {
    settings: GroupSettings,
    paused: Option<Pause>,
    webhook: Option<RedactedWebhook>,
    /// Member names by session, whether the session is live or not.
    members: BTreeMap<SessionId, String>,
    /// Since when the group has had members without interruption, updated at every join.
    active_since_ms: i64,
    partition_leases: Vec<PartitionLeaseRecord>,
    parked_events: BTreeMap<(u32, Offset, EventId), ParkedEventRecord>,
    moves: u64,
}

/// The lease of a group on a partition.
#[derive(Clone, Debug, Default)]
struct PartitionLeaseRecord {
    token: Token,
    holder: Option<SessionId>,
    last: String,
    offset: Offset,
    /// Processed events after the committed offset.
    done: BTreeSet<(Offset, EventId)>,
}

/// A webhook whose `Debug` output hides the secret.
#[derive(Clone)]
struct RedactedWebhook(WebhookSettings);

impl fmt::Debug for RedactedWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.url)
    }
}

impl EventsState {
    fn topic(&self, key: &TopicKey) -> Result<&TopicRecord, StoreError> {
        self.topics.get(key).ok_or_else(|| no_such_topic(key))
    }

    fn topic_mut(&mut self, key: &TopicKey) -> Result<&mut TopicRecord, StoreError> {
        self.topics.get_mut(key).ok_or_else(|| no_such_topic(key))
    }

    fn find_group(&self, key: &GroupKey) -> Option<(&TopicRecord, &GroupRecord)> {
        let topic = self.topics.get(&key.topic)?;
        Some((topic, topic.groups.get(&key.name)?))
    }

    fn find_group_mut(&mut self, key: &GroupKey) -> Option<&mut GroupRecord> {
        self.topics.get_mut(&key.topic)?.groups.get_mut(&key.name)
    }

    fn group_mut(&mut self, key: &GroupKey) -> Result<&mut GroupRecord, StoreError> {
        self.find_group_mut(key).ok_or_else(|| no_such_group(key))
    }
}

impl PartitionRecord {
    /// Offset of the last event, pruned or not.
    fn latest(&self) -> Offset {
        self.batches.last_key_value().map_or(self.start_offset, |(offset, _)| *offset)
    }
}

impl GroupRecord {
    /// Members with a live session, ordered by session.
    fn live(&self, observation: &dyn LeaseObservation) -> Vec<GroupMember> {
        let live = self.members.iter().filter(|(session, _)| observation.is_live(session));
        live.map(|(session, name)| GroupMember { session: session.clone(), name: name.clone() }).collect()
    }

    fn lease_mut(&mut self, partition: u32) -> Option<&mut PartitionLeaseRecord> {
        self.partition_leases.get_mut(partition as usize)
    }
}

impl PartitionLeaseRecord {
    /// The holder, if its session is live.
    fn holder(&self, observation: &dyn LeaseObservation) -> Option<&SessionId> {
        self.holder.as_ref().filter(|holder| observation.is_live(holder))
    }
}

impl Work {
    /// See [`EventStore::register_topic_waiter`](crate::port::EventStore::register_topic_waiter).
    pub fn register_topic_waiter(&mut self, session: &SessionId, topic: &TopicKey) {
        self.events_state.topic_waiters.entry(topic.clone()).or_default().insert(session.clone());
    }

    /// Notifies the waiters of this topic, if there are any.
    fn notify_topic(&mut self, topic: &TopicKey) {
        if self.events_state.topic_waiters.remove(topic).is_some() {
            self.notifications.push(Notification::TopicPublished(topic.clone()));
        }
    }

    /// Notifies the members of a group of a change.
    fn notify_group(&mut self, key: &GroupKey) {
        self.notifications.push(Notification::GroupChanged(key.clone()));
    }
}
