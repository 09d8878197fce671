//! Events: what only the PostgreSQL store does.

use std::collections::BTreeSet;

use tenure::store::postgres::{PostgresStore, commit_partition, publish};
use tenure_core::port::{
    CommitResult, ErrorKind, Event, EventAdmin, EventId, EventStore, GroupKey, JoinGroupRequest, NewEvent,
    PartitionCommit, Payload, ReadEventsRequest, StartOffset, TakePartitionsRequest, TakenPartition,
    TopicKey, TopicSettings,
};
use tenure_core::rules::event::partition_for_key;
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

/// An empty database and a store with a topic `t` with this number of partitions.
pub(crate) async fn with_topic(partitions: u32) -> (tenure_testkit::rig::FreshDatabase, PostgresStore) {
    let (database, store) = fresh().await;
    let settings = TopicSettings { partitions, ..TopicSettings::default() };
    assert!(store.set_topic(&topic("t"), &settings).await.unwrap());
    (database, store)
}

/// All events of the first partitions of `t`.
pub(crate) async fn all(store: &PostgresStore, partitions: u32) -> Vec<Event> {
    let (mut after, mut events): (Vec<_>, Vec<Event>) =
        ((0..partitions).map(|partition| (partition, 0)).collect(), vec![]);
    loop {
        let read = ReadEventsRequest { topic: topic("t"), after: after.clone(), limit: 1000 };
        let page = store.read_events(&read).await.unwrap();
        if page.is_empty() {
            return events;
        }
        for event in &page {
            after[event.partition as usize].1 = event.offset;
        }
        events.extend(page);
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

/// Opens a session that joins the group `g` of `t` and takes these partitions.
pub(crate) async fn member(store: &PostgresStore, session: &str, partitions: &[u32]) -> Vec<TakenPartition> {
    opened(store, session).await;
    let join = JoinGroupRequest {
        group: group("t", "g"),
        session: id(session),
        member: format!("member {session}"),
        from: StartOffset::Earliest,
    };
    store.join_group(&join).await.unwrap();
    taken(store, session, partitions).await
}

/// Takes these partitions of the group `g` of `t` with their current tokens.
pub(crate) async fn taken(store: &PostgresStore, session: &str, partitions: &[u32]) -> Vec<TakenPartition> {
    let assignment = store.group_assignment(&group("t", "g")).await.unwrap().unwrap();
    let token = |partition: u32| assignment.partition_leases[partition as usize].token;
    let partitions = partitions.iter().map(|partition| (*partition, token(*partition))).collect();
    let take = TakePartitionsRequest { group: group("t", "g"), session: id(session), partitions };
    store.take_partitions(&take).await.unwrap()
}

pub(crate) fn commit(partition: u32, token: Token, offset: u64) -> PartitionCommit {
    PartitionCommit {
        group: group("t", "g"),
        partition,
        token,
        offset: Some(offset),
        processed: vec![],
        parked: vec![],
        parked_results: vec![],
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
    assert!(done.iter().all(|it| it.created && it.partition == partition_for_key("ada", 4)));
    let single = store.publish(&topic("t"), &[keyed("ada", 8)]).await.unwrap();
    let read = all(&store, 4).await;
    let ids: Vec<EventId> = done.iter().chain(&single).map(|it| it.id).collect();
    assert_eq!(read.iter().map(|event| event.id).collect::<Vec<_>>(), ids);
    assert_eq!((&read[0].payload, &read[1].payload), (&event.payload, &bytes.payload), "byte for byte");
    assert_eq!((&read[0].headers, read[0].leader_token), (&event.headers, event.leader_token));
    assert_eq!(read[0].offset, read[2].offset, "they were published in one call");
    assert!(read[3].offset > read[2].offset);
    for event in &read {
        assert_eq!(store.event(&topic("t"), event.id).await.unwrap().as_ref(), Some(event));
    }
    let partition = read[0].partition;
    let lease = member(&store, "s", &[partition]).await.remove(0);
    assert_eq!((lease.offset, lease.token), (0, Token::first(1).next(1)));
    let commit_request = commit(partition, lease.token, read[2].offset);
    assert_eq!(
        store.commit_partitions(std::slice::from_ref(&commit_request)).await.unwrap(),
        [CommitResult::Committed]
    );
    let mut tx = store.pool().begin().await.unwrap();
    let commit_request = commit(partition, lease.token, read[3].offset);
    assert_eq!(commit_partition(&mut tx, &commit_request, LEASE).await.unwrap(), CommitResult::Committed);
    tx.rollback().await.unwrap();
    let view = store.group(&group("t", "g")).await.unwrap().unwrap();
    assert_eq!(
        (view.partitions[partition as usize].partition_lease.committed_offset, view.lag()),
        (read[2].offset, (1, true))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn events_published_in_a_transaction_appear_when_it_commits() {
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
    assert_eq!(of_a[0].offset, of_a[1].offset, "delivered together");
    let mut tx = store.pool().begin().await.unwrap();
    let error = publish(&mut tx, &topic("nowhere"), &[keyed("a", 1)]).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Request);
    assert!(error.message.contains("`tenure events topics create nowhere`"), "{error}");
    let own = store.publish(&topic("nowhere"), &[keyed("a", 1)]).await.unwrap_err();
    assert_eq!(
        own,
        tenure_core::rules::event::no_such_topic(&topic("nowhere")),
        "the same error as from every store"
    );
}

/// Event ids and offsets come from one sequence and alternate; nevertheless each way to publish must reach all partitions.
/// With 40 calls, the probability of a failure by chance is negligible.
#[tokio::test(flavor = "multi_thread")]
async fn events_without_a_key_are_spread_over_all_partitions() {
    let (database, store) = with_topic(4).await;
    for at_once in [1, 2] {
        let mut found = BTreeSet::new();
        for _ in 0..40 {
            let published =
                store.publish(&topic("t"), &vec![NewEvent::new("keyless"); at_once]).await.unwrap();
            assert!(published.iter().all(|it| u64::from(it.partition) == it.id.0 % 4));
            found.extend(published.iter().map(|it| it.partition));
        }
        assert_eq!(found.len(), 4, "{at_once} at once");
    }
    let in_sql = database.psql(&"SELECT tenure.publish('t') % 4;\n".repeat(40)).unwrap();
    let found: BTreeSet<&str> = in_sql.lines().map(str::trim).collect();
    assert_eq!(found.len(), 4, "{found:?}");
}
