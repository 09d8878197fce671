//! Claims about what fires by hand: now, or past ticks after all.

use std::collections::BTreeSet;

use tenure_core::port::{
    Cause, Hand, HandOutcome, Payload, TaskId, TaskState, TickState, TopicKey, calls_queue,
};
use tenure_core::schedule::{Call, SCHEDULE_HEADER, TICK_HEADER, Target, tick_of};

use super::Subject;
use super::floor::pause;
use super::schedules_wall::{
    FAR_MS, HOUR_MS, PAST_MS, Wall, event, hourly, json, key, now, outcomes, over, refused, setting, task,
    task_of, then,
};

/// Of a paused schedule as well; its timetable goes on as before.
pub async fn a_trigger_fires_once_now(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let mut definition = hourly("n", task());
    definition.payload = json(r#"{"n":1}"#);
    let before = wall.make(definition).await;
    wall.store.set_schedule_paused(&key("n"), Some(&pause())).await.unwrap();
    let fired = wall.hand(&now(&key("n"))).await;
    assert_eq!(outcomes(&fired), ["fired"]);
    let ticks = wall.ticks(&key("n")).await;
    assert_eq!(ticks.len(), 1);
    let tick = &ticks[0];
    assert_eq!((tick.at_ms, tick.state, tick.cause), (fired[0].at_ms, TickState::Fired, Cause::Trigger));
    assert_eq!((tick.token, tick.by.as_str(), tick.count), (None, "o'ps", 1));
    assert_eq!((tick.task, tick.event, tick.first_ms), (Some(task_of(&fired[0])), None, None));
    let task = wall.task(task_of(&fired[0])).await;
    assert_eq!((task.state, task.payload.as_str()), (TaskState::Ready, r#"{"n":1}"#));
    assert_eq!(task.leader_token, None);
    assert_eq!(tick_of(task.key.as_deref().unwrap()), Some((key("n"), tick.at_ms)));
    let view = wall.view(&key("n")).await;
    assert_eq!((view.progress, view.due_ms, view.version), (before.progress, None, before.version));
    assert_eq!((view.fired, view.last_fired_ms), (1, Some(tick.decided_ms)));
}

/// However soon after each other.
pub async fn every_trigger_is_another_tick(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(hourly("n", task())).await;
    let mut at = BTreeSet::new();
    for _ in 0..20 {
        let fired = wall.hand(&now(&key("n"))).await;
        assert_eq!(outcomes(&fired), ["fired"]);
        at.insert(fired[0].at_ms);
    }
    assert_eq!((at.len(), wall.ticks(&key("n")).await.len()), (20, 20));
    assert_eq!((wall.tasks().await, wall.view(&key("n")).await.fired), (20, 20));
}

/// Instead of the schedule's own.
pub async fn a_payload_can_be_given(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(over("n", task())).await;
    let payload = Some(json("[1,2]"));
    let by_hand = wall.hand(&Hand { payload: payload.clone(), ..now(&key("n")) }).await;
    let past = wall.hand(&Hand { payload, ..then(&key("n"), &[PAST_MS]) }).await;
    for fired in [by_hand, past] {
        assert_eq!(wall.task(task_of(&fired[0])).await.payload.as_str(), "[1,2]");
    }
}

/// Past ticks of the timetable that nobody decided about: each once.
pub async fn past_ticks_fire_after_all(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(over("n", task())).await;
    let hour = |n: i64| PAST_MS + n * HOUR_MS;
    let fired = wall.hand(&then(&key("n"), &[hour(3), hour(5)])).await;
    assert_eq!(outcomes(&fired), ["fired", "fired"]);
    let wanted = [hour(2), hour(3), hour(3) + 1, hour(4), hour(4), hour(24), hour(-1)];
    let fired = wall.hand(&then(&key("n"), &wanted)).await;
    let expected = ["fired", "already", "no tick", "fired", "already", "no tick", "no tick"];
    assert_eq!(outcomes(&fired), expected);
    assert_eq!(fired.iter().map(|it| it.at_ms).collect::<Vec<_>>(), wanted);
    let ticks = wall.ticks(&key("n")).await;
    let at: Vec<i64> = ticks.iter().map(|tick| tick.at_ms).collect();
    assert_eq!(at, [hour(5), hour(4), hour(3), hour(2)]);
    for tick in &ticks {
        assert_eq!((tick.state, tick.cause, tick.token), (TickState::Fired, Cause::Backfill, None));
        assert_eq!((tick.by.as_str(), tick.late_ms), ("o'ps", tick.decided_ms - tick.at_ms));
        let task = wall.task(tick.task.unwrap()).await;
        assert_eq!(tick_of(task.key.as_deref().unwrap()), Some((key("n"), tick.at_ms)));
    }
    assert_eq!((wall.view(&key("n")).await.fired, wall.tasks().await), (4, 4));
    assert_eq!(wall.view(&key("n")).await.progress, None);
}

/// What is yet to come fires by itself.
pub async fn ticks_to_come_do_not_fire_by_hand(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(hourly("n", task())).await;
    let fired = wall.hand(&then(&key("n"), &[FAR_MS - HOUR_MS, FAR_MS, FAR_MS + HOUR_MS])).await;
    assert_eq!(outcomes(&fired), ["no tick", "ahead", "ahead"]);
    assert_eq!((wall.ticks(&key("n")).await, wall.tasks().await), (vec![], 0));
}

/// It says what would be, and nothing is.
pub async fn a_dry_run_changes_nothing(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(over("n", task())).await;
    wall.hand(&then(&key("n"), &[PAST_MS])).await;
    let before = wall.view(&key("n")).await;
    let wish = Hand { dry_run: true, ..then(&key("n"), &[PAST_MS, PAST_MS + HOUR_MS, PAST_MS + 1]) };
    for _ in 0..2 {
        let fired = wall.hand(&wish).await;
        assert_eq!(outcomes(&fired), ["already", "fired", "no tick"]);
        assert_eq!(fired[1].outcome, HandOutcome::Fired { event: None, task: None });
    }
    assert_eq!(outcomes(&wall.hand(&Hand { dry_run: true, ..now(&key("n")) }).await), ["fired"]);
    assert_eq!(wall.view(&key("n")).await, before);
    assert_eq!((wall.ticks(&key("n")).await.len(), wall.tasks().await), (1, 1));
}

/// Whoever wants them at the same time.
pub async fn of_concurrent_backfills_each_tick_fires_once(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(over("n", task())).await;
    let ticks: Vec<i64> = (0..24).map(|n| PAST_MS + n * HOUR_MS).collect();
    let mut people = Vec::new();
    for _ in 0..6 {
        let (wall, wish) = (wall.again(subject).await, then(&key("n"), &ticks));
        people.push(tokio::spawn(async move { wall.hand(&wish).await }));
    }
    let mut fired: Vec<TaskId> = Vec::new();
    for person in people {
        let said = person.await.unwrap();
        assert_eq!(said.len(), 24);
        fired.extend(said.iter().filter_map(|it| match it.outcome {
            HandOutcome::Fired { task, .. } => task,
            HandOutcome::Already => None,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!((fired.len(), fired.iter().collect::<BTreeSet<_>>().len()), (24, 24));
    assert_eq!((wall.tasks().await, wall.view(&key("n")).await.fired), (24, 24));
}

/// And triggers at the same time are so many ticks.
pub async fn concurrent_triggers_all_fire(subject: &Subject) {
    let wall = Wall::of(subject).await;
    wall.make(hourly("n", task())).await;
    let mut people = Vec::new();
    for _ in 0..8 {
        let wall = wall.again(subject).await;
        people.push(tokio::spawn(async move { wall.hand(&now(&key("n"))).await }));
    }
    for person in people {
        assert_eq!(outcomes(&person.await.unwrap()), ["fired"]);
    }
    assert_eq!((wall.ticks(&key("n")).await.len(), wall.tasks().await), (8, 8));
}

/// The event says of which schedule and tick it is.
pub async fn an_event_names_its_tick(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let mut definition = over("n", event("t"));
    definition.payload = json(r#"{"n":1}"#);
    wall.make(definition).await;
    let fired = wall.hand(&then(&key("n"), &[PAST_MS + HOUR_MS])).await;
    let HandOutcome::Fired { event: Some(id), task: None } = fired[0].outcome else { panic!("{fired:?}") };
    let topic = TopicKey::new(key("n").namespace, "t".parse().unwrap());
    let event = wall.store.event(&topic, id).await.unwrap().expect("it is published");
    assert_eq!((event.key.as_deref(), event.kind.as_str()), (Some("n"), "n"));
    assert_eq!(event.payload, Payload::Json(json(r#"{"n":1}"#)));
    assert_eq!(event.headers[SCHEDULE_HEADER], "n");
    assert_eq!(event.headers[TICK_HEADER], "2020-01-01T01:00:00Z");
    assert_eq!((event.leader_token, wall.ticks(&key("n")).await[0].event), (None, Some(id)));
}

/// A call waits in the queue that servers work off.
pub async fn a_call_waits_for_a_server(subject: &Subject) {
    let wall = Wall::of(subject).await;
    let url = "https://example.invalid/hook";
    let mut definition = over("n", Target::Call { url: url.into() });
    definition.payload = json("7");
    wall.make(definition).await;
    let id = task_of(&wall.hand(&then(&key("n"), &[PAST_MS])).await[0]);
    let task = wall.task_of(&calls_queue().namespace, id).await;
    assert_eq!((task.queue, task.kind.as_str()), (calls_queue().name, "call"));
    let call: Call = task.payload.parse().unwrap();
    let expected = Call {
        key: key("n"),
        tick_ms: PAST_MS,
        cause: Cause::Backfill,
        token: None,
        url: url.into(),
        payload: json("7"),
    };
    assert_eq!(call, expected);
}

/// All that was wanted together, or nothing of it.
pub async fn what_its_target_refuses_does_not_fire(subject: &Subject) {
    let wall = Wall::of(subject).await;
    assert_eq!(wall.store.fire_by_hand(&now(&key("n"))).await, Ok(None));
    let topic = wall.make_topic("bells").await;
    wall.set(&setting(over("n", event("bells")))).await;
    assert_eq!(wall.store.delete_topic(&topic).await, Ok(true));
    for wish in [now(&key("n")), then(&key("n"), &[PAST_MS, PAST_MS + HOUR_MS])] {
        let said = refused(wall.store.fire_by_hand(&wish).await);
        assert!(said.contains("tenure events topics create bells"), "{said}");
    }
    assert_eq!((wall.ticks(&key("n")).await, wall.view(&key("n")).await.fired), (vec![], 0));
    wall.make_topic("bells").await;
    assert_eq!(outcomes(&wall.hand(&then(&key("n"), &[PAST_MS])).await), ["fired"]);
}
