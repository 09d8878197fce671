//! Topics, their events, and the groups that read them.
//!
//! A topic's slot has *units*, by position: what one call published in it. A group's share of a slot has a token, a holder, and how
//! far it is read. An event that is *aside* is a copy in the group, by slot, position and number: the first of its key is the one
//! that is tried.
//!
//! A holder counts while its session lives, and whether it does is asked each time; nothing is done when a session ends.

mod aside;
mod commit;
mod group;
mod people;
mod prune;
mod publish;
mod reset;
mod share;
mod topic;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use self::aside::AsideRow;
use super::{Ledger, Witness};
use crate::event::{no_such_group, no_such_topic};
use crate::port::{
    Event, EventId, GroupKey, GroupSettings, Member, Pause, Position, Push, StoreError, TopicKey,
    TopicSettings, Wake,
};
use crate::{Name, SessionId, Token};

/// All that there is of events.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    topics: BTreeMap<TopicKey, Topic>,
    dozers: BTreeMap<TopicKey, BTreeSet<SessionId>>,
    last_event: u64,
}

/// A topic.
#[derive(Clone, Debug)]
struct Topic {
    settings: TopicSettings,
    slots: Vec<Slot>,
    /// Where each event lies.
    places: BTreeMap<EventId, (u32, Position)>,
    /// Idempotency keys, for as long as their events are kept.
    keys: BTreeMap<String, EventId>,
    groups: BTreeMap<Name, Group>,
}

/// A slot of a topic.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// What was published together.
    units: BTreeMap<Position, Vec<Stored>>,
    /// Up to here, everything was forgotten.
    floor: Position,
}

/// An event, as it is kept.
#[derive(Clone, Debug)]
struct Stored {
    event: Event,
    idempotency_key: Option<String>,
}

/// A group.
#[derive(Clone, Debug)]
struct Group {
    settings: GroupSettings,
    paused: Option<Pause>,
    push: Option<Secretly>,
    /// Names by session, whether it lives or not.
    members: BTreeMap<SessionId, String>,
    /// Since when it has had members without a break, as of the last that joined.
    gathered_at: i64,
    shares: Vec<ShareRow>,
    asides: BTreeMap<(u32, Position, EventId), AsideRow>,
    moves: u64,
}

/// A slot of a group.
#[derive(Clone, Debug, Default)]
struct ShareRow {
    token: Token,
    holder: Option<SessionId>,
    last: String,
    position: Position,
    /// Events after the position that are done.
    done: BTreeSet<(Position, EventId)>,
}

/// A push whose secret is shown to nobody.
#[derive(Clone)]
struct Secretly(Push);

impl fmt::Debug for Secretly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.url)
    }
}

impl Outbox {
    fn topic(&self, key: &TopicKey) -> Result<&Topic, StoreError> {
        self.topics.get(key).ok_or_else(|| no_such_topic(key))
    }

    fn topic_mut(&mut self, key: &TopicKey) -> Result<&mut Topic, StoreError> {
        self.topics.get_mut(key).ok_or_else(|| no_such_topic(key))
    }

    fn find_group(&self, key: &GroupKey) -> Option<(&Topic, &Group)> {
        let topic = self.topics.get(&key.topic)?;
        Some((topic, topic.groups.get(&key.name)?))
    }

    fn find_group_mut(&mut self, key: &GroupKey) -> Option<&mut Group> {
        self.topics.get_mut(&key.topic)?.groups.get_mut(&key.name)
    }

    fn group_mut(&mut self, key: &GroupKey) -> Result<&mut Group, StoreError> {
        self.find_group_mut(key).ok_or_else(|| no_such_group(key))
    }
}

impl Slot {
    /// The position of the last event, kept or not.
    fn latest(&self) -> Position {
        self.units.last_key_value().map_or(self.floor, |(position, _)| *position)
    }
}

impl Group {
    /// The members whose sessions live, by session.
    fn live(&self, witness: &dyn Witness) -> Vec<Member> {
        let live = self.members.iter().filter(|(session, _)| witness.is_live(session));
        live.map(|(session, name)| Member { session: session.clone(), name: name.clone() }).collect()
    }

    fn share_mut(&mut self, slot: u32) -> Option<&mut ShareRow> {
        self.shares.get_mut(slot as usize)
    }
}

impl ShareRow {
    /// Who has it, if that one lives.
    fn holder(&self, witness: &dyn Witness) -> Option<&SessionId> {
        self.holder.as_ref().filter(|holder| witness.is_live(holder))
    }
}

impl Ledger {
    /// See [`Events::doze_topic`](crate::port::Events::doze_topic).
    pub fn doze_topic(&mut self, session: &SessionId, topic: &TopicKey) {
        self.outbox.dozers.entry(topic.clone()).or_default().insert(session.clone());
    }

    /// Rings for who sleeps until this topic has events, if anybody does.
    fn ring_topic(&mut self, topic: &TopicKey) {
        if self.outbox.dozers.remove(topic).is_some() {
            self.wakes.push(Wake::Events(topic.clone()));
        }
    }

    /// Tells a group's members that something about it changed.
    fn wake_group(&mut self, key: &GroupKey) {
        self.wakes.push(Wake::Group(key.clone()));
    }
}
