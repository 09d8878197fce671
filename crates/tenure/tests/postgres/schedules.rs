//! Schedules: what only the PostgreSQL store does.

use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{
    ErrorKind, EventAdmin, FireOutcome, FireRequest, ManualFire, ManualFireOutcome, NewTask, Notification,
    Pause, Precondition, ScheduleAdmin, ScheduleFilter, ScheduleKey, ScheduleStore, SetScheduleOutcome,
    SetScheduleRequest, TaskStore, TickFilter, TickOutcome, TickView, TopicSettings, scheduler_election,
};
use tenure_core::rules::schedule::{OverlapPolicy, ScheduleDefinition, ScheduleExpression, plan, tick_of};
use tenure_core::{Name, Token};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{claim_request, claimed, completed, submission};
use crate::events::{all, topic};
use crate::notifications::{listening, wait_for};
use crate::support::*;

pub(crate) const TASK: &str = r#"{"task":{"queue":"q","task":{"kind":"work"}}}"#;
pub(crate) const EVENT: &str = r#"{"event":{"topic":"t"}}"#;

pub(crate) fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn definition(name: &str, target: &str) -> ScheduleDefinition {
    let target = serde_json::from_str(target).unwrap();
    ScheduleDefinition::new(name.parse().unwrap(), "every 1h".parse::<ScheduleExpression>().unwrap(), target)
}

pub(crate) fn set(definition: ScheduleDefinition) -> SetScheduleRequest {
    SetScheduleRequest {
        namespace: Name::default_namespace(),
        definition,
        secret: None,
        precondition: Precondition::Any,
        source: None,
        updated_by: "ops".into(),
    }
}

/// Creates a schedule whose ticks are due since 1970-01-01 01:00.
pub(crate) async fn overdue(database: &FreshDatabase, store: &PostgresStore, definition: ScheduleDefinition) {
    let name = definition.name.to_string();
    store.set_schedule(&set(definition)).await.unwrap();
    database
        .psql(&format!(
            "UPDATE tenure.schedule_state p SET next_tick_at_ms = 3600000, due_at_ms = 3600000
             FROM tenure.schedules s WHERE s.id = p.schedule_id AND s.name = '{name}'"
        ))
        .unwrap();
}

/// The firings that the leader with this token would plan.
pub(crate) async fn planned(store: &PostgresStore, session: &str, token: Token) -> FireRequest {
    let due = store.due_schedules(10_000).await.unwrap();
    let firings = due.schedules.iter().map(|schedule| plan(schedule, token, due.store_now_at_ms)).collect();
    FireRequest { session: id(session), token, firings }
}

pub(crate) fn count(database: &FreshDatabase, table: &str) -> i64 {
    database.psql(&format!("SELECT count(*) FROM tenure.{table}")).unwrap().parse().unwrap()
}

async fn history(store: &PostgresStore, name: &str) -> Vec<TickView> {
    store.ticks(&TickFilter { key: key(name), before_ms: None, limit: 100 }).await.unwrap()
}

/// The tick, the event and the task carry the leader's token, and the idempotency key of the task names the tick.
#[tokio::test(flavor = "multi_thread")]
async fn tick_event_and_task_carry_the_leader_token() {
    let (database, store) = crate::events::with_topic(4).await;
    opened(&store, "s").await;
    overdue(&database, &store, definition("report", TASK)).await;
    overdue(&database, &store, definition("beep", EVENT)).await;
    let token = leading(&store, "a", &scheduler_election()).await;
    let fire = planned(&store, "a", token).await;
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired, FireOutcome::Fired]));
    let (report, beep) = (history(&store, "report").await, history(&store, "beep").await);
    assert_eq!((report[0].token, report[0].decided_by.as_str()), (Some(token), "a"));
    // One tick fires for all missed ones, which are recorded as a range.
    assert_eq!(
        (report.len(), report[1].state, report[1].first_tick_at_ms),
        (2, TickOutcome::Skipped, Some(3_600_000))
    );
    let event = all(&store, 4).await.remove(0);
    assert_eq!((event.leader_token, beep[0].event_id), (Some(token), Some(event.id)));
    let work = claimed(&store, "q", claim_request("s", 5)).await;
    assert_eq!((work.len(), work[0].leader_token, report[0].task_id), (1, Some(token), Some(work[0].id)));
    let tick = work[0].idempotency_key.as_deref().and_then(tick_of);
    assert_eq!(tick, Some((key("report"), report[0].tick_at_ms)));
    let shown = "SELECT schedule, state, cause, decided_by, tick_count > 1, lateness > interval '0' FROM tenure.tick_history
                 WHERE schedule = 'report' ORDER BY tick_at DESC";
    assert_eq!(database.psql(shown).unwrap(), "report|fired|schedule|a|f|t\nreport|skipped|schedule|a|t|t");
}

