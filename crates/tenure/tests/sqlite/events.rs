//! Events in a file: what the suite that all stores share does not see.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, SqliteConnection};
use tenure::backend::sqlite::{Sqlite, publish};
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
    name: String,
    pub(crate) shares: BTreeMap<u32, Taken>,
}

impl Reader {
    /// One that has not joined yet.
    pub(crate) async fn new(store: &Sqlite, name: &str) -> Reader {
        let actor = Actor::open(Arc::new(store.clone()), name).await;
        Reader { actor, name: name.into(), shares: BTreeMap::new() }
    }

    /// Joins, and takes all that is free.
    pub(crate) async fn join(store: &Sqlite, name: &str) -> Reader {
        let mut reader = Reader::new(store, name).await;
        reader.take_free().await;
        reader
    }

    pub(crate) fn session(&self) -> &SessionId {
        &self.actor.id
    }

    /// Says that it is there, and looks.
    pub(crate) async fn look(&self) -> GroupLook {
        let (session, member) = (self.actor.id.clone(), self.name.clone());
        let join = Join { group: group(), session, member, from: Begin::Earliest };
        self.actor.store.join_group(&join).await.unwrap()
    }

    pub(crate) async fn take_free(&mut self) {
        let free = self.look().await.shares.into_iter().filter(|share| share.holder.is_none());
        self.take(free.map(|share| (share.slot, share.token)).collect()).await;
    }

    pub(crate) async fn take(&mut self, slots: Vec<(u32, Token)>) {
        let take = TakeShares { group: group(), session: self.actor.id.clone(), slots };
        let taken = self.actor.store.take_shares(&take).await.unwrap();
        self.shares.extend(taken.into_iter().map(|taken| (taken.slot, taken)));
    }

