//! Claims about events that are aside: those that failed, those that wait behind them, and those that are dead.

use std::collections::BTreeMap;

use tenure_core::port::{
    Aside, AsideFilter, AsideKey, AsideView, Begin, Committed, DeadOrder, Event, EventId, NewEvent, Payload,
    ShareCommit, Taken, TopicSettings,
};

use super::Subject;
use super::events_hall::{
    Guest, Hall, SLOTS, aside, dead, event_ids, everything, keyed, keys_in, nothing, refused, retry,
};
use super::floor::{HOUR_MS, Keeper};

/// A slot whose holder has read some events.
struct Scene {
    hall: Hall,
    guest: Guest,
    taken: Taken,
    events: Vec<Event>,
}

impl Scene {
    /// Events of these keys of slot 0, by number, each by itself; `None`: without a key.
    async fn of(subject: &Subject, keys: &[Option<usize>]) -> Scene {
        let hall = Hall::of(subject).await;
        let names = keys_in(0, 5);
        for key in keys {
            match key {
                Some(n) => {
                    hall.publish_one(keyed(&names[*n])).await;
                }
                None => publish_keyless_in_0(&hall).await,
            }
        }
        let guest = Guest::of(subject, &hall, "a").await;
        let taken = guest.take_one(0).await;
        let events = guest.read(&taken).await;
        Scene { hall, guest, taken, events }
    }

    /// Sets events aside, and goes on behind all.
    async fn set_aside(&self, how: &[(usize, Aside)]) {
        let commit = ShareCommit {
            set_aside: how.iter().map(|(n, how)| aside(&self.events[*n], how.clone())).collect(),
            ..self.guest.read_to(&self.taken, self.events.last().expect("some").position)
        };
        assert_eq!(self.guest.commit(commit).await, Committed::Yes);
    }

    async fn settle(&self, n: usize, how: Aside) {
        let commit = self.guest.settling(&self.taken, vec![(self.events[n].id, how)]);
        assert_eq!(self.guest.commit(commit).await, Committed::Yes);
    }

    fn id(&self, n: usize) -> EventId {
        self.events[n].id
    }

    fn ids(&self, places: &[usize]) -> Vec<EventId> {
        places.iter().map(|n| self.id(*n)).collect()
    }

    /// What is aside, by number.
    async fn aside(&self) -> Vec<AsideView> {
        self.hall.aside().await
    }

    /// The first of each key: which, how often it was tried, and whether it is due, later, or dead.
    async fn firsts(&self) -> Vec<(usize, u32, &'static str)> {
        let keys = self.guest.aside_keys(0).await;
        keys.iter().map(|key| self.first(key)).collect()
    }

    fn first(&self, key: &AsideKey) -> (usize, u32, &'static str) {
        let n = self.events.iter().position(|event| event.id == key.event).expect("one of them");
        assert_eq!(key.key, self.events[n].key);
        let due = match key.due_in_ms {
            None => "dead",
            Some(0) => "due",
            Some(ms) if ms <= HOUR_MS => "later",
            Some(ms) => panic!("due in {ms} ms"),
        };
        (n, key.attempts, due)
    }

    async fn order(&self, places: &[usize], order: DeadOrder) -> Vec<EventId> {
        let mut done = self
            .hall
            .store
            .order_dead(&self.guest.group, &self.ids(places), order)
            .await
            .expect("order_dead");
        done.sort_unstable();
        done
    }
}

/// Until one falls into the slot: their slots follow from their numbers, which two others of another slot shift.
async fn publish_keyless_in_0(hall: &Hall) {
    let other = keys_in(SLOTS - 1, 1).remove(0);
    while hall.publish(vec![NewEvent::new("k")]).await[0].slot != 0 {
        hall.publish(vec![keyed(&other), keyed(&other)]).await;
    }
}

