//! Firing: under the lease, on unchanged schedules, as a whole and once.

use std::collections::BTreeSet;

use tenure_core::Token;
use tenure_core::port::{
    DUE_MAX, FireOutcome, FireRequest, NewTask, Notification, Precondition, ScheduleFiring, ScheduleView,
    SetScheduleOutcome, SetScheduleRequest, Submission, TaskId, TickCause, TickEffect, TickOutcome, TopicKey,
    TopicSettings, scheduler_election,
};
use tenure_core::rules::schedule::{
    MisfirePolicy, SCHEDULE_HEADER, ScheduleTickState, TICK_HEADER, postpone, tick_of,
};

use super::test_queue::{TestQueue, listening, notifications_until, pause, queue};
use super::test_schedules::{
    FAR_MS, HOUR_MS, TestScheduler, TestSchedules, event, far, hourly, json, key, observed, refused, setting,
    task, times,
};
use super::{StoreUnderTest, TestSession};

/// The store rejects a firing under an old token or of another session.
pub async fn a_session_that_does_not_lead_fires_nothing(subject: &StoreUnderTest) {
    let (test_schedules, first) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", task())).await;
    let right = first.firing(vec![first.plan(&view, FAR_MS)]);
    let second = first.after(subject).await;
    let stranger = subject.session("stranger").await;
    let wrong = [
        right.clone(),
        FireRequest { token: second.token, ..right.clone() },
        FireRequest { session: second.session.id.clone(), ..right.clone() },
        FireRequest {
            session: second.session.id.clone(),
            token: Token::from_u64(second.token.as_u64() + 1),
            ..right.clone()
        },
        FireRequest { session: stranger.id.clone(), token: second.token, ..right.clone() },
        FireRequest { firings: vec![], ..right.clone() },
    ];
    for fire in &wrong {
        assert_eq!(second.session.store.fire(fire).await, Ok(None), "{fire:?}");
        let pruned = test_schedules.store.prune_ticks(&fire.session, fire.token, 10).await;
        assert_eq!(pruned, Ok((0, false)));
    }
    assert_eq!(
        (test_schedules.view(&key("n")).await, test_schedules.ticks(&key("n")).await),
        (view.clone(), vec![])
    );
    assert_eq!(test_schedules.tasks().await, 0);
    let again = second.firing(vec![second.plan(&view, FAR_MS)]);
    second.session.release(&scheduler_election(), 0, second.token).await;
    assert_eq!(second.session.store.fire(&again).await, Ok(None), "there is no leader");
    assert_eq!(test_schedules.tasks().await, 0);
}

/// A session that has ended does not lead and fires nothing.
pub async fn an_ended_session_fires_nothing(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", task())).await;
    let fire = scheduler.firing(vec![scheduler.plan(&view, FAR_MS)]);
    scheduler.session.store.end_session(&scheduler.session.id).await.unwrap();
    assert_eq!(test_schedules.store.fire(&fire).await, Ok(None));
    assert_eq!((test_schedules.view(&key("n")).await, test_schedules.tasks().await), (view, 0));
}

