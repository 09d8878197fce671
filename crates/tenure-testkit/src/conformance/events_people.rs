//! Claims about what people set and see: topics, groups, lag, resets, pauses, pushes.

use tenure_core::Name;
use tenure_core::port::{
    Backoff, Begin, Committed, GROUPS_MAX, GroupKey, GroupSettings, Join, Moved, Push, PushView, ShareCommit,
    TopicKey, TopicSettings,
};

use super::Subject;
use super::events_hall::{Guest, Hall, SLOTS, aside, dead, event_ids, keyed, keys_in, refused, retry, topic};
use super::floor::pause;

/// Whoever may read makes one by naming it, and each costs all who look.
pub async fn a_topic_has_so_many_groups_and_no_more(subject: &Subject) {
    let hall = Hall::with(subject, TopicSettings { slots: 1, ..TopicSettings::default() }).await;
    let settings = GroupSettings::default();
    for n in 0..GROUPS_MAX {
        let made = hall.store.set_group(&hall.group(&format!("g{n}")), &settings, Begin::Earliest).await;
        assert_eq!(made, Ok(true), "{n}");
    }
    let said = refused(hall.store.set_group(&hall.group("more"), &settings, Begin::Earliest).await);
    assert!(said.contains("256 groups") && said.contains("more") && said.contains("delete"), "{said}");
    let more = hall.group("more");
    let guest = Guest::by(subject.actor("m").await, hall.group("g0"), "m").await;
    refused(hall.store.join_group(&Join { group: more.clone(), ..guest.joining() }).await);
    assert_eq!(hall.store.group(&more).await, Ok(None));
    assert!(guest.join().await.is_ok(), "those that are there are read as before");
    assert_eq!(hall.store.set_group(&hall.group("g1"), &settings, Begin::Earliest).await, Ok(false));
    assert_eq!(hall.store.delete_group(&hall.group("g1")).await, Ok(true));
    assert_eq!(hall.store.set_group(&more, &settings, Begin::Earliest).await, Ok(true));
}