/// A copy of it, with how often it was tried and what went wrong; the position goes on.
pub async fn a_failed_event_is_kept_aside(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let odd = NewEvent {
        payload: Payload::Bytes((0..=255).collect()),
        headers: BTreeMap::from([("h".into(), "v'\"\\".into())]),
        leader_token: Some(tenure_core::Token::from_u64(7)),
        ..keyed(&keys_in(0, 1)[0])
    };
    hall.publish_one(odd).await;
    hall.publish_each(&[&keys_in(0, 2)[1], &keys_in(0, 1)[0]]).await;
    let guest = Guest::of(subject, &hall, "a").await;
    let taken = guest.take_one(0).await;
    let events = guest.read(&taken).await;
    let error = "o'h \"no\" \\ ü\0";
    let failed = Aside::Retry { attempts: 1, after_ms: HOUR_MS, error: error.into() };
    let commit = ShareCommit {
        set_aside: vec![aside(&events[0], failed), aside(&events[2], Aside::Behind)],
        ..guest.read_to(&taken, events[2].position)
    };
    assert_eq!(guest.commit(commit).await, Committed::Yes);
    assert_eq!(guest.share(0).await.position, events[2].position);
    let views = hall.again(subject).await.aside().await;
    assert_eq!(views.len(), 2);
    let (first, second) = (&views[0], &views[1]);
    assert_eq!((&first.event, &second.event), (&events[0], &events[2]), "whole copies");
    assert_eq!((first.dead, first.attempts, first.behind), (false, 1, 1));
    assert_eq!(first.error, error.replace('\0', "\u{fffd}"));
    assert!(first.due_in_ms.is_some_and(|ms| ms > 0 && ms <= HOUR_MS), "{first:?}");
    assert!(first.failed_at_ms >= events[0].at_ms);
    assert_eq!((second.dead, second.attempts, second.error.as_str()), (false, 0, ""));
    assert_eq!((second.due_in_ms, second.behind), (None, 0), "it waits behind another");
    let view = hall.group_view().await;
    assert_eq!((view.aside, view.dead), (2, 0));
}

/// The lowest of a slot's key is its first; one without a key stands for itself.
pub async fn keys_are_aside_by_the_first_of_them(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0), Some(1), None, Some(0), None, Some(1), Some(2)]).await;
    assert_eq!(scene.firsts().await, []);
    scene
        .set_aside(&[
            (3, Aside::Behind),
            (0, retry(2, HOUR_MS)),
            (1, dead(9)),
            (5, Aside::Behind),
            (2, retry(1, 0)),
            (4, retry(1, HOUR_MS)),
        ])
        .await;
    let firsts = [(0, 2, "later"), (1, 9, "dead"), (2, 1, "due"), (4, 1, "later")];
    assert_eq!(scene.firsts().await, firsts);
    scene.guest.free(&[(0, scene.taken.token)]).await;
    let next = scene.guest.take_one(0).await;
    let told: Vec<_> = next.aside.iter().map(|key| scene.first(key)).collect();
    assert_eq!(told, firsts, "who takes the slot is told");
    assert_eq!(scene.guest.aside_keys(1).await, []);
    nothing(scene.guest.actor.store.aside_keys(&scene.hall.group("nowhere"), 0).await, "nowhere");
}

/// When the first is done, the next is, at once; in the end the key flows again.
pub async fn those_behind_follow_in_order(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0), Some(0), Some(0), Some(1)]).await;
    scene.set_aside(&[(0, retry(1, HOUR_MS)), (1, Aside::Behind), (2, Aside::Behind)]).await;
    let behind: Vec<_> = scene.aside().await.iter().map(|view| view.behind).collect();
    assert_eq!(behind, [2, 1, 0]);
    scene.settle(0, Aside::Done).await;
    assert_eq!(scene.firsts().await, [(1, 0, "due")]);
    let view = &scene.aside().await[0];
    assert_eq!((view.event.id, view.due_in_ms, view.behind), (scene.id(1), Some(0), 1));
    scene.settle(1, retry(1, HOUR_MS)).await;
    assert_eq!(scene.firsts().await, [(1, 1, "later")]);
    scene.settle(1, Aside::Done).await;
    assert_eq!(scene.firsts().await, [(2, 0, "due")]);
    scene.settle(2, Aside::Done).await;
    assert_eq!(scene.firsts().await, []);
    assert_eq!(scene.hall.group_view().await.aside, 0);
    scene.settle(2, Aside::Done).await;
    scene.settle(3, retry(5, 0)).await;
    assert_eq!(scene.aside().await, [], "what is not aside is not put there by settling it");
}

/// Several in one commit, each as it went.
pub async fn many_are_settled_together(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0), Some(0), Some(0), Some(1), Some(2)]).await;
    scene
        .set_aside(&[
            (0, retry(1, 0)),
            (1, Aside::Behind),
            (2, Aside::Behind),
            (3, retry(1, 0)),
            (4, retry(1, 0)),
        ])
        .await;
    let settled = vec![
        (scene.id(0), Aside::Done),
        (scene.id(1), retry(1, HOUR_MS)),
        (scene.id(3), dead(2)),
        (scene.id(4), Aside::Done),
    ];
    let commit = scene.guest.settling(&scene.taken, settled);
    assert_eq!(scene.guest.commit(commit).await, Committed::Yes);
    assert_eq!(scene.firsts().await, [(1, 1, "later"), (3, 2, "dead")]);
    let views = scene.aside().await;
    assert_eq!(views.iter().map(|view| view.event.id).collect::<Vec<_>>(), scene.ids(&[1, 2, 3]));
    let view = scene.hall.group_view().await;
    assert_eq!((view.aside, view.dead), (2, 1));
}