/// A claim returns the idempotency key of the task.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_returns_the_idempotency_key() {
    let (_database, store) = fresh().await;
    let with_key = NewTask { idempotency_key: Some("night@1".into()), ..NewTask::new("work") };
    store.submit(&submission("q", vec![with_key, NewTask::new("work")])).await.unwrap();
    opened(&store, "s").await;
    let keys: Vec<_> = claimed(&store, "q", claim_request("s", 2))
        .await
        .into_iter()
        .map(|task| task.idempotency_key)
        .collect();
    assert_eq!(keys, [Some("night@1".into()), None]);
}

/// A firing that is rejected or stale does not affect the other firings of the call.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_firing_does_not_affect_the_others() {
    let (database, store) = crate::events::with_topic(2).await;
    for name in ["gone", "small"] {
        let settings = TopicSettings { partitions: 1, ..TopicSettings::default() };
        store.set_topic(&topic(name), &settings).await.unwrap();
    }
    let event = |name: &str, topic: &str| definition(name, &EVENT.replace("\"t\"", &format!("{topic:?}")));
    overdue(&database, &store, event("a-gone", "gone")).await;
    overdue(&database, &store, event("b-event", "t")).await;
    overdue(&database, &store, definition("c-changed", TASK)).await;
    overdue(&database, &store, definition("d-paused", TASK)).await;
    let mut large = event("e-large", "small");
    large.payload = "\"0123456789\"".parse().unwrap();
    overdue(&database, &store, large).await;
    overdue(&database, &store, definition("f-task", TASK)).await;
    let token = leading(&store, "a", &scheduler_election()).await;
    let fire = planned(&store, "a", token).await;
    assert_eq!(fire.firings.len(), 6);

    store.delete_topic(&topic("gone")).await.unwrap();
    let settings = TopicSettings { partitions: 1, max_payload_bytes: 10, ..TopicSettings::default() };
    store.set_topic(&topic("small"), &settings).await.unwrap();
    let mut changed = definition("c-changed", TASK);
    changed.misfire_policy = "skip".parse().unwrap();
    assert_eq!(store.set_schedule(&set(changed)).await.unwrap(), SetScheduleOutcome::Updated(2));
    let pause = Pause { paused_by: "ops".into(), reason: "why not".into(), paused_at_ms: 1 };
    assert_eq!(store.set_schedule_paused(&key("d-paused"), Some(&pause)).await.unwrap(), Some(true));

    let fired = store.fire(&fire).await.unwrap().unwrap();
    let FireOutcome::Rejected(gone) = &fired[0] else { panic!("{fired:?}") };
    assert!(gone.contains("`tenure events topics create gone`"), "{gone}");
    assert_eq!(fired[1..4], [FireOutcome::Fired, FireOutcome::Stale, FireOutcome::Stale]);
    let FireOutcome::Rejected(large) = &fired[4] else { panic!("{fired:?}") };
    assert!(large.contains("12 bytes") && large.contains("10"), "{large}");
    assert_eq!(fired[5], FireOutcome::Fired);
    assert_eq!((count(&database, "ticks"), count(&database, "tasks"), count(&database, "events")), (2, 1, 1));
    // A rejected firing does not advance its schedule, and becomes stale when the schedule changes.
    assert_eq!(
        store.schedule(&key("a-gone")).await.unwrap().unwrap().tick_state.unwrap().next_tick_at_ms,
        3_600_000
    );
    store.set_schedule_paused(&key("a-gone"), Some(&pause)).await.unwrap();
    let again = store.fire(&fire).await.unwrap().unwrap();
    assert_eq!((&again[0], &again[1], &again[4]), (&FireOutcome::Stale, &FireOutcome::Stale, &fired[4]));
}

