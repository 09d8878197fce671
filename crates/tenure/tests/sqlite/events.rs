//! Events in a file: what the suite that all stores share does not see.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, SqliteConnection};
use tenure::backend::sqlite::{Sqlite, commit_share, publish};
use tenure_core::port::*;
use tenure_core::{Name, SessionId, Token};
use tenure_testkit::conformance::Actor;

use super::child::open;

pub(crate) fn topic() -> TopicKey {
    TopicKey::new(Name::default_namespace(), "t".parse().unwrap())
}

pub(crate) fn group() -> GroupKey {
    GroupKey::new(topic(), "g".parse().unwrap())
}

/// A file with a topic of so many slots.
pub(crate) async fn fresh(slots: u32) -> (Sqlite, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("t.db")).await;
    assert!(store.set_topic(&topic(), &TopicSettings { slots, ..TopicSettings::default() }).await.unwrap());
    (store, dir)
}

/// A connection that knows nothing of Tenure.
pub(crate) async fn plain(path: &Path) -> SqliteConnection {
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await.unwrap()
}

pub(crate) fn keyed(key: &str, n: u64) -> NewEvent {
    NewEvent { key: Some(key.into()), payload: Payload::Json(Json::of(&n).unwrap()), ..NewEvent::new("k") }
}

/// All that is in a topic, slot by slot.
pub(crate) async fn everything(store: &Sqlite, slots: u32) -> Vec<Event> {
    let after = (0..slots).map(|slot| (slot, 0)).collect();
    store.read_events(&ReadAsk { topic: topic(), after, limit: 10_000 }).await.unwrap()
}

/// A member of the group, and its shares by slot.
pub(crate) struct Reader {
    pub(crate) actor: Actor,
    pub(crate) shares: BTreeMap<u32, Taken>,
}

impl Reader {
    /// Joins, and takes all that is free.
    pub(crate) async fn join(store: &Sqlite, name: &str) -> Reader {
        let actor = Actor::open(Arc::new(store.clone()), name).await;
        let mut reader = Reader { actor, shares: BTreeMap::new() };
        reader.take_free().await;
        reader
    }

    pub(crate) fn session(&self) -> &SessionId {
        &self.actor.id
    }

    pub(crate) async fn look(&self) -> GroupLook {
        let join = Join {
            group: group(),
            session: self.actor.id.clone(),
            member: self.actor.id.to_string(),
            from: Begin::Earliest,
        };
        self.actor.store.join_group(&join).await.unwrap()
    }

    pub(crate) async fn take_free(&mut self) {
        let free = self.look().await.shares.into_iter().filter(|share| share.holder.is_none());
        let slots = free.map(|share| (share.slot, share.token)).collect();
        let take = TakeShares { group: group(), session: self.actor.id.clone(), slots };
        let taken = self.actor.store.take_shares(&take).await.unwrap();
        self.shares.extend(taken.into_iter().map(|taken| (taken.slot, taken)));
    }

    pub(crate) async fn read(&self, limit: u32) -> Vec<Event> {
        let after = self.shares.values().map(|share| (share.slot, share.position)).collect();
        self.actor.store.read_events(&ReadAsk { topic: topic(), after, limit }).await.unwrap()
    }

    /// What is said when these are done: one for each slot.
    pub(crate) fn commits(&self, events: &[Event]) -> Vec<ShareCommit> {
        let last: BTreeMap<u32, Position> = events.iter().map(|event| (event.slot, event.position)).collect();
        last.into_iter().map(|(slot, position)| self.commit(slot, Some(position))).collect()
    }

    pub(crate) fn commit(&self, slot: u32, position: Option<Position>) -> ShareCommit {
        let token = self.shares[&slot].token;
        ShareCommit {
            group: group(),
            slot,
            token,
            position,
            done: Vec::new(),
            set_aside: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Says that these are done.
    pub(crate) async fn done(&mut self, events: &[Event]) -> Vec<Committed> {
        let commits = self.commits(events);
        let committed = self.actor.store.commit_shares(&commits).await.unwrap();
        for (commit, committed) in commits.iter().zip(&committed) {
            if *committed == Committed::Yes {
                self.shares.get_mut(&commit.slot).unwrap().position = commit.position.unwrap();
            }
        }
        committed
    }
}

pub(crate) fn ids(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.id.0).collect()
}

#[tokio::test]
async fn an_event_goes_from_its_publisher_to_a_member_once() {
    let (store, _dir) = fresh(4).await;
    let events: Vec<_> = (0..20).map(|n| keyed(&format!("k{}", n % 5), n)).collect();
    let published = store.publish(&topic(), &events).await.unwrap();
    assert!(published.iter().zip(1..).all(|(it, id)| it.new && it.id.0 == id));
    let mut reader = Reader::join(&store, "a").await;
    let mut read = reader.read(100).await;
    assert_eq!(reader.done(&read).await, vec![Committed::Yes; reader.commits(&read).len()]);
    assert!(reader.read(100).await.is_empty());
    assert!(read.is_sorted_by_key(|event| (event.slot, event.position, event.id)));
    read.sort_by_key(|event| event.id);
    let carried: Vec<_> = read.iter().map(|event| (event.key.clone(), event.payload.clone())).collect();
    assert_eq!(carried, events.into_iter().map(|event| (event.key, event.payload)).collect::<Vec<_>>());
    store.publish(&topic(), &[keyed("k1", 99)]).await.unwrap();
    assert_eq!(ids(&reader.read(100).await), [21]);
}
