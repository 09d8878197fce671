//! That no tick is lost and none fires twice: with leaders that are not, with deaths between any two statements, and with each
//! mechanism taken away in turn, which must be noticed.

use std::sync::Arc;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, Row, SqliteConnection};
use tenure::backend::migrations::Migrate;
use tenure::backend::sqlite::{Sqlite, SqliteOptions};
use tenure_core::port::*;
use tenure_core::schedule::{Definition, Misfire, Overlap, plan};
use tenure_testkit::conformance::Actor;

use super::child::{Child, open, say};
use super::events::{everything, plain};
use super::schedules::{EVENT, Leader, TASK, count, fill, fresh, history, hourly, overdue, view, wish};

/// Whether a leader whose lease was taken over fires nothing.
async fn the_old_leader_is_refused(store: &Sqlite) -> bool {
    let old = Leader::of(store).await;
    overdue(store, &hourly("tell", EVENT), 0).await;
    let fire = old.plan().await;
    let heir = Actor::open(Arc::new(store.clone()), "heir").await;
    heir.stand(&scheduler_election()).await;
    let bid = heir.overbid(&scheduler_election(), 0).await;
    let token = heir.store.take(&bid).await.unwrap().expect("it stood still");
    let before = view(store, "tell").await;
    let refused = store.fire(&fire).await.unwrap().is_none()
        && store.fire(&Fire { token, ..fire.clone() }).await.unwrap().is_none()
        && store.fire(&Fire { session: heir.id.clone(), ..fire.clone() }).await.unwrap().is_none()
        && view(store, "tell").await == before
        && everything(store, 1).await.is_empty();
    // Who leads by now fires it.
    let heir = Leader { actor: heir, token };
    refused && heir.fire().await == [Fired::Yes] && everything(store, 1).await.len() == 1
}

#[tokio::test]
async fn who_does_not_lead_fires_nothing() {
    let (store, _dir) = fresh().await;
    assert!(the_old_leader_is_refused(&store).await);
}

#[tokio::test]
async fn a_firing_that_does_not_ask_who_leads_is_found() {
    for mistake in [" AND l.token = ?2", " AND l.session = ?1"] {
        let (mut store, _dir) = fresh().await;
        store.sabotage("scheduler_leader", mistake, "");
        assert!(!the_old_leader_is_refused(&store).await, "without{mistake}");
    }
}

/// Whether what was decided twice fires once.
async fn the_second_decision_is_stale(store: &Sqlite) -> bool {
    let leader = Leader::of(store).await;
    overdue(store, &hourly("tell", EVENT), 0).await;
    let (one, other) = (leader.plan().await, leader.plan().await);
    let first = store.fire(&one).await.unwrap();
    let second = store.fire(&other).await;
    first == Some(vec![Fired::Yes])
        && second.is_ok_and(|second| second == Some(vec![Fired::Stale]))
        && everything(store, 1).await.len() == 1
}

#[tokio::test]
async fn what_was_decided_twice_fires_once() {
    let (store, _dir) = fresh().await;
    assert!(the_second_decision_is_stale(&store).await);
}

#[tokio::test]
async fn a_firing_that_does_not_compare_the_next_tick_is_found() {
    let (mut store, _dir) = fresh().await;
    store.sabotage("schedule_stand", " AND s.next_at = v.column5", "");
    assert!(!the_second_decision_is_stale(&store).await);
}

/// Whether a decision about what has changed since does nothing.
async fn a_changed_schedule_is_left_alone(store: &Sqlite) -> bool {
    let leader = Leader::of(store).await;
    overdue(store, &hourly("tell", EVENT), 0).await;
    let fire = leader.plan().await;
    let changed = Definition { payload: "[1]".parse().unwrap(), ..hourly("tell", EVENT) };
    assert_eq!(store.set_schedule(&wish(&changed)).await.unwrap(), ScheduleSet::Changed(2));
    store.fire(&fire).await.unwrap() == Some(vec![Fired::Stale]) && everything(store, 1).await.is_empty()
}

