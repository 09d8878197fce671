//! Topics and groups on a manual clock.

use proptest::prelude::*;

use super::*;
use crate::port::{
    CommitResult, DeadLetterAction, Event, EventId, GroupKey, JoinGroupRequest, LAG_COUNT_MAX, NewEvent,
    ParkEventRequest, ParkedEventFilter, ParkedEventState, PartitionCommit, ReadEventsRequest, StartOffset,
    TakePartitionsRequest, TakenPartition, TopicKey, TopicSettings,
};
use crate::rules::event::{REBALANCE_DELAY_MS, TopicCursor, plan_rebalance};

const PARTITIONS: u32 = 4;

fn topic() -> TopicKey {
    TopicKey::new(Name::default_namespace(), name("t"))
}

fn group() -> GroupKey {
    GroupKey::new(topic(), name("g"))
}

fn keyed(key: &str) -> NewEvent {
    NewEvent { key: Some(key.into()), ..NewEvent::new("k") }
}

impl TestQueue {
    /// A store with a topic of minimal retention.
    fn with_topic(settings: TopicSettings) -> TestQueue {
        let mut fixture = TestQueue::new();
        fixture.work.set_topic(&topic(), &settings).unwrap();
        fixture
    }

    fn publish(&mut self, events: &[NewEvent]) -> Vec<EventId> {
        let published = self.work.publish(&topic(), events, self.now).unwrap();
        published.into_iter().map(|it| it.id).collect()
    }

    fn join(&mut self, member: &str) -> SessionId {
        let session = self.session();
        let join = JoinGroupRequest {
            group: group(),
            session: session.clone(),
            member: member.into(),
            from: StartOffset::Earliest,
        };
        self.work.join_group(&join, &self.elections, self.now).unwrap();
        session
    }

    fn active_ms(&self) -> u64 {
        self.work.group_assignment(&group(), &self.elections, self.now).unwrap().active_ms
    }

    fn take_partition(&mut self, session: &SessionId, partition: u32) -> TakenPartition {
        let assignment = self.work.group_assignment(&group(), &self.elections, self.now).unwrap();
        let partitions = vec![(partition, assignment.partition_leases[partition as usize].token)];
        let take = TakePartitionsRequest { group: group(), session: session.clone(), partitions };
        self.work.take_partitions(&take, &self.elections, self.now).unwrap().remove(0)
    }

    fn read(&self, partition: u32, after: u64) -> Vec<Event> {
        let request = ReadEventsRequest { topic: topic(), after: vec![(partition, after)], limit: 10_000 };
        self.work.read_events(&request).unwrap()
    }

    fn commit(&mut self, commit: PartitionCommit) -> CommitResult {
        self.work.commit_partitions(&[commit], self.now).unwrap()[0]
    }

    fn prune(&mut self, clock_ms: Option<i64>) -> u64 {
        let (session, token) = self.leader.clone();
        let request = MaintenanceRequest { session, token, clock_ms, limit: 100 };
        self.work.prune_events(&request, &self.elections, self.now).0
    }
}

fn about(taken: &TakenPartition) -> PartitionCommit {
    PartitionCommit {
        group: group(),
        partition: taken.partition,
        token: taken.token,
        offset: None,
        processed: Vec::new(),
        parked: Vec::new(),
        parked_results: Vec::new(),
    }
}

fn settings() -> TopicSettings {
    TopicSettings { partitions: PARTITIONS, ..TopicSettings::default() }
}

#[test]
fn the_active_time_of_a_group_counts_from_when_it_was_last_empty() {
    let mut fixture = TestQueue::with_topic(settings());
    let a = fixture.join("a");
    fixture.now += 1_000;
    let b = fixture.join("b");
    assert_eq!(fixture.active_ms(), 1_000);
    fixture.elections.end_session(&a, fixture.now);
    fixture.now += 500;
    assert_eq!(fixture.active_ms(), 1_500);
    fixture.work.leave_group(&group(), &b);
    assert_eq!(fixture.active_ms(), 0);
    fixture.now += 5_000;
    let c = fixture.join("c");
    assert_eq!(fixture.active_ms(), 0);
    // A backward step of the clock does not age a group.
    fixture.now -= 60_000;
    assert_eq!(fixture.active_ms(), 0);
    fixture.now += 63_000;
    assert_eq!(fixture.active_ms(), REBALANCE_DELAY_MS);
    let assignment = fixture.work.group_assignment(&group(), &fixture.elections, fixture.now).unwrap();
    assert_eq!(plan_rebalance(&assignment, &c).take.len(), PARTITIONS as usize);
}

