//! `tenure doctor`: findings, and cleanup of its own data.

use std::process::Stdio;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Row};
use tenure::store::sqlite::{SqliteOptions, SqliteStore};
use tenure_testkit::rig::{PgCluster, PgStandby};

use crate::support::{World, output_text, until};

fn findings(world: &World) -> Vec<Value> {
    let output = world.run(&["doctor", "--rounds", "1", "-o", "json"]);
    let found: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output_text(&output)));
    found["findings"].as_array().expect("findings").clone()
}

fn finding(world: &World, check: &str) -> Option<Value> {
    findings(world).into_iter().find(|finding| finding["check"] == check)
}

/// Every row of every table except the epoch, whose row counts grants.
fn rows(world: &World) -> Vec<String> {
    if world.is_postgres() {
        let tables = "SELECT relname FROM pg_class WHERE relnamespace = 'tenure'::regnamespace AND relkind = 'r' AND relname <> 'epoch'";
        let tables = world.psql(tables).expect("tables");
        let each = |table: &str| format!("SELECT '{table} ' || to_jsonb(t)::text FROM tenure.{table} t");
        let all = tables.lines().map(each).collect::<Vec<_>>().join(" UNION ALL ");
        return world.psql(&format!("{all} ORDER BY 1")).expect("rows").lines().map(str::to_owned).collect();
    }
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let store = SqliteStore::open(SqliteOptions::new(world.path("tenure.db"))).await.expect("a file");
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'tenure_%' AND name <> 'tenure_epoch'";
        let mut rows = Vec::new();
        for table in sqlx::query(tables).fetch_all(store.pool()).await.expect("tables") {
            let table: String = table.get(0);
            let columns = format!("SELECT group_concat('quote(\"' || name || '\")', ' || '','' || ') FROM pragma_table_info('{table}')");
            let columns: String =
                sqlx::query_scalar(AssertSqlSafe(columns)).fetch_one(store.pool()).await.expect("columns");
            let all = format!("SELECT '{table} ' || {columns} FROM {table}");
            let found: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(all)).fetch_all(store.pool()).await.expect("rows");
            rows.extend(found);
        }
        rows.sort();
        rows
    })
}

/// Regression: each run left two sessions, an election, a lease and some terms.
#[test]
fn doctor_leaves_no_rows_behind() {
    for world in [World::sqlite(), World::postgres()] {
        world.ok(&["migrate", "up"]);
        world.ok(&["run", "nightly", "--", "true"]);
        world.ok(&["tasks", "submit", "mail"]);
        let before = rows(&world);
        assert!(before.iter().any(|row| row.contains("nightly")), "{before:?}");
        let hand_over = finding(&world, "handover").expect("it is measured");
        assert!(hand_over["value"].as_str().is_some_and(|value| value.contains("median")), "{hand_over}");
        assert_eq!(rows(&world), before);
    }
}

/// Regression: a lease stays held after its process was killed, and doctor reported that maintenance runs.
#[test]
fn dead_maintenance_is_a_warning() {
    let world = World::postgres();
    world.ok(&["tasks", "submit", "mail", "--kind", "never"]);
    let mut work = world
        .command(&["work", "mail", "--kind", "other", "--lease", "4s", "--", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("tenure runs");
    let leads = "SELECT count(*) FROM tenure.leases WHERE namespace = 'tenure' AND session IS NOT NULL";
    until("it leads", || world.psql(leads).expect("psql") != "0", String::new);
    let alive = finding(&world, "maintenance").expect("there is work");
    assert_eq!(alive["status"], "ok", "{alive}");
    work.kill().expect("killed");
    work.wait().expect("it ends");
    let dead = finding(&world, "maintenance").expect("there is work");
    assert_eq!(dead["status"], "warning", "{dead}");
    assert!(
        dead["value"].as_str().is_some_and(|value| value.contains("no process runs maintenance")),
        "{dead}"
    );
}

#[test]
fn a_standby_is_an_error() {
    let primary = PgCluster::start().expect("a cluster");
    let mut world = World::sqlite();
    world.store = primary.url();
    world.ok(&["migrate", "up"]);
    let standby = PgStandby::of(&primary).expect("a standby");
    standby.wait_caught_up().expect("it follows");
    world.store = standby.url();
    let output = world.run(&["doctor", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let found = finding(&world, "store").expect("a finding");
    assert_eq!(found["status"], "error");
    assert!(found["value"].as_str().is_some_and(|value| value.contains("standby")), "{found}");
}