/// Whether a decision about what is paused by now does nothing.
async fn a_paused_schedule_is_left_alone(store: &Sqlite) -> bool {
    let leader = Leader::of(store).await;
    overdue(store, &hourly("tell", EVENT), 0).await;
    let fire = leader.plan().await;
    let pause = Pause { by: "ada".into(), reason: String::new(), at_ms: 1 };
    store.set_schedule_paused(&super::schedules::key("tell"), Some(&pause)).await.unwrap();
    store.fire(&fire).await.unwrap() == Some(vec![Fired::Stale]) && everything(store, 1).await.is_empty()
}

#[tokio::test]
async fn what_has_changed_or_is_paused_does_not_fire_as_it_was() {
    let (store, _dir) = fresh().await;
    assert!(a_changed_schedule_is_left_alone(&store).await);
    let (store, _dir) = fresh().await;
    assert!(a_paused_schedule_is_left_alone(&store).await);
}

#[tokio::test]
async fn a_firing_that_does_not_compare_the_version_or_the_pause_is_found() {
    let (mut store, _dir) = fresh().await;
    store.sabotage("schedule_stand", "s.version = v.column4 AND ", "");
    assert!(!a_changed_schedule_is_left_alone(&store).await);
    let (mut store, _dir) = fresh().await;
    store.sabotage("schedule_stand", " AND s.paused_at IS NULL", "");
    assert!(!a_paused_schedule_is_left_alone(&store).await);
}

/// Each statement of a firing fails in turn, as if the process had died there: all of it is undone, and the next leader fires it.
#[tokio::test]
async fn a_death_between_any_two_statements_loses_nothing_and_doubles_nothing() {
    let steps = [
        ("scheduler_leader", "FROM tenure_leases"),
        ("schedule_stand", "FROM (VALUES"),
        ("topic_find", "FROM tenure_topics"),
        ("tick_over", "UPDATE tenure_ticks"),
        ("topic_enter", "UPDATE tenure_topics"),
        ("event_put", "INTO tenure_events"),
        ("queue_make", "INTO tenure_queues"),
        ("task_submit", "INTO tenure_tasks"),
        ("dozer_wake", "FROM tenure_dozers"),
        ("tick_put", "INTO tenure_ticks"),
        ("skip_put", "INTO tenure_tick_skips"),
        ("schedule_fired", "UPDATE tenure_schedules"),
        ("schedule_put_off", "UPDATE tenure_schedules"),
    ];
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    overdue(&store, &hourly("tell", EVENT), 4).await;
    let alone = Definition { overlap: Overlap::Skip, ..hourly("work", TASK) };
    overdue(&store, &alone, 4).await;
    overdue(&store, &hourly("wait", TASK), 0).await;
    let mut fire = leader.plan().await;
    let late = fire.firings.iter_mut().find(|firing| firing.key.name.as_str() == "wait").unwrap();
    (late.trouble, late.due_ms) = (Some("trouble".into()), Some(i64::MAX));
    late.ticks.clear();
    let before = store.schedules(&ScheduleFilter::default()).await.unwrap();
    for (statement, word) in steps {
        let mut mortal = store.clone();
        mortal.sabotage(statement, word, "THE END");
        assert!(mortal.fire(&fire).await.is_err(), "{statement} is not among those that fire");
        assert_eq!(store.schedules(&ScheduleFilter::default()).await.unwrap(), before, "{statement}");
        for table in ["tenure_ticks", "tenure_tick_skips", "tenure_tasks", "tenure_events"] {
            assert_eq!(count(&store, table).await, 0, "{statement}: {table}");
        }
    }
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![Fired::Yes; 3]));
    assert_eq!((history(&store, "tell").await.len(), history(&store, "work").await.len()), (2, 2));
    assert_eq!(view(&store, "wait").await.trouble.as_deref(), Some("trouble"));
    assert_eq!((count(&store, "tenure_tasks").await, count(&store, "tenure_events").await), (1, 1));
}

