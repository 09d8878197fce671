//! Publishing and reading: no event is lost, commit batches stay together, order is kept.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::port::{
    COMMIT_BATCH_MAX, DEPTH_MAX, Event, EventId, NewEvent, PUBLISH_MAX, Payload, READ_BYTES,
    ReadEventsRequest, TopicKey, TopicSettings,
};
use tenure_core::rules::event::partition_for_key;
use tenure_core::{Entropy, SplitMix, Token};

use super::StoreUnderTest;
use super::test_topic::{
    PARTITIONS, TestReader, TestTopic, event_ids, keyed, keys_in, number, numbered, refused, topic,
};

fn odd() -> NewEvent {
    NewEvent {
        key: Some("kunde-ß \"q\" \\ 'x' , {}".into()),
        payload: Payload::Json(r#"{"b": 1, "a": [1.50, "ü\u0041", null]}"#.parse().expect("JSON")),
        headers: BTreeMap::from([("trace id".into(), "a,b\"c\\d'".into()), ("x".into(), String::new())]),
        idempotency_key: Some("once, \"and\" 'again'".into()),
        leader_token: Some(Token::from_u64((3 << 40) + 7)),
        ..NewEvent::new("order.paid €")
    }
}

/// An event with a JSON or binary payload is read with all its fields.
pub async fn a_published_event_keeps_all_fields(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let bytes = NewEvent { payload: Payload::Bytes((0..=255).collect()), ..NewEvent::new("") };
    let empty = NewEvent { payload: Payload::Bytes(vec![]), ..keyed("k") };
    let drafts = vec![odd(), bytes, empty, NewEvent::new("plain")];
    let published = test_topic.publish(drafts.clone()).await;
    let other = test_topic.reopen(subject).await;
    let read = other.all().await;
    assert_eq!(read.len(), drafts.len());
    for (draft, done) in drafts.iter().zip(&published) {
        assert!(done.created);
        let event = other.store.event(&other.key, done.id).await.unwrap().expect("it is kept");
        assert_eq!((event.id, event.partition), (done.id, done.partition));
        assert_eq!((&event.key, &event.event_type), (&draft.key, &draft.event_type));
        assert_eq!((&event.headers, event.leader_token), (&draft.headers, draft.leader_token));
        same_payload(&event.payload, &draft.payload);
        assert!(event.published_at_ms > 1_500_000_000_000 && event.offset > 0, "{event:?}");
        let expected = draft.key.as_ref().map_or(event.partition, |key| partition_for_key(key, PARTITIONS));
        assert!(event.partition == expected && event.partition < PARTITIONS, "{event:?}");
        assert!(read.contains(&event), "reading and showing agree: {event:?}");
    }
    assert_eq!(other.store.event(&other.key, EventId(u64::from(u32::MAX))).await, Ok(None));
    let elsewhere = test_topic.other_topic(topic("other")).await;
    assert_eq!(elsewhere.store.event(&elsewhere.key, published[0].id).await, Ok(None), "of its topic");
}

/// Compares payloads by value, because stores may format JSON numbers and strings differently.
fn same_payload(found: &Payload, expected: &Payload) {
    match (found, expected) {
        (Payload::Json(found), Payload::Json(expected)) => {
            let value = |text: &str| text.parse::<serde_json::Value>().expect("JSON");
            assert_eq!(value(found.as_str()), value(expected.as_str()));
        }
        (found, expected) => assert_eq!(found, expected),
    }
}

/// A publish call returns one receipt per event, in order and with growing ids.
pub async fn publish_receipts_are_in_request_order(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    assert_eq!(test_topic.publish(vec![]).await, []);
    let first = test_topic.publish((0..10).map(|n| keyed(&n.to_string())).collect()).await;
    let second = test_topic.publish(vec![keyed("0")]).await;
    let numbers: Vec<_> = first.iter().chain(&second).map(|it| it.id).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    for (n, it) in first.iter().enumerate() {
        assert_eq!(it.partition, partition_for_key(&n.to_string(), PARTITIONS));
    }
    assert_eq!(test_topic.view().await.event_count, 11);
}

/// A second publication with the same idempotency key returns the first event, also within one call and with another
/// event key, but not in another topic.
pub async fn an_idempotency_key_identifies_an_event(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let once = |key: &str, n| NewEvent { idempotency_key: Some("id".into()), ..numbered(key, n) };
    let first = test_topic.publish(vec![numbered("a", 0), once("a", 1), once("b", 2)]).await;
    assert_eq!(first.iter().map(|it| it.created).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((first[2].id, first[2].partition), (first[1].id, first[1].partition));
    let again = test_topic.reopen(subject).await.publish(vec![once("c", 3), numbered("c", 4)]).await;
    assert_eq!((again[0].id, again[0].partition, again[0].created), (first[1].id, first[1].partition, false));
    assert!(again[1].created);
    let mut message: Vec<_> = test_topic.all().await.iter().map(number).collect();
    message.sort_unstable();
    assert_eq!(message, [0, 1, 4]);
    let other = test_topic.other_topic(topic("other")).await;
    assert!(other.publish(vec![once("a", 1)]).await[0].created, "a key belongs to its topic");
}

/// Of several concurrent publications with the same idempotency key, one is stored, and all calls return its id.
pub async fn of_concurrent_publications_with_one_idempotency_key_one_is_stored(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..12u64 {
        let test_topic = test_topic.reopen(subject).await;
        let event = |key: &str| NewEvent { idempotency_key: Some(key.into()), ..numbered(key, n) };
        // The events are published in both orders, to provoke deadlocks.
        let events = if n % 2 == 0 { vec![event("x"), event("y")] } else { vec![event("y"), event("x")] };
        calls.spawn(async move {
            let keys: Vec<_> = events.iter().map(|it| it.key.clone().expect("a key")).collect();
            keys.into_iter().zip(test_topic.publish(events).await).collect::<Vec<_>>()
        });
    }
    let mut found: BTreeMap<String, BTreeSet<EventId>> = BTreeMap::new();
    let mut new = 0;
    for (key, published) in calls.join_all().await.concat() {
        new += u32::from(published.created);
        found.entry(key).or_default().insert(published.id);
    }
    assert_eq!(new, 2);
    assert!(found.values().all(|ids| ids.len() == 1), "{found:?}");
    assert_eq!(test_topic.all().await.len(), 2);
}

/// The error names the topic and the command that creates it.
pub async fn an_unknown_topic_is_rejected_by_name(subject: &StoreUnderTest) {
    let test_topic = TestTopic { store: subject.client().await, key: topic("nowhere") };
    let message = test_topic.refused(vec![keyed("a")]).await;
    for part in ["nowhere", "tenure events topics create nowhere", "/v1/topics/nowhere"] {
        assert!(message.contains(part), "{message}");
    }
    let request = ReadEventsRequest { topic: test_topic.key.clone(), after: vec![(0, 0)], limit: 1 };
    assert!(refused(test_topic.store.read_events(&request).await).contains("nowhere"));
    assert_eq!(test_topic.store.topic(&test_topic.key).await, Ok(None));
    assert_eq!(test_topic.store.partition_offsets(&test_topic.key).await, Ok(None));
    assert_eq!(test_topic.store.event(&test_topic.key, EventId(1)).await, Ok(None));
}

/// If one event is invalid, no event of the call is published.
pub async fn invalid_events_are_rejected_by_name(subject: &StoreUnderTest) {
    let settings =
        TopicSettings { partitions: PARTITIONS, max_payload_bytes: 100, ..TopicSettings::default() };
    let test_topic = TestTopic::with(subject, settings).await;
    let payload = |bytes| NewEvent { payload: Payload::Bytes(vec![7; bytes]), ..keyed("k") };
    let nested = ["[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1)].concat();
    let json = |text: &str| NewEvent { payload: Payload::Json(text.parse().unwrap()), ..keyed("k") };
    let header = |name: &str, value: String| NewEvent {
        headers: BTreeMap::from([(name.to_owned(), value)]),
        ..keyed("k")
    };
    let cases = [
        (payload(101), "allows at most 100"),
        (json(&format!("\"{}\"", "x".repeat(99))), "payload has 101 bytes"),
        (keyed(""), "key \"\" is empty"),
        (keyed(&"k".repeat(513)), "513 bytes"),
        (NewEvent::new("a\0b"), "type"),
        (NewEvent { idempotency_key: Some("a\nb".into()), ..keyed("k") }, "idempotency key"),
        (header("", "x".into()), "header name"),
        (header("x", "y".repeat(20_000)), "headers have 20001 bytes"),
    ];
    for (event, expected) in cases {
        let message = test_topic.refused(vec![keyed("a"), event]).await;
        assert!(message.contains("event 1: ") && message.contains(expected), "{message}\n{expected}");
    }
    assert!(test_topic.publish(vec![payload(100)]).await[0].created);
    assert_eq!(test_topic.all().await.len(), 1, "nothing of a rejected call");
    let deep = test_topic.other_topic(topic("deep")).await;
    assert!(deep.refused(vec![json(&nested)]).await.contains("deep"));
    let many = deep.refused(vec![NewEvent::new("k"); PUBLISH_MAX + 1]).await;
    assert!(many.contains("10001 events") && many.contains("maximum of 10000"), "{many}");
}

/// Events without a key use all partitions, whatever the batch size, so that consumers can read in parallel.
pub async fn events_without_a_key_are_distributed_over_partitions(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    for together in [1, 2, 3] {
        let mut partitions = BTreeSet::new();
        for _ in 0..40 {
            let published = test_topic.publish(vec![NewEvent::new("k"); together]).await;
            partitions.extend(published.iter().map(|it| it.partition));
        }
        assert_eq!(partitions.len(), PARTITIONS as usize, "{together} at a time: {partitions:?}");
    }
}

/// Events of one key are read in publication order, across calls and clients.
pub async fn a_key_is_read_in_the_order_of_its_publication(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let other = test_topic.reopen(subject).await;
    for n in 0..30 {
        let test_topic = if n % 3 == 0 { &other } else { &test_topic };
        test_topic.publish(vec![numbered("a", n), numbered("b", n), numbered(&n.to_string(), n)]).await;
    }
    let all = test_topic.all().await;
    for key in ["a", "b"] {
        let of_key = all.iter().filter(|event| event.key.as_deref() == Some(key));
        assert_eq!(of_key.map(number).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    }
    assert_eq!(all.len(), 90);
    for partition in 0..PARTITIONS {
        let offsets = all.iter().filter(|event| event.partition == partition).map(|event| event.offset);
        assert!(offsets.is_sorted(), "offsets grow with each call");
    }
}

/// Events that one call published to one partition share an offset, and a read never splits them, whatever its limit.
pub async fn a_commit_batch_is_read_together(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let keys = keys_in(2, 3);
    test_topic.publish(vec![numbered(&keys[0], 0), numbered(&keys[1], 1), numbered(&keys[0], 2)]).await;
    test_topic.publish(vec![numbered(&keys[2], 3)]).await;
    test_topic.publish(vec![numbered(&keys[2], 4), numbered(&keys[1], 5)]).await;
    let mut after = 0;
    for expected in [&[0, 1, 2][..], &[3], &[4, 5]] {
        let events = test_topic.read(&[(2, after)], 1).await;
        assert_eq!(events.iter().map(number).collect::<Vec<_>>(), expected);
        assert!(events.iter().all(|event| event.offset == events[0].offset && event.offset > after));
        after = events[0].offset;
    }
    assert_eq!(test_topic.read(&[(2, after)], 1).await, []);
    assert_eq!(
        test_topic.read(&[(2, 0)], 4).await.len(),
        4,
        "as many as requested, if that completes the batch"
    );
    assert_eq!(test_topic.end_offset(2).await, after);
}

/// A large publication becomes several commit batches, which limits the size of a read.
pub async fn a_large_publication_is_split_into_batches(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let count = 2 * COMMIT_BATCH_MAX + 500;
    test_topic.publish((0..count).map(|n| numbered("a", n as u64)).collect()).await;
    let partition = partition_for_key("a", PARTITIONS);
    let (mut after, mut read) = (0, Vec::new());
    loop {
        let events = test_topic.read(&[(partition, after)], 1).await;
        let Some(last) = events.last() else { break };
        assert!(events.len() <= COMMIT_BATCH_MAX && last.offset > after);
        after = last.offset;
        read.extend(events.iter().map(number));
    }
    assert_eq!(read, (0..count as u64).collect::<Vec<_>>());
}

/// A partition with many events does not delay the others; partitions are served in the requested order.
pub async fn every_partition_is_served_in_turn(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let keys: Vec<String> = (0..PARTITIONS).map(|partition| keys_in(partition, 1).remove(0)).collect();
    for n in 0..20 {
        test_topic.publish(vec![numbered(&keys[3], n)]).await;
    }
    test_topic.publish(vec![numbered(&keys[0], 0)]).await;
    test_topic.publish(vec![numbered(&keys[1], 0)]).await;
    let target = [(3, 0), (1, 0), (0, 0), (2, 0)];
    for limit in [3, 5, 8, 100] {
        let events = test_topic.read(&target, limit).await;
        let expected = (limit as usize).min(22);
        assert!(events.len() >= 3 && events.len() <= expected, "{limit}: {}", events.len());
        let mut order: Vec<u32> = events.iter().map(|event| event.partition).collect();
        order.dedup();
        assert_eq!(order, [3, 1, 0], "limit {limit}");
        let of_three = events.iter().filter(|event| event.partition == 3).map(number);
        assert!(of_three.eq(0..events.len() as u64 - 2), "the first ones, without gaps");
    }
    assert_eq!(test_topic.read(&target, 100).await.len(), 22);
    assert_eq!(test_topic.read(&target, 1).await[0].partition, 3);
    assert_eq!(test_topic.read(&[], 5).await, []);
}

/// The size of a read is limited, but a read always returns at least one commit batch.
pub async fn the_size_of_a_read_is_limited(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let payload = || Payload::Bytes(vec![b'x'; 1 << 20]);
    for _ in 0..18 {
        test_topic.publish(vec![NewEvent { payload: payload(), ..keyed("a") }]).await;
    }
    let mut reader = TestReader::new(PARTITIONS);
    let mut reads = Vec::new();
    loop {
        let events = reader.read(&test_topic, 10_000).await;
        if events.is_empty() {
            break;
        }
        assert!(events.iter().map(|event| event.payload.len()).sum::<usize>() <= READ_BYTES);
        reads.push(events.len());
    }
    assert!(reads.len() > 1 && reads.iter().sum::<usize>() == 18, "{reads:?}");
}

/// A reader that follows many concurrent writers reads every event once, each key in order, each commit batch as a
/// whole.
pub async fn concurrent_publications_lose_nothing(subject: &StoreUnderTest) {
    const WRITERS: u64 = 6;
    const CALLS: u64 = 25;
    let test_topic = TestTopic::of(subject).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let test_topic = test_topic.reopen(subject).await;
        writers.spawn(async move {
            let mut rng = SplitMix::new(writer);
            for call in 0..CALLS {
                // Each writer uses its own key and keys that it shares with all writers.
                let mut events = vec![numbered(&format!("own-{writer}"), call)];
                for _ in 0..rng.next_u64() % 4 {
                    let key = format!("all-{}", rng.next_u64() % 5);
                    events.push(numbered(&key, writer * 1_000 + call));
                }
                test_topic.publish(events).await;
            }
        });
    }
    let (mut reader, mut observed) = (TestReader::new(PARTITIONS), Vec::<Event>::new());
    loop {
        // Check before the read, so that the last read sees everything that was published.
        let over = writers.is_empty();
        let events = reader.read(&test_topic, 7).await;
        if events.is_empty() && over {
            break;
        }
        observed.extend(events);
        while let Some(done) = writers.try_join_next() {
            done.expect("a writer");
        }
    }
    let ids: BTreeSet<EventId> = observed.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), observed.len(), "no event is repeated");
    let all: BTreeSet<EventId> = event_ids(&test_topic.all().await).into_iter().collect();
    assert_eq!(ids, all, "no event is skipped");
    for writer in 0..WRITERS {
        let key = format!("own-{writer}");
        let own = observed.iter().filter(|event| event.key.as_deref() == Some(&key)).map(number);
        assert!(own.eq(0..CALLS), "the order of a key");
    }
    for n in 0..5 {
        let key = format!("all-{n}");
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for number in observed.iter().filter(|event| event.key.as_deref() == Some(&key)).map(number) {
            let before = last.insert(number / 1_000, number);
            assert!(before.is_none_or(|before| before <= number), "each writer's events in order");
        }
    }
}

/// Topics of the same name in two namespaces are independent.
pub async fn topics_of_two_namespaces_are_independent(subject: &StoreUnderTest) {
    let here = TestTopic::of(subject).await;
    let there = here.other_topic(TopicKey::new("else".parse().unwrap(), here.key.name.clone())).await;
    here.publish(vec![numbered("a", 1)]).await;
    there.publish(vec![numbered("a", 2)]).await;
    assert_eq!(here.all().await.iter().map(number).collect::<Vec<_>>(), [1]);
    assert_eq!(there.all().await.iter().map(number).collect::<Vec<_>>(), [2]);
}

/// The error describes the problem, and nothing is read.
pub async fn invalid_reads_are_rejected(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let request = |after: &[(u32, u64)], limit| ReadEventsRequest {
        topic: test_topic.key.clone(),
        after: after.to_vec(),
        limit,
    };
    for (bad, expected) in [
        (request(&[(0, 0)], 0), "limit is 0"),
        (request(&[(0, 0)], 10_001), "limit is 10001"),
        (request(&[(1, 0), (1, 5)], 1), "partition 1 occurs twice"),
        (request(&[(0, u64::MAX)], 1), "the offset"),
    ] {
        let message = refused(test_topic.store.read_events(&bad).await);
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(test_topic.read(&[(PARTITIONS, 0)], 1).await, [], "no such partition, no events");
}
