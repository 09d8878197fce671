//! Schedules in SQLite: tests beyond the conformance suite.

use std::sync::Arc;

use tenure::store::sqlite::SqliteStore;
use tenure_core::port::*;
use tenure_core::rules::schedule::{
    MisfirePolicy, OverlapPolicy, ScheduleDefinition, ScheduleExpression, plan, postpone, tick_of,
};
use tenure_core::{Name, Token};
use tenure_testkit::conformance::TestSession;

use super::child::open;
use super::claims::{claim, claim_request, direct, queue};
use super::events::{all_events, topic};

pub(crate) const HOUR_MS: i64 = 3_600_000;

/// Targets: an event for the topic of the tests, and a task for its queue.
pub(crate) const EVENT: &str = r#"{"event":{"topic":"t"}}"#;
pub(crate) const TASK: &str = r#"{"task":{"queue":"q"}}"#;

pub(crate) async fn fresh() -> (SqliteStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("t.db")).await;
    let settings = TopicSettings { partitions: 1, ..TopicSettings::default() };
    assert!(store.set_topic(&topic(), &settings).await.unwrap());
    (store, dir)
}

pub(crate) fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn hourly(name: &str, target: &str) -> ScheduleDefinition {
    let when: ScheduleExpression = "every 1h".parse().unwrap();
    ScheduleDefinition::new(name.parse().unwrap(), when, serde_json::from_str(target).unwrap())
}

pub(crate) fn set_request(definition: &ScheduleDefinition) -> SetScheduleRequest {
    SetScheduleRequest {
        namespace: Name::default_namespace(),
        definition: definition.clone(),
        secret: None,
        precondition: Precondition::Any,
        source: None,
        updated_by: "ada".into(),
    }
}

/// Set a schedule and move its next tick into the past, so that `hours + 1` ticks are due. Returns the first.
pub(crate) async fn overdue(store: &SqliteStore, definition: &ScheduleDefinition, hours: i64) -> i64 {
    store.set_schedule(&set_request(definition)).await.unwrap();
    let back = "UPDATE tenure_schedules SET next_tick_at_ms = next_tick_at_ms - ?2, due_at_ms = due_at_ms - ?2 WHERE name = ?1";
    let back = sqlx::query(back).bind(definition.name.as_str()).bind((hours + 1) * HOUR_MS);
    back.execute(store.pool()).await.unwrap();
    view(store, definition.name.as_str()).await.tick_state.unwrap().next_tick_at_ms
}

pub(crate) async fn view(store: &SqliteStore, name: &str) -> ScheduleView {
    store.schedule(&key(name)).await.unwrap().expect("the schedule")
}

pub(crate) async fn history(store: &SqliteStore, name: &str) -> Vec<TickView> {
    store.ticks(&TickFilter { key: key(name), before_ms: None, limit: 1_000 }).await.unwrap()
}

