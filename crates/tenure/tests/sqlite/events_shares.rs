//! Shares: who lost one changes nothing, in this process or in another.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Executor, Row};
use tenure::backend::sqlite::{Sqlite, SqliteOptions, commit_share};
use tenure_core::SessionId;
use tenure_core::event::assign;
use tenure_core::port::*;
use tenure_testkit::conformance::Actor;

use super::child::{Child, say};
use super::events::{Reader, everything, fresh, group, keyed, topic};

/// A member that reads, and another that takes its shares before it has said that it is done.
struct Succession {
    store: Sqlite,
    old: Reader,
    read: Vec<Event>,
    _dir: tempfile::TempDir,
}

impl Succession {
    async fn new() -> Succession {
        let (store, dir) = fresh(1).await;
        store.pool().execute("CREATE TABLE effects (event INTEGER, member TEXT)").await.unwrap();
        store.publish(&topic(), &[keyed("a", 1), keyed("a", 2)]).await.unwrap();
        let old = Reader::join(&store, "old").await;
        let read = old.read(10).await;
        Succession { store, old, read, _dir: dir }
    }

    async fn take_over(&self) -> Reader {
        let expire = Expire { session: self.old.session().clone(), epoch: 0, beat: Some(0) };
        self.store.expire(&expire).await.unwrap();
        let heir = Reader::join(&self.store, "new").await;
        assert_eq!(heir.shares.len(), 1);
        heir
    }

    /// Handles what was read, in the transaction that says so.
    async fn handle(&self, reader: &Reader) -> Result<Committed, StoreError> {
        let mut transaction = self.store.pool().begin().await.unwrap();
        for event in &self.read {
            let put = sqlx::query("INSERT INTO effects VALUES (?1, ?2)").bind(event.id.0.cast_signed());
            put.bind(reader.session().as_str()).execute(&mut *transaction).await.unwrap();
        }
        let commit = reader.commits(&self.read).remove(0);
        let committed = self.store.commit_share(&mut transaction, &commit).await?;
        match committed {
            Committed::Yes => transaction.commit().await.unwrap(),
            Committed::Stale => transaction.rollback().await.unwrap(),
        }
        Ok(committed)
    }

    async fn effects(&self) -> Vec<(i64, String)> {
        sqlx::query_as("SELECT event, member FROM effects ORDER BY rowid")
            .fetch_all(self.store.pool())
            .await
            .unwrap()
    }

    /// Whether each event had one effect, although two members handled it.
    async fn effects_are_single(&self) -> bool {
        let new = self.take_over().await;
        let new_first = [self.handle(&new).await, self.handle(&self.old).await];
        assert_eq!(new_first[0], Ok(Committed::Yes));
        self.effects().await.len() == 2 && new_first[1] == Ok(Committed::Stale)
    }
}

#[tokio::test]
async fn who_lost_a_share_changes_nothing() {
    let scene = Succession::new().await;
    assert!(scene.effects_are_single().await);
    // Nor without a transaction of its own.
    let commit = scene.old.commits(&scene.read).remove(0);
    let committed = scene.store.commit_shares(std::slice::from_ref(&commit)).await.unwrap();
    assert_eq!(committed, [Committed::Stale]);
    let mut transaction = scene.store.pool().begin().await.unwrap();
    assert_eq!(commit_share(&mut transaction, &commit).await, Ok(Committed::Stale));
}

/// The control: without comparing the token, effects double.
#[tokio::test]
async fn a_commit_that_does_not_compare_the_token_is_found() {
    let mut scene = Succession::new().await;
    scene.store.sabotage("share_guard", "AND token = ?5 ", "");
    scene.store.sabotage("share_held", "AND h.token = j.value ->> 4 ", "");
    assert!(!scene.effects_are_single().await);
}

/// It began by reading, before the share was taken: its snapshot is old, and SQLite does not let it write.
#[tokio::test]
async fn a_handler_that_read_before_its_share_was_taken_can_not_commit() {
    let scene = Succession::new().await;
    let mut early = scene.store.pool().begin().await.unwrap();
    sqlx::query("SELECT * FROM effects").fetch_all(&mut *early).await.unwrap();
    let new = scene.take_over().await;
    let commit = scene.old.commits(&scene.read).remove(0);
    let error = commit_share(&mut early, &commit).await.unwrap_err();
    assert_eq!(error.kind, Trouble::Timeout, "{error}: to be tried again");
    early.rollback().await.unwrap();
    assert_eq!(scene.handle(&scene.old).await, Ok(Committed::Stale));
    assert_eq!(scene.handle(&new).await, Ok(Committed::Yes));
}

