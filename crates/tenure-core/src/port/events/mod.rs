//! Events: published in the publisher's own transaction, read in order by groups.
//!
//! A key hashes to one of a topic's fixed *slots* ([`slot_of`](crate::event::slot_of)). Within a slot, *positions* are given in
//! the order of commits, so that who has read up to a position has missed nothing before it. A *group* has a *share* for each slot:
//! a lease with a token, and how far it has been read. Whoever says how far names the token; the store compares it in the same
//! transaction, so a member that lost a share can move it no more, and what it did in that transaction is undone with it.
//!
//! Events that fail are set *aside* with those of the same key that follow, in order, and the share goes on without them.
//!
//! Two traits. [`Events`] is the path of publishers and members. [`Bureau`] is the path of people.

mod event;
mod group;
mod topic;
mod wire;

use std::collections::BTreeMap;

use async_trait::async_trait;

pub use self::event::{
    EVENT_BYTES_MAX, Event, EventId, HEADERS_MAX, KEY_MAX, NewEvent, PUBLISH_MAX, Payload, Position,
    Published, READ_BYTES, TopicKey, UNIT_MAX,
};
pub use self::group::{
    Aside, AsideFilter, AsideKey, AsideView, Begin, Committed, DeadOrder, GROUPS_MAX, GroupKey, GroupLook,
    GroupSettings, GroupView, Join, LAG_COUNTED, Member, Moved, Push, PushView, ReadAsk, SetAside, Share,
    ShareCommit, SlotView, TakeShares, Taken,
};
pub use self::topic::{Blocker, SLOTS, SLOTS_MAX, SlotEnds, TopicSettings, TopicView};
use super::{Pause, StoreError, Tend, Trouble};
use crate::{Name, SessionId, Token};

/// The path of publishers and members. Every call is atomic in the store.
#[async_trait]
pub trait Events: Send + Sync + 'static {
    /// Publishes, all or nothing, in this order, and rings for who sleeps. One result for each, in their order. A topic that
    /// is not there is an error of kind `Request`.
    async fn publish(&self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        let _ = (topic, events);
        no_events()
    }

    /// Joins a group, or says so again; wakes the other members ([`Wake::Group`](crate::port::Wake)).
    async fn join_group(&self, join: &Join) -> Result<GroupLook, StoreError> {
        let _ = join;
        no_events()
    }

    /// Leaves a group: frees all its shares and wakes the others.
    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        let _ = (group, session);
        no_events()
    }

    /// Looks at a group; `None` if there is none.
    async fn look_group(&self, group: &GroupKey) -> Result<Option<GroupLook>, StoreError> {
        let _ = group;
        no_events()
    }

    /// Takes shares that are free; those that were taken.
    async fn take_shares(&self, take: &TakeShares) -> Result<Vec<Taken>, StoreError> {
        let _ = take;
        no_events()
    }

    /// Gives shares back, each if it is held under that token, and wakes the others.
    async fn free_shares(&self, group: &GroupKey, shares: &[(u32, Token)]) -> Result<(), StoreError> {
        let _ = (group, shares);
        no_events()
    }

    /// Reads slots: whole units (what was published together), each slot's in the order of positions, at least one unit of each
    /// slot that has any as far as the limit goes, the slots in the order they are given. Nothing that is committed is skipped.
    async fn read_events(&self, read: &ReadAsk) -> Result<Vec<Event>, StoreError> {
        let _ = read;
        no_events()
    }

    /// Takes in what members say about their shares; one result for each, each a transaction of its own or all in one.
    async fn commit_shares(&self, commits: &[ShareCommit]) -> Result<Vec<Committed>, StoreError> {
        let _ = commits;
        no_events()
    }

    /// The keys that are aside in a slot of a group, as [`Taken::aside`] said at first.
    async fn aside_keys(&self, group: &GroupKey, slot: u32) -> Result<Vec<AsideKey>, StoreError> {
        let _ = (group, slot);
        no_events()
    }

    /// The same of several slots; those of which nothing is said have nothing aside.
    async fn aside_keys_in(
        &self,
        group: &GroupKey,
        slots: &[u32],
    ) -> Result<BTreeMap<u32, Vec<AsideKey>>, StoreError> {
        let mut keys = BTreeMap::new();
        for slot in slots {
            keys.insert(*slot, self.aside_keys(group, *slot).await?);
        }
        Ok(keys)
    }

    /// Says that this session sleeps until this topic has events: the next commit to it rings
    /// ([`Wake::Events`](crate::port::Wake)). To be said *before* the last look that finds nothing.
    async fn doze_topic(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        let _ = (session, topic);
        no_events()
    }

    /// Forgets events that are old and read, at most `tend.limit` units of each topic; `(how many, whether there is more)`.
    /// Fenced by the keeper's lease.
    async fn prune_events(&self, tend: &Tend) -> Result<(u64, bool), StoreError> {
        let _ = tend;
        no_events()
    }
}