/// Tried for the last time, its key is parked until somebody decides.
pub async fn a_dead_event_parks_its_key(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0), Some(0), Some(1)]).await;
    scene.set_aside(&[(0, retry(9, 0)), (1, Aside::Behind)]).await;
    let long = "x".repeat(20_000);
    scene.settle(0, Aside::Dead { attempts: 10, error: long }).await;
    let views = scene.aside().await;
    assert_eq!((views[0].dead, views[0].attempts, views[0].due_in_ms, views[0].behind), (true, 10, None, 1));
    assert_eq!(views[0].error.len(), tenure_core::claim::NOTE_MAX, "in part, if it is long");
    assert_eq!((views[1].dead, views[1].due_in_ms), (false, None));
    assert_eq!(scene.firsts().await, [(0, 10, "dead")]);
    assert_eq!(scene.hall.group_view().await.dead, 1);
}

/// As often as at first, at once; those behind follow in order.
pub async fn a_dead_event_can_be_replayed(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0), Some(0), Some(1), Some(2)]).await;
    scene.set_aside(&[(0, dead(3)), (1, Aside::Behind), (2, dead(1)), (3, retry(1, HOUR_MS))]).await;
    assert_eq!(scene.order(&[1, 3], DeadOrder::Replay).await, [], "they are not dead");
    assert_eq!(scene.order(&[0, 1, 3], DeadOrder::Replay).await, scene.ids(&[0]));
    assert_eq!(scene.order(&[0], DeadOrder::Replay).await, [], "once");
    assert_eq!(scene.firsts().await, [(0, 0, "due"), (2, 1, "dead"), (3, 1, "later")]);
    let view = &scene.aside().await[0];
    assert_eq!((view.dead, view.attempts, view.due_in_ms, view.behind), (false, 0, Some(0), 1));
    scene.settle(0, Aside::Done).await;
    assert_eq!(scene.firsts().await[0], (1, 0, "due"));
    let view = scene.hall.group_view().await;
    assert_eq!((view.aside, view.dead), (2, 1));
}

/// It is forgotten, and those behind follow in order.
pub async fn a_dead_event_can_be_dropped(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0), Some(0), Some(1), None]).await;
    scene.set_aside(&[(0, dead(3)), (1, Aside::Behind), (2, retry(1, HOUR_MS)), (3, dead(1))]).await;
    assert_eq!(scene.order(&[0, 1, 2, 3], DeadOrder::Drop).await, scene.ids(&[0, 3]));
    assert_eq!(scene.firsts().await, [(1, 0, "due"), (2, 1, "later")]);
    assert_eq!(scene.order(&[0], DeadOrder::Drop).await, []);
    let unknown =
        scene.hall.store.order_dead(&scene.hall.group("nowhere"), &scene.ids(&[0]), DeadOrder::Drop).await;
    assert!(refused(unknown).contains("nowhere"));
    scene.settle(0, Aside::Done).await;
    scene.settle(0, retry(1, 0)).await;
    assert_eq!(scene.aside().await.len(), 2, "whoever was at it is told nothing, and brings nothing back");
}

/// As asked for, in the order of their numbers, page by page; those of a key in the order in which they are handled.
pub async fn what_is_aside_is_listed_as_asked_for(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (here, there) = (keys_in(0, 2), keys_in(3, 1));
    let ids = hall.publish_each(&[&here[0], &there[0], &here[0], &here[1], &here[0]]).await;
    let guest = Guest::of(subject, &hall, "a").await;
    for taken in guest.take(&[0, 3]).await {
        let events = guest.read(&taken).await;
        let how = |event: &Event| match event.id {
            id if id == ids[0] || id == ids[1] => dead(1),
            _ => Aside::Behind,
        };
        let set_aside = events.iter().map(|event| aside(event, how(event))).collect();
        let commit =
            ShareCommit { set_aside, ..guest.read_to(&taken, events.last().expect("some").position) };
        assert_eq!(guest.commit(commit).await, Committed::Yes);
    }
    let all = everything(&guest.group);
    let cases = [
        (all.clone(), vec![0, 1, 2, 3, 4]),
        (AsideFilter { dead: true, ..all.clone() }, vec![0, 1]),
        (AsideFilter { slot: Some(3), ..all.clone() }, vec![1]),
        (AsideFilter { key: Some(here[0].clone()), ..all.clone() }, vec![0, 2, 4]),
        (AsideFilter { key: Some("nobody".into()), ..all.clone() }, vec![]),
        (AsideFilter { limit: 2, ..all.clone() }, vec![0, 1]),
        (AsideFilter { after: Some(ids[1]), limit: 2, ..all.clone() }, vec![2, 3]),
        (AsideFilter { after: Some(ids[4]), ..all.clone() }, vec![]),
        (AsideFilter { after: Some(EventId(ids[0].0 - 1)), limit: 1, ..all.clone() }, vec![0]),
    ];
    for (filter, expected) in cases {
        let views = hall.store.aside(&filter).await.unwrap();
        let found: Vec<_> = views.iter().map(|view| view.event.id).collect();
        assert_eq!(found, expected.iter().map(|n| ids[*n]).collect::<Vec<_>>(), "{filter:?}");
    }
    let unknown = AsideFilter { group: hall.group("nowhere"), ..all };
    assert!(refused(hall.store.aside(&unknown).await).contains("nowhere"));
}