/// From the commit of a share to that of its transaction, nobody takes it.
#[tokio::test]
async fn nobody_takes_a_share_before_its_commit_is_through() {
    let scene = Succession::new().await;
    let impatient = SqliteOptions::new(scene.store.path()).busy_timeout(Duration::from_millis(50));
    let rival = Sqlite::open(impatient).await.unwrap();
    let actor = Actor::open(Arc::new(rival.clone()), "rival").await;
    let join =
        Join { group: group(), session: actor.id.clone(), member: "rival".into(), from: Begin::Earliest };
    let look = rival.join_group(&join).await.unwrap();
    let expire = Expire { session: scene.old.session().clone(), epoch: 0, beat: Some(0) };
    rival.expire(&expire).await.unwrap();
    let slots = look.shares.iter().map(|share| (share.slot, share.token)).collect();
    let take = TakeShares { group: group(), session: actor.id.clone(), slots };
    let mut transaction = scene.store.pool().begin().await.unwrap();
    let commit = scene.old.commits(&scene.read).remove(0);
    assert_eq!(commit_share(&mut transaction, &commit).await, Ok(Committed::Yes));
    assert_eq!(rival.take_shares(&take).await.unwrap_err().kind, Trouble::Timeout);
    transaction.commit().await.unwrap();
    let taken = rival.take_shares(&take).await.unwrap();
    assert_eq!(
        (taken.len(), taken[0].position),
        (1, scene.read[0].position),
        "it goes on where the other ended"
    );
}

/// Marks of what is done beside the position, and what is set aside, share the transaction's fate; marks go as they are passed.
#[tokio::test]
async fn what_a_lane_has_done_is_remembered_until_the_position_passes_it() {
    let (store, _dir) = fresh(1).await;
    for n in 0..3 {
        store.publish(&topic(), &[keyed(&format!("k{n}"), n)]).await.unwrap();
    }
    let old = Reader::join(&store, "old").await;
    let failed = Aside::Retry { attempts: 1, after_ms: 60_000, error: "no".into() };
    let set_aside = vec![SetAside { event: EventId(2), position: 2, how: failed }];
    let lane = ShareCommit { done: vec![(EventId(3), 3)], set_aside, ..old.commit(0, None) };
    for keep in [false, true] {
        let mut transaction = store.pool().begin().await.unwrap();
        assert_eq!(commit_share(&mut transaction, &lane).await, Ok(Committed::Yes));
        if keep {
            transaction.commit().await.unwrap()
        } else {
            transaction.rollback().await.unwrap()
        }
        assert_eq!(store.aside_keys(&group(), 0).await.unwrap().len(), usize::from(keep));
    }
    let nowhere = SetAside { position: 1, ..lane.set_aside[0].clone() };
    let wrong = ShareCommit { set_aside: vec![nowhere], ..lane.clone() };
    let mut transaction = store.pool().begin().await.unwrap();
    assert_eq!(commit_share(&mut transaction, &wrong).await.unwrap_err().kind, Trouble::Request);
    transaction.rollback().await.unwrap();
    store.free_shares(&group(), &[(0, lane.token)]).await.unwrap();
    let mut new = Reader::join(&store, "new").await;
    assert_eq!((new.shares[&0].position, &new.shares[&0].done), (0, &vec![EventId(3)]));
    assert_eq!(new.shares[&0].aside[0].event, EventId(2));
    for position in [2, 3] {
        let mut transaction = store.pool().begin().await.unwrap();
        let commit = new.commit(0, Some(position));
        assert_eq!(commit_share(&mut transaction, &commit).await, Ok(Committed::Yes));
        transaction.commit().await.unwrap();
        let marks = store.pool().fetch_one("SELECT count(*) FROM tenure_event_done").await.unwrap();
        assert_eq!(marks.get::<i64, _>(0), i64::from(position < 3));
    }
    new.free(&[(0, new.shares[&0].token)]).await;
    assert_eq!(store.look_group(&group()).await.unwrap().unwrap().shares[0].position, 3);
}

#[tokio::test]
async fn a_writer_that_takes_too_long_is_trouble_that_passes() {
    let (store, _dir) = fresh(4).await;
    let reader = Reader::join(&store, "a").await;
    store.publish(&topic(), &[keyed("a", 1)]).await.unwrap();
    let read = reader.read(10).await;
    let impatient = SqliteOptions::new(store.path()).busy_timeout(Duration::from_millis(20));
    let other = Sqlite::open(impatient).await.unwrap();
    let long = store.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    let commits = reader.commits(&read);
    assert_eq!(other.publish(&topic(), &[keyed("a", 2)]).await.unwrap_err().kind, Trouble::Timeout);
    assert_eq!(other.commit_shares(&commits).await.unwrap_err().kind, Trouble::Timeout);
    assert_eq!(everything(&other, 4).await.len(), 1, "reading goes on");
    long.rollback().await.unwrap();
    assert_eq!(other.publish(&topic(), &[keyed("a", 2)]).await.unwrap()[0].id.0, 2);
    assert_eq!(other.commit_shares(&commits).await.unwrap(), [Committed::Yes]);
}