/// Many topics and queues in one call: each tick records the event or task that it created.
#[tokio::test(flavor = "multi_thread")]
async fn each_tick_records_its_own_event_or_task() {
    let (database, store) = fresh().await;
    for n in 0..5 {
        let settings = TopicSettings { partitions: 3, ..TopicSettings::default() };
        store.set_topic(&topic(&format!("t{n}")), &settings).await.unwrap();
    }
    for n in 0..20 {
        let target = match n % 2 {
            0 => format!(r#"{{"event":{{"topic":"t{}"}}}}"#, n % 5),
            _ => format!(r#"{{"task":{{"queue":"q{}","task":{{"kind":"k{}"}}}}}}"#, n % 3, n % 7),
        };
        overdue(&database, &store, definition(&format!("s{n}"), &target)).await;
    }
    let token = leading(&store, "a", &scheduler_election()).await;
    let mut fire = planned(&store, "a", token).await;
    // Some firings are stale, so that indexes of firings and ticks differ.
    for firing in fire.firings.iter_mut().step_by(6) {
        firing.version += 1;
    }
    let fired = store.fire(&fire).await.unwrap().unwrap();
    assert_eq!(fired.iter().filter(|fired| **fired == FireOutcome::Fired).count(), 16);
    let wrong = "SELECT s.name FROM tenure.ticks k JOIN tenure.schedules s ON s.id = k.schedule_id
                 LEFT JOIN tenure.events e ON e.id = k.event_id LEFT JOIN tenure.topics t ON t.id = e.topic_id
                 LEFT JOIN tenure.tasks a ON a.id = k.task_id LEFT JOIN tenure.queues q ON q.id = a.queue_id
                 LEFT JOIN tenure.task_requirements d ON d.id = a.requirements_id
                 WHERE coalesce(e.type = s.name AND t.name = s.definition #>> '{target,event,topic}',
                                a.idempotency_key LIKE 'default/' || s.name || '@%' AND q.name = s.definition #>> '{target,task,queue}'
                                AND d.kind = s.definition #>> '{target,task,task,kind}', false) IS NOT TRUE";
    assert_eq!(database.psql(wrong).unwrap(), "");
    assert_eq!(count(&database, "ticks"), 16);
}

/// Finished runs are no longer tracked.
#[tokio::test(flavor = "multi_thread")]
async fn finished_runs_are_deleted() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let token = leading(&store, "a", &scheduler_election()).await;
    let mut one = definition("one", TASK);
    one.overlap_policy = OverlapPolicy::Skip;
    overdue(&database, &store, one).await;
    let again = "UPDATE tenure.schedule_state SET due_at_ms = next_tick_at_ms - 86400000, next_tick_at_ms = next_tick_at_ms - 86400000,
                 last_tick_at_ms = NULL; DELETE FROM tenure.ticks; DELETE FROM tenure.skipped_ticks";
    for round in 0..3 {
        let fire = planned(&store, "a", token).await;
        assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired]));
        assert_eq!(count(&database, "tracked_runs"), 1, "{round}");
        assert_eq!(history(&store, "one").await[0].state, TickOutcome::Fired);
        let work = claimed(&store, "q", claim_request("s", 5)).await;
        store.settle(&[completed(&work[0])]).await.unwrap();
        database.psql(again).unwrap();
        database
            .psql(&format!("UPDATE tenure.tasks SET idempotency_key = idempotency_key || '{round}'"))
            .unwrap();
    }
}

