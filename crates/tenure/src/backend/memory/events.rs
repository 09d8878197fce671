//! Events in memory: the ledger, asked under the mutex.

use async_trait::async_trait;
use tenure_core::port::{
    AsideFilter, AsideKey, AsideView, Begin, Bureau, Committed, DeadOrder, Event, EventId, Events, GroupKey,
    GroupLook, GroupSettings, GroupView, Join, Moved, NewEvent, Pause, Published, Push, ReadAsk, ShareCommit,
    SlotEnds, StoreError, TakeShares, Taken, Tend, TopicKey, TopicSettings, TopicView,
};
use tenure_core::{Name, SessionId, Token};

use super::Memory;

#[async_trait]
impl Events for Memory {
    async fn publish(&self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        self.with_ledger(|ledger, _, now| ledger.publish(topic, events, now))
    }

    async fn join_group(&self, join: &Join) -> Result<GroupLook, StoreError> {
        self.with_ledger(|ledger, book, now| ledger.join_group(join, book, now))
    }

    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        self.with_ledger(|ledger, _, _| ledger.leave_group(group, session));
        Ok(())
    }

    async fn look_group(&self, group: &GroupKey) -> Result<Option<GroupLook>, StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.look_group(group, book, now)))
    }

    async fn take_shares(&self, take: &TakeShares) -> Result<Vec<Taken>, StoreError> {
        self.with_ledger(|ledger, book, now| ledger.take_shares(take, book, now))
    }

    async fn free_shares(&self, group: &GroupKey, shares: &[(u32, Token)]) -> Result<(), StoreError> {
        self.with_ledger(|ledger, _, _| ledger.free_shares(group, shares));
        Ok(())
    }

    async fn read_events(&self, read: &ReadAsk) -> Result<Vec<Event>, StoreError> {
        self.locked().ledger.read_events(read)
    }

    async fn commit_shares(&self, commits: &[ShareCommit]) -> Result<Vec<Committed>, StoreError> {
        self.with_ledger(|ledger, _, now| ledger.commit_shares(commits, now))
    }

    async fn aside_keys(&self, group: &GroupKey, slot: u32) -> Result<Vec<AsideKey>, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.aside_keys(group, slot, now)))
    }

    async fn doze_topic(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        self.with_ledger(|ledger, _, _| ledger.doze_topic(session, topic));
        Ok(())
    }

    async fn prune_events(&self, tend: &Tend) -> Result<(u64, bool), StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.prune_events(tend, book, now)))
    }
}

#[async_trait]
impl Bureau for Memory {
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        Ok(self.locked().ledger.topics(namespace))
    }

    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        Ok(self.locked().ledger.topic(key))
    }

    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        self.with_ledger(|ledger, _, _| ledger.set_topic(key, settings))
    }

    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        self.with_ledger(|ledger, book, _| ledger.delete_topic(key, book))
    }

    async fn slot_ends(&self, key: &TopicKey) -> Result<Option<Vec<SlotEnds>>, StoreError> {
        Ok(self.locked().ledger.slot_ends(key))
    }

    async fn event(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        Ok(self.locked().ledger.event(topic, id))
    }

    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.groups(namespace, book, now)))
    }

    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.group(key, book, now)))
    }

    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<bool, StoreError> {
        self.with_ledger(|ledger, _, _| ledger.set_group(key, settings, from))
    }

    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        self.with_ledger(|ledger, book, _| ledger.delete_group(key, book))
    }

    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.with_ledger(|ledger, _, _| ledger.set_group_paused(key, pause))
    }

    async fn reset_group(
        &self,
        key: &GroupKey,
        to: Begin,
        slot: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<Moved>, StoreError> {
        self.with_ledger(|ledger, book, _| ledger.reset_group(key, to, slot, dry_run, book))
    }

    async fn aside(&self, filter: &AsideFilter) -> Result<Vec<AsideView>, StoreError> {
        self.with_ledger(|ledger, _, now| ledger.aside(filter, now))
    }

    async fn order_dead(
        &self,
        group: &GroupKey,
        events: &[EventId],
        order: DeadOrder,
    ) -> Result<Vec<EventId>, StoreError> {
        self.with_ledger(|ledger, _, _| ledger.order_dead(group, events, order))
    }

    async fn set_push(&self, key: &GroupKey, push: Option<&Push>) -> Result<(), StoreError> {
        self.with_ledger(|ledger, _, _| ledger.set_push(key, push))
    }

    async fn pushes(&self) -> Result<Vec<(GroupKey, Push)>, StoreError> {
        Ok(self.locked().ledger.pushes())
    }
}
