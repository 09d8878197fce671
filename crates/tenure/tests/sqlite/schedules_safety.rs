//! No tick is lost and none fires twice: with former schedulers, with crashes between any two statements, and with negative controls for
//! each mechanism.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Executor, Row};
use tenure::store::sqlite::SqliteStore;
use tenure_core::port::*;
use tenure_core::rules::schedule::{MisfirePolicy, OverlapPolicy, ScheduleDefinition, plan};
use tenure_testkit::conformance::TestSession;

use super::child::{Child, open, print_line};
use super::events::{all_events, plain};
use super::schedules::{
    EVENT, TASK, TestScheduler, count, fill, fresh, history, hourly, overdue, set_request, view,
};

/// Whether a former scheduler fires nothing.
async fn a_former_scheduler_is_rejected(store: &SqliteStore) -> bool {
    let old = TestScheduler::of(store).await;
    overdue(store, &hourly("tell", EVENT), 0).await;
    let fire = old.plan().await;
    let successor = TestSession::open(Arc::new(store.clone()), "successor").await;
    successor.join(&scheduler_election()).await;
    let bid = successor.takeover_request(&scheduler_election(), 0).await;
    let token = successor.store.take_lease(&bid).await.unwrap().expect("the heartbeat count is unchanged");
    let before = view(store, "tell").await;
    let refused = store.fire(&fire).await.unwrap().is_none()
        && store.fire(&FireRequest { token, ..fire.clone() }).await.unwrap().is_none()
        && store
            .fire(&FireRequest { session: successor.id.clone(), ..fire.clone() })
            .await
            .unwrap()
            .is_none()
        && view(store, "tell").await == before
        && all_events(store, 1).await.is_empty();
    // The current scheduler fires it.
    let successor = TestScheduler { actor: successor, token };
    refused && successor.fire().await == [FireOutcome::Fired] && all_events(store, 1).await.len() == 1
}

#[tokio::test]
async fn firing_requires_the_scheduler_lease() {
    let (store, _dir) = fresh().await;
    assert!(a_former_scheduler_is_rejected(&store).await);
}

#[tokio::test]
async fn firing_without_a_lease_check_is_detected() {
    for mistake in [" AND l.token = ?2", " AND l.session = ?1"] {
        let (mut store, _dir) = fresh().await;
        store.inject_bug("scheduler_leader", mistake, "");
        assert!(!a_former_scheduler_is_rejected(&store).await, "without{mistake}");
    }
}

/// Whether two requests for the same tick fire once.
async fn the_second_request_is_stale(store: &SqliteStore) -> bool {
    let leader = TestScheduler::of(store).await;
    overdue(store, &hourly("tell", EVENT), 0).await;
    let (one, other) = (leader.plan().await, leader.plan().await);
    let first = store.fire(&one).await.unwrap();
    let second = store.fire(&other).await;
    first == Some(vec![FireOutcome::Fired])
        && second.is_ok_and(|second| second == Some(vec![FireOutcome::Stale]))
        && all_events(store, 1).await.len() == 1
}

#[tokio::test]
async fn two_requests_for_a_tick_fire_once() {
    let (store, _dir) = fresh().await;
    assert!(the_second_request_is_stale(&store).await);
}

#[tokio::test]
async fn firing_that_ignores_the_next_tick_is_detected() {
    let (mut store, _dir) = fresh().await;
    store.inject_bug("schedule_state_get", " AND s.next_tick_at_ms = v.column5", "");
    assert!(!the_second_request_is_stale(&store).await);
}

/// Whether a request for a changed schedule does nothing.
async fn a_changed_schedule_is_skipped(store: &SqliteStore) -> bool {
    let leader = TestScheduler::of(store).await;
    overdue(store, &hourly("tell", EVENT), 0).await;
    let fire = leader.plan().await;
    let changed = ScheduleDefinition { payload: "[1]".parse().unwrap(), ..hourly("tell", EVENT) };
    assert_eq!(store.set_schedule(&set_request(&changed)).await.unwrap(), SetScheduleOutcome::Updated(2));
    store.fire(&fire).await.unwrap() == Some(vec![FireOutcome::Stale])
        && all_events(store, 1).await.is_empty()
}

/// Whether a request for a paused schedule does nothing.
async fn a_paused_schedule_is_skipped(store: &SqliteStore) -> bool {
    let leader = TestScheduler::of(store).await;
    overdue(store, &hourly("tell", EVENT), 0).await;
    let fire = leader.plan().await;
    let pause = Pause { paused_by: "ada".into(), reason: String::new(), paused_at_ms: 1 };
    store.set_schedule_paused(&super::schedules::key("tell"), Some(&pause)).await.unwrap();
    store.fire(&fire).await.unwrap() == Some(vec![FireOutcome::Stale])
        && all_events(store, 1).await.is_empty()
}

#[tokio::test]
async fn changed_and_paused_schedules_do_not_fire() {
    let (store, _dir) = fresh().await;
    assert!(a_changed_schedule_is_skipped(&store).await);
    let (store, _dir) = fresh().await;
    assert!(a_paused_schedule_is_skipped(&store).await);
}