    pub(crate) async fn free(&mut self, shares: &[(u32, Token)]) {
        self.actor.store.free_shares(&group(), shares).await.unwrap();
        self.shares.retain(|slot, _| shares.iter().all(|(freed, _)| freed != slot));
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

/// What was published together in a slot lies at one position and is read whole; what is too much is cut.
#[tokio::test]
async fn what_is_published_in_one_call_is_read_whole() {
    let (store, _dir) = fresh(2).await;
    let of = |key: &str, n: usize| (0..n as u64).map(|n| keyed(key, n)).collect::<Vec<_>>();
    let (one, other) =
        ("a", ["b", "c", "d", "e"].into_iter().find(|key| slot(key, 2) != slot("a", 2)).unwrap());
    store.publish(&topic(), &of(one, 2_500)).await.unwrap();
    store.publish(&topic(), &of(other, 7)).await.unwrap();
    let ask = |limit| ReadAsk { topic: topic(), after: vec![(slot(one, 2), 0), (slot(other, 2), 0)], limit };
    // One unit of each, then more of the first.
    let read = store.read_events(&ask(1_001)).await.unwrap();
    let units: Vec<_> = tenure_core::event::units(&read).map(|unit| (unit[0].position, unit.len())).collect();
    assert_eq!(units, [(1, 1_000), (2_501, 7)]);
    let read = store.read_events(&ask(1)).await.unwrap();
    assert_eq!(read.len(), 1_000, "never cut");
    let read = store.read_events(&ask(10_000)).await.unwrap();
    let units: Vec<_> = tenure_core::event::units(&read).map(|unit| (unit[0].position, unit.len())).collect();
    assert_eq!(units, [(1, 1_000), (1_001, 1_000), (2_001, 500), (2_501, 7)]);
    assert!(read.iter().all(|event| event.id.0 >= event.position));
}

fn slot(key: &str, slots: u32) -> u32 {
    tenure_core::event::slot_of(key, slots)
}

/// Whoever reads slots of which most are empty still gets as much as was asked for.
#[tokio::test]
async fn one_full_slot_among_many_is_read_as_far_as_the_limit() {
    let (store, _dir) = fresh(64).await;
    for n in 0..300 {
        store.publish(&topic(), &[keyed("a", n)]).await.unwrap();
    }
    store.publish(&topic(), &[keyed("b", 0), keyed("c", 0)]).await.unwrap();
    let after = (0..64).map(|slot| (slot, 0)).collect();
    let read = store.read_events(&ReadAsk { topic: topic(), after, limit: 250 }).await.unwrap();
    assert_eq!(read.len(), 250);
    assert_eq!(read.iter().filter(|event| event.key.as_deref() == Some("a")).count(), 248);
}

#[tokio::test]
async fn one_read_brings_what_can_be_carried() {
    let (store, _dir) = fresh(1).await;
    let long = NewEvent { payload: Payload::Bytes(vec![7; EVENT_BYTES_MAX]), ..NewEvent::new("k") };
    for _ in 0..20 {
        store.publish(&topic(), std::slice::from_ref(&long)).await.unwrap();
    }
    let read = everything(&store, 1).await;
    assert_eq!(read.len(), READ_BYTES / EVENT_BYTES_MAX);
    assert_eq!(read[0].payload, long.payload);
    let rest = ReadAsk { topic: topic(), after: vec![(0, read.last().unwrap().position)], limit: 100 };
    assert_eq!(store.read_events(&rest).await.unwrap().len(), 20 - read.len());
}

#[tokio::test]
async fn bytes_json_and_headers_come_back_as_they_went() {
    let (store, _dir) = fresh(3).await;
    let payloads = [
        Payload::Bytes((0..=255).collect()),
        Payload::Bytes(Vec::new()),
        Payload::Json(r#"{"a" : [1, 2.50, "\u0000 \ud83d\ude00 ß"],  "b":1e3}"#.parse().unwrap()),
        Payload::Json("null".parse().unwrap()),
    ];
    let event = |payload: Payload| NewEvent {
        payload,
        headers: [("trace".into(), "\"7f\", {ß}".into()), ("x".into(), String::new())].into(),
        key: Some("кл\"юч".into()),
        leader_token: Some(Token::from_u64(1 << 41)),
        ..NewEvent::new("a.b")
    };
    let events: Vec<_> = payloads.iter().cloned().map(event).collect();
    let published = store.publish(&topic(), &events).await.unwrap();
    let read = everything(&store, 3).await;
    for (n, (event, it)) in read.iter().zip(&events).enumerate() {
        assert_eq!(event.payload, it.payload);
        assert_eq!((&event.headers, &event.key, event.leader_token), (&it.headers, &it.key, it.leader_token));
        assert_eq!((event.id, event.slot, event.kind.as_str()), (published[n].id, published[n].slot, "a.b"));
        assert_eq!(store.event(&topic(), event.id).await.unwrap().as_ref(), Some(event));
    }
    assert_eq!(read.len(), 4);
}

#[tokio::test]
async fn an_idempotency_key_counts_once_within_a_call_and_over_calls() {
    let (store, _dir) = fresh(8).await;
    let once = |key: &str| NewEvent { idempotency_key: Some(key.into()), ..NewEvent::new("k") };
    let first = store.publish(&topic(), &[once("a"), once("b"), once("a")]).await.unwrap();
    assert_eq!(
        first.iter().map(|it| (it.id.0, it.new)).collect::<Vec<_>>(),
        [(1, true), (2, true), (1, false)]
    );
    let second = store.publish(&topic(), &[once("b"), NewEvent::new("k"), once("c")]).await.unwrap();
    assert_eq!(
        second.iter().map(|it| (it.id.0, it.new)).collect::<Vec<_>>(),
        [(2, false), (3, true), (4, true)]
    );
    assert_eq!(second[0].slot, first[1].slot);
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().events, 4);
}

#[tokio::test]
async fn what_is_published_in_the_callers_transaction_shares_its_fate() {
    let (store, _dir) = fresh(4).await;
    store.pool().execute("CREATE TABLE orders (id INTEGER)").await.unwrap();
    let mut conn = store.pool().acquire().await.unwrap();
    let error = publish(&mut conn, &topic(), &[keyed("a", 1)]).await.unwrap_err();
    assert!(error.kind == Trouble::Request && error.message.contains("begin one first"), "{error}");
    drop(conn);
    let mut transaction = store.pool().begin().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    assert_eq!(publish(&mut transaction, &topic(), &[keyed("a", 1), keyed("b", 2)]).await.unwrap().len(), 2);
    transaction.rollback().await.unwrap();
    assert!(everything(&store, 4).await.is_empty());
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().events, 0);
    let mut transaction = store.pool().begin().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    publish(&mut transaction, &topic(), &[keyed("a", 1), keyed("b", 2)]).await.unwrap();
    assert!(everything(&store, 4).await.is_empty(), "not before it commits");
    transaction.commit().await.unwrap();
    assert_eq!(everything(&store, 4).await.len(), 2);
    // Nothing is left of what is refused, whatever becomes of the transaction.
    let other = TopicKey::new(Name::default_namespace(), "other".parse().unwrap());
    let small = TopicSettings { max_bytes: 1, ..TopicSettings::default() };
    store.set_topic(&other, &small).await.unwrap();
    let mut transaction = store.pool().begin().await.unwrap();
    let refused = publish(&mut transaction, &other, &[keyed("a", 1), keyed("a", 10)]).await.unwrap_err();
    assert!(refused.kind == Trouble::Request && refused.message.contains("at most 1:"), "{refused}");
    transaction.commit().await.unwrap();
    assert_eq!(store.topic(&other).await.unwrap().unwrap().events, 0);
}

/// The next hint that is about events.
async fn hint(hints: &mut Wakes) -> Wake {
    loop {
        let wake = hints.next().await.expect("hints");
        if matches!(wake, Wake::Events(_) | Wake::Group(_)) {
            return wake;
        }
    }
}

#[tokio::test]
async fn a_bell_is_rung_once_for_who_sleeps_and_not_at_all_for_nobody() {
    let (store, _dir) = fresh(4).await;
    let actor = Actor::open(Arc::new(store.clone()), "a").await;
    let later = TopicKey::new(Name::default_namespace(), "later".parse().unwrap());
    let mut hints = store.wakes();
    store.publish(&topic(), &[keyed("a", 1)]).await.unwrap();
    store.doze_topic(&actor.id, &topic()).await.unwrap();
    store.doze_topic(&actor.id, &later).await.unwrap();
    store.publish(&topic(), &[keyed("a", 2)]).await.unwrap();
    store.publish(&topic(), &[keyed("a", 3)]).await.unwrap();
    store.set_topic(&later, &TopicSettings::default()).await.unwrap();
    store.publish(&later, &[keyed("a", 1)]).await.unwrap();
    assert_eq!(hint(&mut hints).await, Wake::Events(topic()));
    assert_eq!(hint(&mut hints).await, Wake::Events(later));
    // What is there already rings nobody, and what the caller commits can not.
    store.doze_topic(&actor.id, &topic()).await.unwrap();
    let once = NewEvent { idempotency_key: Some("a".into()), ..NewEvent::new("k") };
    let mut transaction = store.pool().begin().await.unwrap();
    publish(&mut transaction, &topic(), std::slice::from_ref(&once)).await.unwrap();
    transaction.commit().await.unwrap();
    store.publish(&topic(), &[once]).await.unwrap();
    let reader = Reader::join(&store, "b").await;
    assert_eq!(hint(&mut hints).await, Wake::Group(group()));
    reader.look().await;
    store.publish(&topic(), &[keyed("a", 4)]).await.unwrap();
    assert_eq!(hint(&mut hints).await, Wake::Events(topic()));
}

/// The keeper, and how it tends.
async fn keeper(store: &Sqlite) -> (Actor, Tend) {
    let keeper = Actor::open(Arc::new(store.clone()), "keeper").await;
    keeper.stand(&claims_election()).await;
    let token = keeper.take(&claims_election(), 0).await;
    let tend = Tend { session: keeper.id.clone(), token, clock_ms: Some(i64::MAX), limit: 2 };
    (keeper, tend)
}

/// A topic that is deleted takes its events along; what was left by a process that died over it, the keeper clears away.
#[tokio::test]
async fn nothing_is_left_of_a_deleted_topic() {
    let (store, _dir) = fresh(4).await;
    let count = async || -> (i64,) {
        sqlx::query_as("SELECT count(*) FROM tenure_events").fetch_one(store.pool()).await.unwrap()
    };
    let events: Vec<_> = (0..5).map(|n| keyed(&format!("k{n}"), n)).collect();
    store.publish(&topic(), &events).await.unwrap();
    assert!(store.delete_topic(&topic()).await.unwrap());
    assert_eq!(count().await, (0,));
    store.set_topic(&topic(), &TopicSettings { slots: 4, ..TopicSettings::default() }).await.unwrap();
    assert_eq!(store.publish(&topic(), &events).await.unwrap()[0].id.0, 6, "numbers go on");
    store.pool().execute("UPDATE tenure_events SET topic = 99 WHERE id > 6").await.unwrap();
    let (_keeper, tend) = keeper(&store).await;
    while store.prune_events(&tend).await.unwrap().1 {}
    assert_eq!(count().await, (1,));
    assert_eq!(ids(&everything(&store, 4).await), [6]);
}

/// Events that are old and read are forgotten from the front, and their numbers never given again.
#[tokio::test]
async fn what_was_forgotten_leaves_positions_as_they_were() {
    let (store, _dir) = fresh(1).await;
    let (_keeper, tend) = keeper(&store).await;
    let mut reader = Reader::join(&store, "a").await;
    for n in 0..5 {
        store.publish(&topic(), &[keyed("a", n), keyed("a", n)]).await.unwrap();
    }
    assert_eq!(store.prune_events(&tend).await.unwrap(), (0, false), "they are young");
    store.pool().execute("UPDATE tenure_events SET published_at = published_at - 700000000").await.unwrap();
    assert_eq!(store.prune_events(&tend).await.unwrap(), (0, false), "nobody has read them");
    let read = reader.read(100).await;
    reader.done(&read[..6]).await;
    let late = Tend { token: Token::from_u64(99), ..tend.clone() };
    assert_eq!(store.prune_events(&late).await.unwrap(), (0, false), "it does not lead");
    let unsure = Tend { clock_ms: None, ..tend.clone() };
    assert_eq!(store.prune_events(&unsure).await.unwrap(), (0, false), "it does not know the time");
    assert_eq!(store.prune_events(&tend).await.unwrap(), (4, true));
    assert_eq!(store.prune_events(&tend).await.unwrap(), (2, false));
    let ends = store.slot_ends(&topic()).await.unwrap().unwrap();
    assert_eq!((ends[0].earliest, ends[0].latest), (5, 9));
    assert_eq!(ids(&everything(&store, 1).await), [7, 8, 9, 10]);
    // All of it.
    let rest = reader.read(100).await;
    reader.done(&rest).await;
    assert_eq!(store.prune_events(&tend).await.unwrap(), (4, false));
    let ends = store.slot_ends(&topic()).await.unwrap().unwrap();
    assert_eq!((ends[0].earliest, ends[0].latest), (9, 9));
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().events, 0);
    assert_eq!(store.publish(&topic(), &[keyed("a", 9)]).await.unwrap()[0].id.0, 11);
    assert_eq!(ids(&reader.read(9).await), [11]);
}
