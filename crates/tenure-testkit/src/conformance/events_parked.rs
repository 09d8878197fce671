//! Parked events and dead letters.

use std::collections::BTreeMap;

use tenure_core::port::{
    CommitResult, DeadLetterAction, Event, EventId, NewEvent, ParkedEvent, ParkedEventFilter,
    ParkedEventState, ParkedKey, PartitionCommit, Payload, StartOffset, TakenPartition, TopicSettings,
};

use super::StoreUnderTest;
use super::test_queue::{HOUR_MS, TestMaintenance};
use super::test_topic::{
    PARTITIONS, TestMember, TestTopic, dead, event_ids, everything, expect_nothing, keyed, keys_in,
    park_request, refused, retry,
};

/// A partition whose holder has read some events.
struct ParkedEventFixture {
    test_topic: TestTopic,
    member: TestMember,
    taken: TakenPartition,
    events: Vec<Event>,
}

impl ParkedEventFixture {
    /// Publishes one event per entry, one by one. An entry is the number of a key of partition 0, or `None` for no key.
    async fn of(subject: &StoreUnderTest, keys: &[Option<usize>]) -> ParkedEventFixture {
        let test_topic = TestTopic::of(subject).await;
        let names = keys_in(0, 5);
        for key in keys {
            match key {
                Some(n) => {
                    test_topic.publish_one(keyed(&names[*n])).await;
                }
                None => publish_keyless_in_0(&test_topic).await,
            }
        }
        let member = TestMember::of(subject, &test_topic, "a").await;
        let taken = member.take_one(0).await;
        let events = member.read(&taken).await;
        ParkedEventFixture { test_topic, member, taken, events }
    }

    /// Parks events and commits the offset of the last event.
    async fn park(&self, how: &[(usize, ParkedEventState)]) {
        let commit = PartitionCommit {
            parked: how.iter().map(|(n, how)| park_request(&self.events[*n], how.clone())).collect(),
            ..self.member.read_to(&self.taken, self.events.last().expect("some").offset)
        };
        assert_eq!(self.member.commit(commit).await, CommitResult::Committed);
    }

    async fn settle(&self, n: usize, how: ParkedEventState) {
        let commit = self.member.settle_commit(&self.taken, vec![(self.events[n].id, how)]);
        assert_eq!(self.member.commit(commit).await, CommitResult::Committed);
    }

    fn id(&self, n: usize) -> EventId {
        self.events[n].id
    }

    fn ids(&self, places: &[usize]) -> Vec<EventId> {
        places.iter().map(|n| self.id(*n)).collect()
    }

    /// Parked events, ordered by id.
    async fn parked_events(&self) -> Vec<ParkedEvent> {
        self.test_topic.parked_events().await
    }

    /// The first event of each parked key: its index, its attempts, and whether it is due, later or dead.
    async fn firsts(&self) -> Vec<(usize, u32, &'static str)> {
        let keys = self.member.parked_keys(0).await;
        keys.iter().map(|key| self.first(key)).collect()
    }

    fn first(&self, key: &ParkedKey) -> (usize, u32, &'static str) {
        let n = self.events.iter().position(|event| event.id == key.event_id).expect("one of them");
        assert_eq!(key.key, self.events[n].key);
        let due = match key.retry_in_ms {
            None => "dead",
            Some(0) => "due",
            Some(ms) if ms <= HOUR_MS => "later",
            Some(ms) => panic!("due in {ms} ms"),
        };
        (n, key.attempts, due)
    }

    async fn order(&self, places: &[usize], order: DeadLetterAction) -> Vec<EventId> {
        let mut done = self
            .test_topic
            .store
            .apply_dead_letter_action(&self.member.group, &self.ids(places), order)
            .await
            .expect("order_dead");
        done.sort_unstable();
        done
    }
}

/// Publishes events without a key until one is in partition 0. The partition of such an event depends on its id, which
/// other events shift.
async fn publish_keyless_in_0(test_topic: &TestTopic) {
    let other = keys_in(PARTITIONS - 1, 1).remove(0);
    while test_topic.publish(vec![NewEvent::new("k")]).await[0].partition != 0 {
        test_topic.publish(vec![keyed(&other), keyed(&other)]).await;
    }
}

