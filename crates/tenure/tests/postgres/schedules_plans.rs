//! Query plans for schedules: the number of rows and index entries that statements read.

use tenure::store::postgres::PostgresStore;
use tenure_core::port::{
    EventAdmin, FireOutcome, ScheduleAdmin, ScheduleStore, TopicSettings, scheduler_election,
};
use tenure_testkit::rig::FreshDatabase;

use crate::events::topic;
use crate::schedules::*;
use crate::support::*;

/// Creates schedules with alternating targets; the first `due` of them are due.
async fn filled(database: &FreshDatabase, store: &PostgresStore, schedules: u32, due: u32) {
    store.set_topic(&topic("t"), &TopicSettings::default()).await.unwrap();
    let json = |target| serde_json::to_string(&definition("NAME", target)).unwrap();
    let fill = format!(
        "INSERT INTO tenure.schedules (namespace, name, definition, updated_by)
         SELECT 'default', 's' || n, replace(CASE WHEN n % 2 = 0 THEN '{}' ELSE '{}' END, 'NAME', 's' || n)::json, 'filled'
         FROM generate_series(1, {schedules}) n;
         INSERT INTO tenure.schedule_state (schedule_id, version, tracks_runs, next_tick_at_ms, due_at_ms)
         SELECT s.id, 1, false, n.at, n.at FROM tenure.schedules s, LATERAL (
             SELECT CASE WHEN substr(s.name, 2)::integer <= {due} THEN 3600000 ELSE 32503680000000 END AS at
             WHERE s.updated_by = 'filled') n",
        json(TASK),
        json(EVENT),
    );
    database.psql(&fill).unwrap();
}

/// What a statement read: rows by sequential scans, and entries of indexes.
fn reads(database: &FreshDatabase, before: &str, statement: &str) -> Vec<i64> {
    let names = [
        "schedule_state",
        "schedules",
        "ticks",
        "schedule_state_due",
        "schedule_state_pkey",
        "schedules_namespace_name_key",
        "schedules_pkey",
        "ticks_pkey",
    ];
    let sum =
        names.map(|name| format!("pg_stat_get_xact_tuples_returned('tenure.{name}'::regclass)")).join(", ");
    let script =
        format!("{before};\nBEGIN;\n{statement};\nSELECT concat_ws(' ', 'reads', {sum});\nROLLBACK;");
    let answer = database.psql(&script).unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix("reads ")).expect(&answer);
    line.split(' ').map(|n| n.parse().unwrap()).collect()
}

/// A firing of these schedules, each with one tick without a target.
fn fire_sql(from: u32, to: u32) -> String {
    let each = |value: &str| format!("ARRAY(SELECT {value} FROM generate_series({from}, {to}) n)");
    let (one, zero) = (each("1"), each("0"));
    let nulls = vec!["NULL"; 16].join(", ");
    format!(
        "SELECT * FROM tenure.fire_schedules('s', 7, {}, {}, {one}, {}, {}, {}, {}, NULL, {zero}, {one}, NULL, NULL, NULL,
             ARRAY(SELECT generate_series(1, {to} - {from} + 1)), {}, {}, NULL, {nulls})",
        each("'default'"),
        each("'s' || n"),
        each("3600000"),
        each("7200000"),
        each("3600000"),
        each("32503680000000"),
        each("3600000"),
        each("3600000"),
    )
}

