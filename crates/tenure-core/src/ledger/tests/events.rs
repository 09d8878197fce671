//! Topics and groups, on a clock that only tests move.

use proptest::prelude::*;

use super::*;
use crate::event::{Cursor, GATHER_MS, assign};
use crate::port::{
    Aside, AsideFilter, Begin, Committed, DeadOrder, Event, EventId, GroupKey, Join, LAG_COUNTED, NewEvent,
    ReadAsk, SetAside, ShareCommit, TakeShares, Taken, TopicKey, TopicSettings,
};

const SLOTS: u32 = 4;

fn topic() -> TopicKey {
    TopicKey::new(Name::default_namespace(), name("t"))
}

fn group() -> GroupKey {
    GroupKey::new(topic(), name("g"))
}

fn keyed(key: &str) -> NewEvent {
    NewEvent { key: Some(key.into()), ..NewEvent::new("k") }
}

impl Yard {
    /// A yard with a topic that keeps nothing longer than it must.
    fn with_topic(settings: TopicSettings) -> Yard {
        let mut yard = Yard::new();
        yard.ledger.set_topic(&topic(), &settings).unwrap();
        yard
    }

    fn publish(&mut self, events: &[NewEvent]) -> Vec<EventId> {
        let published = self.ledger.publish(&topic(), events, self.now).unwrap();
        published.into_iter().map(|it| it.id).collect()
    }

    fn join(&mut self, member: &str) -> SessionId {
        let session = self.session();
        let join =
            Join { group: group(), session: session.clone(), member: member.into(), from: Begin::Earliest };
        self.ledger.join_group(&join, &self.book, self.now).unwrap();
        session
    }

    fn gathered_ms(&self) -> u64 {
        self.ledger.look_group(&group(), &self.book, self.now).unwrap().gathered_ms
    }

    fn take_slot(&mut self, session: &SessionId, slot: u32) -> Taken {
        let look = self.ledger.look_group(&group(), &self.book, self.now).unwrap();
        let slots = vec![(slot, look.shares[slot as usize].token)];
        let take = TakeShares { group: group(), session: session.clone(), slots };
        self.ledger.take_shares(&take, &self.book, self.now).unwrap().remove(0)
    }

    fn read(&self, slot: u32, after: u64) -> Vec<Event> {
        let ask = ReadAsk { topic: topic(), after: vec![(slot, after)], limit: 10_000 };
        self.ledger.read_events(&ask).unwrap()
    }

    fn commit(&mut self, commit: ShareCommit) -> Committed {
        self.ledger.commit_shares(&[commit], self.now).unwrap()[0]
    }

    fn prune(&mut self, clock_ms: Option<i64>) -> u64 {
        let (session, token) = self.keeper.clone();
        let tend = Tend { session, token, clock_ms, limit: 100 };
        self.ledger.prune_events(&tend, &self.book, self.now).0
    }
}

fn about(taken: &Taken) -> ShareCommit {
    ShareCommit {
        group: group(),
        slot: taken.slot,
        token: taken.token,
        position: None,
        done: Vec::new(),
        set_aside: Vec::new(),
        settled: Vec::new(),
    }
}

fn settings() -> TopicSettings {
    TopicSettings { slots: SLOTS, ..TopicSettings::default() }
}

#[test]
fn a_group_gathers_from_when_it_was_last_empty() {
    let mut yard = Yard::with_topic(settings());
    let a = yard.join("a");
    yard.now += 1_000;
    let b = yard.join("b");
    assert_eq!(yard.gathered_ms(), 1_000);
    yard.book.end(&a, yard.now);
    yard.now += 500;
    assert_eq!(yard.gathered_ms(), 1_500);
    yard.ledger.leave_group(&group(), &b);
    assert_eq!(yard.gathered_ms(), 0);
    yard.now += 5_000;
    let c = yard.join("c");
    assert_eq!(yard.gathered_ms(), 0);
    // A clock that is put back makes no group old.
    yard.now -= 60_000;
    assert_eq!(yard.gathered_ms(), 0);
    yard.now += 63_000;
    assert_eq!(yard.gathered_ms(), GATHER_MS);
    let look = yard.ledger.look_group(&group(), &yard.book, yard.now).unwrap();
    assert_eq!(assign(&look, &c).take.len(), SLOTS as usize);
}