/// The group keeps a copy of the event with its attempts and error, and the committed offset advances past it.
pub async fn a_failed_event_is_parked(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let odd = NewEvent {
        payload: Payload::Bytes((0..=255).collect()),
        headers: BTreeMap::from([("h".into(), "v'\"\\".into())]),
        leader_token: Some(tenure_core::Token::from_u64(7)),
        ..keyed(&keys_in(0, 1)[0])
    };
    test_topic.publish_one(odd).await;
    test_topic.publish_each(&[&keys_in(0, 2)[1], &keys_in(0, 1)[0]]).await;
    let member = TestMember::of(subject, &test_topic, "a").await;
    let taken = member.take_one(0).await;
    let events = member.read(&taken).await;
    let error = "o'h \"no\" \\ ü\0";
    let failed = ParkedEventState::Retry { attempts: 1, retry_in_ms: HOUR_MS, error: error.into() };
    let commit = PartitionCommit {
        parked: vec![park_request(&events[0], failed), park_request(&events[2], ParkedEventState::Waiting)],
        ..member.read_to(&taken, events[2].offset)
    };
    assert_eq!(member.commit(commit).await, CommitResult::Committed);
    assert_eq!(member.partition_lease(0).await.committed_offset, events[2].offset);
    let views = test_topic.reopen(subject).await.parked_events().await;
    assert_eq!(views.len(), 2);
    let (first, second) = (&views[0], &views[1]);
    assert_eq!((&first.event, &second.event), (&events[0], &events[2]), "complete copies");
    assert_eq!((first.dead, first.attempts, first.waiting_behind_count), (false, 1, 1));
    assert_eq!(first.last_error, error.replace('\0', "\u{fffd}"));
    assert!(first.retry_in_ms.is_some_and(|ms| ms > 0 && ms <= HOUR_MS), "{first:?}");
    assert!(first.last_failed_at_ms >= events[0].published_at_ms);
    assert_eq!((second.dead, second.attempts, second.last_error.as_str()), (false, 0, ""));
    assert_eq!((second.retry_in_ms, second.waiting_behind_count), (None, 0), "it waits behind another");
    let view = test_topic.group_view().await;
    assert_eq!((view.parked_event_count, view.dead_letter_count), (2, 0));
}

/// Each key is listed with its event of the lowest offset; an event without a key is parked alone.
pub async fn parked_keys_are_listed_by_their_first_event(subject: &StoreUnderTest) {
    let fixture =
        ParkedEventFixture::of(subject, &[Some(0), Some(1), None, Some(0), None, Some(1), Some(2)]).await;
    assert_eq!(fixture.firsts().await, []);
    fixture
        .park(&[
            (3, ParkedEventState::Waiting),
            (0, retry(2, HOUR_MS)),
            (1, dead(9)),
            (5, ParkedEventState::Waiting),
            (2, retry(1, 0)),
            (4, retry(1, HOUR_MS)),
        ])
        .await;
    let firsts = [(0, 2, "later"), (1, 9, "dead"), (2, 1, "due"), (4, 1, "later")];
    assert_eq!(fixture.firsts().await, firsts);
    fixture.member.release(&[(0, fixture.taken.token)]).await;
    let next = fixture.member.take_one(0).await;
    let reported: Vec<_> = next.parked_keys.iter().map(|key| fixture.first(key)).collect();
    assert_eq!(reported, firsts, "the next holder is told");
    assert_eq!(fixture.member.parked_keys(1).await, []);
    expect_nothing(
        fixture.member.session.store.parked_keys(&fixture.test_topic.group("nowhere"), 0).await,
        "nowhere",
    );
}