/// With plans made while the tables were empty and without statistics, and with statistics.
#[tokio::test(flavor = "multi_thread")]
async fn due_schedules_and_firings_read_few_rows_more_than_they_need() {
    for plan_mode in ["force_generic_plan", "force_custom_plan"] {
        let (database, store) = fresh().await;
        for table in ["schedules", "schedule_state", "ticks"] {
            database.psql(&format!("ALTER TABLE tenure.{table} SET (autovacuum_enabled = off)")).unwrap();
        }
        database
            .psql("INSERT INTO tenure.leases (namespace, election, slot, token, session) VALUES ('tenure', 'scheduler', 0, 7, 's')")
            .unwrap();
        database.psql("VACUUM ANALYZE tenure.schedules, tenure.schedule_state, tenure.ticks").unwrap();
        let planned = format!(
            "SET plan_cache_mode = {plan_mode};\nSELECT count(*) FROM tenure.due_schedules(1);\n{}",
            fire_sql(1, 1)
        );
        filled(&database, &store, 5_000, 50).await;
        for statistics in ["SELECT 1", "ANALYZE tenure.schedules, tenure.schedule_state"] {
            let before = format!("{planned};\n{statistics}");
            let due = reads(&database, &before, "SELECT count(*) FROM tenure.due_schedules(20)");
            assert_eq!(due[..3], [0; 3], "{plan_mode}, {statistics}: {due:?}");
            assert!(due.iter().sum::<i64>() <= 100, "{plan_mode}, {statistics}: {due:?}");
            let later =
                "UPDATE tenure.schedule_state SET due_at_ms = due_at_ms + 1e15::bigint WHERE due_at_ms < 1e9";
            database.psql(later).unwrap();
            database.psql("VACUUM tenure.schedule_state").unwrap();
            let none = reads(&database, &before, "SELECT count(*) FROM tenure.due_schedules(20)");
            assert!(
                none.iter().sum::<i64>() <= 150,
                "{plan_mode}, {statistics}: {none:?}: no schedule is due"
            );
            database
                .psql("UPDATE tenure.schedule_state SET due_at_ms = 3600000 WHERE next_tick_at_ms = 3600000")
                .unwrap();
            let fire = reads(&database, &before, &fire_sql(11, 30));
            assert_eq!(fire[..3], [0; 3], "{plan_mode}, {statistics}: {fire:?}");
            assert!(fire.iter().sum::<i64>() <= 150, "{plan_mode}, {statistics}: {fire:?}");
        }
    }
}

/// 10,000 schedules, the maximum of one call, need one round trip to read and one to fire, even if the connection
/// made its plans for few rows.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_schedules_fire_in_one_call() {
    let (database, store) = fresh().await;
    let token = leading(&store, "a", &scheduler_election()).await;
    overdue(&database, &store, definition("first", TASK)).await;
    let fire = planned(&store, "a", token).await;
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired]));
    filled(&database, &store, 12_000, 10_001).await;

    let fire = planned(&store, "a", token).await;
    assert_eq!(fire.firings.len(), 10_000);
    let fired = store.fire(&fire).await.unwrap().unwrap();
    assert!(fired.iter().all(|fired| *fired == FireOutcome::Fired));
    let counts = ["ticks", "tasks", "events"].map(|table| count(&database, table));
    assert_eq!(counts.iter().sum::<i64>(), 2 * 10_001, "{counts:?}");
    let inconsistent = "SELECT count(*) FROM tenure.ticks t WHERE (t.event_id IS NULL) = (t.task_id IS NULL)
                     OR t.event_id IS NOT NULL AND NOT EXISTS (SELECT FROM tenure.events e WHERE e.id = t.event_id)
                     OR t.task_id IS NOT NULL AND NOT EXISTS (SELECT FROM tenure.tasks a WHERE a.id = t.task_id)";
    assert_eq!(database.psql(inconsistent).unwrap(), "0");
    let page = store.due_schedules(10_000).await.unwrap();
    assert_eq!((page.schedules.len(), page.has_more), (1, false));
    let stats = store.schedule_stats().await.unwrap().remove(0);
    assert_eq!((stats.schedule_count, stats.overdue_count), (12_001, 1));
    // The same call again is stale and changes nothing.
    let again = store.fire(&fire).await.unwrap().unwrap();
    assert!(again.iter().all(|fired| *fired == FireOutcome::Stale));
    assert_eq!(["ticks", "tasks", "events"].map(|table| count(&database, table)), counts);
}