pub(crate) async fn count(store: &SqliteStore, table: &str) -> i64 {
    let select = format!("SELECT count(*) FROM {table}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(select)).fetch_one(store.pool()).await.unwrap()
}

/// A scheduler with its lease.
pub(crate) struct TestScheduler {
    pub(crate) actor: TestSession,
    pub(crate) token: Token,
}

impl TestScheduler {
    pub(crate) async fn of(store: &SqliteStore) -> TestScheduler {
        let actor = TestSession::open(Arc::new(store.clone()), "leader").await;
        actor.join(&scheduler_election()).await;
        let token = actor.take(&scheduler_election(), 0).await;
        TestScheduler { actor, token }
    }

    /// The fire request for all due schedules.
    pub(crate) async fn plan(&self) -> FireRequest {
        let due_response = self.actor.store.due_schedules(DUE_MAX).await.unwrap();
        let firings = due_response
            .schedules
            .iter()
            .map(|due| plan(due, self.token, due_response.store_now_at_ms))
            .collect();
        FireRequest { session: self.actor.id.clone(), token: self.token, firings }
    }

    /// Fire all due schedules.
    pub(crate) async fn fire(&self) -> Vec<FireOutcome> {
        let fire = self.plan().await;
        self.actor.store.fire(&fire).await.unwrap().expect("the scheduler holds its lease")
    }
}

#[tokio::test]
async fn a_tick_is_traceable_from_the_schedule_to_its_task() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    let at_ms = overdue(&store, &hourly("tidy", TASK), 0).await;
    let due_response = store.due_schedules(10).await.unwrap();
    assert_eq!(
        (due_response.schedules.len(), due_response.has_more, due_response.next_due_at_ms),
        (1, false, None)
    );
    assert_eq!(leader.fire().await, [FireOutcome::Fired]);

    let claimed = claim(&store, &direct("q", claim_request("w", 5))).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].leader_token, Some(leader.token));
    assert_eq!(tick_of(claimed[0].idempotency_key.as_deref().unwrap()), Some((key("tidy"), at_ms)));

    let ticks = history(&store, "tidy").await;
    assert_eq!(ticks.len(), 1);
    let tick = &ticks[0];
    assert_eq!((tick.tick_at_ms, tick.state, tick.cause), (at_ms, TickOutcome::Fired, TickCause::Schedule));
    assert_eq!((tick.token, tick.task_id, tick.event_id), (Some(leader.token), Some(claimed[0].id), None));
    assert_eq!(tick.lateness_ms, tick.decided_at_ms - at_ms);
    let view = view(&store, "tidy").await;
    assert_eq!((view.fired_count, view.last_fired_at_ms), (1, Some(tick.decided_at_ms)));
    let progress = view.tick_state.unwrap();
    assert_eq!((progress.next_tick_at_ms, progress.last_tick_at_ms), (at_ms + HOUR_MS, Some(at_ms)));
    assert_eq!(view.due_at_ms, Some(at_ms + HOUR_MS));
    assert!(store.due_schedules(10).await.unwrap().schedules.is_empty());
}

#[tokio::test]
async fn a_tick_is_traceable_from_the_schedule_to_its_event() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    let at_ms = overdue(&store, &hourly("tell", EVENT), 0).await;
    assert_eq!(leader.fire().await, [FireOutcome::Fired]);
    let events = all_events(&store, 1).await;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].event_type.as_str(), events[0].leader_token), ("tell", Some(leader.token)));
    let tick = &history(&store, "tell").await[0];
    assert_eq!((tick.tick_at_ms, tick.event_id, tick.task_id), (at_ms, Some(events[0].id), None));
}

#[tokio::test]
async fn a_rejected_schedule_does_not_delay_others() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    for (name, target) in [("a", TASK), ("b", r#"{"event":{"topic":"gone"}}"#), ("c", EVENT)] {
        if name == "b" {
            let missing = store.set_schedule(&set_request(&hourly(name, target))).await.unwrap_err();
            assert!(missing.message.contains("tenure events topics create gone"), "{missing}");
            let gone = TopicKey::new(Name::default_namespace(), "gone".parse().unwrap());
            store.set_topic(&gone, &TopicSettings::default()).await.unwrap();
            overdue(&store, &hourly(name, target), 0).await;
            assert!(store.delete_topic(&gone).await.unwrap());
        } else {
            overdue(&store, &hourly(name, target), 0).await;
        }
    }
    let before = view(&store, "b").await;
    let fired = leader.fire().await;
    let FireOutcome::Rejected(why) = &fired[1] else { panic!("{fired:?}") };
    assert!(why.contains("tenure events topics create gone"), "{why}");
    assert_eq!((&fired[0], &fired[2]), (&FireOutcome::Fired, &FireOutcome::Fired));
    assert_eq!(view(&store, "b").await, before);
    assert!(history(&store, "b").await.is_empty());
    assert_eq!((count(&store, "tenure_ticks").await, all_events(&store, 1).await.len()), (2, 1));

    // Postpone it; its next tick stays.
    let due_response = store.due_schedules(10).await.unwrap();
    let later = postpone(&due_response.schedules[0], why, due_response.store_now_at_ms);
    let fire = FireRequest { session: leader.actor.id.clone(), token: leader.token, firings: vec![later] };
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired]));
    let after = view(&store, "b").await;
    assert_eq!((after.tick_state, after.last_error.as_ref()), (before.tick_state, Some(why)));
    assert!(after.due_at_ms > before.due_at_ms);
    let stats = store.schedule_stats().await.unwrap();
    assert_eq!(
        (stats.len(), stats[0].schedule_count, stats[0].failing_count, stats[0].overdue_count),
        (1, 3, 1, 0)
    );
}