/// After the first event of a key is processed, the next one is due at once. After the last one, the key is no longer
/// parked.
pub async fn waiting_events_follow_in_order(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0), Some(0), Some(0), Some(1)]).await;
    fixture
        .park(&[(0, retry(1, HOUR_MS)), (1, ParkedEventState::Waiting), (2, ParkedEventState::Waiting)])
        .await;
    let behind: Vec<_> = fixture.parked_events().await.iter().map(|view| view.waiting_behind_count).collect();
    assert_eq!(behind, [2, 1, 0]);
    fixture.settle(0, ParkedEventState::Processed).await;
    assert_eq!(fixture.firsts().await, [(1, 0, "due")]);
    let view = &fixture.parked_events().await[0];
    assert_eq!((view.event.id, view.retry_in_ms, view.waiting_behind_count), (fixture.id(1), Some(0), 1));
    fixture.settle(1, retry(1, HOUR_MS)).await;
    assert_eq!(fixture.firsts().await, [(1, 1, "later")]);
    fixture.settle(1, ParkedEventState::Processed).await;
    assert_eq!(fixture.firsts().await, [(2, 0, "due")]);
    fixture.settle(2, ParkedEventState::Processed).await;
    assert_eq!(fixture.firsts().await, []);
    assert_eq!(fixture.test_topic.group_view().await.parked_event_count, 0);
    fixture.settle(2, ParkedEventState::Processed).await;
    fixture.settle(3, retry(5, 0)).await;
    assert_eq!(fixture.parked_events().await, [], "settling an event does not park it");
}

/// One commit can set the states of several parked events.
pub async fn several_parked_events_are_settled_together(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0), Some(0), Some(0), Some(1), Some(2)]).await;
    fixture
        .park(&[
            (0, retry(1, 0)),
            (1, ParkedEventState::Waiting),
            (2, ParkedEventState::Waiting),
            (3, retry(1, 0)),
            (4, retry(1, 0)),
        ])
        .await;
    let settled = vec![
        (fixture.id(0), ParkedEventState::Processed),
        (fixture.id(1), retry(1, HOUR_MS)),
        (fixture.id(3), dead(2)),
        (fixture.id(4), ParkedEventState::Processed),
    ];
    let commit = fixture.member.settle_commit(&fixture.taken, settled);
    assert_eq!(fixture.member.commit(commit).await, CommitResult::Committed);
    assert_eq!(fixture.firsts().await, [(1, 1, "later"), (3, 2, "dead")]);
    let views = fixture.parked_events().await;
    assert_eq!(views.iter().map(|view| view.event.id).collect::<Vec<_>>(), fixture.ids(&[1, 2, 3]));
    let view = fixture.test_topic.group_view().await;
    assert_eq!((view.parked_event_count, view.dead_letter_count), (2, 1));
}

/// The key of a dead letter stays parked until an operator replays or drops the event.
pub async fn a_dead_letter_keeps_its_key_parked(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0), Some(0), Some(1)]).await;
    fixture.park(&[(0, retry(9, 0)), (1, ParkedEventState::Waiting)]).await;
    let long = "x".repeat(20_000);
    fixture.settle(0, ParkedEventState::Dead { attempts: 10, error: long }).await;
    let views = fixture.parked_events().await;
    assert_eq!(
        (views[0].dead, views[0].attempts, views[0].retry_in_ms, views[0].waiting_behind_count),
        (true, 10, None, 1)
    );
    assert_eq!(views[0].last_error.len(), tenure_core::rules::work::NOTE_MAX, "shortened if it is long");
    assert_eq!((views[1].dead, views[1].retry_in_ms), (false, None));
    assert_eq!(fixture.firsts().await, [(0, 10, "dead")]);
    assert_eq!(fixture.test_topic.group_view().await.dead_letter_count, 1);
}

/// The holder of the partition can neither drop nor replay a dead letter, and parking it again does not revive it.
pub async fn a_member_cannot_settle_a_dead_letter(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0), Some(0), None]).await;
    fixture.park(&[(0, dead(3)), (1, retry(2, HOUR_MS)), (2, dead(1))]).await;
    for how in [ParkedEventState::Processed, retry(1, 0), dead(9)] {
        fixture.settle(0, how).await;
        assert_eq!(fixture.firsts().await, [(0, 3, "dead"), (2, 1, "dead")]);
    }
    fixture.park(&[(0, ParkedEventState::Waiting), (1, ParkedEventState::Waiting), (2, retry(1, 0))]).await;
    let views: Vec<_> = fixture.parked_events().await.iter().map(|view| (view.dead, view.attempts)).collect();
    assert_eq!(views, [(true, 3), (false, 2), (true, 1)], "a parked event stays unchanged");
}