/// What a child does that fires until it is killed.
pub(crate) async fn fire_for_ever(store: Sqlite) {
    let actor = Actor::open(Arc::new(store), "child").await;
    actor.stand(&scheduler_election()).await;
    let token = loop {
        let lease = actor.lease(&scheduler_election(), 0).await;
        let expire = lease.holder.map(|it| Expire { session: it.id, epoch: 0, beat: None });
        let take = Take { expire, ..actor.bid(&scheduler_election(), 0).await };
        if let Some(token) = actor.store.take(&take).await.unwrap() {
            break token;
        }
    };
    loop {
        let look = actor.store.due(10).await.unwrap();
        let firings: Vec<_> = look.schedules.iter().map(|due| plan(due, token, look.store_ms)).collect();
        if !firings.is_empty() {
            let fire = Fire { session: actor.id.clone(), token, firings };
            assert!(actor.store.fire(&fire).await.unwrap().is_some());
            say("fired");
        }
    }
}

/// Leaders are killed while they fire what is due every few milliseconds; whoever comes next goes on from what is stored.
#[tokio::test(flavor = "multi_thread")]
async fn killed_leaders_lose_no_tick_and_double_none() {
    let (store, dir) = fresh().await;
    for (name, target) in [("tell", EVENT), ("work", TASK)] {
        let mut definition = Definition { misfire: Misfire::FireAll { cap: 10_000 }, ..hourly(name, target) };
        definition.when = "every 5ms".parse().unwrap();
        store.set_schedule(&wish(&definition)).await.unwrap();
    }
    let first = view(&store, "tell").await.progress.unwrap().next_at_ms;
    for round in 0..5 {
        let mut child = Child::play("scheduler", &dir.path().join("t.db"));
        for _ in 0..=round {
            assert_eq!(child.says(), "fired");
        }
        child.kill();
    }
    for (name, column, table) in [("tell", "event", "tenure_events"), ("work", "task", "tenure_tasks")] {
        let select = format!(
            "SELECT count(*) AS ticks, min(t.tick_at) AS first, max(t.tick_at) AS last, count(DISTINCT t.{column}) AS effects,
                    (SELECT count(*) FROM {table}) AS all_effects, s.fired, s.skipped, s.next_at
             FROM tenure_ticks t JOIN tenure_schedules s ON s.id = t.schedule WHERE s.name = '{name}'"
        );
        let row = sqlx::query(AssertSqlSafe(select)).fetch_one(store.pool()).await.unwrap();
        let get = |column: &str| row.get::<i64, _>(column);
        let ticks = get("ticks");
        assert!(ticks > 0);
        assert_eq!(
            (get("fired"), get("effects"), get("all_effects"), get("skipped")),
            (ticks, ticks, ticks, 0)
        );
        // From the first to the one before the next, without a gap.
        assert_eq!(get("last") - get("first"), (ticks - 1) * 5, "{name}");
        assert_eq!(get("next_at"), get("last") + 5);
        if name == "tell" {
            assert_eq!(get("first"), first);
        }
    }
}

