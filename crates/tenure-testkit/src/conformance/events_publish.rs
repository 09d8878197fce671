//! Claims about publishing and reading: nothing is lost, what belongs together stays together, order is kept.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::event::slot_of;
use tenure_core::port::{
    DEPTH_MAX, Event, EventId, NewEvent, PUBLISH_MAX, Payload, READ_BYTES, ReadAsk, TopicKey, TopicSettings,
    UNIT_MAX,
};
use tenure_core::{Entropy, SplitMix, Token};

use super::Subject;
use super::events_hall::{Hall, Reader, SLOTS, event_ids, keyed, keys_in, number, numbered, refused, topic};

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

/// Whatever it carries, JSON or bytes.
pub async fn a_published_event_is_kept_whole(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let bytes = NewEvent { payload: Payload::Bytes((0..=255).collect()), ..NewEvent::new("") };
    let empty = NewEvent { payload: Payload::Bytes(vec![]), ..keyed("k") };
    let drafts = vec![odd(), bytes, empty, NewEvent::new("plain")];
    let published = hall.publish(drafts.clone()).await;
    let other = hall.again(subject).await;
    let read = other.all().await;
    assert_eq!(read.len(), drafts.len());
    for (draft, done) in drafts.iter().zip(&published) {
        assert!(done.new);
        let event = other.store.event(&other.key, done.id).await.unwrap().expect("it is kept");
        assert_eq!((event.id, event.slot), (done.id, done.slot));
        assert_eq!((&event.key, &event.kind), (&draft.key, &draft.kind));
        assert_eq!((&event.headers, event.leader_token), (&draft.headers, draft.leader_token));
        same_payload(&event.payload, &draft.payload);
        assert!(event.at_ms > 1_500_000_000_000 && event.position > 0, "{event:?}");
        let expected = draft.key.as_ref().map_or(event.slot, |key| slot_of(key, SLOTS));
        assert!(event.slot == expected && event.slot < SLOTS, "{event:?}");
        assert!(read.contains(&event), "what is read is what is shown: {event:?}");
    }
    assert_eq!(other.store.event(&other.key, EventId(u64::from(u32::MAX))).await, Ok(None));
    let elsewhere = hall.beside(topic("other")).await;
    assert_eq!(elsewhere.store.event(&elsewhere.key, published[0].id).await, Ok(None), "of its topic");
}

/// Numbers and texts of JSON may be written in another way, if they are the same.
fn same_payload(found: &Payload, expected: &Payload) {
    match (found, expected) {
        (Payload::Json(found), Payload::Json(expected)) => {
            let value = |text: &str| text.parse::<serde_json::Value>().expect("JSON");
            assert_eq!(value(found.as_str()), value(expected.as_str()));
        }
        (found, expected) => assert_eq!(found, expected),
    }
}

/// One for each, and numbers grow.
pub async fn published_events_are_told_in_their_order(subject: &Subject) {
    let hall = Hall::of(subject).await;
    assert_eq!(hall.publish(vec![]).await, []);
    let first = hall.publish((0..10).map(|n| keyed(&n.to_string())).collect()).await;
    let second = hall.publish(vec![keyed("0")]).await;
    let numbers: Vec<_> = first.iter().chain(&second).map(|it| it.id).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    for (n, it) in first.iter().enumerate() {
        assert_eq!(it.slot, slot_of(&n.to_string(), SLOTS));
    }
    assert_eq!(hall.view().await.events, 11);
}

