//! Claims about schedules as people set and see them.

use std::collections::BTreeSet;

use tenure_core::Name;
use tenure_core::port::{
    DUE_MAX, Expect, ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleView, SetSchedule, TickFilter, Wake,
};
use tenure_core::schedule::{Definition, Fold, Gap, Misfire, Overlap, Target};

use super::Subject;
use super::floor::{hints_until, listening, pause};
use super::schedules_wall::{
    FAR_MS, HOUR_MS, PAST_MS, Wall, event, far, hourly, json, key, now, over, refused, setting, task,
    task_of, then, times,
};

/// With everything that can be said of one.
pub async fn a_schedule_is_kept_whole(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let mut definition =
        far("nightly", "30 2 * * MON-FRI", Target::Call { url: "https://example.org/n".into() });
    definition.zone = "Europe/Berlin".parse().unwrap();
    definition.end_ms = Some(FAR_MS + 1_000 * HOUR_MS);
    definition.jitter_ms = 60_000;
    (definition.dst.gap, definition.dst.overlap) = (Some(Gap::Skip), Some(Fold::Both));
    definition.misfire = Misfire::Within { grace_ms: 7_200_000 };
    definition.overlap = Overlap::Queue;
    definition.payload = json("{\"what\":\"o'clock \u{1f550}\",\"n\":[1,null],\"a\":1.50}");
    let set = SetSchedule {
        secret: Some("whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0".into()),
        source: Some("schedules.toml".into()),
        ..setting(definition.clone())
    };
    assert_eq!(wall.set(&set).await, ScheduleSet::Created(1));
    let view = wall.again(subject).await.view(&key("nightly")).await;
    assert_eq!((&view.definition, view.version), (&definition, 1));
    let timetable = definition.timetable(&view.namespace);
    let first = timetable.first_from(0).unwrap();
    let progress = view.progress.unwrap();
    assert_eq!((progress.next_at_ms, progress.last_at_ms), (first, None));
    assert_eq!(view.due_ms, Some(timetable.due_at(first)));
    assert_eq!((view.signed, view.source.as_deref()), (true, Some("schedules.toml")));
    assert_eq!((&view.paused, &view.trouble, view.last_fired_ms), (&None, &None, None));
    assert_eq!((view.fired, view.skipped, view.overlapped), (0, 0, 0));
    assert_eq!((view.created_ms, view.updated_by.as_str()), (view.updated_ms, "o'ps"));
    assert!(!format!("{view:?}{set:?}").contains("whsec"), "the secret is shown to nobody");
    assert_eq!(wall.ticks(&key("nightly")).await, []);
}

