//! Administration of schedules.

use std::collections::BTreeSet;

use tenure_core::Name;
use tenure_core::port::{
    DUE_MAX, Notification, Precondition, ScheduleFilter, ScheduleKey, ScheduleView, SetScheduleOutcome,
    SetScheduleRequest, TickFilter,
};
use tenure_core::rules::schedule::{
    DstGapPolicy, DstOverlapPolicy, MisfirePolicy, OverlapPolicy, ScheduleDefinition, ScheduleTarget,
};

use super::StoreUnderTest;
use super::test_queue::{listening, notifications_until, pause};
use super::test_schedules::{
    FAR_MS, HOUR_MS, PAST_MS, TestSchedules, event, far, hourly, json, key, now, over, refused, setting,
    task, task_of, then, times,
};

/// A definition with all fields set is stored and read unchanged.
pub async fn a_schedule_keeps_all_settings(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let mut definition =
        far("nightly", "30 2 * * MON-FRI", ScheduleTarget::Webhook { url: "https://example.org/n".into() });
    definition.time_zone = "Europe/Berlin".parse().unwrap();
    definition.end_at_ms = Some(FAR_MS + 1_000 * HOUR_MS);
    definition.jitter_ms = 60_000;
    (definition.dst.gap, definition.dst.overlap) = (Some(DstGapPolicy::Skip), Some(DstOverlapPolicy::Both));
    definition.misfire_policy = MisfirePolicy::Within { grace_ms: 7_200_000 };
    definition.overlap_policy = OverlapPolicy::Queue;
    definition.payload = json("{\"what\":\"o'clock \u{1f550}\",\"n\":[1,null],\"a\":1.50}");
    let set = SetScheduleRequest {
        secret: Some("whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0".into()),
        source: Some("schedules.toml".into()),
        ..setting(definition.clone())
    };
    assert_eq!(test_schedules.set(&set).await, SetScheduleOutcome::Created(1));
    let view = test_schedules.reopen(subject).await.view(&key("nightly")).await;
    assert_eq!((&view.definition, view.version), (&definition, 1));
    let timetable = definition.timetable(&view.namespace);
    let first = timetable.first_from(0).unwrap();
    let progress = view.tick_state.unwrap();
    assert_eq!((progress.next_tick_at_ms, progress.last_tick_at_ms), (first, None));
    assert_eq!(view.due_at_ms, Some(timetable.due_at(first)));
    assert_eq!((view.webhook_signed, view.source.as_deref()), (true, Some("schedules.toml")));
    assert_eq!((&view.paused, &view.last_error, view.last_fired_at_ms), (&None, &None, None));
    assert_eq!((view.fired_count, view.skipped_count, view.overlapped_count), (0, 0, 0));
    assert_eq!((view.created_at_ms, view.updated_by.as_str()), (view.updated_at_ms, "o'ps"));
    assert!(!format!("{view:?}{set:?}").contains("whsec"), "the secret is not returned");
    assert_eq!(test_schedules.ticks(&key("nightly")).await, []);
}