#[test]
fn only_old_and_read_events_are_pruned() {
    let mut fixture =
        TestQueue::with_topic(TopicSettings { retention_ms: 1_000, partitions: 1, ..settings() });
    fixture.publish(&[keyed("a"), keyed("b")]);
    fixture.now += 600;
    fixture.publish(&[keyed("c")]);
    let session = fixture.join("m");
    let taken = fixture.take_partition(&session, 0);
    let events = fixture.read(0, 0);
    fixture.commit(PartitionCommit { offset: Some(events[2].offset), ..about(&taken) });
    assert_eq!(fixture.prune(Some(i64::MAX)), 0, "not old enough yet");
    fixture.now += 401;
    assert_eq!(fixture.prune(None), 0, "without an estimate of the clock");
    assert_eq!(fixture.prune(Some(START + 1_000)), 0, "not by the estimate of maintenance");
    assert_eq!(fixture.prune(Some(i64::MAX)), 2, "a commit batch is pruned as a whole");
    assert_eq!(fixture.read(0, 0).len(), 1);
    fixture.now += 10_000;
    assert_eq!(fixture.prune(Some(i64::MAX)), 1);
    let ends = fixture.work.partition_offsets(&topic()).unwrap()[0];
    assert_eq!((ends.start_offset, ends.end_offset), (events[2].offset, events[2].offset));
}

#[test]
fn unread_events_are_kept_for_their_retention() {
    let unread =
        TopicSettings { retention_ms: 1_000, unread_retention_ms: Some(5_000), partitions: 1, ..settings() };
    let mut fixture = TestQueue::with_topic(unread);
    fixture.join("m");
    fixture.publish(&[keyed("a")]);
    fixture.now += 5_000;
    assert_eq!(fixture.prune(Some(i64::MAX)), 0);
    fixture.now += 1;
    assert_eq!(fixture.prune(Some(i64::MAX)), 1);
    let view = fixture.work.group(&group(), &fixture.elections, fixture.now).unwrap();
    assert_eq!((view.lag(), view.partitions[0].lag_ms), ((0, true), 0));
}

#[test]
fn a_retry_is_due_after_its_delay() {
    let mut fixture = TestQueue::with_topic(TopicSettings { partitions: 1, ..settings() });
    fixture.publish(&[keyed("a"), keyed("a")]);
    let session = fixture.join("m");
    let taken = fixture.take_partition(&session, 0);
    let events = fixture.read(0, 0);
    let parked =
        |n: usize, state| ParkEventRequest { event_id: events[n].id, offset: events[n].offset, state };
    let failed = ParkedEventState::Retry { attempts: 1, retry_in_ms: 700, error: "no".into() };
    let commit = PartitionCommit {
        offset: Some(events[1].offset),
        parked: vec![parked(0, failed), parked(1, ParkedEventState::Waiting)],
        ..about(&taken)
    };
    assert_eq!(fixture.commit(commit), CommitResult::Committed);
    let due = |fixture: &TestQueue| fixture.work.parked_keys(&group(), 0, fixture.now)[0].retry_in_ms;
    assert_eq!(due(&fixture), Some(700));
    fixture.now += 699;
    assert_eq!(due(&fixture), Some(1));
    fixture.now += 5_000;
    assert_eq!(due(&fixture), Some(0));
    let dead = ParkedEventState::Dead { attempts: 2, error: "never".into() };
    fixture.commit(PartitionCommit { parked_results: vec![(events[0].id, dead)], ..about(&taken) });
    assert_eq!(due(&fixture), None);
    fixture.work.apply_dead_letter_action(&group(), &[events[0].id], DeadLetterAction::Replay).unwrap();
    assert_eq!(due(&fixture), Some(0));
    let filter =
        ParkedEventFilter { group: group(), dead: false, partition: None, key: None, after: None, limit: 9 };
    let views = fixture.work.parked_events(&filter, fixture.now).unwrap();
    assert_eq!(views.iter().map(|view| view.last_failed_at_ms - START).collect::<Vec<_>>(), [5_699, 0]);
}