/// Nothing is kept of it.
pub async fn what_makes_no_sense_is_refused(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let mut never = over("n", task());
    never.end_ms = Some(PAST_MS);
    let mut overlapping = hourly("n", event("t"));
    overlapping.overlap = Overlap::Skip;
    let mut capped = hourly("n", task());
    capped.misfire = Misfire::FireAll { cap: 0 };
    let called = hourly("n", Target::Call { url: "ftp://example.org".into() });
    for (definition, word) in
        [(never, "end_ms"), (overlapping, "overlap"), (capped, "fire_all"), (called, "http")]
    {
        let said = refused(wall.store.set_schedule(&setting(definition)).await);
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(wall.find(&key("n")).await, None);
}

/// The remedy is said.
pub async fn a_schedule_of_an_unknown_topic_is_refused(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let set = setting(hourly("n", event("bells")));
    let said = refused(wall.store.set_schedule(&set).await);
    assert!(said.contains("tenure events topics create bells"), "{said}");
    assert_eq!(wall.find(&key("n")).await, None);
    wall.make_topic("bells").await;
    assert_eq!(wall.set(&set).await, ScheduleSet::Created(1));
    // In its own namespace there is none.
    let there = SetSchedule { namespace: "acme".parse().unwrap(), ..set };
    refused(wall.store.set_schedule(&there).await);
}

/// Whoever applies a file twice changes nothing the second time.
pub async fn the_same_definition_changes_nothing(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let set = SetSchedule { source: Some("f".into()), ..setting(hourly("n", task())) };
    assert_eq!(wall.set(&set).await, ScheduleSet::Created(1));
    let before = wall.view(&key("n")).await;
    let again = SetSchedule { by: "somebody else".into(), ..set.clone() };
    assert_eq!(wall.set(&again).await, ScheduleSet::Same(1));
    assert_eq!(wall.set(&SetSchedule { expect: Expect::Version(1), ..again }).await, ScheduleSet::Same(1));
    assert_eq!(wall.view(&key("n")).await, before);
}

/// Two editors do not overwrite each other.
pub async fn what_is_expected_must_be_so(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let set = |payload: u64, expect| {
        let mut definition = hourly("n", task());
        definition.payload = json(&payload.to_string());
        SetSchedule { expect, ..setting(definition) }
    };
    assert_eq!(wall.set(&set(1, Expect::Version(1))).await, ScheduleSet::Conflict(None));
    assert_eq!(wall.find(&key("n")).await, None);
    assert_eq!(wall.set(&set(1, Expect::New)).await, ScheduleSet::Created(1));
    assert_eq!(wall.set(&set(2, Expect::New)).await, ScheduleSet::Conflict(Some(1)));
    assert_eq!(wall.set(&set(2, Expect::Version(1))).await, ScheduleSet::Changed(2));
    assert_eq!(wall.set(&set(3, Expect::Version(1))).await, ScheduleSet::Conflict(Some(2)));
    assert_eq!(wall.set(&set(4, Expect::Any)).await, ScheduleSet::Changed(3));
    let view = wall.view(&key("n")).await;
    assert_eq!((view.version, view.definition.payload.as_str()), (3, "4"));
}

/// Neither do those that come at the same time.
pub async fn of_concurrent_editors_one_wins(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(hourly("n", task())).await;
    let mut editors = Vec::new();
    for n in 0..8 {
        let editor = wall.again(subject).await;
        editors.push(tokio::spawn(async move {
            let mut definition = hourly("n", task());
            definition.payload = json(&n.to_string());
            editor.set(&SetSchedule { expect: Expect::Version(1), ..setting(definition) }).await
        }));
    }
    let mut won = 0;
    for editor in editors {
        match editor.await.unwrap() {
            ScheduleSet::Changed(2) => won += 1,
            ScheduleSet::Conflict(Some(2)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((won, wall.view(&key("n")).await.version), (1, 2));
}

/// What is not said of the secret stays; the source is as it was said last.
pub async fn a_secret_is_kept_until_there_is_another(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let call = || setting(hourly("n", Target::Call { url: "https://example.org/".into() }));
    let first =
        SetSchedule { secret: Some("whsec_Zmlyc3QgZmlyc3QgZmlyc3QgZmlyc3QgZmlyc3Qh".into()), ..call() };
    assert_eq!(wall.set(&first).await, ScheduleSet::Created(1));
    assert_eq!(wall.set(&call()).await, ScheduleSet::Same(1));
    assert!(wall.view(&key("n")).await.signed);
    let other =
        SetSchedule { secret: Some("whsec_b3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIh".into()), ..call() };
    assert_eq!(wall.set(&other).await, ScheduleSet::Changed(2));
    assert_eq!(wall.set(&other).await, ScheduleSet::Same(2));
    let sourced = SetSchedule { source: Some("f".into()), ..call() };
    assert_eq!(wall.set(&sourced).await, ScheduleSet::Changed(3));
    assert_eq!(wall.set(&call()).await, ScheduleSet::Changed(4));
    let view = wall.view(&key("n")).await;
    assert_eq!((view.signed, view.source), (true, None));
}

/// Servers sign with it.
pub async fn servers_are_told_the_secret(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let secret = "whsec_Zmlyc3QgZmlyc3QgZmlyc3QgZmlyc3QgZmlyc3Qh";
    let call = || setting(hourly("n", Target::Call { url: "https://example.org/".into() }));
    wall.set(&call()).await;
    assert_eq!(wall.store.call_secret(&key("n")).await, Ok(None));
    wall.set(&SetSchedule { secret: Some(secret.into()), ..call() }).await;
    assert_eq!(wall.store.call_secret(&key("n")).await, Ok(Some(secret.into())));
    assert_eq!(wall.store.call_secret(&key("m")).await, Ok(None));
}

/// New times count from now on; anything else leaves the next tick where it is.
pub async fn only_new_times_move_the_next_tick(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let before = wall.make(hourly("n", task())).await;
    let mut definition = hourly("n", event("t"));
    definition.misfire = Misfire::Skip;
    assert_eq!(wall.set(&setting(definition.clone())).await, ScheduleSet::Changed(2));
    let view = wall.view(&key("n")).await;
    assert_eq!((view.progress, view.due_ms), (before.progress, before.due_ms));
    definition.when = times("every 90m");
    definition.start_ms = Some(FAR_MS + 1);
    assert_eq!(wall.set(&setting(definition)).await, ScheduleSet::Changed(3));
    let view = wall.view(&key("n")).await;
    let next = view.progress.unwrap().next_at_ms;
    assert!(next > FAR_MS && next % (90 * 60_000) == 0, "{next}");
    assert_eq!(view.due_ms, Some(next));
}

/// Counted from its creation, it goes on from there when it is set again.
pub async fn an_interval_from_its_start_keeps_it(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let definition = Definition::new("n".parse().unwrap(), times("every 7h from start"), task());
    let view = wall.make(definition.clone()).await;
    let start = view.definition.start_ms.expect("the moment of its creation");
    assert_eq!(start, view.created_ms);
    assert_eq!(wall.set(&setting(definition.clone())).await, ScheduleSet::Same(1));
    let mut other = definition;
    other.payload = json("1");
    assert_eq!(wall.set(&setting(other)).await, ScheduleSet::Changed(2));
    let view = wall.view(&key("n")).await;
    assert_eq!(view.definition.start_ms, Some(start));
    // It is due at once, and a server may have fired it.
    assert_eq!((view.progress.unwrap().next_at_ms - start) % (7 * HOUR_MS), 0);
}

/// No tick is left, and it is never due.
pub async fn what_is_over_is_never_due(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let view = wall.make(over("n", task())).await;
    assert_eq!((view.progress, view.due_ms), (None, None));
    // More time, and it goes on.
    let mut longer = over("n", task());
    longer.end_ms = Some(FAR_MS + HOUR_MS);
    longer.when = times("every 2000d");
    assert_eq!(wall.set(&setting(longer)).await, ScheduleSet::Changed(2));
    assert!(wall.view(&key("n")).await.due_ms.is_some());
}

/// While it is, it is not due; who resumes it finds the tick that was next.
pub async fn a_schedule_can_be_paused(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let set_paused = |pause| {
        let (store, key) = (wall.store.clone(), key("n"));
        async move { store.set_schedule_paused(&key, pause).await.expect("set_schedule_paused") }
    };
    let why = pause();
    assert_eq!(set_paused(Some(&why)).await, None);
    let before = wall.make(hourly("n", task())).await;
    assert_eq!(set_paused(None).await, Some(false));
    assert_eq!(set_paused(Some(&why)).await, Some(true));
    assert_eq!(set_paused(Some(&why)).await, Some(false));
    let view = wall.view(&key("n")).await;
    let paused = view.paused.clone().unwrap();
    assert_eq!((paused.by, paused.reason), (why.by.clone(), why.reason.clone()));
    assert_eq!((view.due_ms, view.progress, view.version), (None, before.progress, before.version));
    // A new definition does not resume it.
    let mut definition = hourly("n", task());
    definition.when = times("every 2h");
    assert_eq!(wall.set(&setting(definition)).await, ScheduleSet::Changed(2));
    let view = wall.view(&key("n")).await;
    assert!(view.paused.is_some() && view.due_ms.is_none());
    assert_eq!(set_paused(None).await, Some(true));
    let view = wall.view(&key("n")).await;
    assert_eq!((view.paused, view.due_ms), (None, Some(FAR_MS)));
}

/// By namespace and name; by the file that they are from; page by page.
pub async fn schedules_are_listed_as_asked_for(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let acme: Name = "acme".parse().unwrap();
    for (namespace, name, source) in [
        ("default", "c", None),
        ("acme", "b", Some("f")),
        ("default", "a", Some("f")),
        ("acme", "d", None),
        ("default", "b", Some("g")),
    ] {
        let namespace = namespace.parse().unwrap();
        let set = setting(hourly(name, task()));
        wall.set(&SetSchedule { namespace, source: source.map(String::from), ..set }).await;
    }
    let list = |filter: ScheduleFilter| {
        let store = wall.store.clone();
        async move {
            let views = store.schedules(&filter).await.expect("schedules");
            views.iter().map(|view| view.key().to_string()).collect::<Vec<_>>()
        }
    };
    let all = ScheduleFilter::default();
    assert_eq!(list(all.clone()).await, ["acme/b", "acme/d", "a", "b", "c"]);
    let of_acme = ScheduleFilter { namespace: Some(acme.clone()), ..all.clone() };
    assert_eq!(list(of_acme.clone()).await, ["acme/b", "acme/d"]);
    let of_f = ScheduleFilter { source: Some("f".into()), ..all.clone() };
    assert_eq!(list(of_f.clone()).await, ["acme/b", "a"]);
    assert_eq!(list(ScheduleFilter { namespace: Some(acme.clone()), ..of_f }).await, ["acme/b"]);
    let page = ScheduleFilter { limit: 2, ..all };
    assert_eq!(list(page.clone()).await, ["acme/b", "acme/d"]);
    let after = ScheduleKey::new(acme, "d".parse().unwrap());
    assert_eq!(list(ScheduleFilter { after: Some(after), ..page.clone() }).await, ["a", "b"]);
    assert_eq!(list(ScheduleFilter { after: Some(key("b")), ..page }).await, ["c"]);
    let view = &wall.store.schedules(&of_acme).await.unwrap()[0];
    assert_eq!(Some(view), wall.find(&view.key()).await.as_ref(), "a listed schedule is the schedule");
}

/// Its history goes, and what it has submitted stays.
pub async fn a_schedule_can_be_deleted(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let delete = |expect| {
        let (store, key) = (wall.store.clone(), key("n"));
        async move { store.delete_schedule(&key, expect).await.expect("delete_schedule") }
    };
    assert_eq!(delete(None).await, None);
    wall.make(over("n", task())).await;
    let fired = wall.hand(&then(&key("n"), &[PAST_MS])).await;
    assert_eq!(delete(Some(7)).await, Some(false));
    assert_eq!((wall.ticks(&key("n")).await.len(), delete(Some(1)).await), (1, Some(true)));
    assert_eq!(delete(None).await, None);
    assert_eq!((wall.find(&key("n")).await, wall.ticks(&key("n")).await), (None, vec![]));
    wall.task(task_of(&fired[0])).await;
    let view = wall.make(over("n", task())).await;
    assert_eq!((view.fired, wall.ticks(&key("n")).await), (0, vec![]));
}

/// One name in two namespaces is two schedules.
pub async fn a_schedule_is_of_its_namespace(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let there = ScheduleKey::new("acme".parse().unwrap(), "n".parse().unwrap());
    wall.make(hourly("n", task())).await;
    assert_eq!(wall.find(&there).await, None);
    let set = SetSchedule { namespace: there.namespace.clone(), ..setting(over("n", task())) };
    assert_eq!(wall.set(&set).await, ScheduleSet::Created(1));
    let id = task_of(&wall.hand(&then(&there, &[PAST_MS])).await[0]);
    assert_eq!(wall.task_of(&there.namespace, id).await.queue.as_str(), "q");
    assert_eq!((wall.ticks(&there).await.len(), wall.ticks(&key("n")).await.len()), (1, 0));
    assert_eq!(wall.tasks().await, 0);
    wall.store.delete_schedule(&there, None).await.unwrap();
    wall.view(&key("n")).await;
}

/// Paused and troubled ones, by namespace.
pub async fn schedules_are_counted_by_namespace(subject: &Subject) {
    let wall = Wall::of(subject).await;
    assert_eq!(wall.store.schedule_stats().await, Ok(vec![]));
    for name in ["a", "b", "c"] {
        wall.make(hourly(name, task())).await;
    }
    let acme: Name = "acme".parse().unwrap();
    wall.set(&SetSchedule { namespace: acme.clone(), ..setting(over("a", task())) }).await;
    wall.store.set_schedule_paused(&key("b"), Some(&pause())).await.unwrap();
    let fired = wall.hand(&now(&ScheduleKey::new(acme, "a".parse().unwrap()))).await;
    let stats = wall.store.schedule_stats().await.unwrap();
    let counts: Vec<_> = stats
        .iter()
        .map(|it| (it.namespace.as_str(), it.schedules, it.paused, it.troubled, it.overdue))
        .collect();
    assert_eq!(counts, [("acme", 1, 0, 0, 0), ("default", 3, 1, 0, 0)]);
    assert_eq!((stats[0].last_fired_ms, stats[1].last_fired_ms), (Some(fired[0].at_ms), None));
}

/// Whoever leads looks anew when schedules are set, resumed or deleted.
pub async fn changes_of_schedules_are_heard(subject: &Subject) {
    let listener = subject.actor("listener").await;
    let mut hints = listening(&listener).await;
    let wall = Wall::of(subject).await;
    wall.make(hourly("n", task())).await;
    hints_until(&mut hints, &Wake::Schedules).await;
    wall.set(&setting(hourly("n", event("t")))).await;
    hints_until(&mut hints, &Wake::Schedules).await;
    wall.store.set_schedule_paused(&key("n"), Some(&pause())).await.unwrap();
    wall.store.set_schedule_paused(&key("n"), None).await.unwrap();
    hints_until(&mut hints, &Wake::Schedules).await;
    wall.store.delete_schedule(&key("n"), None).await.unwrap();
    hints_until(&mut hints, &Wake::Schedules).await;
}

/// The newest first, page by page.
pub async fn a_history_is_read_page_by_page(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(over("n", task())).await;
    let hours = |hours: &[i64]| hours.iter().map(|n| PAST_MS + n * HOUR_MS).collect::<Vec<_>>();
    wall.hand(&then(&key("n"), &hours(&[0, 1, 2, 3, 4]))).await;
    let page = |before_ms, limit| {
        let (store, filter) = (wall.store.clone(), TickFilter { key: key("n"), before_ms, limit });
        async move {
            let ticks = store.ticks(&filter).await.expect("ticks");
            ticks.iter().map(|tick| tick.at_ms).collect::<Vec<_>>()
        }
    };
    assert_eq!(page(None, 2).await, hours(&[4, 3]));
    assert_eq!(page(Some(PAST_MS + 3 * HOUR_MS), 2).await, hours(&[2, 1]));
    assert_eq!(page(Some(PAST_MS + HOUR_MS), 2).await, hours(&[0]));
    assert!(page(Some(PAST_MS), 2).await.is_empty());
    assert_eq!(wall.ticks(&key("m")).await, []);
}

/// However many there are, each once.
pub async fn many_schedules_are_listed_whole(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let mut names = BTreeSet::new();
    for n in 0..25 {
        wall.make(hourly(&format!("n{n}"), task())).await;
        names.insert(format!("n{n}"));
    }
    let (mut found, mut after) = (BTreeSet::new(), None);
    loop {
        let filter = ScheduleFilter { after, limit: 7, ..ScheduleFilter::default() };
        let views: Vec<ScheduleView> = wall.store.schedules(&filter).await.unwrap();
        let Some(last) = views.last() else { break };
        after = Some(last.key());
        for view in views {
            assert!(found.insert(view.definition.name.to_string()), "each once");
        }
    }
    assert_eq!(found, names);
}

/// More than can go together.
pub async fn too_many_ticks_by_hand_are_refused(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(over("n", task())).await;
    let ticks: Vec<i64> = (0..=i64::from(DUE_MAX)).map(|n| PAST_MS + n).collect();
    let said = refused(wall.store.fire_by_hand(&then(&key("n"), &ticks)).await);
    assert!(said.contains("10000"), "{said}");
}
