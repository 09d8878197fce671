//! Query plans of events: no statement scans all events.

use std::time::Duration;

use sqlx::Row;
use tenure_core::port::*;

use super::child::open;
use super::events::{TestConsumer, fresh, keyed, plain, topic};

/// No statement scans all events, regardless of table statistics.
#[tokio::test]
async fn no_statement_scans_all_events() {
    let (store, _dir) = fresh(4).await;
    let mut conn = plain(store.path()).await;
    let files = [
        include_str!("../../src/store/sqlite/queries/topics.sql"),
        include_str!("../../src/store/sqlite/queries/events.sql"),
        include_str!("../../src/store/sqlite/queries/groups.sql"),
        include_str!("../../src/store/sqlite/queries/partition_leases.sql"),
        include_str!("../../src/store/sqlite/queries/parked_events.sql"),
    ];
    // The tables that grow without limit, and their aliases in the statements.
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
        "tenure_parked_events",
        "d",
        "tenure_processed_events",
    ];
    let mut steps = 0;
    for statement in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
        let (name, sql) = statement.split_once('\n').unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        for row in sqlx::query(sqlx::AssertSqlSafe(explain.as_str())).fetch_all(&mut conn).await.unwrap() {
            let step: String = row.get("detail");
            let scans = |table: &&str| {
                step == format!("SCAN {table}") || step.starts_with(&format!("SCAN {table} USING"))
            };
            assert!(!growing.iter().any(scans), "{name}: {step}");
            steps += 1;
        }
    }
    assert!(steps > 100, "{steps}");
}

/// Planning a read and counting the lag use the index alone.
#[tokio::test]
async fn planning_a_read_uses_the_index_alone() {
    let (store, _dir) = fresh(4).await;
    let mut conn = plain(store.path()).await;
    let files = [
        include_str!("../../src/store/sqlite/queries/topics.sql"),
        include_str!("../../src/store/sqlite/queries/events.sql"),
        include_str!("../../src/store/sqlite/queries/groups.sql"),
    ];
    let mut steps = 0;
    for statement in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
        let (name, sql) = statement.split_once('\n').unwrap();
        let alone = [
            "commit_batch_list",
            "group_partitions",
            "partition_offsets",
            "partition_offset_before",
            "commit_batch_list_first",
            "topic_list",
            "event_prune",
        ];
        if !alone.contains(&name.trim()) {
            continue;
        }
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        for row in sqlx::query(sqlx::AssertSqlSafe(explain.as_str())).fetch_all(&mut conn).await.unwrap() {
            let step: String = row.get("detail");
            let events =
                ["e", "r", "p", "f"].iter().any(|table| step.starts_with(&format!("SEARCH {table} ")));
            if events && step.contains("tenure_events_partition") {
                assert!(
                    step.contains("COVERING INDEX tenure_events_partition (topic_id=? AND partition=?"),
                    "{name}: {step}"
                );
                steps += 1;
            }
        }
    }
    assert!(steps >= 9, "{steps}");
}

/// Print event rates: `cargo test --release --test sqlite event_rates -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures only"]
async fn event_rates() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("TENURE_TEST_DIRECTORY").unwrap_or("/var/tmp".into())).unwrap();
    let rate = |n: usize, span: Duration| (n as f64 / span.as_secs_f64()) as u64;
    for partitions in [1, 64] {
        let store = open(&dir.path().join(format!("{partitions}.db"))).await;
        store.set_topic(&topic(), &TopicSettings { partitions, ..TopicSettings::default() }).await.unwrap();
        let event = |n: u64| NewEvent {
            payload: Payload::Json(RawJson::of(&"x".repeat(100)).unwrap()),
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
        let mut consumer = TestConsumer::join(&store, "a").await;
        let (mut reads, mut commits, mut n, mut batches) = (Duration::ZERO, Duration::ZERO, 0, 0);
        loop {
            let before = tenure::runtime::now();
            let read = consumer.read(1_000).await;
            let between = tenure::runtime::now();
            if read.is_empty() {
                break;
            }
            consumer.complete(&read).await;
            reads += between.since(before);
            commits += tenure::runtime::now().since(between);
            n += read.len();
            batches += 1;
        }
        println!(
            "{partitions} partitions: {single}/s published one by one, {batched}/s by 1000; {n} in {batches} batches: {}/s read, {}/s \
             committed, {}/s both",
            rate(n, reads),
            rate(n, commits),
            rate(n, reads + commits)
        );
    }
}