#[tokio::test]
async fn firing_that_ignores_version_or_pause_is_detected() {
    let (mut store, _dir) = fresh().await;
    store.inject_bug("schedule_state_get", "s.version = v.column4 AND ", "");
    assert!(!a_changed_schedule_is_skipped(&store).await);
    let (mut store, _dir) = fresh().await;
    store.inject_bug("schedule_state_get", " AND s.paused_at_ms IS NULL", "");
    assert!(!a_paused_schedule_is_skipped(&store).await);
}

/// Each statement of a firing fails in turn, like a crash: everything is undone, and the next request fires.
#[tokio::test]
async fn a_crash_between_statements_neither_loses_nor_duplicates_ticks() {
    let steps = [
        ("scheduler_leader", "FROM tenure_leases"),
        ("schedule_state_get", "FROM (VALUES"),
        ("topic_find", "FROM tenure_topics"),
        ("tick_end_tracking", "UPDATE tenure_ticks"),
        ("topic_begin_publish", "UPDATE tenure_topics"),
        ("event_put", "INTO tenure_events"),
        ("queue_create", "INTO tenure_queues"),
        ("task_submit", "INTO tenure_tasks"),
        ("queue_waiter_notify", "FROM tenure_queue_waiters"),
        ("tick_put", "INTO tenure_ticks"),
        ("skipped_tick_put", "INTO tenure_skipped_ticks"),
        ("schedule_advance", "UPDATE tenure_schedules"),
        ("schedule_postpone", "UPDATE tenure_schedules"),
    ];
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    overdue(&store, &hourly("tell", EVENT), 4).await;
    let alone = ScheduleDefinition { overlap_policy: OverlapPolicy::Skip, ..hourly("work", TASK) };
    overdue(&store, &alone, 4).await;
    overdue(&store, &hourly("wait", TASK), 0).await;
    let mut fire = leader.plan().await;
    let late = fire.firings.iter_mut().find(|firing| firing.key.name.as_str() == "wait").unwrap();
    (late.error, late.due_at_ms) = (Some("failed".into()), Some(i64::MAX));
    late.ticks.clear();
    let before = store.schedules(&ScheduleFilter::default()).await.unwrap();
    for (statement, word) in steps {
        let mut failing = store.clone();
        failing.inject_bug(statement, word, "SYNTAX ERROR");
        assert!(failing.fire(&fire).await.is_err(), "{statement} is not part of a firing");
        assert_eq!(store.schedules(&ScheduleFilter::default()).await.unwrap(), before, "{statement}");
        for table in ["tenure_ticks", "tenure_skipped_ticks", "tenure_tasks", "tenure_events"] {
            assert_eq!(count(&store, table).await, 0, "{statement}: {table}");
        }
    }
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired; 3]));
    assert_eq!((history(&store, "tell").await.len(), history(&store, "work").await.len()), (2, 2));
    assert_eq!(view(&store, "wait").await.last_error.as_deref(), Some("failed"));
    assert_eq!((count(&store, "tenure_tasks").await, count(&store, "tenure_events").await), (1, 1));
}

/// A child process that fires until it is killed.
pub(crate) async fn fire_forever(store: SqliteStore) {
    let actor = TestSession::open(Arc::new(store), "child").await;
    actor.join(&scheduler_election()).await;
    let token = loop {
        let lease = actor.lease(&scheduler_election(), 0).await;
        let expire =
            lease.holder.map(|it| ExpireSessionRequest { session: it.id, epoch: 0, heartbeat_count: None });
        let take = TakeLeaseRequest { expire, ..actor.take_request(&scheduler_election(), 0).await };
        if let Some(token) = actor.store.take_lease(&take).await.unwrap() {
            break token;
        }
    };
    loop {
        let due = actor.store.due_schedules(10).await.unwrap();
        let firings: Vec<_> = due.schedules.iter().map(|it| plan(it, token, due.store_now_at_ms)).collect();
        if !firings.is_empty() {
            let fire = FireRequest { session: actor.id.clone(), token, firings };
            assert!(actor.store.fire(&fire).await.unwrap().is_some());
            print_line("fired");
        }
    }
}