#[tokio::test]
async fn skipped_ticks_are_stored_as_one_range() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    let definition =
        ScheduleDefinition { misfire_policy: MisfirePolicy::FireAll { cap: 2 }, ..hourly("late", TASK) };
    let first = overdue(&store, &definition, 4_999).await;
    assert_eq!(leader.fire().await, [FireOutcome::Fired]);
    let ticks = history(&store, "late").await;
    let results: Vec<_> = ticks.iter().map(|tick| (tick.tick_at_ms, tick.state, tick.tick_count)).collect();
    let at = |n: i64| first + n * HOUR_MS;
    let fired = |n| (at(n), TickOutcome::Fired, 1);
    assert_eq!(results, [fired(4_999), fired(4_998), (at(4_997), TickOutcome::Skipped, 4_998)]);
    assert_eq!(ticks[2].first_tick_at_ms, Some(first));
    let view = view(&store, "late").await;
    assert_eq!((view.fired_count, view.skipped_count), (2, 4_998));
    // The next page.
    let page = TickFilter { key: key("late"), before_ms: Some(at(4_998)), limit: 5 };
    assert_eq!(store.ticks(&page).await.unwrap(), ticks[2..]);
}

#[tokio::test]
async fn a_run_is_unfinished_until_its_task_finishes() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    let mut definition = ScheduleDefinition { overlap_policy: OverlapPolicy::Skip, ..hourly("alone", TASK) };
    definition.expression = "every 1ms".parse().unwrap();
    store.set_schedule(&set_request(&definition)).await.unwrap();
    for (finished, running) in [(0, 0), (0, 1), (0, 1), (1, 0), (0, 1)] {
        for task in claim(&store, &direct("q", claim_request("w", finished))).await {
            let (namespace, outcome) = (Name::default_namespace(), ClaimOutcome::Complete(None));
            let done = Settlement { namespace, task: task.id, token: task.token, outcome };
            assert_eq!(store.settle(&[done]).await.unwrap(), [SettleResult::Applied(TaskState::Completed)]);
        }
        let due = loop {
            if let Some(due) = store.due_schedules(1).await.unwrap().schedules.pop() {
                break due;
            }
        };
        assert_eq!(due.unfinished_runs.running, running);
        assert_eq!(leader.fire().await, [FireOutcome::Fired]);
    }
    let view = view(&store, "alone").await;
    assert_eq!((view.fired_count, view.overlapped_count), (2, 3));
    // Finished runs are not tracked any more.
    assert_eq!(count(&store, "tenure_ticks WHERE run_tracked = 1").await, 1);
}

#[tokio::test]
async fn a_decided_tick_never_fires_again() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    overdue(&store, &hourly("tell", EVENT), 0).await;
    assert_eq!(leader.fire().await, [FireOutcome::Fired]);
    // Set the next tick back, as if the clock was set back before the schedule was defined again.
    let back = "UPDATE tenure_schedules SET next_tick_at_ms = next_tick_at_ms - 3600000, due_at_ms = due_at_ms - 3600000";
    sqlx::query(back).execute(store.pool()).await.unwrap();
    assert_eq!(leader.fire().await, [FireOutcome::Fired]);
    assert_eq!((all_events(&store, 1).await.len(), view(&store, "tell").await.fired_count), (1, 1));
    assert!(view(&store, "tell").await.due_at_ms > Some(tenure::runtime::wall_ms()));
    // Set the next tick back, as if new time zone rules moved it to a tick that was fired manually.
    let moved = "UPDATE tenure_schedules SET next_tick_at_ms = last_tick_at_ms + 1000, due_at_ms = last_tick_at_ms, last_tick_at_ms = NULL";
    sqlx::query(moved).execute(store.pool()).await.unwrap();
    let fire = leader.plan().await;
    assert!(fire.firings[0].ticks[0].tick_at_ms < fire.firings[0].next_tick_at_ms);
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired]));
    assert_eq!((all_events(&store, 1).await.len(), view(&store, "tell").await.fired_count), (1, 1));
}