/// The path of people.
#[async_trait]
pub trait Bureau: Send + Sync + 'static {
    /// The topics of a namespace, or of all.
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        let _ = namespace;
        no_events()
    }

    /// The names of them, in order: what is in a topic costs more to say than which there are.
    async fn topic_names(&self, namespace: Option<&Name>) -> Result<Vec<TopicKey>, StoreError> {
        Ok(self.topics(namespace).await?.into_iter().map(|topic| topic.key).collect())
    }

    /// One topic; `None` if it was never made.
    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        let _ = key;
        no_events()
    }

    /// Makes a topic, or sets it anew. `true` if it is new. Another number of slots than it has is an error of kind `Request`.
    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        let _ = (key, settings);
        no_events()
    }

    /// Deletes a topic with its events and groups. `false` if it is not there; an error of kind `Request` while a group has
    /// live members.
    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        let _ = key;
        no_events()
    }

    /// The ends of a topic's slots, by number; `None` if there is no such topic.
    async fn slot_ends(&self, key: &TopicKey) -> Result<Option<Vec<SlotEnds>>, StoreError> {
        let _ = key;
        no_events()
    }

    /// One event.
    async fn event(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        let _ = (topic, id);
        no_events()
    }

    /// The groups of a namespace, or of all.
    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        let _ = namespace;
        no_events()
    }

    /// The names of them, in order.
    async fn group_names(&self, namespace: Option<&Name>) -> Result<Vec<GroupKey>, StoreError> {
        Ok(self.groups(namespace).await?.into_iter().map(|group| group.key).collect())
    }

    /// One group.
    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        let _ = key;
        no_events()
    }

    /// Makes a group, where it is to begin if it is new, or sets it anew. `true` if it is new.
    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<bool, StoreError> {
        let _ = (key, settings, from);
        no_events()
    }

    /// Deletes a group with its positions and what is aside. `false` if it is not there; an error of kind `Request` while it has
    /// live members.
    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        let _ = key;
        no_events()
    }

    /// Pauses or resumes a group. `false` if it was so already.
    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let _ = (key, pause);
        no_events()
    }

    /// Moves a group's positions (of all slots, or of one), under new tokens: whoever has a share has lost it, and takes it anew.
    /// What is aside after the new position is forgotten, for it is read again. `dry_run`: nothing is changed.
    async fn reset_group(
        &self,
        key: &GroupKey,
        to: Begin,
        slot: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<Moved>, StoreError> {
        let _ = (key, to, slot, dry_run);
        no_events()
    }

    /// Events that are aside.
    async fn aside(&self, filter: &AsideFilter) -> Result<Vec<AsideView>, StoreError> {
        let _ = filter;
        no_events()
    }

    /// Replays or drops dead events; those on which it had an effect. Wakes the group.
    async fn order_dead(
        &self,
        group: &GroupKey,
        events: &[EventId],
        order: DeadOrder,
    ) -> Result<Vec<EventId>, StoreError> {
        let _ = (group, events, order);
        no_events()
    }

    /// Sets where a server pushes a group's events to, or that it does not. A store that shows secrets to nobody, as one behind a
    /// server does, keeps the one that it has if none is given.
    async fn set_push(&self, key: &GroupKey, push: Option<&Push>) -> Result<(), StoreError> {
        let _ = (key, push);
        no_events()
    }

    /// All groups that are pushed, secrets included: for servers.
    async fn pushes(&self) -> Result<Vec<(GroupKey, Push)>, StoreError> {
        no_events()
    }
}

fn no_events<T>() -> Result<T, StoreError> {
    Err(StoreError::new(
        Trouble::Unsupported,
        "this store elects leaders and keeps no events; use sqlite:, postgres:// or a Tenure server on one of them",
    ))
}
