//! Events, as far as they are PostgreSQL's own.

use std::collections::BTreeSet;

use tenure::backend::postgres::{Postgres, commit_share, publish};
use tenure_core::event::slot_of;
use tenure_core::port::{
    Begin, Bureau, Committed, Event, EventId, Events, GroupKey, Join, NewEvent, Payload, ReadAsk,
    ShareCommit, TakeShares, Taken, TopicKey, TopicSettings, Trouble,
};
use tenure_core::{Name, Token};

use crate::support::*;

pub(crate) fn topic(name: &str) -> TopicKey {
    TopicKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn group(topic_name: &str, name: &str) -> GroupKey {
    GroupKey::new(topic(topic_name), name.parse().unwrap())
}

pub(crate) fn keyed(key: &str, payload: u64) -> NewEvent {
    let payload = Payload::Json(payload.to_string().parse().unwrap());
    NewEvent { key: Some(key.into()), payload, ..NewEvent::new("test") }
}

/// An empty database, and a store with a topic `t` of so many slots.
pub(crate) async fn with_topic(slots: u32) -> (tenure_testkit::rig::FreshDatabase, Postgres) {
    let (database, store) = fresh().await;
    let settings = TopicSettings { slots, ..TopicSettings::default() };
    assert!(store.set_topic(&topic("t"), &settings).await.unwrap());
    (database, store)
}

/// All events of some slots of `t`.
pub(crate) async fn all(store: &Postgres, slots: u32) -> Vec<Event> {
    let (mut after, mut events): (Vec<_>, Vec<Event>) = ((0..slots).map(|slot| (slot, 0)).collect(), vec![]);
    loop {
        let read = ReadAsk { topic: topic("t"), after: after.clone(), limit: 1000 };
        let some = store.read_events(&read).await.unwrap();
        if some.is_empty() {
            return events;
        }
        for event in &some {
            after[event.slot as usize].1 = event.position;
        }
        events.extend(some);
    }
}

/// The numbers in the payloads.
pub(crate) fn payloads(events: &[Event]) -> Vec<u64> {
    let number = |event: &Event| match &event.payload {
        Payload::Json(json) => json.parse().unwrap(),
        Payload::Bytes(_) => panic!("{event:?}"),
    };
    events.iter().map(number).collect()
}

/// Lets a session join the group `g` of `t`, and take these slots.
pub(crate) async fn member(store: &Postgres, session: &str, slots: &[u32]) -> Vec<Taken> {
    opened(store, session).await;
    let join = Join {
        group: group("t", "g"),
        session: id(session),
        member: format!("member {session}"),
        from: Begin::Earliest,
    };
    store.join_group(&join).await.unwrap();
    taken(store, session, slots).await
}

/// Takes these slots of the group `g` of `t`, as they are seen.
pub(crate) async fn taken(store: &Postgres, session: &str, slots: &[u32]) -> Vec<Taken> {
    let look = store.look_group(&group("t", "g")).await.unwrap().unwrap();
    let slots = slots.iter().map(|slot| (*slot, look.shares[*slot as usize].token)).collect();
    let take = TakeShares { group: group("t", "g"), session: id(session), slots };
    store.take_shares(&take).await.unwrap()
}

pub(crate) fn commit(slot: u32, token: Token, position: u64) -> ShareCommit {
    ShareCommit {
        group: group("t", "g"),
        slot,
        token,
        position: Some(position),
        done: vec![],
        set_aside: vec![],
        settled: vec![],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_published_read_and_committed() {
    let (_database, store) = with_topic(4).await;
    let mut event = keyed("ada", 1);
    event.payload = Payload::Json(r#"{"to" :"ada\u0000", "x": 1e3}"#.parse().unwrap());
    event.headers = [("a".to_owned(), "it's \"b\"\\".to_owned())].into();
    event.leader_token = Some(Token::first(1).next(1));
    let bytes = NewEvent { payload: Payload::Bytes((0..=255).collect()), ..keyed("ada", 0) };
    let done = store.publish(&topic("t"), &[event.clone(), bytes.clone(), keyed("ada", 7)]).await.unwrap();
    assert!(done.iter().all(|it| it.new && it.slot == slot_of("ada", 4)));
    let single = store.publish(&topic("t"), &[keyed("ada", 8)]).await.unwrap();
    let read = all(&store, 4).await;
    let ids: Vec<EventId> = done.iter().chain(&single).map(|it| it.id).collect();
    assert_eq!(read.iter().map(|event| event.id).collect::<Vec<_>>(), ids);
    assert_eq!((&read[0].payload, &read[1].payload), (&event.payload, &bytes.payload), "to the letter");
    assert_eq!((&read[0].headers, read[0].leader_token), (&event.headers, event.leader_token));
    assert_eq!(read[0].position, read[2].position, "they were published together");
    assert!(read[3].position > read[2].position);
    for event in &read {
        assert_eq!(store.event(&topic("t"), event.id).await.unwrap().as_ref(), Some(event));
    }
    let slot = read[0].slot;
    let share = member(&store, "s", &[slot]).await.remove(0);
    assert_eq!((share.position, share.token), (0, Token::first(1).next(1)));
    let said = commit(slot, share.token, read[2].position);
    assert_eq!(store.commit_shares(std::slice::from_ref(&said)).await.unwrap(), [Committed::Yes]);
    let mut tx = store.pool().begin().await.unwrap();
    let said = commit(slot, share.token, read[3].position);
    assert_eq!(commit_share(&mut tx, &said, LEASE).await.unwrap(), Committed::Yes);
    tx.rollback().await.unwrap();
    let view = store.group(&group("t", "g")).await.unwrap().unwrap();
    assert_eq!((view.slots[slot as usize].share.position, view.lag()), (read[2].position, (1, true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_in_a_transaction_is_there_if_it_commits() {
    let (_database, store) = with_topic(4).await;
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("a", 1)]).await.unwrap();
    assert_eq!(all(&store, 4).await, [], "not yet");
    tx.rollback().await.unwrap();
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("a", 2), keyed("b", 3)]).await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("a", 4)]).await.unwrap();
    assert_eq!(all(&store, 4).await, [], "not yet");
    tx.commit().await.unwrap();
    let read = all(&store, 4).await;
    let of_a: Vec<Event> = read.iter().filter(|it| it.key.as_deref() == Some("a")).cloned().collect();
    assert_eq!(payloads(&of_a), [2, 4]);
    assert_eq!(of_a[0].position, of_a[1].position, "delivered together");
    let mut tx = store.pool().begin().await.unwrap();
    let error = publish(&mut tx, &topic("nowhere"), &[keyed("a", 1)]).await.unwrap_err();
    assert_eq!(error.kind, Trouble::Request);
    assert!(error.message.contains("`tenure events topics create nowhere`"), "{error}");
    let own = store.publish(&topic("nowhere"), &[keyed("a", 1)]).await.unwrap_err();
    assert_eq!(own, tenure_core::event::no_such_topic(&topic("nowhere")), "in the same words as every store");
}

/// Numbers and positions are of one sequence, and take turns. One way after the other: each has then been in all slots unless its dice fell on one side for
/// all but two of forty times.
#[tokio::test(flavor = "multi_thread")]
async fn events_without_a_key_lie_in_all_slots_however_they_are_published() {
    let (database, store) = with_topic(4).await;
    for at_once in [1, 2] {
        let mut found = BTreeSet::new();
        for _ in 0..40 {
            let published =
                store.publish(&topic("t"), &vec![NewEvent::new("keyless"); at_once]).await.unwrap();
            assert!(published.iter().all(|it| u64::from(it.slot) == it.id.0 % 4));
            found.extend(published.iter().map(|it| it.slot));
        }
        assert_eq!(found.len(), 4, "{at_once} at once");
    }
    let in_sql = database.psql(&"SELECT tenure.publish('t') % 4;\n".repeat(40)).unwrap();
    let found: BTreeSet<&str> = in_sql.lines().map(str::trim).collect();
    assert_eq!(found.len(), 4, "{found:?}");
}