/// A firing stores the tick, the task, the tick state and the counters, with the token of the leader.
pub async fn a_firing_is_applied_completely(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let mut definition = hourly("n", task());
    (definition.payload, definition.jitter_ms) = (json(r#"{"n":1}"#), 600_000);
    let view = test_schedules.make(definition).await;
    let due_ms = view.due_at_ms.unwrap();
    let firing = scheduler.plan(&view, due_ms);
    let next_due_ms = firing.due_at_ms.unwrap();
    scheduler.fire_one(firing).await;
    let ticks = test_schedules.ticks(&key("n")).await;
    assert_eq!(ticks.len(), 1);
    let tick = &ticks[0];
    assert_eq!((tick.tick_at_ms, tick.state, tick.cause), (FAR_MS, TickOutcome::Fired, TickCause::Schedule));
    assert_eq!((tick.tick_count, tick.first_tick_at_ms, tick.token), (1, None, Some(scheduler.token)));
    assert_eq!((tick.lateness_ms, tick.event_id), (tick.decided_at_ms - due_ms, None));
    assert!(!tick.decided_by.is_empty(), "the name of the leader");
    let task = test_schedules.task(tick.task_id.expect("a task")).await;
    assert_eq!((task.leader_token, task.payload.as_str()), (Some(scheduler.token), r#"{"n":1}"#));
    assert_eq!(tick_of(task.idempotency_key.as_deref().unwrap()), Some((key("n"), FAR_MS)));
    let after = test_schedules.view(&key("n")).await;
    let progress = ScheduleTickState { next_tick_at_ms: FAR_MS + HOUR_MS, last_tick_at_ms: Some(FAR_MS) };
    assert_eq!((after.tick_state, after.due_at_ms), (Some(progress), Some(next_due_ms)));
    assert_eq!((after.fired_count, after.skipped_count, after.overlapped_count), (1, 0, 0));
    assert_eq!((after.last_fired_at_ms, after.version), (Some(tick.decided_at_ms), view.version));
    assert_eq!((after.updated_at_ms, after.last_error), (view.updated_at_ms, None));
    // The worker reads the tick from the idempotency key of its task.
    let claimed = TestQueue { store: test_schedules.store.clone(), key: queue("q") }.claim_one().await;
    assert_eq!(
        (claimed.idempotency_key, claimed.leader_token),
        (task.idempotency_key, Some(scheduler.token))
    );
}

/// The event has the schedule, the tick and the leader's token.
pub async fn an_event_is_published_with_its_tick(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", event("t"))).await;
    scheduler.run(&view, FAR_MS + 2 * HOUR_MS).await;
    let ticks = test_schedules.ticks(&key("n")).await;
    assert_eq!((ticks.len(), test_schedules.events().await), (3, 3));
    let topic = TopicKey::new(key("n").namespace, "t".parse().unwrap());
    let mut before = None;
    for (tick, at) in ticks.iter().rev().zip(["00", "01", "02"]) {
        let event = test_schedules
            .store
            .event(&topic, tick.event_id.unwrap())
            .await
            .unwrap()
            .expect("the event is published");
        assert_eq!(event.headers[TICK_HEADER], format!("2100-01-01T{at}:00:00Z"));
        assert_eq!(
            (event.headers[SCHEDULE_HEADER].as_str(), event.leader_token),
            ("n", Some(scheduler.token))
        );
        assert!(before < Some(event.id), "in order");
        before = Some(event.id);
    }
}

/// A firing that the same leader or its successor repeats is applied once.
pub async fn a_repeated_firing_is_applied_once(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", task())).await;
    let firing = scheduler.plan(&view, FAR_MS);
    scheduler.fire_one(firing.clone()).await;
    let after = test_schedules.view(&key("n")).await;
    assert_eq!(scheduler.fire(vec![firing.clone()]).await, [FireOutcome::Stale]);
    let other = scheduler.after(subject).await;
    assert_eq!(other.fire(vec![firing]).await, [FireOutcome::Stale]);
    assert_eq!((test_schedules.view(&key("n")).await, test_schedules.tasks().await), (after, 1));
}

/// If a response is lost and the call is repeated through another connection, one of the two calls is applied.
pub async fn of_concurrent_firings_one_is_applied(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let mut views = Vec::new();
    for n in 0..5 {
        let target = if n % 2 == 0 { task() } else { event("t") };
        views.push(test_schedules.make(hourly(&format!("n{n}"), target)).await);
    }
    let fire = scheduler.firing(views.iter().map(|view| scheduler.plan(view, FAR_MS + HOUR_MS)).collect());
    let mut clients = Vec::new();
    for _ in 0..6 {
        let (client, fire) = (subject.client().await, fire.clone());
        clients.push(tokio::spawn(async move { client.fire(&fire).await.expect("fire").expect("it leads") }));
    }
    let mut counted = 0;
    for client in clients {
        let fired = client.await.unwrap();
        assert!(fired.iter().all(|it| matches!(it, FireOutcome::Fired | FireOutcome::Stale)), "{fired:?}");
        counted += fired.iter().filter(|it| **it == FireOutcome::Fired).count();
    }
    assert_eq!(counted, 5, "each once");
    assert_eq!((test_schedules.tasks().await, test_schedules.events().await), (6, 4));
    for view in views {
        assert_eq!(
            (
                test_schedules.view(&view.key()).await.fired_count,
                test_schedules.ticks(&view.key()).await.len()
            ),
            (2, 2)
        );
    }
}

/// A firing is stale if the schedule has another version or next tick, or is paused or deleted. It changes nothing and
/// does not affect the other firings.
pub async fn a_changed_schedule_does_not_fire(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let mut views = Vec::new();
    for name in ["changed", "paused", "deleted", "further", "fine"] {
        views.push(test_schedules.make(hourly(name, task())).await);
    }
    let firings: Vec<ScheduleFiring> = views.iter().map(|view| scheduler.plan(view, FAR_MS)).collect();
    assert_eq!(
        test_schedules.set(&setting(hourly("changed", event("t")))).await,
        SetScheduleOutcome::Updated(2)
    );
    test_schedules.store.set_schedule_paused(&key("paused"), Some(&pause())).await.unwrap();
    test_schedules.store.delete_schedule(&key("deleted"), None).await.unwrap();
    scheduler.fire_one(ScheduleFiring { ticks: vec![], ..scheduler.plan(&views[3], FAR_MS) }).await;
    let before = join_state(&test_schedules, &views).await;
    let fired = scheduler.fire(firings.clone()).await;
    assert_eq!(
        fired,
        [FireOutcome::Stale, FireOutcome::Stale, FireOutcome::Stale, FireOutcome::Stale, FireOutcome::Fired]
    );
    let after = join_state(&test_schedules, &views).await;
    assert_eq!(after[..4], before[..4]);
    assert_ne!(after[4], before[4]);
    assert_eq!((test_schedules.tasks().await, test_schedules.events().await), (1, 0));
    // After it is resumed, the schedule is unchanged, so the firing is applied.
    test_schedules.store.set_schedule_paused(&key("paused"), None).await.unwrap();
    assert_eq!(scheduler.fire(vec![firings[1].clone()]).await, [FireOutcome::Fired]);
    let wrong = ScheduleFiring { next_tick_at_ms: FAR_MS + 1, ..firings[0].clone() };
    assert_eq!(scheduler.fire(vec![ScheduleFiring { version: 2, ..wrong }]).await, [FireOutcome::Stale]);
}

async fn join_state(test_schedules: &TestSchedules, views: &[ScheduleView]) -> Vec<Option<ScheduleView>> {
    let mut join_state = Vec::new();
    for view in views {
        join_state.push(test_schedules.find(&view.key()).await);
    }
    join_state
}

/// A firing whose topic is missing or rejects the size changes nothing and does not affect the other firings.
pub async fn an_invalid_firing_is_rejected_alone(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let (ended, small) = (test_schedules.make_topic("gone").await, test_schedules.make_topic("small").await);
    let mut long = hourly("long", event("small"));
    long.payload = json(&format!("\"{}\"", "x".repeat(2_000)));
    let definitions = [hourly("a", task()), hourly("lost", event("gone")), long, hourly("z", event("t"))];
    let mut views = Vec::new();
    for definition in definitions {
        views.push(test_schedules.make(definition).await);
    }
    test_schedules.store.delete_topic(&ended).await.unwrap();
    let settings = TopicSettings { partitions: 2, max_payload_bytes: 1_024, ..TopicSettings::default() };
    test_schedules.store.set_topic(&small, &settings).await.unwrap();
    let before = join_state(&test_schedules, &views).await;
    let fired =
        scheduler.fire(views.iter().map(|view| scheduler.plan(view, FAR_MS + HOUR_MS)).collect()).await;
    let [FireOutcome::Fired, FireOutcome::Rejected(lost), FireOutcome::Rejected(long), FireOutcome::Fired] =
        &fired[..]
    else {
        panic!("{fired:?}")
    };
    assert!(lost.contains("tenure events topics create gone"), "{lost}");
    assert!(long.contains("max_payload_bytes"), "{long}");
    assert_eq!(join_state(&test_schedules, &views).await[1..3], before[1..3]);
    assert_eq!((test_schedules.tasks().await, test_schedules.events().await), (2, 2));
    for name in ["lost", "long"] {
        assert_eq!(test_schedules.ticks(&key(name)).await, []);
    }
}

/// A failed firing is retried from the same tick with growing delays until it succeeds, which clears the error.
pub async fn a_failed_firing_is_retried(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let topic = test_schedules.make_topic("bells").await;
    let view = test_schedules.make(hourly("n", event("bells"))).await;
    test_schedules.store.delete_topic(&topic).await.unwrap();
    for strikes in 0..3 {
        let due = tenure_core::port::DueSchedule { consecutive_failures: strikes, ..observed(&view) };
        scheduler
            .fire_one(ScheduleFiring {
                due_at_ms: Some(i64::from(strikes) + 1),
                ..postpone(&due, "no bells", 5)
            })
            .await;
        let after = test_schedules.view(&key("n")).await;
        assert_eq!(after.last_error.as_deref(), Some("no bells"));
        assert_eq!((after.tick_state, after.due_at_ms), (view.tick_state, Some(i64::from(strikes) + 1)));
        assert_eq!((after.fired_count, after.skipped_count, after.version), (0, 0, view.version));
        let look = test_schedules.due(10).await;
        assert_eq!((look.schedules.len(), look.schedules[0].consecutive_failures), (1, strikes + 1));
    }
    assert_eq!(test_schedules.store.schedule_stats().await.unwrap()[0].failing_count, 1);
    assert_eq!(test_schedules.ticks(&key("n")).await, []);
    test_schedules.make_topic("bells").await;
    scheduler.run_and_stay_due(&view, FAR_MS).await;
    let after = test_schedules.view(&key("n")).await;
    assert_eq!((after.last_error, after.fired_count), (None, 1));
    assert_eq!(test_schedules.due(10).await.schedules[0].consecutive_failures, 0);
    // A stale firing does not record an error.
    assert_eq!(scheduler.fire(vec![postpone(&observed(&view), "late", 5)]).await, [FireOutcome::Stale]);
    assert_eq!(test_schedules.view(&key("n")).await.last_error, None);
}

/// A firing for a deleted schedule does not apply to a new schedule with the same name.
pub async fn a_decision_about_a_deleted_schedule_is_stale(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let observed = test_schedules.make(hourly("n", task())).await;
    test_schedules.store.delete_schedule(&key("n"), None).await.unwrap();
    let mut other = hourly("n", event("t"));
    other.payload = json("2");
    let view = test_schedules.make(other.clone()).await;
    assert!(view.version > observed.version, "{} after {}", view.version, observed.version);
    assert_eq!(view.tick_state, observed.tick_state);
    assert_eq!(scheduler.fire(vec![scheduler.plan(&observed, FAR_MS)]).await, [FireOutcome::Stale]);
    assert_eq!(
        (test_schedules.tasks().await, test_schedules.view(&key("n")).await.tick_state),
        (0, view.tick_state)
    );
    let edit = SetScheduleRequest {
        precondition: Precondition::Version(observed.version),
        ..setting(hourly("n", task()))
    };
    assert_eq!(test_schedules.set(&edit).await, SetScheduleOutcome::Conflict(Some(view.version)));
    assert_eq!(
        test_schedules.store.delete_schedule(&key("n"), Some(observed.version)).await,
        Ok(Some(false))
    );
    scheduler.run(&view, FAR_MS).await;
    assert_eq!(test_schedules.events().await, 1);
}

/// Clients cannot submit a task with the idempotency key of a tick, because it would replace the tick's own task.
pub async fn the_key_of_a_tick_is_reserved_for_the_scheduler(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", task())).await;
    let firing = scheduler.plan(&view, FAR_MS);
    let Some(TickEffect::Task { queue, task }) = firing.ticks[0].effect.clone() else { panic!("{firing:?}") };
    let forged = NewTask { payload: json("\"forged\""), leader_token: None, ..*task };
    let message = refused(test_schedules.store.submit(&Submission { queue, tasks: vec![forged] }).await);
    assert!(message.contains("default/n@2100-01-01T00:00:00Z"), "{message}");
    scheduler.fire_one(firing).await;
    let task = test_schedules.task(test_schedules.ticks(&key("n")).await[0].task_id.unwrap()).await;
    assert_eq!((task.payload.as_str(), task.leader_token), ("{}", Some(scheduler.token)));
}

/// A new definition or a resume may have removed the cause of the error, so the schedule is due at once.
pub async fn a_new_definition_clears_the_error(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", event("t"))).await;
    scheduler.fire_one(postpone(&observed(&view), "no bells", FAR_MS + HOUR_MS)).await;
    assert!(test_schedules.view(&key("n")).await.due_at_ms > Some(FAR_MS + HOUR_MS));
    assert_eq!(test_schedules.set(&setting(hourly("n", task()))).await, SetScheduleOutcome::Updated(2));
    let view = test_schedules.view(&key("n")).await;
    assert_eq!((&view.last_error, view.due_at_ms), (&None, Some(FAR_MS)));
    scheduler.fire_one(postpone(&observed(&view), "no bells", FAR_MS + HOUR_MS)).await;
    test_schedules.store.set_schedule_paused(&key("n"), Some(&pause())).await.unwrap();
    test_schedules.store.set_schedule_paused(&key("n"), None).await.unwrap();
    assert_eq!(test_schedules.view(&key("n")).await.due_at_ms, Some(FAR_MS));
}

/// The newest ticks fire, as many as the policy allows; the earlier ones are recorded as one skipped range.
pub async fn missed_ticks_follow_the_misfire_policy(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let late = FAR_MS + 9 * HOUR_MS + 120_000;
    for (name, misfire, fires) in [
        ("skip", MisfirePolicy::Skip, 0),
        ("once", MisfirePolicy::FireOnce, 1),
        ("some", MisfirePolicy::FireAll { cap: 3 }, 3),
        ("all", MisfirePolicy::FireAll { cap: 10_000 }, 10),
        ("within", MisfirePolicy::Within { grace_ms: 2 * 3_600_000 }, 2),
    ] {
        let mut definition = hourly(name, task());
        definition.misfire_policy = misfire;
        let view = test_schedules.make(definition).await;
        scheduler.run(&view, late).await;
        let after = test_schedules.view(&key(name)).await;
        assert_eq!((after.fired_count, after.skipped_count), (fires, 10 - fires), "{name}");
        assert_eq!(after.tick_state.unwrap().next_tick_at_ms, FAR_MS + 10 * HOUR_MS, "{name}");
        let ticks = test_schedules.ticks(&key(name)).await;
        let (fired, skipped) = ticks.split_at(usize::try_from(fires).unwrap());
        let newest: Vec<i64> = (0..10).rev().take(fired.len()).map(|n| FAR_MS + n * HOUR_MS).collect();
        assert_eq!(fired.iter().map(|tick| tick.tick_at_ms).collect::<Vec<_>>(), newest, "{name}");
        assert!(fired.iter().all(|tick| tick.state == TickOutcome::Fired && tick.task_id.is_some()));
        if fires < 10 {
            let range = &skipped[0];
            assert_eq!((skipped.len(), range.state, range.tick_count), (1, TickOutcome::Skipped, 10 - fires));
            let last = FAR_MS + (9 - fires.cast_signed()) * HOUR_MS;
            assert_eq!((range.first_tick_at_ms, range.tick_at_ms), (Some(FAR_MS), last), "{name}");
            assert_eq!((range.cause, range.task_id), (TickCause::Schedule, None));
        } else {
            assert_eq!(skipped, []);
        }
    }
}

/// Centuries of missed ticks are stored as one range.
pub async fn millions_of_missed_ticks_are_one_range(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let mut definition = far("n", "every 1s", task());
    definition.misfire_policy = MisfirePolicy::FireOnce;
    let view = test_schedules.make(definition).await;
    let seconds = 100 * 365 * 86_400_u64;
    scheduler.run(&view, FAR_MS + seconds.cast_signed() * 1_000).await;
    let after = test_schedules.view(&key("n")).await;
    assert_eq!((after.fired_count, after.skipped_count), (1, seconds));
    assert_eq!(test_schedules.ticks(&key("n")).await[1].tick_count, seconds);
}

/// A decided tick does not fire again, even if the stored next tick moved back, as after a clock step and a new
/// definition.
pub async fn a_decided_tick_never_fires_again(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    for (name, target) in [("n", task()), ("m", event("t"))] {
        let view = test_schedules.make(hourly(name, target)).await;
        let back = ScheduleFiring {
            tick_state: view.tick_state,
            due_at_ms: view.due_at_ms,
            ..scheduler.plan(&view, FAR_MS)
        };
        scheduler.fire_one(back).await;
        let view = test_schedules.view(&key(name)).await;
        assert_eq!((view.tick_state.unwrap().next_tick_at_ms, view.fired_count), (FAR_MS, 1), "{name}");
        // The leader fires the decided tick again, together with one new tick.
        scheduler.run(&view, FAR_MS + HOUR_MS).await;
        let ticks = test_schedules.ticks(&key(name)).await;
        let at: Vec<i64> = ticks.iter().map(|tick| tick.tick_at_ms).collect();
        assert_eq!(at, [FAR_MS + HOUR_MS, FAR_MS], "{name}");
        let after = test_schedules.view(&key(name)).await;
        let progress = ScheduleTickState {
            next_tick_at_ms: FAR_MS + 2 * HOUR_MS,
            last_tick_at_ms: Some(FAR_MS + HOUR_MS),
        };
        assert_eq!((after.fired_count, after.tick_state), (2, Some(progress)), "{name}");
    }
    assert_eq!((test_schedules.tasks().await, test_schedules.events().await), (2, 2));
}

/// After its last tick a schedule is never due again.
pub async fn a_schedule_ends_after_its_last_tick(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let mut definition = hourly("n", task());
    definition.end_at_ms = Some(FAR_MS + 2 * HOUR_MS);
    let view = test_schedules.make(definition).await;
    scheduler.run(&view, FAR_MS + 5 * HOUR_MS).await;
    let after = test_schedules.view(&key("n")).await;
    assert_eq!((after.fired_count, after.tick_state, after.due_at_ms), (2, None, None));
    assert_eq!(scheduler.fire(vec![scheduler.plan(&view, FAR_MS)]).await, [FireOutcome::Stale]);
}

/// One call fires schedules of several topics and queues; results, ticks, events and tasks are in order.
pub async fn many_fire_in_one_call(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    test_schedules.make_topic("u").await;
    let mut views = Vec::new();
    for n in 0..60 {
        let target = match n % 4 {
            0 => task(),
            1 => event("t"),
            2 => event("u"),
            _ => tenure_core::rules::schedule::ScheduleTarget::Task {
                queue: "r".parse().unwrap(),
                task: Box::default(),
            },
        };
        let mut definition = hourly(&format!("n{n}"), target);
        definition.payload = json(&n.to_string());
        views.push(test_schedules.make(definition).await);
    }
    let mut firings: Vec<ScheduleFiring> =
        views.iter().map(|view| scheduler.plan(view, FAR_MS + HOUR_MS)).collect();
    firings[17].version = 9;
    let fired = scheduler.fire(firings).await;
    let mut tasks: BTreeSet<TaskId> = BTreeSet::new();
    for (n, (view, fired)) in views.iter().zip(fired).enumerate() {
        if n == 17 {
            assert_eq!(fired, FireOutcome::Stale);
            continue;
        }
        assert_eq!(fired, FireOutcome::Fired, "{n}");
        for (tick, at_ms) in test_schedules.ticks(&view.key()).await.iter().zip([FAR_MS + HOUR_MS, FAR_MS]) {
            assert_eq!(tick.tick_at_ms, at_ms, "{n}");
            match (tick.event_id, tick.task_id) {
                (Some(id), None) => {
                    let topic = if n % 4 == 1 { "t" } else { "u" };
                    let topic = TopicKey::new(view.namespace.clone(), topic.parse().unwrap());
                    let event = test_schedules.store.event(&topic, id).await.unwrap().expect("it exists");
                    assert_eq!(event.headers[SCHEDULE_HEADER], format!("n{n}"));
                }
                (None, Some(id)) => {
                    let task = test_schedules.task(id).await;
                    assert_eq!(tick_of(task.idempotency_key.as_deref().unwrap()), Some((view.key(), at_ms)));
                    assert_eq!(task.payload.as_str(), n.to_string());
                    assert!(tasks.insert(id), "each its own");
                }
                other => panic!("{n}: {other:?}"),
            }
        }
    }
    assert_eq!((test_schedules.tasks().await, test_schedules.events().await), (60, 28));
}

/// A call with a duplicate schedule, unordered ticks or more firings than the maximum is rejected.
pub async fn invalid_firings_are_rejected(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", task())).await;
    let firing = scheduler.plan(&view, FAR_MS + HOUR_MS);
    let message =
        refused(test_schedules.store.fire(&scheduler.firing(vec![firing.clone(), firing.clone()])).await);
    assert!(message.contains("twice"), "{message}");
    let many =
        (0..=DUE_MAX).map(|n| ScheduleFiring { key: key(&format!("m{n}")), ticks: vec![], ..firing.clone() });
    let message = refused(test_schedules.store.fire(&scheduler.firing(many.collect())).await);
    assert!(message.contains("10000"), "{message}");
    assert_eq!((test_schedules.ticks(&key("n")).await, test_schedules.tasks().await), (vec![], 0));
}

/// A firing notifies the waiters of its queue or topic.
pub async fn a_firing_notifies_waiters(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let waiter: TestSession = subject.session("waiter").await;
    let mut notifications = listening(&waiter).await;
    let topic = TopicKey::new(key("n").namespace, "t".parse().unwrap());
    let queue = queue("q");
    let (a, b) =
        (test_schedules.make(hourly("a", task())).await, test_schedules.make(hourly("b", event("t"))).await);
    waiter.store.register_queue_waiter(&waiter.id, std::slice::from_ref(&queue)).await.unwrap();
    scheduler.run(&a, FAR_MS).await;
    notifications_until(&mut notifications, &Notification::QueueReady(queue)).await;
    waiter.store.register_topic_waiter(&waiter.id, &topic).await.unwrap();
    scheduler.run(&b, FAR_MS).await;
    notifications_until(&mut notifications, &Notification::TopicPublished(topic)).await;
}

/// A tick without effect is counted as overlapped and not as fired, as the leader decided.
pub async fn overlapped_ticks_are_counted_separately(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let mut definition = hourly("n", task());
    definition.expression = times("every 2h");
    let view = test_schedules.make(definition).await;
    let mut firing = scheduler.plan(&view, FAR_MS + 4 * HOUR_MS);
    assert!(matches!(firing.ticks[1].effect, Some(TickEffect::Task { .. })));
    firing.ticks[1].effect = None;
    scheduler.fire_one(firing).await;
    let after = test_schedules.view(&key("n")).await;
    assert_eq!((after.fired_count, after.overlapped_count, after.skipped_count), (2, 1, 0));
    let states: Vec<TickOutcome> =
        test_schedules.ticks(&key("n")).await.iter().map(|tick| tick.state).collect();
    assert_eq!(states, [TickOutcome::Fired, TickOutcome::Overlapped, TickOutcome::Fired]);
    assert_eq!(test_schedules.tasks().await, 2);
}
