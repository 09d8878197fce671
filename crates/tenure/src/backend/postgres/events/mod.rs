//! Events: published in the publisher's own transaction, read in order by groups.
//!
//! **Who owns the truth.** The tables, as everywhere here. Positions are given in the database, at commit, under the lock of a slot
//! (`migrations/0004/publish.sql` says why nothing is ever skipped); a commit of a share compares its token there, in the handler's
//! own transaction. What needs several looks in one round trip is a function in the database; a process remembers nothing.
//!
//! **Locks.** The rows of slots in `event_slots`, locked in order by whoever commits events and never changed; a group's row by who
//! changes the group; a share's row by who takes it, frees it, resets it or commits under it. A take waits for a moment, and passes
//! over what is locked then.

mod bureau;
mod commit;
mod groups;
mod publish;
mod read;

use std::collections::BTreeMap;

use async_trait::async_trait;
use tenure_core::port::{
    AsideKey, Committed, Event, Events, GroupKey, GroupLook, Join, NewEvent, Published, ReadAsk, ShareCommit,
    StoreError, TakeShares, Taken, Tend, TopicKey,
};
use tenure_core::{SessionId, Token};

pub use self::commit::{commit_share, commit_shares};
pub use self::publish::publish;
pub(super) use self::publish::{Columns, numbers, some_numbers, some_texts, whole};
use super::Postgres;
use super::value::Value;

#[async_trait]
impl Events for Postgres {
    async fn publish(&self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        self.publish_events(topic, events).await
    }

    async fn join_group(&self, join: &Join) -> Result<GroupLook, StoreError> {
        self.join(join).await
    }

    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        self.leave(group, session).await
    }

    async fn look_group(&self, group: &GroupKey) -> Result<Option<GroupLook>, StoreError> {
        self.look_at(group).await
    }

    async fn take_shares(&self, take: &TakeShares) -> Result<Vec<Taken>, StoreError> {
        self.take_slots(take).await
    }

    async fn free_shares(&self, group: &GroupKey, shares: &[(u32, Token)]) -> Result<(), StoreError> {
        self.free_slots(group, shares).await
    }

    async fn read_events(&self, read: &ReadAsk) -> Result<Vec<Event>, StoreError> {
        self.read_slots(read).await
    }

    async fn commit_shares(&self, commits: &[ShareCommit]) -> Result<Vec<Committed>, StoreError> {
        self.commit_slots(commits).await
    }

    async fn aside_keys(&self, group: &GroupKey, slot: u32) -> Result<Vec<AsideKey>, StoreError> {
        self.keys_aside(group, slot).await
    }

    async fn aside_keys_in(
        &self,
        group: &GroupKey,
        slots: &[u32],
    ) -> Result<BTreeMap<u32, Vec<AsideKey>>, StoreError> {
        self.keys_aside_in(group, slots).await
    }

    async fn doze_topic(&self, _session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        self.doze_until_events(topic).await
    }

    async fn prune_events(&self, tend: &Tend) -> Result<(u64, bool), StoreError> {
        self.forget_events(tend).await
    }
}

/// Namespace and name.
fn topic(key: &TopicKey) -> [Value<'_>; 2] {
    [key.namespace.as_str().into(), key.name.as_str().into()]
}

/// Namespace, topic and name.
fn group(key: &GroupKey) -> [Value<'_>; 3] {
    [key.topic.namespace.as_str().into(), key.topic.name.as_str().into(), key.name.as_str().into()]
}