/// Nothing is looked for by reading all schedules or all ticks, whatever is known about the tables' sizes; but for lists and
/// counts, which are about all of them.
#[tokio::test]
async fn no_statement_reads_through_all_schedules_or_ticks() {
    let (store, _dir) = fresh().await;
    fill(&store, 100, 50).await;
    let mut conn = plain(store.path()).await;
    let files = [
        include_str!("../../src/backend/sqlite/queries/schedules.sql"),
        include_str!("../../src/backend/sqlite/queries/ticks.sql"),
    ];
    for analysed in [false, true] {
        if analysed {
            conn.execute("ANALYZE").await.unwrap();
        }
        let mut looked_at = 0;
        for statement in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
            let (name, sql) = statement.split_once('\n').unwrap();
            let explain = format!("EXPLAIN QUERY PLAN {sql}");
            for row in sqlx::query(AssertSqlSafe(explain.as_str())).fetch_all(&mut conn).await.unwrap() {
                let step: String = row.get("detail");
                let growing = ["s", "t", "k", "tenure_schedules", "tenure_ticks", "tenure_tick_skips"];
                let scans = growing.iter().any(|table| {
                    step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} "))
                });
                assert!(!scans || name.trim() == "schedule_counts", "{name}: {step}");
                if ["schedule_due", "schedule_next_due"].contains(&name.trim()) {
                    assert!(step.contains("tenure_schedules_due"), "{name}: {step}");
                    looked_at += 1;
                }
                if ["tick_load", "tick_over"].contains(&name.trim()) && step.starts_with("SEARCH t ") {
                    assert!(step.contains("tenure_ticks_tracked"), "{name}: {step}");
                    looked_at += 1;
                }
            }
        }
        assert_eq!(looked_at, 4);
    }
}

/// A file that an older Tenure made.
#[tokio::test]
async fn a_file_from_before_there_were_schedules_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut conn = SqliteConnection::connect_with(&options).await.unwrap();
    for old in [
        include_str!("../../src/backend/sqlite/migrations/0001_elections.sql"),
        include_str!("../../src/backend/sqlite/migrations/0002_server.sql"),
        include_str!("../../src/backend/sqlite/migrations/0003_claims.sql"),
        include_str!("../../src/backend/sqlite/migrations/0004_events.sql"),
        "INSERT INTO tenure_migrations VALUES (1, 'elections', 1, 0), (2, 'server', 2, 0), (3, 'claims', 3, 0), (4, 'events', 4, 0);
         INSERT INTO tenure_submit (queue, payload) VALUES ('q', '[1]')",
    ] {
        conn.execute(old).await.unwrap();
    }
    conn.close().await.unwrap();
    // Such old programs could not run on what comes of it, so it is migrated only if asked for.
    let old = Sqlite::open(SqliteOptions::new(&path).migrate(false)).await.unwrap();
    assert!(!old.migrate().await.unwrap().is_empty());
    drop(old);
    let store = open(&path).await;
    assert!(store.schema_status().await.unwrap().pending.is_empty());
    assert_eq!(store.set_schedule(&wish(&hourly("a", TASK))).await.unwrap(), ScheduleSet::Created(1));
    assert_eq!(store.tasks(&TaskFilter { limit: 9, ..TaskFilter::default() }).await.unwrap().len(), 1);
}

/// Prints what firing costs beside a bare insert of the same rows:
/// `cargo test --release --test sqlite schedules_safety::cost -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, and asserts nothing"]
async fn cost() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    fill(&store, 100_000, 10_000).await;
    let before = tenure::runtime::now();
    let look = store.due(DUE_MAX).await.unwrap();
    let looked = tenure::runtime::now();
    let firings = look.schedules.iter().map(|due| plan(due, leader.token, look.store_ms)).collect();
    let planned = tenure::runtime::now();
    let fire = Fire { session: leader.actor.id.clone(), token: leader.token, firings };
    assert!(store.fire(&fire).await.unwrap().is_some());
    let fired = tenure::runtime::now();
    // The same rows into the same tables of another file, as fast as SQLite does it.
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
    let idle = store.due(DUE_MAX).await.unwrap();
    println!(
        "of 100,000 schedules 10,000 due: look {:?}, plan {:?}, fire {:?}; bare insert {:?}; look at nothing {:?}",
        looked.since(before),
        planned.since(looked),
        fired.since(planned),
        copied.since(begun),
        tenure::runtime::now().since(copied)
    );
    assert!(idle.schedules.is_empty());
}