/// Schedulers are killed while they fire ticks every few milliseconds. The next one continues from the stored state.
#[tokio::test(flavor = "multi_thread")]
async fn killed_schedulers_neither_lose_nor_duplicate_ticks() {
    let (store, dir) = fresh().await;
    for (name, target) in [("tell", EVENT), ("work", TASK)] {
        let mut definition = ScheduleDefinition {
            misfire_policy: MisfirePolicy::FireAll { cap: 10_000 },
            ..hourly(name, target)
        };
        definition.expression = "every 5ms".parse().unwrap();
        store.set_schedule(&set_request(&definition)).await.unwrap();
    }
    let first = view(&store, "tell").await.tick_state.unwrap().next_tick_at_ms;
    for round in 0..5 {
        let mut child = Child::spawn("scheduler", &dir.path().join("t.db"));
        for _ in 0..=round {
            assert_eq!(child.read_line(), "fired");
        }
        child.kill();
    }
    for (name, column, table) in [("tell", "event_id", "tenure_events"), ("work", "task_id", "tenure_tasks")]
    {
        let select = format!(
            "SELECT count(*) AS ticks, min(t.tick_at_ms) AS first, max(t.tick_at_ms) AS last,
                    count(DISTINCT t.{column}) AS effects, (SELECT count(*) FROM {table}) AS all_effects,
                    s.fired_count, s.skipped_count, s.next_tick_at_ms
             FROM tenure_ticks t JOIN tenure_schedules s ON s.id = t.schedule_id WHERE s.name = '{name}'"
        );
        let row = sqlx::query(AssertSqlSafe(select)).fetch_one(store.pool()).await.unwrap();
        let get = |column: &str| row.get::<i64, _>(column);
        let ticks = get("ticks");
        assert!(ticks > 0);
        assert_eq!(
            (get("fired_count"), get("effects"), get("all_effects"), get("skipped_count")),
            (ticks, ticks, ticks, 0)
        );
        // The ticks have no gap up to the next tick.
        assert_eq!(get("last") - get("first"), (ticks - 1) * 5, "{name}");
        assert_eq!(get("next_tick_at_ms"), get("last") + 5);
        if name == "tell" {
            assert_eq!(get("first"), first);
        }
    }
}

/// No statement scans all schedules or ticks, regardless of table statistics, except lists and statistics.
#[tokio::test]
async fn no_statement_scans_all_schedules_or_ticks() {
    let (store, _dir) = fresh().await;
    fill(&store, 100, 50).await;
    let mut conn = plain(store.path()).await;
    let files = [
        include_str!("../../src/store/sqlite/queries/schedules.sql"),
        include_str!("../../src/store/sqlite/queries/ticks.sql"),
    ];
    for analysed in [false, true] {
        if analysed {
            conn.execute("ANALYZE").await.unwrap();
        }
        let mut steps_checked = 0;
        for statement in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
            let (name, sql) = statement.split_once('\n').unwrap();
            let explain = format!("EXPLAIN QUERY PLAN {sql}");
            for row in sqlx::query(AssertSqlSafe(explain.as_str())).fetch_all(&mut conn).await.unwrap() {
                let step: String = row.get("detail");
                let growing = ["s", "t", "k", "tenure_schedules", "tenure_ticks", "tenure_skipped_ticks"];
                let scans = growing.iter().any(|table| {
                    step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} "))
                });
                assert!(!scans || name.trim() == "schedule_stats", "{name}: {step}");
                if ["schedule_due", "schedule_next_due"].contains(&name.trim()) {
                    assert!(step.contains("tenure_schedules_due"), "{name}: {step}");
                    steps_checked += 1;
                }
                if ["tick_count_unfinished", "tick_end_tracking"].contains(&name.trim())
                    && step.starts_with("SEARCH t ")
                {
                    assert!(step.contains("tenure_ticks_tracked"), "{name}: {step}");
                    steps_checked += 1;
                }
            }
        }
        assert_eq!(steps_checked, 4);
    }
}

/// Print the cost of firing compared with a plain insert of the same rows:
/// `cargo test --release --test sqlite schedules_safety::fire_cost -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures only"]
async fn fire_cost() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    fill(&store, 100_000, 10_000).await;
    let before = tenure::runtime::now();
    let due = store.due_schedules(DUE_MAX).await.unwrap();
    let queried = tenure::runtime::now();
    let firings = due.schedules.iter().map(|it| plan(it, leader.token, due.store_now_at_ms)).collect();
    let planned = tenure::runtime::now();
    let fire = FireRequest { session: leader.actor.id.clone(), token: leader.token, firings };
    assert!(store.fire(&fire).await.unwrap().is_some());
    let fired = tenure::runtime::now();
    // Insert the same rows into the same tables of another file.
    let path = store.path().with_file_name("bare.db");
    open(&path).await;
    let mut conn = plain(&path).await;
    let attach = format!("ATTACH '{}' AS from_here", store.path().display());
    conn.execute(AssertSqlSafe(attach)).await.unwrap();
    let copy = "BEGIN IMMEDIATE;
        INSERT INTO tenure_ticks SELECT * FROM from_here.tenure_ticks;
        INSERT INTO tenure_tasks SELECT * FROM from_here.tenure_tasks;
        INSERT INTO tenure_events SELECT * FROM from_here.tenure_events;
        COMMIT";
    let begun = tenure::runtime::now();
    conn.execute(copy).await.unwrap();
    let copied = tenure::runtime::now();
    let idle = store.due_schedules(DUE_MAX).await.unwrap();
    println!(
        "100,000 schedules, 10,000 due: query {:?}, plan {:?}, fire {:?}; plain insert {:?}; query without due schedules {:?}",
        queried.since(before),
        planned.since(queried),
        fired.since(planned),
        copied.since(begun),
        tenure::runtime::now().since(copied)
    );
    assert!(idle.schedules.is_empty());
}