#[test]
fn what_is_old_and_read_is_forgotten_and_nothing_else() {
    let mut yard = Yard::with_topic(TopicSettings { keep_ms: 1_000, slots: 1, ..settings() });
    yard.publish(&[keyed("a"), keyed("b")]);
    yard.now += 600;
    yard.publish(&[keyed("c")]);
    let session = yard.join("m");
    let taken = yard.take_slot(&session, 0);
    let events = yard.read(0, 0);
    yard.commit(ShareCommit { position: Some(events[2].position), ..about(&taken) });
    assert_eq!(yard.prune(Some(i64::MAX)), 0, "not yet old");
    yard.now += 401;
    assert_eq!(yard.prune(None), 0, "by nobody's reckoning");
    assert_eq!(yard.prune(Some(START + 1_000)), 0, "not by the keeper's");
    assert_eq!(yard.prune(Some(i64::MAX)), 2, "what went together goes together");
    assert_eq!(yard.read(0, 0).len(), 1);
    yard.now += 10_000;
    assert_eq!(yard.prune(Some(i64::MAX)), 1);
    let ends = yard.ledger.slot_ends(&topic()).unwrap()[0];
    assert_eq!((ends.earliest, ends.latest), (events[2].position, events[2].position));
}

#[test]
fn what_a_group_has_not_read_is_kept_for_as_long_as_the_topic_says() {
    let unread = TopicSettings { keep_ms: 1_000, keep_unread_ms: Some(5_000), slots: 1, ..settings() };
    let mut yard = Yard::with_topic(unread);
    yard.join("m");
    yard.publish(&[keyed("a")]);
    yard.now += 5_000;
    assert_eq!(yard.prune(Some(i64::MAX)), 0);
    yard.now += 1;
    assert_eq!(yard.prune(Some(i64::MAX)), 1);
    let view = yard.ledger.group(&group(), &yard.book, yard.now).unwrap();
    assert_eq!((view.lag(), view.slots[0].lag_ms), ((0, true), 0));
}

#[test]
fn a_retry_is_due_when_its_time_has_come() {
    let mut yard = Yard::with_topic(TopicSettings { slots: 1, ..settings() });
    yard.publish(&[keyed("a"), keyed("a")]);
    let session = yard.join("m");
    let taken = yard.take_slot(&session, 0);
    let events = yard.read(0, 0);
    let aside = |n: usize, how| SetAside { event: events[n].id, position: events[n].position, how };
    let failed = Aside::Retry { attempts: 1, after_ms: 700, error: "no".into() };
    let commit = ShareCommit {
        position: Some(events[1].position),
        set_aside: vec![aside(0, failed), aside(1, Aside::Behind)],
        ..about(&taken)
    };
    assert_eq!(yard.commit(commit), Committed::Yes);
    let due = |yard: &Yard| yard.ledger.aside_keys(&group(), 0, yard.now)[0].due_in_ms;
    assert_eq!(due(&yard), Some(700));
    yard.now += 699;
    assert_eq!(due(&yard), Some(1));
    yard.now += 5_000;
    assert_eq!(due(&yard), Some(0));
    let dead = Aside::Dead { attempts: 2, error: "never".into() };
    yard.commit(ShareCommit { settled: vec![(events[0].id, dead)], ..about(&taken) });
    assert_eq!(due(&yard), None);
    yard.ledger.order_dead(&group(), &[events[0].id], DeadOrder::Replay).unwrap();
    assert_eq!(due(&yard), Some(0));
    let filter = AsideFilter { group: group(), dead: false, slot: None, key: None, after: None, limit: 9 };
    let views = yard.ledger.aside(&filter, yard.now).unwrap();
    assert_eq!(views.iter().map(|view| view.failed_at_ms - START).collect::<Vec<_>>(), [5_699, 0]);
}

