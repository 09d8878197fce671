//! Manual firing: one tick now, or past ticks.

use std::collections::BTreeSet;

use tenure_core::port::{
    ManualFire, ManualFireOutcome, Payload, TaskId, TaskState, TickCause, TickOutcome, TopicKey,
    webhook_queue,
};
use tenure_core::rules::schedule::{SCHEDULE_HEADER, ScheduleTarget, TICK_HEADER, WebhookCall, tick_of};

use super::StoreUnderTest;
use super::test_queue::pause;
use super::test_schedules::{
    FAR_MS, HOUR_MS, PAST_MS, TestSchedules, event, hourly, json, key, now, outcomes, over, refused, setting,
    task, task_of, then,
};

/// A trigger fires one tick, also of a paused schedule, and does not change the timetable.
pub async fn a_trigger_fires_one_tick_now(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let mut definition = hourly("n", task());
    definition.payload = json(r#"{"n":1}"#);
    let before = test_schedules.make(definition).await;
    test_schedules.store.set_schedule_paused(&key("n"), Some(&pause())).await.unwrap();
    let fired = test_schedules.fire_manually(&now(&key("n"))).await;
    assert_eq!(outcomes(&fired), ["fired"]);
    let ticks = test_schedules.ticks(&key("n")).await;
    assert_eq!(ticks.len(), 1);
    let tick = &ticks[0];
    assert_eq!(
        (tick.tick_at_ms, tick.state, tick.cause),
        (fired[0].tick_at_ms, TickOutcome::Fired, TickCause::Trigger)
    );
    assert_eq!((tick.token, tick.decided_by.as_str(), tick.tick_count), (None, "o'ps", 1));
    assert_eq!((tick.task_id, tick.event_id, tick.first_tick_at_ms), (Some(task_of(&fired[0])), None, None));
    let task = test_schedules.task(task_of(&fired[0])).await;
    assert_eq!((task.state, task.payload.as_str()), (TaskState::Ready, r#"{"n":1}"#));
    assert_eq!(task.leader_token, None);
    assert_eq!(tick_of(task.idempotency_key.as_deref().unwrap()), Some((key("n"), tick.tick_at_ms)));
    let view = test_schedules.view(&key("n")).await;
    assert_eq!((view.tick_state, view.due_at_ms, view.version), (before.tick_state, None, before.version));
    assert_eq!((view.fired_count, view.last_fired_at_ms), (1, Some(tick.decided_at_ms)));
}

/// Each trigger is a separate tick, even within one millisecond.
pub async fn every_trigger_is_a_separate_tick(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(hourly("n", task())).await;
    let mut at = BTreeSet::new();
    for _ in 0..20 {
        let fired = test_schedules.fire_manually(&now(&key("n"))).await;
        assert_eq!(outcomes(&fired), ["fired"]);
        at.insert(fired[0].tick_at_ms);
    }
    assert_eq!((at.len(), test_schedules.ticks(&key("n")).await.len()), (20, 20));
    assert_eq!((test_schedules.tasks().await, test_schedules.view(&key("n")).await.fired_count), (20, 20));
}

/// A manual fire can replace the payload of the schedule.
pub async fn a_manual_fire_can_have_its_own_payload(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(over("n", task())).await;
    let payload = Some(json("[1,2]"));
    let triggered =
        test_schedules.fire_manually(&ManualFire { payload: payload.clone(), ..now(&key("n")) }).await;
    let past = test_schedules.fire_manually(&ManualFire { payload, ..then(&key("n"), &[PAST_MS]) }).await;
    for fired in [triggered, past] {
        assert_eq!(test_schedules.task(task_of(&fired[0])).await.payload.as_str(), "[1,2]");
    }
}

/// Each past tick of the timetable that was not decided fires once.
pub async fn past_ticks_can_be_fired_manually(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(over("n", task())).await;
    let hour = |n: i64| PAST_MS + n * HOUR_MS;
    let fired = test_schedules.fire_manually(&then(&key("n"), &[hour(3), hour(5)])).await;
    assert_eq!(outcomes(&fired), ["fired", "fired"]);
    let target = [hour(2), hour(3), hour(3) + 1, hour(4), hour(4), hour(24), hour(-1)];
    let fired = test_schedules.fire_manually(&then(&key("n"), &target)).await;
    let expected = ["fired", "already", "no tick", "fired", "already", "no tick", "no tick"];
    assert_eq!(outcomes(&fired), expected);
    assert_eq!(fired.iter().map(|it| it.tick_at_ms).collect::<Vec<_>>(), target);
    let ticks = test_schedules.ticks(&key("n")).await;
    let at: Vec<i64> = ticks.iter().map(|tick| tick.tick_at_ms).collect();
    assert_eq!(at, [hour(5), hour(4), hour(3), hour(2)]);
    for tick in &ticks {
        assert_eq!((tick.state, tick.cause, tick.token), (TickOutcome::Fired, TickCause::Backfill, None));
        assert_eq!(
            (tick.decided_by.as_str(), tick.lateness_ms),
            ("o'ps", tick.decided_at_ms - tick.tick_at_ms)
        );
        let task = test_schedules.task(tick.task_id.unwrap()).await;
        assert_eq!(tick_of(task.idempotency_key.as_deref().unwrap()), Some((key("n"), tick.tick_at_ms)));
    }
    assert_eq!((test_schedules.view(&key("n")).await.fired_count, test_schedules.tasks().await), (4, 4));
    assert_eq!(test_schedules.view(&key("n")).await.tick_state, None);
}

/// A backfill does not fire future ticks, because the scheduler will fire them.
pub async fn future_ticks_do_not_fire_manually(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(hourly("n", task())).await;
    let fired =
        test_schedules.fire_manually(&then(&key("n"), &[FAR_MS - HOUR_MS, FAR_MS, FAR_MS + HOUR_MS])).await;
    assert_eq!(outcomes(&fired), ["no tick", "ahead", "ahead"]);
    assert_eq!((test_schedules.ticks(&key("n")).await, test_schedules.tasks().await), (vec![], 0));
}

/// A dry run returns the outcomes and changes nothing.
pub async fn a_dry_run_changes_nothing(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(over("n", task())).await;
    test_schedules.fire_manually(&then(&key("n"), &[PAST_MS])).await;
    let before = test_schedules.view(&key("n")).await;
    let request = ManualFire { dry_run: true, ..then(&key("n"), &[PAST_MS, PAST_MS + HOUR_MS, PAST_MS + 1]) };
    for _ in 0..2 {
        let fired = test_schedules.fire_manually(&request).await;
        assert_eq!(outcomes(&fired), ["already", "fired", "no tick"]);
        assert_eq!(fired[1].outcome, ManualFireOutcome::Fired { event_id: None, task_id: None });
    }
    assert_eq!(
        outcomes(&test_schedules.fire_manually(&ManualFire { dry_run: true, ..now(&key("n")) }).await),
        ["fired"]
    );
    assert_eq!(test_schedules.view(&key("n")).await, before);
    assert_eq!((test_schedules.ticks(&key("n")).await.len(), test_schedules.tasks().await), (1, 1));
}

/// Concurrent backfills of the same ticks fire each tick once.
pub async fn of_concurrent_backfills_each_tick_fires_once(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(over("n", task())).await;
    let ticks: Vec<i64> = (0..24).map(|n| PAST_MS + n * HOUR_MS).collect();
    let mut people = Vec::new();
    for _ in 0..6 {
        let (test_schedules, request) = (test_schedules.reopen(subject).await, then(&key("n"), &ticks));
        people.push(tokio::spawn(async move { test_schedules.fire_manually(&request).await }));
    }
    let mut fired: Vec<TaskId> = Vec::new();
    for person in people {
        let message = person.await.unwrap();
        assert_eq!(message.len(), 24);
        fired.extend(message.iter().filter_map(|it| match it.outcome {
            ManualFireOutcome::Fired { task_id: task, .. } => task,
            ManualFireOutcome::AlreadyFired => None,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!((fired.len(), fired.iter().collect::<BTreeSet<_>>().len()), (24, 24));
    assert_eq!((test_schedules.tasks().await, test_schedules.view(&key("n")).await.fired_count), (24, 24));
}

/// Concurrent triggers are separate ticks.
pub async fn concurrent_triggers_all_fire(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    test_schedules.make(hourly("n", task())).await;
    let mut people = Vec::new();
    for _ in 0..8 {
        let test_schedules = test_schedules.reopen(subject).await;
        people.push(tokio::spawn(async move { test_schedules.fire_manually(&now(&key("n"))).await }));
    }
    for person in people {
        assert_eq!(outcomes(&person.await.unwrap()), ["fired"]);
    }
    assert_eq!((test_schedules.ticks(&key("n")).await.len(), test_schedules.tasks().await), (8, 8));
}

/// The published event has the schedule and the tick.
pub async fn a_published_event_names_its_tick(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let mut definition = over("n", event("t"));
    definition.payload = json(r#"{"n":1}"#);
    test_schedules.make(definition).await;
    let fired = test_schedules.fire_manually(&then(&key("n"), &[PAST_MS + HOUR_MS])).await;
    let ManualFireOutcome::Fired { event_id: Some(id), task_id: None } = fired[0].outcome else {
        panic!("{fired:?}")
    };
    let topic = TopicKey::new(key("n").namespace, "t".parse().unwrap());
    let event = test_schedules.store.event(&topic, id).await.unwrap().expect("the event is published");
    assert_eq!((event.key.as_deref(), event.event_type.as_str()), (Some("n"), "n"));
    assert_eq!(event.payload, Payload::Json(json(r#"{"n":1}"#)));
    assert_eq!(event.headers[SCHEDULE_HEADER], "n");
    assert_eq!(event.headers[TICK_HEADER], "2020-01-01T01:00:00Z");
    assert_eq!((event.leader_token, test_schedules.ticks(&key("n")).await[0].event_id), (None, Some(id)));
}

/// The tick submits a task to the webhook queue, from which the servers claim it.
pub async fn a_webhook_call_waits_for_a_server(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    let url = "https://example.invalid/hook";
    let mut definition = over("n", ScheduleTarget::Webhook { url: url.into() });
    definition.payload = json("7");
    test_schedules.make(definition).await;
    let id = task_of(&test_schedules.fire_manually(&then(&key("n"), &[PAST_MS])).await[0]);
    let task = test_schedules.task_of(&webhook_queue().namespace, id).await;
    assert_eq!((task.queue, task.kind.as_str()), (webhook_queue().name, "webhook"));
    let call: WebhookCall = task.payload.parse().unwrap();
    let expected = WebhookCall {
        key: key("n"),
        tick_at_ms: PAST_MS,
        cause: TickCause::Backfill,
        token: None,
        url: url.into(),
        payload: json("7"),
    };
    assert_eq!(call, expected);
}

/// If the target rejects one tick of a call, no tick of that call fires.
pub async fn a_tick_that_its_target_rejects_does_not_fire(subject: &StoreUnderTest) {
    let test_schedules = TestSchedules::of(subject).await;
    assert_eq!(test_schedules.store.fire_manually(&now(&key("n"))).await, Ok(None));
    let topic = test_schedules.make_topic("bells").await;
    test_schedules.set(&setting(over("n", event("bells")))).await;
    assert_eq!(test_schedules.store.delete_topic(&topic).await, Ok(true));
    for request in [now(&key("n")), then(&key("n"), &[PAST_MS, PAST_MS + HOUR_MS])] {
        let message = refused(test_schedules.store.fire_manually(&request).await);
        assert!(message.contains("tenure events topics create bells"), "{message}");
    }
    assert_eq!(
        (test_schedules.ticks(&key("n")).await, test_schedules.view(&key("n")).await.fired_count),
        (vec![], 0)
    );
    test_schedules.make_topic("bells").await;
    assert_eq!(outcomes(&test_schedules.fire_manually(&then(&key("n"), &[PAST_MS])).await), ["fired"]);
}