/// Replaying resets the attempts and makes the event due at once; the events behind it follow in order.
pub async fn a_dead_letter_can_be_replayed(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0), Some(0), Some(1), Some(2)]).await;
    fixture.park(&[(0, dead(3)), (1, ParkedEventState::Waiting), (2, dead(1)), (3, retry(1, HOUR_MS))]).await;
    assert_eq!(fixture.order(&[1, 3], DeadLetterAction::Replay).await, [], "they are not dead letters");
    assert_eq!(fixture.order(&[0, 1, 3], DeadLetterAction::Replay).await, fixture.ids(&[0]));
    assert_eq!(fixture.order(&[0], DeadLetterAction::Replay).await, [], "once");
    assert_eq!(fixture.firsts().await, [(0, 0, "due"), (2, 1, "dead"), (3, 1, "later")]);
    let view = &fixture.parked_events().await[0];
    assert_eq!(
        (view.dead, view.attempts, view.retry_in_ms, view.waiting_behind_count),
        (false, 0, Some(0), 1)
    );
    fixture.settle(0, ParkedEventState::Processed).await;
    assert_eq!(fixture.firsts().await[0], (1, 0, "due"));
    let view = fixture.test_topic.group_view().await;
    assert_eq!((view.parked_event_count, view.dead_letter_count), (2, 1));
}

/// Dropping deletes the event, and the events behind it follow in order.
pub async fn a_dead_letter_can_be_dropped(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0), Some(0), Some(1), None]).await;
    fixture.park(&[(0, dead(3)), (1, ParkedEventState::Waiting), (2, retry(1, HOUR_MS)), (3, dead(1))]).await;
    assert_eq!(fixture.order(&[0, 1, 2, 3], DeadLetterAction::Drop).await, fixture.ids(&[0, 3]));
    assert_eq!(fixture.firsts().await, [(1, 0, "due"), (2, 1, "later")]);
    assert_eq!(fixture.order(&[0], DeadLetterAction::Drop).await, []);
    let unknown = fixture
        .test_topic
        .store
        .apply_dead_letter_action(
            &fixture.test_topic.group("nowhere"),
            &fixture.ids(&[0]),
            DeadLetterAction::Drop,
        )
        .await;
    assert!(refused(unknown).contains("nowhere"));
    fixture.settle(0, ParkedEventState::Processed).await;
    fixture.settle(0, retry(1, 0)).await;
    assert_eq!(fixture.parked_events().await.len(), 2, "a late result of its handler is ignored");
}

/// Parked events are filtered, ordered by id and paged; events of one key are in processing order.
pub async fn parked_events_are_filtered_and_paged(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (here, there) = (keys_in(0, 2), keys_in(3, 1));
    let ids = test_topic.publish_each(&[&here[0], &there[0], &here[0], &here[1], &here[0]]).await;
    let member = TestMember::of(subject, &test_topic, "a").await;
    for taken in member.take(&[0, 3]).await {
        let events = member.read(&taken).await;
        let how = |event: &Event| match event.id {
            id if id == ids[0] || id == ids[1] => dead(1),
            _ => ParkedEventState::Waiting,
        };
        let to_park = events.iter().map(|event| park_request(event, how(event))).collect();
        let commit = PartitionCommit {
            parked: to_park,
            ..member.read_to(&taken, events.last().expect("some").offset)
        };
        assert_eq!(member.commit(commit).await, CommitResult::Committed);
    }
    let all = everything(&member.group);
    let cases = [
        (all.clone(), vec![0, 1, 2, 3, 4]),
        (ParkedEventFilter { dead: true, ..all.clone() }, vec![0, 1]),
        (ParkedEventFilter { partition: Some(3), ..all.clone() }, vec![1]),
        (ParkedEventFilter { key: Some(here[0].clone()), ..all.clone() }, vec![0, 2, 4]),
        (ParkedEventFilter { key: Some("unknown".into()), ..all.clone() }, vec![]),
        (ParkedEventFilter { limit: 2, ..all.clone() }, vec![0, 1]),
        (ParkedEventFilter { after: Some(ids[1]), limit: 2, ..all.clone() }, vec![2, 3]),
        (ParkedEventFilter { after: Some(ids[4]), ..all.clone() }, vec![]),
        (ParkedEventFilter { after: Some(EventId(ids[0].0 - 1)), limit: 1, ..all.clone() }, vec![0]),
    ];
    for (filter, expected) in cases {
        let views = test_topic.store.parked_events(&filter).await.unwrap();
        let found: Vec<_> = views.iter().map(|view| view.event.id).collect();
        assert_eq!(found, expected.iter().map(|n| ids[*n]).collect::<Vec<_>>(), "{filter:?}");
    }
    let unknown = ParkedEventFilter { group: test_topic.group("nowhere"), ..all };
    assert!(refused(test_topic.store.parked_events(&unknown).await).contains("nowhere"));
}