/// Of concurrent creators one succeeds, and the others get a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_creators_of_a_schedule_one_succeeds() {
    let (_database, store) = fresh().await;
    let request = SetScheduleRequest { precondition: Precondition::New, ..set(definition("one", TASK)) };
    let requests = (0..8).map(|_| store.set_schedule(&request));
    let outcomes = futures_util::future::try_join_all(requests).await.unwrap();
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == SetScheduleOutcome::Created(1)).count(), 1);
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == SetScheduleOutcome::Conflict(Some(1))).count(),
        7
    );
    let versions = (0..8u64).map(|n| {
        let mut other = definition("one", TASK);
        other.jitter_ms = n + 1;
        let request = SetScheduleRequest { precondition: Precondition::Version(1), ..set(other) };
        let store = store.clone();
        async move { store.set_schedule(&request).await.unwrap() }
    });
    let set: Vec<_> = futures_util::future::join_all(versions).await;
    assert_eq!(set.iter().filter(|set| **set == SetScheduleOutcome::Updated(2)).count(), 1);
    assert_eq!(set.iter().filter(|set| **set == SetScheduleOutcome::Conflict(Some(2))).count(), 7);
}

/// Each manual firing gets its own tick.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_manual_firings_are_separate_ticks() {
    let (database, store) = fresh().await;
    store.set_schedule(&set(definition("one", TASK))).await.unwrap();
    let manual_fire = ManualFire {
        key: key("one"),
        ticks: None,
        payload: None,
        requested_by: "ops".into(),
        dry_run: false,
    };
    let results =
        futures_util::future::try_join_all((0..8).map(|_| store.fire_manually(&manual_fire))).await.unwrap();
    assert!(
        results.iter().flatten().flatten().all(|it| matches!(it.outcome, ManualFireOutcome::Fired { .. }))
    );
    assert_eq!((count(&database, "ticks"), count(&database, "tasks")), (8, 8));
    assert_eq!(store.schedule(&key("one")).await.unwrap().unwrap().fired_count, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_schedule_notifies_the_leader() {
    let (database, store) = fresh().await;
    let other = PostgresStore::connect(PostgresOptions::new(database.url())).await.unwrap();
    let mut notifications = listening(&other).await;
    store.set_schedule(&set(definition("one", TASK))).await.unwrap();
    wait_for(&mut notifications, &Notification::SchedulesChanged).await;
    let pause = Pause { paused_by: "ops".into(), reason: String::new(), paused_at_ms: 1 };
    store.set_schedule_paused(&key("one"), Some(&pause)).await.unwrap();
    wait_for(&mut notifications, &Notification::SchedulesChanged).await;
    store.set_schedule_paused(&key("one"), None).await.unwrap();
    wait_for(&mut notifications, &Notification::SchedulesChanged).await;
    store.delete_schedule(&key("one"), None).await.unwrap();
    wait_for(&mut notifications, &Notification::SchedulesChanged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_has_the_rights_it_needs() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    database.psql(&tenure::store::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store =
        PostgresStore::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    store.set_topic(&topic("t"), &TopicSettings::default()).await.unwrap();
    overdue(&database, &store, definition("beep", EVENT)).await;
    let mut one = definition("one", TASK);
    one.overlap_policy = OverlapPolicy::Queue;
    overdue(&database, &store, one).await;
    let secret = Some("0123456789abcdef".to_owned());
    store.set_schedule(&SetScheduleRequest { secret, ..set(definition("beep", EVENT)) }).await.unwrap();
    assert_eq!(store.webhook_secret(&key("beep")).await.unwrap().as_deref(), Some("0123456789abcdef"));
    let token = leading(&store, "a", &scheduler_election()).await;
    let fire = planned(&store, "a", token).await;
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired, FireOutcome::Fired]));
    let manual_fire = ManualFire {
        key: key("one"),
        ticks: None,
        payload: None,
        requested_by: "ops".into(),
        dry_run: false,
    };
    assert!(store.fire_manually(&manual_fire).await.unwrap().is_some());

    let reader =
        PostgresStore::connect(PostgresOptions::new(database.url_as("tenure_reader"))).await.unwrap();
    let views = reader.schedules(&ScheduleFilter::default()).await.unwrap();
    assert_eq!(views.iter().map(|view| view.webhook_signed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(history(&reader, "one").await.len(), 3);
    assert_eq!(reader.schedule_stats().await.unwrap()[0].schedule_count, 2);
    assert_eq!(reader.webhook_secret(&key("beep")).await.unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(reader.fire(&fire).await.unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(reader.fire_manually(&manual_fire).await.unwrap_err().kind, ErrorKind::Denied);
    for change in ["UPDATE tenure.ticks SET token = 9", "UPDATE tenure.skipped_ticks SET tick_count = 0"] {
        let refused = database.psql_as("tenure_runtime", change).unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{refused}");
    }

    database
        .psql("UPDATE tenure.ticks SET decided_at_ms = 0; UPDATE tenure.skipped_ticks SET decided_at_ms = 0")
        .unwrap();
    let ticks = u64::try_from(count(&database, "ticks") + count(&database, "skipped_ticks")).unwrap();
    assert_eq!(store.prune_ticks(&id("b"), token, 100).await.unwrap(), (0, false), "b does not lead");
    assert_eq!(store.prune_ticks(&id("a"), token, 2).await.unwrap(), (2, true));
    assert_eq!(store.prune_ticks(&id("a"), token, 100).await.unwrap(), (ticks - 2, false));
    let manual_fire = ManualFire { ticks: Some(vec![3_600_000, 7_200_000]), ..manual_fire };
    let results = store.fire_manually(&manual_fire).await.unwrap().unwrap();
    assert!(results.iter().all(|it| it.outcome == ManualFireOutcome::Pruned), "{results:?}");
    for name in ["one", "beep"] {
        assert_eq!(store.delete_schedule(&key(name), None).await.unwrap(), Some(true));
    }
    for table in [
        "schedules",
        "schedule_state",
        "schedule_webhook_secrets",
        "ticks",
        "skipped_ticks",
        "tracked_runs",
        "orphaned_ticks",
    ] {
        assert_eq!(count(&database, table), 0, "{table}");
    }
}

/// The scheduler skips a definition that it cannot read, for example one that a newer program has stored.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_schedule_does_not_block_the_others() {
    let (database, store) = fresh().await;
    for name in ["one", "unreadable", "two"] {
        overdue(&database, &store, definition(name, TASK)).await;
    }
    let unreadable = r#"UPDATE tenure.schedules SET definition = '{"expression":"by the moon"}' WHERE name = 'unreadable'"#;
    database.psql(unreadable).unwrap();
    let page = store.due_schedules(10).await.unwrap();
    let names: Vec<_> = page.schedules.iter().map(|due| due.key.name.as_str()).collect();
    assert_eq!((names, page.has_more), (vec!["one", "two"], false));
}

/// A schedule may have millions of ticks, which are deleted in several calls.
#[tokio::test(flavor = "multi_thread")]
async fn ticks_of_a_deleted_schedule_are_deleted_in_batches() {
    let (database, store) = fresh().await;
    store.set_schedule(&set(definition("old", TASK))).await.unwrap();
    store.set_schedule(&set(definition("other", TASK))).await.unwrap();
    let many = "INSERT INTO tenure.ticks (schedule_id, manual, tick_at_ms, due_at_ms, decided_at_ms, decided_by)
                SELECT s.id, false, n, n, tenure.now_unix_ms(), 'x' FROM tenure.schedules s, generate_series(1, 12000) n";
    database.psql(many).unwrap();
    // As if the process had died in between.
    database.psql("SELECT tenure.delete_schedule('default', 'old', NULL)").unwrap();
    assert_eq!((count(&database, "ticks"), count(&database, "orphaned_ticks")), (24_000, 1));
    let token = leading(&store, "a", &scheduler_election()).await;
    assert_eq!(store.prune_ticks(&id("a"), token, 10_000).await.unwrap(), (10_000, true));
    assert_eq!(store.prune_ticks(&id("a"), token, 10_000).await.unwrap(), (2_000, false));
    assert_eq!((count(&database, "ticks"), count(&database, "orphaned_ticks")), (12_000, 0));
    assert_eq!(store.delete_schedule(&key("other"), None).await.unwrap(), Some(true));
    assert_eq!((count(&database, "ticks"), count(&database, "orphaned_ticks")), (0, 0));
}
