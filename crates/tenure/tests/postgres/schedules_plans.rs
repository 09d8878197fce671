//! What the planner may do with schedules, and what it must not.

use tenure::backend::postgres::Postgres;
use tenure_core::port::{Bureau, Calendar, Fired, Scheduling, TopicSettings, scheduler_election};
use tenure_testkit::rig::FreshDatabase;

use crate::events::topic;
use crate::schedules::*;
use crate::support::*;

/// Makes so many schedules, the first `due` of which are; every other one has the other target.
async fn filled(database: &FreshDatabase, store: &Postgres, schedules: u32, due: u32) {
    store.set_topic(&topic("t"), &TopicSettings::default()).await.unwrap();
    let json = |target| serde_json::to_string(&definition("NAME", target)).unwrap();
    let fill = format!(
        "INSERT INTO tenure.schedules (namespace, name, definition, updated_by)
         SELECT 'default', 's' || n, replace(CASE WHEN n % 2 = 0 THEN '{}' ELSE '{}' END, 'NAME', 's' || n)::json, 'filled'
         FROM generate_series(1, {schedules}) n;
         INSERT INTO tenure.schedule_progress (schedule, version, counted, next_at_ms, due_ms)
         SELECT s.id, 1, false, n.at, n.at FROM tenure.schedules s, LATERAL (
             SELECT CASE WHEN substr(s.name, 2)::integer <= {due} THEN 3600000 ELSE 32503680000000 END AS at
             WHERE s.updated_by = 'filled') n",
        json(TASK),
        json(EVENT),
    );
    database.psql(&fill).unwrap();
}

/// What a statement read: rows by walking over tables, and entries of indexes.
fn reads(database: &FreshDatabase, before: &str, statement: &str) -> Vec<i64> {
    let names = [
        "schedule_progress",
        "schedules",
        "ticks",
        "schedule_progress_due",
        "schedule_progress_pkey",
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

/// A firing of these schedules, each of one tick that does nothing else.
fn fire_sql(from: u32, to: u32) -> String {
    let each = |value: &str| format!("ARRAY(SELECT {value} FROM generate_series({from}, {to}) n)");
    let (one, nought) = (each("1"), each("0"));
    let nulls = vec!["NULL"; 16].join(", ");
    format!(
        "SELECT * FROM tenure.fire('s', 7, {}, {}, {one}, {}, {}, {}, {}, NULL, {nought}, {one}, NULL, NULL, NULL,
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

/// Tables that were empty when the plans were made, and of which nothing is known since; and with statistics.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_and_a_firing_read_what_they_find() {
    for mood in ["force_generic_plan", "force_custom_plan"] {
        let (database, store) = fresh().await;
        for table in ["schedules", "schedule_progress", "ticks"] {
            database.psql(&format!("ALTER TABLE tenure.{table} SET (autovacuum_enabled = off)")).unwrap();
        }
        database
            .psql("INSERT INTO tenure.leases (namespace, name, slot, token, session) VALUES ('tenure', 'scheduler', 0, 7, 's')")
            .unwrap();
        database.psql("VACUUM ANALYZE tenure.schedules, tenure.schedule_progress, tenure.ticks").unwrap();
        let planned =
            format!("SET plan_cache_mode = {mood};\nSELECT count(*) FROM tenure.due(1);\n{}", fire_sql(1, 1));
        filled(&database, &store, 5_000, 50).await;
        for statistics in ["SELECT 1", "ANALYZE tenure.schedules, tenure.schedule_progress"] {
            let before = format!("{planned};\n{statistics}");
            let look = reads(&database, &before, "SELECT count(*) FROM tenure.due(20)");
            assert_eq!(look[..3], [0; 3], "{mood}, {statistics}: {look:?}");
            assert!(look.iter().sum::<i64>() <= 100, "{mood}, {statistics}: {look:?}");
            let later =
                "UPDATE tenure.schedule_progress SET due_ms = due_ms + 1e15::bigint WHERE due_ms < 1e9";
            database.psql(later).unwrap();
            database.psql("VACUUM tenure.schedule_progress").unwrap();
            let none = reads(&database, &before, "SELECT count(*) FROM tenure.due(20)");
            assert!(
                none.iter().sum::<i64>() <= 150,
                "{mood}, {statistics}: {none:?}: it costs what it finds"
            );
            database
                .psql("UPDATE tenure.schedule_progress SET due_ms = 3600000 WHERE next_at_ms = 3600000")
                .unwrap();
            let fire = reads(&database, &before, &fire_sql(11, 30));
            assert_eq!(fire[..3], [0; 3], "{mood}, {statistics}: {fire:?}");
            assert!(fire.iter().sum::<i64>() <= 150, "{mood}, {statistics}: {fire:?}");
        }
    }
}

/// As many as there can be in one call, on a connection that has planned for few: one round trip to look, and one to fire.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_fire_in_one_call() {
    let (database, store) = fresh().await;
    let token = leading(&store, "a", &scheduler_election()).await;
    overdue(&database, &store, definition("first", TASK)).await;
    let fire = planned(&store, "a", token).await;
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![Fired::Yes]));
    filled(&database, &store, 12_000, 10_001).await;

    let fire = planned(&store, "a", token).await;
    assert_eq!(fire.firings.len(), 10_000);
    let fired = store.fire(&fire).await.unwrap().unwrap();
    assert!(fired.iter().all(|fired| *fired == Fired::Yes));
    let counts = ["ticks", "tasks", "events"].map(|table| count(&database, table));
    assert_eq!(counts.iter().sum::<i64>(), 2 * 10_001, "{counts:?}");
    let strange = "SELECT count(*) FROM tenure.ticks t WHERE (t.event IS NULL) = (t.task IS NULL)
                     OR t.event IS NOT NULL AND NOT EXISTS (SELECT FROM tenure.events e WHERE e.id = t.event)
                     OR t.task IS NOT NULL AND NOT EXISTS (SELECT FROM tenure.tasks a WHERE a.id = t.task)";
    assert_eq!(database.psql(strange).unwrap(), "0");
    let look = store.due(10_000).await.unwrap();
    assert_eq!((look.schedules.len(), look.more), (1, false));
    let stats = store.schedule_stats().await.unwrap().remove(0);
    assert_eq!((stats.schedules, stats.overdue), (12_001, 1));
    // All of it again is stale: each of them says so, and nothing else happens.
    let again = store.fire(&fire).await.unwrap().unwrap();
    assert!(again.iter().all(|fired| *fired == Fired::Stale));
    assert_eq!(["ticks", "tasks", "events"].map(|table| count(&database, table)), counts);
}