/// Published again, it is the first one: also within one call, and under another key; not in another topic.
pub async fn the_same_idempotency_key_is_the_same_event(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let once = |key: &str, n| NewEvent { idempotency_key: Some("id".into()), ..numbered(key, n) };
    let first = hall.publish(vec![numbered("a", 0), once("a", 1), once("b", 2)]).await;
    assert_eq!(first.iter().map(|it| it.new).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((first[2].id, first[2].slot), (first[1].id, first[1].slot));
    let again = hall.again(subject).await.publish(vec![once("c", 3), numbered("c", 4)]).await;
    assert_eq!((again[0].id, again[0].slot, again[0].new), (first[1].id, first[1].slot, false));
    assert!(again[1].new);
    let mut said: Vec<_> = hall.all().await.iter().map(number).collect();
    said.sort_unstable();
    assert_eq!(said, [0, 1, 4]);
    let other = hall.beside(topic("other")).await;
    assert!(other.publish(vec![once("a", 1)]).await[0].new, "a key is of its topic");
}

/// Whoever is first.
pub async fn of_concurrent_publications_with_one_idempotency_key_one_counts(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..12u64 {
        let hall = hall.again(subject).await;
        let event = |key: &str| NewEvent { idempotency_key: Some(key.into()), ..numbered(key, n) };
        // In both orders: nobody may wait for somebody who waits for it.
        let events = if n % 2 == 0 { vec![event("x"), event("y")] } else { vec![event("y"), event("x")] };
        calls.spawn(async move {
            let keys: Vec<_> = events.iter().map(|it| it.key.clone().expect("a key")).collect();
            keys.into_iter().zip(hall.publish(events).await).collect::<Vec<_>>()
        });
    }
    let mut found: BTreeMap<String, BTreeSet<EventId>> = BTreeMap::new();
    let mut new = 0;
    for (key, published) in calls.join_all().await.concat() {
        new += u32::from(published.new);
        found.entry(key).or_default().insert(published.id);
    }
    assert_eq!(new, 2);
    assert!(found.values().all(|ids| ids.len() == 1), "{found:?}");
    assert_eq!(hall.all().await.len(), 2);
}

/// With what makes it.
pub async fn an_unknown_topic_is_refused_by_name(subject: &Subject) {
    let hall = Hall { store: subject.client().await, key: topic("nowhere") };
    let said = hall.refused(vec![keyed("a")]).await;
    for part in ["nowhere", "tenure events topics create nowhere", "/v1/topics/nowhere"] {
        assert!(said.contains(part), "{said}");
    }
    let ask = ReadAsk { topic: hall.key.clone(), after: vec![(0, 0)], limit: 1 };
    assert!(refused(hall.store.read_events(&ask).await).contains("nowhere"));
    assert_eq!(hall.store.topic(&hall.key).await, Ok(None));
    assert_eq!(hall.store.slot_ends(&hall.key).await, Ok(None));
    assert_eq!(hall.store.event(&hall.key, EventId(1)).await, Ok(None));
}

/// One bad one, and none is published.
pub async fn bad_events_are_refused_by_name(subject: &Subject) {
    let settings = TopicSettings { slots: SLOTS, max_bytes: 100, ..TopicSettings::default() };
    let hall = Hall::with(subject, settings).await;
    let payload = |bytes| NewEvent { payload: Payload::Bytes(vec![7; bytes]), ..keyed("k") };
    let nested = ["[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1)].concat();
    let json = |text: &str| NewEvent { payload: Payload::Json(text.parse().unwrap()), ..keyed("k") };
    let header = |name: &str, value: String| NewEvent {
        headers: BTreeMap::from([(name.to_owned(), value)]),
        ..keyed("k")
    };
    let cases = [
        (payload(101), "this topic takes at most 100: keep the data elsewhere"),
        (json(&format!("\"{}\"", "x".repeat(99))), "payload has 101 bytes"),
        (keyed(""), "key \"\" is empty"),
        (keyed(&"k".repeat(513)), "513 bytes"),
        (NewEvent::new("a\0b"), "type"),
        (NewEvent { idempotency_key: Some("a\nb".into()), ..keyed("k") }, "idempotency key"),
        (header("", "x".into()), "header name"),
        (header("x", "y".repeat(20_000)), "headers have 20001 bytes"),
    ];
    for (event, expected) in cases {
        let said = hall.refused(vec![keyed("a"), event]).await;
        assert!(said.contains("event 1: ") && said.contains(expected), "{said}\n{expected}");
    }
    assert!(hall.publish(vec![payload(100)]).await[0].new);
    assert_eq!(hall.all().await.len(), 1, "nothing of a call that was refused");
    let deep = hall.beside(topic("deep")).await;
    assert!(deep.refused(vec![json(&nested)]).await.contains("deep"));
    let many = deep.refused(vec![NewEvent::new("k"); PUBLISH_MAX + 1]).await;
    assert!(many.contains("10001 events") && many.contains("at most 10000"), "{many}");
}

/// However many go together: a slot that nobody uses is work that nobody shares.
pub async fn events_without_a_key_are_spread(subject: &Subject) {
    let hall = Hall::of(subject).await;
    for together in [1, 2, 3] {
        let mut slots = BTreeSet::new();
        for _ in 0..40 {
            let published = hall.publish(vec![NewEvent::new("k"); together]).await;
            slots.extend(published.iter().map(|it| it.slot));
        }
        assert_eq!(slots.len(), SLOTS as usize, "{together} at a time: {slots:?}");
    }
}

/// Across calls and clients; each slot by itself.
pub async fn a_key_is_read_in_the_order_of_its_publication(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let other = hall.again(subject).await;
    for n in 0..30 {
        let hall = if n % 3 == 0 { &other } else { &hall };
        hall.publish(vec![numbered("a", n), numbered("b", n), numbered(&n.to_string(), n)]).await;
    }
    let all = hall.all().await;
    for key in ["a", "b"] {
        let of_key = all.iter().filter(|event| event.key.as_deref() == Some(key));
        assert_eq!(of_key.map(number).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    }
    assert_eq!(all.len(), 90);
    for slot in 0..SLOTS {
        let positions = all.iter().filter(|event| event.slot == slot).map(|event| event.position);
        assert!(positions.is_sorted(), "positions grow with each call");
    }
}

/// Whatever the limit: in one slot they share a position, and are never cut.
pub async fn what_is_published_together_is_read_together(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let keys = keys_in(2, 3);
    hall.publish(vec![numbered(&keys[0], 0), numbered(&keys[1], 1), numbered(&keys[0], 2)]).await;
    hall.publish(vec![numbered(&keys[2], 3)]).await;
    hall.publish(vec![numbered(&keys[2], 4), numbered(&keys[1], 5)]).await;
    let mut after = 0;
    for expected in [&[0, 1, 2][..], &[3], &[4, 5]] {
        let events = hall.read(&[(2, after)], 1).await;
        assert_eq!(events.iter().map(number).collect::<Vec<_>>(), expected);
        assert!(events.iter().all(|event| event.position == events[0].position && event.position > after));
        after = events[0].position;
    }
    assert_eq!(hall.read(&[(2, after)], 1).await, []);
    assert_eq!(hall.read(&[(2, 0)], 4).await.len(), 4, "as many as are asked for, if that makes them whole");
    assert_eq!(hall.latest(2).await, after);
}

/// So that no reader has to take more than it can carry.
pub async fn a_large_publication_is_cut(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let count = 2 * UNIT_MAX + 500;
    hall.publish((0..count).map(|n| numbered("a", n as u64)).collect()).await;
    let slot = slot_of("a", SLOTS);
    let (mut after, mut read) = (0, Vec::new());
    loop {
        let events = hall.read(&[(slot, after)], 1).await;
        let Some(last) = events.last() else { break };
        assert!(events.len() <= UNIT_MAX && last.position > after);
        after = last.position;
        read.extend(events.iter().map(number));
    }
    assert_eq!(read, (0..count as u64).collect::<Vec<_>>());
}

/// One that has much does not keep the others waiting, and slots come in the order in which they are asked for.
pub async fn every_slot_has_its_turn(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let keys: Vec<String> = (0..SLOTS).map(|slot| keys_in(slot, 1).remove(0)).collect();
    for n in 0..20 {
        hall.publish(vec![numbered(&keys[3], n)]).await;
    }
    hall.publish(vec![numbered(&keys[0], 0)]).await;
    hall.publish(vec![numbered(&keys[1], 0)]).await;
    let wanted = [(3, 0), (1, 0), (0, 0), (2, 0)];
    for limit in [3, 5, 8, 100] {
        let events = hall.read(&wanted, limit).await;
        let expected = (limit as usize).min(22);
        assert!(events.len() >= 3 && events.len() <= expected, "{limit}: {}", events.len());
        let mut order: Vec<u32> = events.iter().map(|event| event.slot).collect();
        order.dedup();
        assert_eq!(order, [3, 1, 0], "limit {limit}");
        let of_three = events.iter().filter(|event| event.slot == 3).map(number);
        assert!(of_three.eq(0..events.len() as u64 - 2), "the first ones, and none left out");
    }
    assert_eq!(hall.read(&wanted, 100).await.len(), 22);
    assert_eq!(hall.read(&wanted, 1).await[0].slot, 3);
    assert_eq!(hall.read(&[], 5).await, []);
}

/// Not more than is good for a connection, and always something.
pub async fn one_read_brings_what_can_be_carried(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let payload = || Payload::Bytes(vec![b'x'; 1 << 20]);
    for _ in 0..18 {
        hall.publish(vec![NewEvent { payload: payload(), ..keyed("a") }]).await;
    }
    let mut reader = Reader::new(SLOTS);
    let mut reads = Vec::new();
    loop {
        let events = reader.read(&hall, 10_000).await;
        if events.is_empty() {
            break;
        }
        assert!(events.iter().map(|event| event.payload.len()).sum::<usize>() <= READ_BYTES);
        reads.push(events.len());
    }
    assert!(reads.len() > 1 && reads.iter().sum::<usize>() == 18, "{reads:?}");
}

/// A reader that follows many writers sees everything once, each key in its order, each call in one piece.
pub async fn concurrent_publications_lose_nothing(subject: &Subject) {
    const WRITERS: u64 = 6;
    const CALLS: u64 = 25;
    let hall = Hall::of(subject).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let hall = hall.again(subject).await;
        writers.spawn(async move {
            let mut dice = SplitMix::new(writer);
            for call in 0..CALLS {
                // Its own key, and keys that it shares with all.
                let mut events = vec![numbered(&format!("own-{writer}"), call)];
                for _ in 0..dice.next_u64() % 4 {
                    let key = format!("all-{}", dice.next_u64() % 5);
                    events.push(numbered(&key, writer * 1_000 + call));
                }
                hall.publish(events).await;
            }
        });
    }
    let (mut reader, mut seen) = (Reader::new(SLOTS), Vec::<Event>::new());
    loop {
        // Asked before the read: what was published before it is seen by it.
        let over = writers.is_empty();
        let events = reader.read(&hall, 7).await;
        if events.is_empty() && over {
            break;
        }
        seen.extend(events);
        while let Some(done) = writers.try_join_next() {
            done.expect("a writer");
        }
    }
    let ids: BTreeSet<EventId> = seen.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), seen.len(), "nothing comes twice");
    let all: BTreeSet<EventId> = event_ids(&hall.all().await).into_iter().collect();
    assert_eq!(ids, all, "nothing is skipped");
    for writer in 0..WRITERS {
        let key = format!("own-{writer}");
        let own = seen.iter().filter(|event| event.key.as_deref() == Some(&key)).map(number);
        assert!(own.eq(0..CALLS), "the order of a key");
    }
    for n in 0..5 {
        let key = format!("all-{n}");
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for number in seen.iter().filter(|event| event.key.as_deref() == Some(&key)).map(number) {
            let before = last.insert(number / 1_000, number);
            assert!(before.is_none_or(|before| before <= number), "each writer's in its order");
        }
    }
}

/// Two topics of one name share nothing.
pub async fn a_topic_is_of_its_namespace(subject: &Subject) {
    let here = Hall::of(subject).await;
    let there = here.beside(TopicKey::new("else".parse().unwrap(), here.key.name.clone())).await;
    here.publish(vec![numbered("a", 1)]).await;
    there.publish(vec![numbered("a", 2)]).await;
    assert_eq!(here.all().await.iter().map(number).collect::<Vec<_>>(), [1]);
    assert_eq!(there.all().await.iter().map(number).collect::<Vec<_>>(), [2]);
}

/// By name, before anything is read.
pub async fn bad_reads_are_refused(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let ask = |after: &[(u32, u64)], limit| ReadAsk { topic: hall.key.clone(), after: after.to_vec(), limit };
    for (bad, expected) in [
        (ask(&[(0, 0)], 0), "limit is 0"),
        (ask(&[(0, 0)], 10_001), "limit is 10001"),
        (ask(&[(1, 0), (1, 5)], 1), "slot 1 is there twice"),
        (ask(&[(0, u64::MAX)], 1), "position"),
    ] {
        let said = refused(hall.store.read_events(&bad).await);
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(hall.read(&[(SLOTS, 0)], 1).await, [], "no such slot, no events");
}
