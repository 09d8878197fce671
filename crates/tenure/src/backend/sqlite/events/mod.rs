//! Topics, their events, and the groups that read them.
//!
//! SQLite has one writer at a time, so the order in which events get their numbers is the order of their commits, and nothing is
//! ever seen before something smaller: a position is simply the number of the first event that was published with the others in one
//! call, in its slot. Nothing else has to be locked or waited for.
//!
//! Who reads looks at the index alone first (`event_units`): what there is, how much of it goes together, and how long it is. Only
//! then it is read, so that a call never brings more than it may.
//!
//! A share is free if nobody has it, or somebody whose session is over: nothing has to be done when a session ends. Whoever takes it
//! compares the token that was seen, and whoever says how far it has been read compares its own, in one transaction with what the
//! handler did ([`commit_share`]): the write lock keeps others from taking it before the commit.
//!
//! Who sleeps is rung for by FIFO after the commit, if a row says that somebody does. Events that come through the view
//! `tenure_publish`, or in a transaction of the user's, are found by polling.

mod aside;
mod commit;
mod group;
mod prune;
mod publish;
mod read;
mod topic;
mod views;

use std::collections::BTreeMap;

use async_trait::async_trait;
use tenure_core::port::{
    AsideFilter, AsideKey, AsideView, Begin, Bureau, Committed, DeadOrder, Event, EventId, Events, GroupKey,
    GroupLook, GroupSettings, GroupView, Join, Moved, NewEvent, Pause, Published, Push, ReadAsk, ShareCommit,
    SlotEnds, StoreError, TakeShares, Taken, Tend, TopicKey, TopicSettings, TopicView,
};
use tenure_core::{Name, SessionId, Token};

use self::views::{group_key, topic_key};
use super::Sqlite;
use super::call::{Failed, Told, json, ms, nonsense, number};

pub use commit::commit_share;
pub(super) use commit::commit_with;
pub use publish::publish;
pub(super) use publish::put as publish_with;

#[async_trait]
impl Events for Sqlite {
    async fn publish(&self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        self.in_place()?;
        self.publish_events(topic, events).await.told(self, "publishing events")
    }

    async fn join_group(&self, join: &Join) -> Result<GroupLook, StoreError> {
        self.in_place()?;
        self.join_members(join).await.told(self, "joining a group")
    }

    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        self.in_place()?;
        self.leave_members(group, session).await.told(self, "leaving a group")
    }

    async fn look_group(&self, group: &GroupKey) -> Result<Option<GroupLook>, StoreError> {
        self.in_place()?;
        self.group_look(group).await.told(self, "looking at a group")
    }

    async fn take_shares(&self, take: &TakeShares) -> Result<Vec<Taken>, StoreError> {
        self.in_place()?;
        self.take_free(take).await.told(self, "taking shares")
    }

    async fn free_shares(&self, group: &GroupKey, shares: &[(u32, Token)]) -> Result<(), StoreError> {
        self.in_place()?;
        self.give_back(group, shares).await.told(self, "giving shares back")
    }

    async fn read_events(&self, read: &ReadAsk) -> Result<Vec<Event>, StoreError> {
        self.in_place()?;
        self.read_slots(read).await.told(self, "reading events")
    }

    async fn commit_shares(&self, commits: &[ShareCommit]) -> Result<Vec<Committed>, StoreError> {
        self.in_place()?;
        self.commit_all(commits).await.told(self, "committing shares")
    }

    async fn aside_keys(&self, group: &GroupKey, slot: u32) -> Result<Vec<AsideKey>, StoreError> {
        let mut keys = self.aside_keys_in(group, &[slot]).await?;
        Ok(keys.remove(&slot).unwrap_or_default())
    }

    async fn aside_keys_in(
        &self,
        group: &GroupKey,
        slots: &[u32],
    ) -> Result<BTreeMap<u32, Vec<AsideKey>>, StoreError> {
        self.in_place()?;
        self.keys_aside(group, slots).await.told(self, "looking at keys that are aside")
    }

    async fn doze_topic(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        self.in_place()?;
        self.put_topic_dozer(session, topic).await.told(self, "saying who sleeps")
    }

    async fn prune_events(&self, tend: &Tend) -> Result<(u64, bool), StoreError> {
        self.in_place()?;
        self.prune_topics(tend).await.told(self, "forgetting old events")
    }
}

#[async_trait]
impl Bureau for Sqlite {
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        self.in_place()?;
        self.topic_views(namespace, None).await.told(self, "listing topics")
    }

    async fn topic_names(&self, namespace: Option<&Name>) -> Result<Vec<TopicKey>, StoreError> {
        self.in_place()?;
        self.names("topic_names", namespace, topic_key).await.told(self, "listing topics")
    }

    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        self.in_place()?;
        let views = self.topic_views(Some(&key.namespace), Some(&key.name)).await;
        views.map(|views| views.into_iter().next()).told(self, "looking at a topic")
    }

    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        self.in_place()?;
        self.keep_topic(key, settings).await.told(self, "setting a topic")
    }

    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        self.in_place()?;
        self.drop_topic(key).await.told(self, "deleting a topic")
    }

    async fn slot_ends(&self, key: &TopicKey) -> Result<Option<Vec<SlotEnds>>, StoreError> {
        self.in_place()?;
        self.ends_of(key).await.told(self, "looking at a topic's slots")
    }

    async fn event(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        self.in_place()?;
        self.event_view(topic, id).await.told(self, "looking at an event")
    }

    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        self.in_place()?;
        self.group_views(namespace, None).await.told(self, "listing groups")
    }

    async fn group_names(&self, namespace: Option<&Name>) -> Result<Vec<GroupKey>, StoreError> {
        self.in_place()?;
        self.names("group_names", namespace, group_key).await.told(self, "listing groups")
    }

    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        self.in_place()?;
        let views = self.group_views(Some(&key.topic.namespace), Some((&key.topic.name, &key.name))).await;
        views.map(|views| views.into_iter().next()).told(self, "looking at a group")
    }

    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<bool, StoreError> {
        self.in_place()?;
        self.keep_group(key, settings, from).await.told(self, "setting a group")
    }

    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        self.in_place()?;
        self.drop_group(key).await.told(self, "deleting a group")
    }

    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.in_place()?;
        self.pause_group(key, pause).await.told(self, "pausing or resuming a group")
    }

    async fn reset_group(
        &self,
        key: &GroupKey,
        to: Begin,
        slot: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<Moved>, StoreError> {
        self.in_place()?;
        self.move_group(key, to, slot, dry_run).await.told(self, "resetting a group")
    }

    async fn aside(&self, filter: &AsideFilter) -> Result<Vec<AsideView>, StoreError> {
        self.in_place()?;
        self.aside_views(filter).await.told(self, "listing events that are aside")
    }

    async fn order_dead(
        &self,
        group: &GroupKey,
        events: &[EventId],
        order: DeadOrder,
    ) -> Result<Vec<EventId>, StoreError> {
        self.in_place()?;
        self.order_aside(group, events, order).await.told(self, "replaying or dropping dead events")
    }

    async fn set_push(&self, key: &GroupKey, push: Option<&Push>) -> Result<(), StoreError> {
        self.in_place()?;
        self.keep_push(key, push).await.told(self, "setting where events are pushed to")
    }

    async fn pushes(&self) -> Result<Vec<(GroupKey, Push)>, StoreError> {
        self.in_place()?;
        self.push_list().await.told(self, "listing where events are pushed to")
    }
}