#[test]
fn a_wait_without_end_is_a_hundred_years() {
    let mut yard = Yard::with_topic(TopicSettings { slots: 1, ..settings() });
    yard.publish(&[keyed("a")]);
    let session = yard.join("m");
    let taken = yard.take_slot(&session, 0);
    let event = yard.read(0, 0).remove(0);
    let how = Aside::Retry { attempts: 1, after_ms: u64::MAX, error: String::new() };
    let set_aside = vec![SetAside { event: event.id, position: event.position, how }];
    yard.commit(ShareCommit { set_aside, ..about(&taken) });
    let due = yard.ledger.aside_keys(&group(), 0, yard.now)[0].due_in_ms.unwrap();
    assert_eq!(due, 3_155_760_000_000);
}

#[test]
fn lag_is_how_long_the_oldest_unread_event_has_waited() {
    let mut yard = Yard::with_topic(TopicSettings { slots: 1, ..settings() });
    yard.join("m");
    yard.publish(&[keyed("a")]);
    yard.now += 300;
    yard.publish(&[keyed("a")]);
    yard.now += 50;
    let lag = |yard: &Yard| yard.ledger.group(&group(), &yard.book, yard.now).unwrap().slots[0].clone();
    assert_eq!((lag(&yard).lag, lag(&yard).lag_ms), (2, 350));
    let many = vec![keyed("a"); 9_999];
    yard.publish(&many);
    assert_eq!((lag(&yard).lag, lag(&yard).lag_exact), (LAG_COUNTED, false));
}

#[test]
fn a_group_begins_at_a_moment() {
    let mut yard = Yard::with_topic(TopicSettings { slots: 1, ..settings() });
    let mut positions = Vec::new();
    for _ in 0..3 {
        yard.publish(&[keyed("a"), keyed("b")]);
        positions.push(yard.ledger.slot_ends(&topic()).unwrap()[0].latest);
        yard.now += 100;
    }
    yard.join("m");
    let mut to = |at_ms| {
        let moved = yard.ledger.reset_group(&group(), Begin::Time(at_ms), None, true, &yard.book).unwrap();
        moved[0].to
    };
    assert_eq!([to(0), to(START)], [0, 0]);
    assert_eq!([to(START + 1), to(START + 100)], [positions[0], positions[0]]);
    assert_eq!(to(START + 201), positions[2]);
}

proptest! {
    /// Whatever is published, whoever follows with a cursor sees it once, in order, unit by unit.
    #[test]
    fn who_follows_sees_everything_once(
        calls in prop::collection::vec(prop::collection::vec(0..6u8, 1..6), 1..25), limit in 1..9u32, seed in any::<u64>()
    ) {
        let mut yard = Yard::with_topic(settings());
        let mut dice = SplitMix::new(seed);
        let (mut published, mut seen) = (Vec::new(), Vec::new());
        let mut cursor = Cursor::new((0..SLOTS).map(|slot| (slot, 0)));
        let mut follow = |yard: &Yard, seen: &mut Vec<Event>| {
            let ask = ReadAsk { topic: topic(), after: cursor.after(), limit };
            let events = yard.ledger.read_events(&ask).unwrap();
            for unit in crate::event::units(&events) {
                unit.iter().enumerate().for_each(|(n, event)| cursor.pass(event, n + 1 == unit.len()));
            }
            seen.extend(events.iter().cloned());
            events.len()
        };
        for call in calls {
            let events: Vec<NewEvent> = call
                .iter()
                .map(|key| if *key == 0 { NewEvent::new("k") } else { keyed(&format!("key-{key}")) })
                .collect();
            published.extend(yard.publish(&events));
            if crate::Entropy::next_u64(&mut dice).is_multiple_of(3) {
                follow(&yard, &mut seen);
            }
        }
        while follow(&yard, &mut seen) > 0 {}
        let mut ids: Vec<EventId> = seen.iter().map(|event| event.id).collect();
        for slot in 0..SLOTS {
            let of_slot: Vec<_> = seen.iter().filter(|it| it.slot == slot).map(|it| (it.position, it.id)).collect();
            prop_assert!(of_slot.is_sorted());
        }
        ids.sort_unstable();
        prop_assert_eq!(ids, published);
    }
}