/// A commit that parks an event which is not at the given offset is rejected, so that the committed offset does not
/// pass it.
pub async fn an_unknown_event_is_not_parked(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0), Some(1)]).await;
    let last = &fixture.events[1];
    for (id, offset) in [(EventId(i64::MAX as u64), last.offset), (last.id, last.offset + 1)] {
        let bad = tenure_core::port::ParkEventRequest { event_id: id, offset, state: retry(1, 0) };
        let commit = PartitionCommit {
            parked: vec![park_request(&fixture.events[0], dead(1)), bad],
            ..fixture.member.read_to(&fixture.taken, last.offset)
        };
        let message = fixture.member.commit_refused(commit).await;
        assert!(message.contains(&format!("event {id}")), "{message}");
        assert_eq!(fixture.member.partition_lease(0).await.committed_offset, 0);
        assert_eq!(fixture.parked_events().await, [], "all of it, or nothing");
    }
}

/// An event that is parked twice is stored once, in its last state.
pub async fn an_event_is_parked_once(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0)]).await;
    fixture.park(&[(0, retry(1, HOUR_MS))]).await;
    fixture.park(&[(0, dead(2))]).await;
    assert_eq!(fixture.firsts().await, [(0, 2, "dead")]);
    assert_eq!(fixture.parked_events().await.len(), 1);
}

/// Parked events after the new offset are deleted, because they are read again; the others stay parked.
pub async fn a_reset_deletes_parked_events_that_are_read_again(subject: &StoreUnderTest) {
    let fixture = ParkedEventFixture::of(subject, &[Some(0), Some(0), Some(1), Some(2)]).await;
    fixture.park(&[(0, dead(1)), (1, ParkedEventState::Waiting), (2, dead(1)), (3, retry(1, 0))]).await;
    let to = StartOffset::Offset(fixture.events[1].offset);
    let reset = |dry_run| fixture.test_topic.store.reset_group(&fixture.member.group, to, Some(0), dry_run);
    reset(true).await.unwrap();
    assert_eq!(fixture.parked_events().await.len(), 4, "it was a dry run");
    reset(false).await.unwrap();
    let left: Vec<_> = fixture.parked_events().await.iter().map(|view| view.event.id).collect();
    assert_eq!(left, fixture.ids(&[0, 1]));
    let taken = fixture.member.take_one(0).await;
    assert_eq!(event_ids(&fixture.member.read(&taken).await), fixture.ids(&[2, 3]));
    fixture
        .test_topic
        .store
        .reset_group(&fixture.member.group, StartOffset::Latest, None, false)
        .await
        .unwrap();
    assert_eq!(fixture.parked_events().await.len(), 2, "forwards: nothing is read again");
}

/// A parked event is a copy and survives retention.
pub async fn a_parked_event_outlives_its_original(subject: &StoreUnderTest) {
    let maintenance = TestMaintenance::of(subject).await;
    let settings = TopicSettings { partitions: PARTITIONS, retention_ms: 0, ..TopicSettings::default() };
    let test_topic = TestTopic::with(subject, settings).await;
    test_topic.publish_one(keyed(&keys_in(0, 1)[0])).await;
    let member = TestMember::of(subject, &test_topic, "a").await;
    let taken = member.take_one(0).await;
    let event = member.read(&taken).await.remove(0);
    let commit = PartitionCommit {
        parked: vec![park_request(&event, dead(1))],
        ..member.read_to(&taken, event.offset)
    };
    assert_eq!(member.commit(commit).await, CommitResult::Committed);
    test_topic.prune_until(&maintenance, 1).await;
    assert_eq!(test_topic.all().await, []);
    let view = test_topic.parked_events().await.remove(0);
    assert_eq!((view.event, view.dead), (event.clone(), true));
    let replayed =
        test_topic.store.apply_dead_letter_action(&member.group, &[event.id], DeadLetterAction::Replay).await;
    assert_eq!(replayed, Ok(vec![event.id]));
    assert_eq!(member.parked_keys(0).await[0].retry_in_ms, Some(0));
}