/// And set anew, except for the slots.
pub async fn a_topic_is_kept_whole(subject: &Subject) {
    let settings = TopicSettings { slots: 7, keep_ms: 1_000, keep_unread_ms: Some(2_000), max_bytes: 512 };
    let hall = Hall::with(subject, settings).await;
    let other = hall.again(subject).await;
    let view = other.view().await;
    assert_eq!((view.key, view.settings), (hall.key.clone(), settings));
    assert_eq!((view.events, view.oldest_at_ms, view.newest_at_ms), (0, None, None));
    assert_eq!((view.groups, view.blockers), (vec![], vec![]));
    let again = TopicSettings { keep_ms: 5_000, keep_unread_ms: None, max_bytes: 9, ..settings };
    assert_eq!(hall.store.set_topic(&hall.key, &again).await, Ok(false));
    assert_eq!(other.view().await.settings, again);
    let ends = hall.ends().await;
    assert_eq!(ends.iter().map(|it| it.slot).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
    assert!(ends.iter().all(|it| it.earliest == 0 && it.latest == 0));
}

/// By name.
pub async fn another_number_of_slots_is_refused(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let more = TopicSettings { slots: SLOTS + 1, ..TopicSettings::default() };
    let said = refused(hall.store.set_topic(&hall.key, &more).await);
    assert!(said.contains(&format!("{SLOTS} slots")) && said.contains('t'), "{said}");
    assert_eq!(hall.view().await.settings.slots, SLOTS);
}

/// Before anything is made.
pub async fn bad_settings_are_refused(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let usual = TopicSettings::default;
    for (bad, expected) in [
        (TopicSettings { slots: 0, ..usual() }, "slots is 0"),
        (TopicSettings { slots: 1_025, ..usual() }, "slots is 1025"),
        (TopicSettings { max_bytes: 1 << 21, ..usual() }, "max_bytes"),
        (TopicSettings { keep_ms: 10, keep_unread_ms: Some(9), ..usual() }, "keep_unread_ms"),
    ] {
        let said = refused(hall.store.set_topic(&topic("bad"), &bad).await);
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(hall.store.topic(&topic("bad")).await, Ok(None));
    let group = hall.group("g");
    let backoff = Backoff { first_ms: 2, most_ms: 1 };
    for bad in [
        GroupSettings { max_attempts: 0, ..GroupSettings::default() },
        GroupSettings { backoff, ..GroupSettings::default() },
    ] {
        refused(hall.store.set_group(&group, &bad, Begin::Earliest).await);
    }
    refused(hall.store.set_group(&group, &GroupSettings::default(), Begin::Position(u64::MAX)).await);
    assert_eq!(hall.store.group(&group).await, Ok(None));
}

/// With how much is in them.
pub async fn topics_are_listed_by_namespace(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let namespace: Name = "else".parse().unwrap();
    let other = hall.beside(TopicKey::new(namespace.clone(), "a".parse().unwrap())).await;
    hall.beside(topic("a")).await;
    hall.publish_each(&["a", "b"]).await;
    other.publish_each(&["a"]).await;
    let names = |views: Vec<tenure_core::port::TopicView>| {
        views.into_iter().map(|view| (view.key.to_string(), view.events)).collect::<Vec<_>>()
    };
    let here = names(hall.store.topics(Some(&hall.key.namespace)).await.unwrap());
    assert_eq!(here, [("a".to_owned(), 0), ("t".to_owned(), 2)]);
    assert_eq!(names(hall.store.topics(Some(&namespace)).await.unwrap()), [("else/a".to_owned(), 1)]);
    let mut all = names(hall.store.topics(None).await.unwrap());
    all.sort();
    assert_eq!(all.len(), 3);
    let (view, events) = (hall.view().await, hall.all().await);
    let times = || events.iter().map(|event| event.at_ms);
    assert_eq!((view.oldest_at_ms, view.newest_at_ms), (times().min(), times().max()));
}

/// With its events and groups; a new one of its name begins with nothing. Not while somebody reads it.
pub async fn a_topic_can_be_deleted(subject: &Subject) {
    let hall = Hall::of(subject).await;
    assert_eq!(hall.store.delete_topic(&topic("nowhere")).await, Ok(false));
    let id = hall.publish_one(keyed("a")).await;
    let guest = Guest::of(subject, &hall, "a").await;
    let said = refused(hall.store.delete_topic(&hall.key).await);
    assert!(said.contains('t') && said.contains("live member"), "{said}");
    guest.leave().await;
    assert_eq!(hall.store.delete_topic(&hall.key).await, Ok(true));
    assert_eq!(hall.store.topic(&hall.key).await, Ok(None));
    assert_eq!(hall.store.group(&guest.group).await, Ok(None));
    assert_eq!(hall.store.event(&hall.key, id).await, Ok(None));
    assert!(hall.refused(vec![keyed("a")]).await.contains("topics create"));
    let settings = TopicSettings { slots: 2, ..TopicSettings::default() };
    assert_eq!(hall.store.set_topic(&hall.key, &settings).await, Ok(true));
    assert_eq!(hall.all().await, []);
    assert_eq!(hall.view().await.groups, []);
    guest.join().await.unwrap();
    assert_eq!(guest.look().await.shares.len(), 2);
}

/// And set anew, where it begins left alone.
pub async fn a_group_is_kept_whole(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let group = hall.group("g");
    let backoff = Backoff { first_ms: 7, most_ms: 9 };
    let settings = GroupSettings { max_attempts: 3, backoff };
    hall.publish_each(&["a"]).await;
    assert_eq!(hall.store.set_group(&group, &settings, Begin::Latest).await, Ok(true));
    let view = hall.again(subject).await.group_view().await;
    assert_eq!((view.key, view.settings, view.paused), (group.clone(), settings, None));
    assert_eq!((view.members, view.aside, view.dead, view.moves, view.push), (vec![], 0, 0, 0, None));
    assert_eq!(view.slots.iter().map(|it| it.lag).sum::<u64>(), 0);
    let positions: Vec<_> = view.slots.iter().map(|it| it.share.position).collect();
    assert_eq!(hall.store.set_group(&group, &GroupSettings::default(), Begin::Earliest).await, Ok(false));
    let view = hall.group_view().await;
    assert_eq!(view.settings, GroupSettings::default());
    assert_eq!(view.slots.iter().map(|it| it.share.position).collect::<Vec<_>>(), positions);
}

/// Those of one namespace, or all.
pub async fn groups_are_listed_by_namespace(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let namespace: Name = "else".parse().unwrap();
    let other = hall.beside(TopicKey::new(namespace.clone(), "a".parse().unwrap())).await;
    for group in [hall.group("y"), hall.group("x"), other.group("z")] {
        hall.store.set_group(&group, &GroupSettings::default(), Begin::Earliest).await.unwrap();
    }
    let names = |views: Vec<tenure_core::port::GroupView>| {
        views.into_iter().map(|view| view.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(hall.store.groups(Some(&hall.key.namespace)).await.unwrap()), ["t/x", "t/y"]);
    assert_eq!(names(hall.store.groups(Some(&namespace)).await.unwrap()), ["else/a/z"]);
    assert_eq!(hall.store.groups(None).await.unwrap().len(), 3);
    assert_eq!(hall.view().await.groups.len(), 2);
}

/// With all that it remembers; not while somebody is in it.
pub async fn a_group_can_be_deleted(subject: &Subject) {
    let hall = Hall::of(subject).await;
    assert_eq!(hall.store.delete_group(&hall.group("nowhere")).await, Ok(false));
    hall.publish_one(keyed(&keys_in(0, 1)[0])).await;
    let guest = Guest::of(subject, &hall, "a").await;
    let taken = guest.take_one(0).await;
    let event = guest.read(&taken).await.remove(0);
    let commit =
        ShareCommit { set_aside: vec![aside(&event, dead(1))], ..guest.read_to(&taken, event.position) };
    assert_eq!(guest.commit(commit).await, Committed::Yes);
    assert!(refused(hall.store.delete_group(&guest.group).await).contains("live member"));
    guest.actor.store.end(&guest.actor.id).await.unwrap();
    assert_eq!(hall.store.delete_group(&guest.group).await, Ok(true));
    assert_eq!(hall.store.group(&guest.group).await, Ok(None));
    let new = Guest::of(subject, &hall, "b").await;
    assert_eq!(hall.aside().await, []);
    let taken = new.take_one(0).await;
    assert_eq!((taken.position, taken.aside.len()), (0, 0), "a new one of its name knows nothing");
}

/// How many, and for how long; the end of each slot, and who has it.
pub async fn lag_is_shown_by_slot(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (one, two) = (keys_in(1, 1).remove(0), keys_in(2, 1).remove(0));
    let guest = Guest::of(subject, &hall, "a").await;
    hall.publish(vec![keyed(&one), keyed(&one)]).await;
    hall.publish_each(&[&one, &two]).await;
    let taken = guest.take_one(1).await;
    let first = guest.read(&taken).await.remove(0);
    guest.commit(guest.read_to(&taken, first.position)).await;
    hall.after_moment(hall.all().await.iter().map(|event| event.at_ms).max().expect("some")).await;
    let view = hall.group_view().await;
    let lags: Vec<_> = view.slots.iter().map(|it| (it.share.slot, it.lag, it.lag_exact)).collect();
    assert_eq!(lags, [(0, 0, true), (1, 1, true), (2, 1, true), (3, 0, true)]);
    assert_eq!(view.lag(), (2, true));
    assert!(view.slots[1].lag_ms > 0 && view.slots[0].lag_ms == 0);
    for slot in &view.slots {
        assert_eq!(slot.end, hall.latest(slot.share.slot).await);
    }
    assert_eq!(view.slots[1].share, guest.share(1).await);
    assert_eq!(view.members, guest.look().await.members);
}

/// A long one is not counted to its end.
pub async fn a_long_lag_is_counted_in_part(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let key = keys_in(0, 1).remove(0);
    Guest::of(subject, &hall, "a").await;
    let counted = usize::try_from(tenure_core::port::LAG_COUNTED).unwrap();
    hall.publish(vec![keyed(&key); counted]).await;
    let slot = &hall.group_view().await.slots[0];
    assert_eq!((slot.lag, slot.lag_exact), (counted as u64, true));
    hall.publish(vec![keyed(&key); 3]).await;
    let slot = &hall.group_view().await.slots[0];
    assert_eq!((slot.lag, slot.lag_exact), (counted as u64, false));
}

/// To any place, under new tokens; whoever has a share has lost it.
pub async fn a_group_can_be_reset(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let key = keys_in(1, 1).remove(0);
    let guest = Guest::of(subject, &hall, "a").await;
    hall.publish_each(&[&key, &key]).await;
    let before = hall.all().await.pop().expect("two").at_ms;
    hall.after_moment(before).await;
    hall.publish_each(&[&key, &keys_in(2, 1)[0]]).await;
    let taken = guest.take_one(1).await;
    let events = guest.read(&taken).await;
    let done = vec![(events[2].id, events[2].position)];
    guest.commit(ShareCommit { done, ..guest.read_to(&taken, events[1].position) }).await;
    let reset = |to, slot, dry_run| hall.store.reset_group(&guest.group, to, slot, dry_run);
    let look = guest.look().await;
    let dry = reset(Begin::Earliest, None, true).await.unwrap();
    assert_eq!(dry.iter().map(|it| it.slot).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((dry[1].from, dry[1].to), (events[1].position, 0));
    let unchanged = guest.look().await;
    assert_eq!((unchanged.shares, unchanged.members), (look.shares, look.members), "it was only asked");
    // Each place, and how much is to be read from there.
    let cases = [
        (Begin::Earliest, 3),
        (Begin::Position(events[0].position), 2),
        (Begin::Time(events[2].at_ms), 1),
        (Begin::Latest, 0),
        (Begin::Position(i64::MAX as u64), 0),
        (Begin::Time(0), 3),
    ];
    let mut token = taken.token;
    for (to, expected) in cases {
        let moved = reset(to, Some(1), false).await.unwrap();
        assert_eq!(moved.len(), 1, "{to:?}");
        let Moved { slot: 1, to: position, .. } = moved[0] else { panic!("{moved:?}") };
        assert_eq!(hall.read(&[(1, position)], 100).await.len(), expected, "{to:?}");
        let share = guest.share(1).await;
        assert_eq!((share.position, share.holder.as_ref()), (position, None));
        assert!(share.token > token && share.last == "a", "{to:?}");
        let late = ShareCommit { token, ..guest.read_to(&taken, events[2].position) };
        assert_eq!(guest.commit(late).await, Committed::Stale, "{to:?}");
        let again = guest.take_one(1).await;
        assert_eq!((again.position, &again.done), (position, &vec![]), "{to:?}");
        token = again.token;
    }
    assert_eq!(guest.share(2).await.position, 0, "the other slots are as they were");
    let all = reset(Begin::Latest, None, false).await.unwrap();
    assert_eq!(all.len(), SLOTS as usize);
    assert_eq!(hall.group_view().await.lag(), (0, true));
    let said = refused(reset(Begin::Latest, Some(SLOTS), false).await);
    assert!(said.contains(&format!("slot {SLOTS}")), "{said}");
    let unknown = hall.store.reset_group(&hall.group("nowhere"), Begin::Latest, None, true).await;
    assert!(refused(unknown).contains("nowhere"));
    refused(reset(Begin::Time(-1), None, true).await);
}

/// By whom and why; members see it, and what they say still counts.
pub async fn a_group_can_be_paused(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let guest = Guest::of(subject, &hall, "a").await;
    let taken = guest.take_one(0).await;
    let set = |pause| {
        let (store, group) = (hall.store.clone(), guest.group.clone());
        async move { store.set_group_paused(&group, pause).await }
    };
    let pause = pause();
    assert_eq!(set(Some(&pause)).await, Ok(true));
    assert_eq!(set(Some(&pause)).await, Ok(false));
    assert_eq!(guest.look().await.paused, Some(pause.clone()));
    assert_eq!(hall.group_view().await.paused, Some(pause.clone()));
    assert_eq!(guest.commit(guest.about(&taken)).await, Committed::Yes, "what was begun is ended");
    assert_eq!(set(None).await, Ok(true));
    assert_eq!(set(None).await, Ok(false));
    assert_eq!(guest.look().await.paused, None);
    let unknown = hall.store.set_group_paused(&hall.group("nowhere"), None).await;
    assert!(refused(unknown).contains("nowhere"));
}

fn push(url: &str) -> Push {
    Push { url: url.into(), secret: "whsec_Zmlyc3QgZmlyc3QgZmlyc3Qh".into(), timeout_ms: 5_000 }
}

/// Without its secret.
pub async fn a_push_is_shown_without_its_secret(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let group = hall.group("g");
    hall.store.set_group(&group, &GroupSettings::default(), Begin::Earliest).await.unwrap();
    // Nobody is there, and there is nothing to push.
    let push = push("https://hooks.invalid/ho'ok");
    hall.store.set_push(&group, Some(&push)).await.unwrap();
    let view = hall.group_view().await;
    assert_eq!(view.push, Some(PushView { url: push.url.clone(), timeout_ms: 5_000 }));
    let said = refused(hall.store.set_push(&hall.group("nowhere"), Some(&push)).await);
    assert!(said.contains("nowhere"), "{said}");
    for bad in [
        Push { url: "ftp://a".into(), ..push.clone() },
        Push { secret: "short".into(), ..push.clone() },
        Push { timeout_ms: 0, ..push.clone() },
    ] {
        refused(hall.store.set_push(&group, Some(&bad)).await);
    }
    assert_eq!(hall.group_view().await.push.expect("as before").url, push.url);
    hall.store.set_push(&group, None).await.unwrap();
    assert_eq!(hall.group_view().await.push, None);
}

/// Servers are told all.
pub async fn servers_are_told_where_to_push(subject: &Subject) {
    let hall = Hall::of(subject).await;
    assert_eq!(hall.store.pushes().await.unwrap().len(), 0);
    let mut expected: Vec<(GroupKey, Push)> = Vec::new();
    for name in ["x", "y", "z"] {
        let group = hall.group(name);
        hall.store.set_group(&group, &GroupSettings::default(), Begin::Earliest).await.unwrap();
        if name != "y" {
            let push = push(&format!("https://example.org/{name}"));
            hall.store.set_push(&group, Some(&push)).await.unwrap();
            expected.push((group, push));
        }
    }
    let mut found = hall.store.pushes().await.unwrap();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found == expected, "every one that is pushed, secret and all");
}

/// Over its numbers, though the events between them are of other topics.
pub async fn a_topic_reads_only_its_own(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let other = hall.beside(topic("other")).await;
    let mut own = Vec::new();
    for _ in 0..5 {
        own.push(hall.publish_one(keyed("a")).await);
        other.publish_one(keyed("a")).await;
    }
    assert_eq!(event_ids(&hall.all().await), own);
    let guest = Guest::of(subject, &hall, "a").await;
    let slot = tenure_core::event::slot_of("a", SLOTS);
    let taken = guest.take_one(slot).await;
    let events = guest.read(&taken).await;
    let theirs = other.all().await.remove(0);
    let commit = ShareCommit { set_aside: vec![aside(&theirs, retry(1, 0))], ..guest.about(&taken) };
    guest.commit_refused(commit).await;
    assert_eq!(events.len(), 5);
}