/// An invalid definition is rejected, and nothing is stored.
pub async fn invalid_definitions_are_rejected(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let mut never = over("n", task());
    never.end_at_ms = Some(PAST_MS);
    let mut overlapping = hourly("n", event("t"));
    overlapping.overlap_policy = OverlapPolicy::Skip;
    let mut capped = hourly("n", task());
    capped.misfire_policy = MisfirePolicy::FireAll { cap: 0 };
    let called = hourly("n", ScheduleTarget::Webhook { url: "ftp://example.org".into() });
    for (definition, word) in
        [(never, "end_at_ms"), (overlapping, "overlap"), (capped, "fire_all"), (called, "http")]
    {
        let message = refused(test_schedules.store.set_schedule(&setting(definition)).await);
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(test_schedules.find(&key("n")).await, None);
}

/// The error names the topic and tells how to create it.
pub async fn a_schedule_with_an_unknown_topic_is_rejected(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let set = setting(hourly("n", event("bells")));
    let message = refused(test_schedules.store.set_schedule(&set).await);
    assert!(message.contains("tenure events topics create bells"), "{message}");
    assert_eq!(test_schedules.find(&key("n")).await, None);
    test_schedules.make_topic("bells").await;
    assert_eq!(test_schedules.set(&set).await, SetScheduleOutcome::Created(1));
    // The topic does not exist in the other namespace.
    let there = SetScheduleRequest { namespace: "acme".parse().unwrap(), ..set };
    refused(test_schedules.store.set_schedule(&there).await);
}

/// Applying a file twice changes nothing the second time.
pub async fn the_same_definition_changes_nothing(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let set = SetScheduleRequest { source: Some("f".into()), ..setting(hourly("n", task())) };
    assert_eq!(test_schedules.set(&set).await, SetScheduleOutcome::Created(1));
    let before = test_schedules.view(&key("n")).await;
    let again = SetScheduleRequest { updated_by: "another principal".into(), ..set.clone() };
    assert_eq!(test_schedules.set(&again).await, SetScheduleOutcome::Unchanged(1));
    assert_eq!(
        test_schedules.set(&SetScheduleRequest { precondition: Precondition::Version(1), ..again }).await,
        SetScheduleOutcome::Unchanged(1)
    );
    assert_eq!(test_schedules.view(&key("n")).await, before);
}

/// A precondition prevents two editors from overwriting each other's changes.
pub async fn a_precondition_must_hold(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let set = |payload: u64, expect| {
        let mut definition = hourly("n", task());
        definition.payload = json(&payload.to_string());
        SetScheduleRequest { precondition: expect, ..setting(definition) }
    };
    assert_eq!(
        test_schedules.set(&set(1, Precondition::Version(1))).await,
        SetScheduleOutcome::Conflict(None)
    );
    assert_eq!(test_schedules.find(&key("n")).await, None);
    assert_eq!(test_schedules.set(&set(1, Precondition::New)).await, SetScheduleOutcome::Created(1));
    assert_eq!(test_schedules.set(&set(2, Precondition::New)).await, SetScheduleOutcome::Conflict(Some(1)));
    assert_eq!(test_schedules.set(&set(2, Precondition::Version(1))).await, SetScheduleOutcome::Updated(2));
    assert_eq!(
        test_schedules.set(&set(3, Precondition::Version(1))).await,
        SetScheduleOutcome::Conflict(Some(2))
    );
    assert_eq!(test_schedules.set(&set(4, Precondition::Any)).await, SetScheduleOutcome::Updated(3));
    let view = test_schedules.view(&key("n")).await;
    assert_eq!((view.version, view.definition.payload.as_str()), (3, "4"));
}

/// Of several concurrent changes with the same precondition, one is applied.
pub async fn of_concurrent_editors_one_wins(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(hourly("n", task())).await;
    let mut editors = Vec::new();
    for n in 0..8 {
        let editor = test_schedules.reopen(subject).await;
        editors.push(tokio::spawn(async move {
            let mut definition = hourly("n", task());
            definition.payload = json(&n.to_string());
            editor
                .set(&SetScheduleRequest { precondition: Precondition::Version(1), ..setting(definition) })
                .await
        }));
    }
    let mut won = 0;
    for editor in editors {
        match editor.await.unwrap() {
            SetScheduleOutcome::Updated(2) => won += 1,
            SetScheduleOutcome::Conflict(Some(2)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((won, test_schedules.view(&key("n")).await.version), (1, 2));
}

/// A change without a secret keeps the stored secret; the source is the last one given.
pub async fn a_secret_is_kept_until_it_is_replaced(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let call = || setting(hourly("n", ScheduleTarget::Webhook { url: "https://example.org/".into() }));
    let first = SetScheduleRequest {
        secret: Some("whsec_Zmlyc3QgZmlyc3QgZmlyc3QgZmlyc3QgZmlyc3Qh".into()),
        ..call()
    };
    assert_eq!(test_schedules.set(&first).await, SetScheduleOutcome::Created(1));
    assert_eq!(test_schedules.set(&call()).await, SetScheduleOutcome::Unchanged(1));
    assert!(test_schedules.view(&key("n")).await.webhook_signed);
    let other = SetScheduleRequest {
        secret: Some("whsec_b3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIh".into()),
        ..call()
    };
    assert_eq!(test_schedules.set(&other).await, SetScheduleOutcome::Updated(2));
    assert_eq!(test_schedules.set(&other).await, SetScheduleOutcome::Unchanged(2));
    let sourced = SetScheduleRequest { source: Some("f".into()), ..call() };
    assert_eq!(test_schedules.set(&sourced).await, SetScheduleOutcome::Updated(3));
    assert_eq!(test_schedules.set(&call()).await, SetScheduleOutcome::Updated(4));
    let view = test_schedules.view(&key("n")).await;
    assert_eq!((view.webhook_signed, view.source), (true, None));
}

/// Servers read the secret to sign webhooks.
pub async fn servers_can_read_the_webhook_secret(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let secret = "whsec_Zmlyc3QgZmlyc3QgZmlyc3QgZmlyc3QgZmlyc3Qh";
    let call = || setting(hourly("n", ScheduleTarget::Webhook { url: "https://example.org/".into() }));
    test_schedules.set(&call()).await;
    assert_eq!(test_schedules.store.webhook_secret(&key("n")).await, Ok(None));
    test_schedules.set(&SetScheduleRequest { secret: Some(secret.into()), ..call() }).await;
    assert_eq!(test_schedules.store.webhook_secret(&key("n")).await, Ok(Some(secret.into())));
    assert_eq!(test_schedules.store.webhook_secret(&key("m")).await, Ok(None));
}

/// A new expression starts with its first tick from now on; any other change keeps the next tick.
pub async fn only_a_new_expression_moves_the_next_tick(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let before = test_schedules.make(hourly("n", task())).await;
    let mut definition = hourly("n", event("t"));
    definition.misfire_policy = MisfirePolicy::Skip;
    assert_eq!(test_schedules.set(&setting(definition.clone())).await, SetScheduleOutcome::Updated(2));
    let view = test_schedules.view(&key("n")).await;
    assert_eq!((view.tick_state, view.due_at_ms), (before.tick_state, before.due_at_ms));
    definition.expression = times("every 90m");
    definition.start_at_ms = Some(FAR_MS + 1);
    assert_eq!(test_schedules.set(&setting(definition)).await, SetScheduleOutcome::Updated(3));
    let view = test_schedules.view(&key("n")).await;
    let next = view.tick_state.unwrap().next_tick_at_ms;
    assert!(next > FAR_MS && next % (90 * 60_000) == 0, "{next}");
    assert_eq!(view.due_at_ms, Some(next));
}

/// An interval from its start keeps its start when the schedule is set again.
pub async fn an_interval_from_its_start_keeps_its_start(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let definition = ScheduleDefinition::new("n".parse().unwrap(), times("every 7h from start"), task());
    let view = test_schedules.make(definition.clone()).await;
    let start = view.definition.start_at_ms.expect("the time of its creation");
    assert_eq!(start, view.created_at_ms);
    assert_eq!(test_schedules.set(&setting(definition.clone())).await, SetScheduleOutcome::Unchanged(1));
    let mut other = definition;
    other.payload = json("1");
    assert_eq!(test_schedules.set(&setting(other)).await, SetScheduleOutcome::Updated(2));
    let view = test_schedules.view(&key("n")).await;
    assert_eq!(view.definition.start_at_ms, Some(start));
    // The schedule is due at once, so a server may already have fired it.
    assert_eq!((view.tick_state.unwrap().next_tick_at_ms - start) % (7 * HOUR_MS), 0);
}

/// A schedule without remaining ticks has no due time.
pub async fn a_schedule_without_ticks_is_never_due(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let view = test_schedules.make(over("n", task())).await;
    assert_eq!((view.tick_state, view.due_at_ms), (None, None));
    // A later end gives the schedule ticks again.
    let mut longer = over("n", task());
    longer.end_at_ms = Some(FAR_MS + HOUR_MS);
    longer.expression = times("every 2000d");
    assert_eq!(test_schedules.set(&setting(longer)).await, SetScheduleOutcome::Updated(2));
    assert!(test_schedules.view(&key("n")).await.due_at_ms.is_some());
}

/// A paused schedule is not due; after it is resumed it has the same next tick.
pub async fn a_schedule_can_be_paused(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let set_paused = |pause| {
        let (store, key) = (test_schedules.store.clone(), key("n"));
        async move { store.set_schedule_paused(&key, pause).await.expect("set_schedule_paused") }
    };
    let why = pause();
    assert_eq!(set_paused(Some(&why)).await, None);
    let before = test_schedules.make(hourly("n", task())).await;
    assert_eq!(set_paused(None).await, Some(false));
    assert_eq!(set_paused(Some(&why)).await, Some(true));
    assert_eq!(set_paused(Some(&why)).await, Some(false));
    let view = test_schedules.view(&key("n")).await;
    let paused = view.paused.clone().unwrap();
    assert_eq!((paused.paused_by, paused.reason), (why.paused_by.clone(), why.reason.clone()));
    assert_eq!((view.due_at_ms, view.tick_state, view.version), (None, before.tick_state, before.version));
    // A new definition does not resume the schedule.
    let mut definition = hourly("n", task());
    definition.expression = times("every 2h");
    assert_eq!(test_schedules.set(&setting(definition)).await, SetScheduleOutcome::Updated(2));
    let view = test_schedules.view(&key("n")).await;
    assert!(view.paused.is_some() && view.due_at_ms.is_none());
    assert_eq!(set_paused(None).await, Some(true));
    let view = test_schedules.view(&key("n")).await;
    assert_eq!((view.paused, view.due_at_ms), (None, Some(FAR_MS)));
}

/// Schedules are ordered by namespace and name, filtered by source, and paged.
pub async fn schedules_are_filtered_and_paged(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
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
        test_schedules.set(&SetScheduleRequest { namespace, source: source.map(String::from), ..set }).await;
    }
    let list = |filter: ScheduleFilter| {
        let store = test_schedules.store.clone();
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
    let view = &test_schedules.store.schedules(&of_acme).await.unwrap()[0];
    assert_eq!(Some(view), test_schedules.find(&view.key()).await.as_ref(), "listing and showing agree");
}

/// Deleting a schedule deletes its tick history; submitted tasks stay.
pub async fn a_schedule_can_be_deleted(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let delete = |expect| {
        let (store, key) = (test_schedules.store.clone(), key("n"));
        async move { store.delete_schedule(&key, expect).await.expect("delete_schedule") }
    };
    assert_eq!(delete(None).await, None);
    test_schedules.make(over("n", task())).await;
    let fired = test_schedules.fire_manually(&then(&key("n"), &[PAST_MS])).await;
    assert_eq!(delete(Some(7)).await, Some(false));
    assert_eq!((test_schedules.ticks(&key("n")).await.len(), delete(Some(1)).await), (1, Some(true)));
    assert_eq!(delete(None).await, None);
    assert_eq!((test_schedules.find(&key("n")).await, test_schedules.ticks(&key("n")).await), (None, vec![]));
    test_schedules.task(task_of(&fired[0])).await;
    let view = test_schedules.make(over("n", task())).await;
    assert_eq!((view.fired_count, test_schedules.ticks(&key("n")).await), (0, vec![]));
}

/// The same name in two namespaces is two schedules.
pub async fn schedules_of_two_namespaces_are_independent(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let there = ScheduleKey::new("acme".parse().unwrap(), "n".parse().unwrap());
    test_schedules.make(hourly("n", task())).await;
    assert_eq!(test_schedules.find(&there).await, None);
    let set = SetScheduleRequest { namespace: there.namespace.clone(), ..setting(over("n", task())) };
    assert_eq!(test_schedules.set(&set).await, SetScheduleOutcome::Created(1));
    let id = task_of(&test_schedules.fire_manually(&then(&there, &[PAST_MS])).await[0]);
    assert_eq!(test_schedules.task_of(&there.namespace, id).await.queue.as_str(), "q");
    assert_eq!(
        (test_schedules.ticks(&there).await.len(), test_schedules.ticks(&key("n")).await.len()),
        (1, 0)
    );
    assert_eq!(test_schedules.tasks().await, 0);
    test_schedules.store.delete_schedule(&there, None).await.unwrap();
    test_schedules.view(&key("n")).await;
}

/// The statistics count paused and failing schedules per namespace.
pub async fn schedules_are_counted_by_namespace(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    assert_eq!(test_schedules.store.schedule_stats().await, Ok(vec![]));
    for name in ["a", "b", "c"] {
        test_schedules.make(hourly(name, task())).await;
    }
    let acme: Name = "acme".parse().unwrap();
    test_schedules.set(&SetScheduleRequest { namespace: acme.clone(), ..setting(over("a", task())) }).await;
    test_schedules.store.set_schedule_paused(&key("b"), Some(&pause())).await.unwrap();
    let fired = test_schedules.fire_manually(&now(&ScheduleKey::new(acme, "a".parse().unwrap()))).await;
    let stats = test_schedules.store.schedule_stats().await.unwrap();
    let counts: Vec<_> = stats
        .iter()
        .map(|it| {
            (it.namespace.as_str(), it.schedule_count, it.paused_count, it.failing_count, it.overdue_count)
        })
        .collect();
    assert_eq!(counts, [("acme", 1, 0, 0, 0), ("default", 3, 1, 0, 0)]);
    assert_eq!((stats[0].last_fired_at_ms, stats[1].last_fired_at_ms), (Some(fired[0].tick_at_ms), None));
}

/// The scheduler is notified when schedules are set, resumed or deleted.
pub async fn changes_of_schedules_are_notified(subject: &StoreUnderTest) {
    let listener = subject.session("listener").await;
    let mut notifications = listening(&listener).await;
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(hourly("n", task())).await;
    notifications_until(&mut notifications, &Notification::SchedulesChanged).await;
    test_schedules.set(&setting(hourly("n", event("t")))).await;
    notifications_until(&mut notifications, &Notification::SchedulesChanged).await;
    test_schedules.store.set_schedule_paused(&key("n"), Some(&pause())).await.unwrap();
    test_schedules.store.set_schedule_paused(&key("n"), None).await.unwrap();
    notifications_until(&mut notifications, &Notification::SchedulesChanged).await;
    test_schedules.store.delete_schedule(&key("n"), None).await.unwrap();
    notifications_until(&mut notifications, &Notification::SchedulesChanged).await;
}

/// Ticks are listed newest first, page by page.
pub async fn a_tick_history_is_paged(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(over("n", task())).await;
    let hours = |hours: &[i64]| hours.iter().map(|n| PAST_MS + n * HOUR_MS).collect::<Vec<_>>();
    test_schedules.fire_manually(&then(&key("n"), &hours(&[0, 1, 2, 3, 4]))).await;
    let page = |before_ms, limit| {
        let (store, filter) = (test_schedules.store.clone(), TickFilter { key: key("n"), before_ms, limit });
        async move {
            let ticks = store.ticks(&filter).await.expect("ticks");
            ticks.iter().map(|tick| tick.tick_at_ms).collect::<Vec<_>>()
        }
    };
    assert_eq!(page(None, 2).await, hours(&[4, 3]));
    assert_eq!(page(Some(PAST_MS + 3 * HOUR_MS), 2).await, hours(&[2, 1]));
    assert_eq!(page(Some(PAST_MS + HOUR_MS), 2).await, hours(&[0]));
    assert!(page(Some(PAST_MS), 2).await.is_empty());
    assert_eq!(test_schedules.ticks(&key("m")).await, []);
}

/// Pages list every schedule exactly once, however many there are.
pub async fn many_schedules_are_listed_completely(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let mut names = BTreeSet::new();
    for n in 0..25 {
        test_schedules.make(hourly(&format!("n{n}"), task())).await;
        names.insert(format!("n{n}"));
    }
    let (mut found, mut after) = (BTreeSet::new(), None);
    loop {
        let filter = ScheduleFilter { after, limit: 7, ..ScheduleFilter::default() };
        let views: Vec<ScheduleView> = test_schedules.store.schedules(&filter).await.unwrap();
        let Some(last) = views.last() else { break };
        after = Some(last.key());
        for view in views {
            assert!(found.insert(view.definition.name.to_string()), "each once");
        }
    }
    assert_eq!(found, names);
}

/// A manual fire with more ticks than the maximum per call is rejected.
pub async fn too_many_manual_ticks_are_rejected(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(over("n", task())).await;
    let ticks: Vec<i64> = (0..=i64::from(DUE_MAX)).map(|n| PAST_MS + n).collect();
    let message = refused(test_schedules.store.fire_manually(&then(&key("n"), &ticks)).await);
    assert!(message.contains("10000"), "{message}");
}