/// If it is not where it is said to be, the position must not pass it.
pub async fn what_is_not_there_is_not_set_aside(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0), Some(1)]).await;
    let last = &scene.events[1];
    for (id, position) in [(EventId(i64::MAX as u64), last.position), (last.id, last.position + 1)] {
        let bad = tenure_core::port::SetAside { event: id, position, how: retry(1, 0) };
        let commit = ShareCommit {
            set_aside: vec![aside(&scene.events[0], dead(1)), bad],
            ..scene.guest.read_to(&scene.taken, last.position)
        };
        let said = scene.guest.commit_refused(commit).await;
        assert!(said.contains(&format!("event {id}")), "{said}");
        assert_eq!(scene.guest.share(0).await.position, 0);
        assert_eq!(scene.aside().await, [], "all of it, or nothing");
    }
}

/// Set aside again, it is as it was said last, and there once.
pub async fn an_event_is_aside_once(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0)]).await;
    scene.set_aside(&[(0, retry(1, HOUR_MS))]).await;
    scene.set_aside(&[(0, dead(2))]).await;
    assert_eq!(scene.firsts().await, [(0, 2, "dead")]);
    assert_eq!(scene.aside().await.len(), 1);
}

/// What comes after the new place is read again, so it is forgotten; the rest stays aside.
pub async fn a_reset_forgets_what_is_read_again(subject: &Subject) {
    let scene = Scene::of(subject, &[Some(0), Some(0), Some(1), Some(2)]).await;
    scene.set_aside(&[(0, dead(1)), (1, Aside::Behind), (2, dead(1)), (3, retry(1, 0))]).await;
    let to = Begin::Position(scene.events[1].position);
    let reset = |dry_run| scene.hall.store.reset_group(&scene.guest.group, to, Some(0), dry_run);
    reset(true).await.unwrap();
    assert_eq!(scene.aside().await.len(), 4, "it was only asked");
    reset(false).await.unwrap();
    let left: Vec<_> = scene.aside().await.iter().map(|view| view.event.id).collect();
    assert_eq!(left, scene.ids(&[0, 1]));
    let taken = scene.guest.take_one(0).await;
    assert_eq!(event_ids(&scene.guest.read(&taken).await), scene.ids(&[2, 3]));
    scene.hall.store.reset_group(&scene.guest.group, Begin::Latest, None, false).await.unwrap();
    assert_eq!(scene.aside().await.len(), 2, "forward: nothing is read again");
}

/// It is a copy: retention does not matter.
pub async fn what_is_aside_outlives_its_event(subject: &Subject) {
    let keeper = Keeper::of(subject).await;
    let settings = TopicSettings { slots: SLOTS, keep_ms: 0, ..TopicSettings::default() };
    let hall = Hall::with(subject, settings).await;
    hall.publish_one(keyed(&keys_in(0, 1)[0])).await;
    let guest = Guest::of(subject, &hall, "a").await;
    let taken = guest.take_one(0).await;
    let event = guest.read(&taken).await.remove(0);
    let commit =
        ShareCommit { set_aside: vec![aside(&event, dead(1))], ..guest.read_to(&taken, event.position) };
    assert_eq!(guest.commit(commit).await, Committed::Yes);
    hall.prune_until(&keeper, 1).await;
    assert_eq!(hall.all().await, []);
    let view = hall.aside().await.remove(0);
    assert_eq!((view.event, view.dead), (event.clone(), true));
    let replayed = hall.store.order_dead(&guest.group, &[event.id], DeadOrder::Replay).await;
    assert_eq!(replayed, Ok(vec![event.id]));
    assert_eq!(guest.aside_keys(0).await[0].due_in_ms, Some(0));
}