/// A member in a process of its own: it reads, and writes down what it read in the transaction that says so. When it has lost its
/// shares it says so, and comes back as somebody else.
pub(crate) async fn consume(store: Sqlite) {
    let pool = store.pool().clone();
    loop {
        let mut reader = Reader::new(&store, "child").await;
        reader.look().await;
        say(reader.session().as_str());
        'member: loop {
            let look = store.look_group(&group()).await.unwrap().unwrap();
            let balance = assign(&look, reader.session());
            reader.free(&balance.free).await;
            reader.take(balance.take).await;
            let read = reader.read(1_000).await;
            let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            for event in &read {
                let Payload::Json(n) = &event.payload else { panic!("{event:?}") };
                let put =
                    sqlx::query("INSERT INTO effects VALUES (?1, ?2, ?3)").bind(event.id.0.cast_signed());
                let put = put.bind(&event.key).bind(n.parse::<i64>().unwrap());
                put.execute(&mut *transaction).await.unwrap();
            }
            for commit in reader.commits(&read) {
                if commit_share(&mut transaction, &commit).await.unwrap() == Committed::Stale {
                    transaction.rollback().await.unwrap();
                    say("stale");
                    break 'member;
                }
                reader.shares.get_mut(&commit.slot).unwrap().position = commit.position.unwrap();
            }
            transaction.commit().await.unwrap();
            // Whoever waits for the lock tries again and again: let it have a chance.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// To how many keys each process publishes: so many that every slot has some.
const KEYS: u64 = 24;

/// A process that publishes, to keys of its own, until it is told to stop; how often it did.
pub(crate) async fn produce(store: Sqlite, told: impl Fn() -> bool) {
    let mut n = 0;
    while !told() {
        let id = std::process::id();
        let events: Vec<_> = (0..KEYS).map(|key| keyed(&format!("{id}-{key}"), n)).collect();
        store.publish(&topic(), &events).await.unwrap();
        n += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    say(&(KEYS * n).to_string());
}

/// Processes publish, others read and are expired while they do. Everything has one effect, in order.
#[tokio::test(flavor = "multi_thread")]
async fn many_processes_lose_double_and_reorder_nothing() {
    let (store, _dir) = fresh(8).await;
    store.pool().execute("CREATE TABLE effects (event INTEGER, key TEXT, n INTEGER)").await.unwrap();
    // Nobody waits for members that were never there.
    store.set_group(&group(), &GroupSettings::default(), Begin::Earliest).await.unwrap();
    let mut consumers: Vec<_> = (0..3).map(|_| Child::play("consumer", store.path())).collect();
    let mut producers: Vec<_> = (0..2).map(|_| Child::play("producer", store.path())).collect();
    let mut stale = 0;
    for consumer in &mut consumers {
        let mut session = consumer.says();
        for _ in 0..2 {
            let id = SessionId::from_stored(&session);
            // Who has nothing can lose nothing.
            while store
                .look_group(&group())
                .await
                .unwrap()
                .unwrap()
                .shares
                .iter()
                .all(|it| it.holder.as_ref() != Some(&id))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            store.expire(&Expire { session: id, epoch: 0, beat: Some(0) }).await.unwrap();
            assert_eq!(consumer.says(), "stale");
            stale += 1;
            session = consumer.says();
        }
    }
    let mut total = 0;
    for producer in &mut producers {
        producer.tell("stop");
        total += producer.says().parse::<i64>().unwrap();
    }
    while count(&store).await < total {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(consumers);
    assert_eq!((count(&store).await, stale), (total, 6));
    let rows = store.pool().fetch_all("SELECT key, n FROM effects ORDER BY rowid").await.unwrap();
    let mut next = std::collections::BTreeMap::new();
    for row in rows {
        let (key, n): (String, i64) = (row.get(0), row.get(1));
        let expected = next.entry(key.clone()).or_insert(0);
        assert_eq!(n, *expected, "{key}");
        *expected += 1;
    }
    assert_eq!(next.len() as u64, 2 * KEYS);
}

async fn count(store: &Sqlite) -> i64 {
    store.pool().fetch_one("SELECT count(*) FROM effects").await.unwrap().get(0)
}

/// A killed member is known dead at once, and its shares are free.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_member_had_is_taken_at_once() {
    let (store, _dir) = fresh(8).await;
    store.pool().execute("CREATE TABLE effects (event INTEGER, key TEXT, n INTEGER)").await.unwrap();
    let mut child = Child::play("consumer", store.path());
    let session = SessionId::from_stored(&child.says());
    let held = async || {
        let look = store.look_group(&group()).await.unwrap();
        look.map_or(0, |look| look.shares.iter().filter(|share| share.holder.is_some()).count())
    };
    while held().await < 8 {
        tokio::task::yield_now().await;
    }
    let before = store.look_group(&group()).await.unwrap().unwrap();
    let heir = Reader::join(&store, "heir").await;
    assert!(heir.shares.is_empty(), "it lives");
    child.kill();
    store.expire(&Expire { session, epoch: 0, beat: None }).await.unwrap();
    let mut heir = heir;
    heir.take_free().await;
    assert_eq!(heir.shares.len(), 8);
    assert!(before.shares.iter().all(|share| heir.shares[&share.slot].token > share.token));
    assert_eq!(store.group(&group()).await.unwrap().unwrap().moves, 8);
}
