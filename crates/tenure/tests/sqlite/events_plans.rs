//! How events are found: never by reading all of them. And how fast.

use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, Row, SqliteConnection};
use tenure::backend::migrations::Migrate;
use tenure::backend::sqlite::{Sqlite, SqliteOptions};
use tenure_core::port::*;

use super::child::open;
use super::events::{Reader, fresh, keyed, plain, topic};

/// Nothing is looked for by reading all events, whatever is known about the tables' sizes.
#[tokio::test]
async fn no_statement_reads_through_all_events() {
    let (store, _dir) = fresh(4).await;
    let mut conn = plain(store.path()).await;
    let files = [
        include_str!("../../src/backend/sqlite/queries/topics.sql"),
        include_str!("../../src/backend/sqlite/queries/events.sql"),
        include_str!("../../src/backend/sqlite/queries/groups.sql"),
        include_str!("../../src/backend/sqlite/queries/shares.sql"),
    ];
    // The tables that grow, by the names that they have in the statements. The others are as long as people make them.
    let growing = [
        "e",
        "k",
        "f",
        "r",
        "p",
        "i",
        "tenure_events",
        "a",
        "b",
        "tenure_event_asides",
        "d",
        "tenure_event_done",
    ];
    let mut looked_at = 0;
    for statement in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
        let (name, sql) = statement.split_once('\n').unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        for row in sqlx::query(sqlx::AssertSqlSafe(explain.as_str())).fetch_all(&mut conn).await.unwrap() {
            let step: String = row.get("detail");
            let scans = |table: &&str| {
                step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} USING"))
            };
            assert!(!growing.iter().any(scans), "{name}: {step}");
            looked_at += 1;
        }
    }
    assert!(looked_at > 100, "{looked_at}");
}

/// Which slots are read is found by the index alone, and so is what lies behind.
#[tokio::test]
async fn what_there_is_to_read_is_known_by_the_index_alone() {
    let (store, _dir) = fresh(4).await;
    let mut conn = plain(store.path()).await;
    let files = [
        include_str!("../../src/backend/sqlite/queries/topics.sql"),
        include_str!("../../src/backend/sqlite/queries/events.sql"),
        include_str!("../../src/backend/sqlite/queries/groups.sql"),
    ];
    let mut looked_at = 0;
    for statement in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
        let (name, sql) = statement.split_once('\n').unwrap();
        let alone = [
            "event_units",
            "group_slots",
            "slot_ends",
            "slot_before",
            "event_first",
            "topic_list",
            "event_forget",
        ];
        if !alone.contains(&name.trim()) {
            continue;
        }
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        for row in sqlx::query(sqlx::AssertSqlSafe(explain.as_str())).fetch_all(&mut conn).await.unwrap() {
            let step: String = row.get("detail");
            let events =
                ["e", "r", "p", "f"].iter().any(|table| step.starts_with(&format!("SEARCH {table} ")));
            if events && step.contains("tenure_events_slot") {
                assert!(
                    step.contains("COVERING INDEX tenure_events_slot (topic=? AND slot=?"),
                    "{name}: {step}"
                );
                looked_at += 1;
            }
        }
    }
    assert!(looked_at >= 9, "{looked_at}");
}

/// A file that an older Tenure made.
#[tokio::test]
async fn a_file_from_before_there_were_events_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut conn = SqliteConnection::connect_with(&options).await.unwrap();
    for old in [
        include_str!("../../src/backend/sqlite/migrations/0001_elections.sql"),
        include_str!("../../src/backend/sqlite/migrations/0002_server.sql"),
        include_str!("../../src/backend/sqlite/migrations/0003_claims.sql"),
        "INSERT INTO tenure_migrations VALUES (1, 'elections', 1, 0), (2, 'server', 2, 0), (3, 'claims', 3, 0);
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
    assert!(store.set_topic(&topic(), &TopicSettings::default()).await.unwrap());
    assert_eq!(store.publish(&topic(), &[keyed("a", 1)]).await.unwrap()[0].id.0, 1);
    assert_eq!(store.tasks(&TaskFilter { limit: 9, ..TaskFilter::default() }).await.unwrap().len(), 1);
}

/// Prints how fast events go: `cargo test --release --test sqlite pace -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, and asserts nothing"]
async fn pace() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("TENURE_TEST_FOLDER").unwrap_or("/var/tmp".into())).unwrap();
    let rate = |n: usize, span: Duration| (n as f64 / span.as_secs_f64()) as u64;
    for slots in [1, 64] {
        let store = open(&dir.path().join(format!("{slots}.db"))).await;
        store.set_topic(&topic(), &TopicSettings { slots, ..TopicSettings::default() }).await.unwrap();
        let event = |n: u64| NewEvent {
            payload: Payload::Json(Json::of(&"x".repeat(100)).unwrap()),
            ..keyed(&format!("key-{}", n % 1_000), n)
        };
        let before = tenure::runtime::now();
        for n in 0..1_000 {
            store.publish(&topic(), &[event(n)]).await.unwrap();
        }
        let single = rate(1_000, tenure::runtime::now().since(before));
        let before = tenure::runtime::now();
        for round in 0..100 {
            let events: Vec<_> = (0..1_000).map(|n| event(round * 1_000 + n)).collect();
            store.publish(&topic(), &events).await.unwrap();
        }
        let batched = rate(100_000, tenure::runtime::now().since(before));
        let mut reader = Reader::join(&store, "a").await;
        let (mut reads, mut commits, mut n, mut batches) = (Duration::ZERO, Duration::ZERO, 0, 0);
        loop {
            let before = tenure::runtime::now();
            let read = reader.read(1_000).await;
            let between = tenure::runtime::now();
            if read.is_empty() {
                break;
            }
            reader.done(&read).await;
            reads += between.since(before);
            commits += tenure::runtime::now().since(between);
            n += read.len();
            batches += 1;
        }
        println!(
            "{slots} slots: {single}/s published one by one, {batched}/s by 1000; {n} in {batches} batches: {}/s read, {}/s \
             committed, {}/s both",
            rate(n, reads),
            rate(n, commits),
            rate(n, reads + commits)
        );
    }
}