#[test]
fn an_endless_delay_is_limited_to_a_hundred_years() {
    let mut fixture = TestQueue::with_topic(TopicSettings { partitions: 1, ..settings() });
    fixture.publish(&[keyed("a")]);
    let session = fixture.join("m");
    let taken = fixture.take_partition(&session, 0);
    let event = fixture.read(0, 0).remove(0);
    let state = ParkedEventState::Retry { attempts: 1, retry_in_ms: u64::MAX, error: String::new() };
    let to_park = vec![ParkEventRequest { event_id: event.id, offset: event.offset, state }];
    fixture.commit(PartitionCommit { parked: to_park, ..about(&taken) });
    let due = fixture.work.parked_keys(&group(), 0, fixture.now)[0].retry_in_ms.unwrap();
    assert_eq!(due, 3_155_760_000_000);
}

#[test]
fn lag_is_how_long_the_oldest_unread_event_has_waited() {
    let mut fixture = TestQueue::with_topic(TopicSettings { partitions: 1, ..settings() });
    fixture.join("m");
    fixture.publish(&[keyed("a")]);
    fixture.now += 300;
    fixture.publish(&[keyed("a")]);
    fixture.now += 50;
    let lag = |fixture: &TestQueue| {
        fixture.work.group(&group(), &fixture.elections, fixture.now).unwrap().partitions[0].clone()
    };
    assert_eq!((lag(&fixture).lag_events, lag(&fixture).lag_ms), (2, 350));
    let many = vec![keyed("a"); 9_999];
    fixture.publish(&many);
    assert_eq!((lag(&fixture).lag_events, lag(&fixture).lag_exact), (LAG_COUNT_MAX, false));
}

#[test]
fn a_group_can_start_at_an_instant() {
    let mut fixture = TestQueue::with_topic(TopicSettings { partitions: 1, ..settings() });
    let mut offsets = Vec::new();
    for _ in 0..3 {
        fixture.publish(&[keyed("a"), keyed("b")]);
        offsets.push(fixture.work.partition_offsets(&topic()).unwrap()[0].end_offset);
        fixture.now += 100;
    }
    fixture.join("m");
    let mut to = |at_ms| {
        let moved = fixture
            .work
            .reset_group(&group(), StartOffset::PublishedAtMs(at_ms), None, true, &fixture.elections)
            .unwrap();
        moved[0].to_offset
    };
    assert_eq!([to(0), to(START)], [0, 0]);
    assert_eq!([to(START + 1), to(START + 100)], [offsets[0], offsets[0]]);
    assert_eq!(to(START + 201), offsets[2]);
}

proptest! {
    /// A reader with a cursor sees every event once, in order, batch by batch.
    #[test]
    fn a_reader_sees_every_event_once(
        calls in prop::collection::vec(prop::collection::vec(0..6u8, 1..6), 1..25), limit in 1..9u32, seed in any::<u64>()
    ) {
        let mut fixture = TestQueue::with_topic(settings());
        let mut rng = SplitMix::new(seed);
        let (mut published, mut read) = (Vec::new(), Vec::new());
        let mut cursor = TopicCursor::new((0..PARTITIONS).map(|partition| (partition, 0)));
        let mut follow = |fixture: &TestQueue, read: &mut Vec<Event>| {
            let request = ReadEventsRequest { topic: topic(), after: cursor.after(), limit };
            let events = fixture.work.read_events(&request).unwrap();
            for batch in crate::rules::event::commit_batches(&events) {
                batch.iter().enumerate().for_each(|(n, event)| cursor.pass(event, n + 1 == batch.len()));
            }
            read.extend(events.iter().cloned());
            events.len()
        };
        for call in calls {
            let events: Vec<NewEvent> = call
                .iter()
                .map(|key| if *key == 0 { NewEvent::new("k") } else { keyed(&format!("key-{key}")) })
                .collect();
            published.extend(fixture.publish(&events));
            if crate::Entropy::next_u64(&mut rng).is_multiple_of(3) {
                follow(&fixture, &mut read);
            }
        }
        while follow(&fixture, &mut read) > 0 {}
        let mut ids: Vec<EventId> = read.iter().map(|event| event.id).collect();
        for partition in 0..PARTITIONS {
            let of_partition: Vec<_> = read.iter().filter(|it| it.partition == partition).map(|it| (it.offset, it.id)).collect();
            prop_assert!(of_partition.is_sorted());
        }
        ids.sort_unstable();
        prop_assert_eq!(ids, published);
    }
}