#[tokio::test]
async fn ten_thousand_schedules_fire_in_one_call() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    fill(&store, 10_000, 10_000).await;
    let fire = leader.plan().await;
    assert_eq!(fire.firings.len(), 10_000);
    let fired = store.fire(&fire).await.unwrap().unwrap();
    assert!(fired.iter().all(|fired| *fired == FireOutcome::Fired));
    let numbers = [
        count(&store, "tenure_ticks WHERE task_id IS NOT NULL OR event_id IS NOT NULL").await,
        count(&store, "tenure_tasks").await,
        count(&store, "tenure_events").await,
        count(&store, "tenure_schedules WHERE fired_count = 1 AND due_at_ms > unixepoch() * 1000").await,
    ];
    assert_eq!(numbers, [10_000, 5_000, 5_000, 10_000]);
    let twice = store.fire(&fire).await.unwrap().unwrap();
    assert!(twice.iter().all(|fired| *fired == FireOutcome::Stale));
    assert_eq!(count(&store, "tenure_ticks").await, 10_000);

    let again = FireRequest { firings: vec![fire.firings[0].clone(); 2], ..fire.clone() };
    assert_eq!(store.fire(&again).await.unwrap_err().kind, ErrorKind::Request);
}

/// Insert schedules, half of them for events, of which `due` are due.
pub(crate) async fn fill(store: &SqliteStore, schedules: u32, due: u32) {
    let first = overdue(store, &hourly("model", TASK), 0).await;
    overdue(store, &hourly("teller", EVENT), 0).await;
    let copy = r#"INSERT INTO tenure_schedules
            (namespace, name, version, next_tick_at_ms, last_tick_at_ms, due_at_ms, created_at_ms, updated_at_ms, updated_by, definition)
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
        SELECT 'default', 's' || n.n, 1, ?2 + iif(n.n > ?3, 360000000, 0), NULL, ?2 + iif(n.n > ?3, 360000000, 0), 0, 0, 'ada',
               json_set(s.definition, '$.name', 's' || n.n)
        FROM n JOIN tenure_schedules s ON s.name = iif(n.n % 2, 'model', 'teller')"#;
    let copy = sqlx::query(copy).bind(schedules).bind(first).bind(due);
    copy.execute(store.pool()).await.unwrap();
    for name in ["model", "teller"] {
        assert_eq!(store.delete_schedule(&key(name), None).await.unwrap(), Some(true));
    }
}

#[tokio::test]
async fn changes_of_schedules_send_notifications() {
    let (store, _dir) = fresh().await;
    let mut notifications = store.notifications();
    store.set_schedule(&set_request(&hourly("a", TASK))).await.unwrap();
    while notifications.next().await != Some(Notification::SchedulesChanged) {}
    let pause = Pause { paused_by: "ada".into(), reason: "a break".into(), paused_at_ms: 7 };
    assert_eq!(store.set_schedule_paused(&key("a"), Some(&pause)).await.unwrap(), Some(true));
    assert_eq!(store.set_schedule_paused(&key("a"), Some(&pause)).await.unwrap(), Some(false));
    let paused = view(&store, "a").await;
    assert_eq!((paused.paused, paused.due_at_ms), (Some(pause), None));
    while notifications.next().await != Some(Notification::SchedulesChanged) {}
    assert_eq!(store.set_schedule_paused(&key("a"), None).await.unwrap(), Some(true));
    let resumed = view(&store, "a").await;
    assert_eq!((resumed.paused, resumed.due_at_ms), (None, resumed.tick_state.map(|it| it.next_tick_at_ms)));
    while notifications.next().await != Some(Notification::SchedulesChanged) {}
    assert_eq!(store.delete_schedule(&key("a"), Some(2)).await.unwrap(), Some(false));
    assert_eq!(store.delete_schedule(&key("a"), Some(1)).await.unwrap(), Some(true));
    assert_eq!(store.delete_schedule(&key("a"), None).await.unwrap(), None);
    while notifications.next().await != Some(Notification::SchedulesChanged) {}
    // Waiters of the topic and the queue are notified too.
    let leader = TestScheduler::of(&store).await;
    store.register_topic_waiter(&leader.actor.id, &topic()).await.unwrap();
    store.register_queue_waiter(&leader.actor.id, &[queue("q")]).await.unwrap();
    overdue(&store, &hourly("b", TASK), 0).await;
    overdue(&store, &hourly("c", EVENT), 0).await;
    assert_eq!(leader.fire().await, [FireOutcome::Fired, FireOutcome::Fired]);
    let (mut work, mut events) = (false, false);
    while !(work && events) {
        match notifications.next().await.unwrap() {
            Notification::QueueReady(key) => work |= key == queue("q"),
            Notification::TopicPublished(key) => events |= key == topic(),
            _ => {}
        }
    }
}
