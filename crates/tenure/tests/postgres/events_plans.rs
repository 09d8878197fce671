//! Query plans for events: the number of rows and index entries that statements read.

use tenure_core::port::{
    EventAdmin, EventStore, MaintenanceRequest, NewEvent, StartOffset, TopicSettings, broker_election,
};
use tenure_testkit::rig::FreshDatabase;

use crate::events::*;
use crate::support::*;

const PLAN_MODES: [&str; 2] = ["force_generic_plan", "force_custom_plan"];

/// What a statement read: rows of commit_batches and events by sequential scans, and entries of their indexes.
fn reads(database: &FreshDatabase, before: &str, statement: &str) -> Vec<i64> {
    let sum = ["commit_batches", "events", "commit_batches_pkey", "events_pkey"]
        .map(|name| format!("pg_stat_get_xact_tuples_returned('tenure.{name}'::regclass)"))
        .join(", ");
    // The server resets these counters only about once per second, so compare them before and after the statement.
    let count = format!("SELECT concat_ws(' ', 'reads', {sum});\n");
    let script = format!("{before};\nBEGIN;\n{count}{statement};\n{count}ROLLBACK;");
    let answer = database.psql(&script).unwrap();
    let counted: Vec<Vec<i64>> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("reads "))
        .map(|line| line.split(' ').map(|n| n.parse().unwrap()).collect())
        .collect();
    let [earlier, later] = &counted[..] else { panic!("{answer}") };
    later.iter().zip(earlier).map(|(later, earlier)| later - earlier).collect()
}

/// Publishes this number of events, each in its own commit batch.
fn publish_singly(count: u32) -> String {
    format!(
        "DO $$ BEGIN FOR n IN 1..{count} LOOP
             PERFORM tenure.publish_event('default', 't', n, 'test', 'k' || n, '1', NULL, NULL, NULL); END LOOP; END $$"
    )
}

fn read(partitions: u32, limit: u32, after: u64) -> String {
    format!(
        "SELECT count(*) FROM tenure.read_events(1, ARRAY(SELECT generate_series(0, {partitions} - 1)), \
         array_fill({after}::bigint, ARRAY[{partitions}]), {limit})"
    )
}

/// With plans made while the tables were empty and without statistics, and with statistics.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_touches_few_rows_more_than_it_returns() {
    for plan_mode in PLAN_MODES {
        let (database, _store) = with_topic(8).await;
        for table in ["commit_batches", "events"] {
            database.psql(&format!("ALTER TABLE tenure.{table} SET (autovacuum_enabled = off)")).unwrap();
        }
        let planned = format!("SET plan_cache_mode = {plan_mode};\n{}", read(8, 1, 0));
        for statistics in ["SELECT 1", "ANALYZE tenure.events, tenure.commit_batches"] {
            let before = format!("{planned};\n{};\n{statistics}", publish_singly(2000));
            for (partitions, limit) in [(8, 100), (1, 100), (8, 8), (3, 7)] {
                let got = reads(&database, &before, &read(partitions, limit, 0));
                // A few commit batches more than needed may be read.
                let max = i64::from(limit + partitions + 16);
                assert!(
                    got[0] == 0 && got[1] == 0 && got[2] <= max && got[3] <= max,
                    "{plan_mode}, {statistics}: a read of {limit} events of {partitions} partitions read {got:?}"
                );
            }
        }
    }
}

/// An open transaction prevents vacuum from removing deleted events: reads and retention start after the deleted rows.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_events_slow_down_neither_reads_nor_retention() {
    let (database, store) = with_topic(1).await;
    let settings = TopicSettings { partitions: 1, retention_ms: 0, ..TopicSettings::default() };
    store.set_topic(&topic("t"), &settings).await.unwrap();
    let mut open_transaction = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT txid_current()").execute(&mut *open_transaction).await.unwrap();
    database.psql(&publish_singly(2000)).unwrap();
    let token = leading(&store, "broker", &broker_election()).await;
    let maintenance =
        MaintenanceRequest { session: id("broker"), token, clock_ms: Some(i64::MAX), limit: 10_000 };
    while all(&store, 1).await.len() > 1 {
        store.prune_events(&maintenance).await.unwrap();
    }
    store.publish(&topic("t"), &[NewEvent::new("last")]).await.unwrap();
    let start_offset = store.partition_offsets(&topic("t")).await.unwrap().unwrap()[0].start_offset;
    let from_start_offset = reads(&database, "SELECT 1", &read(1, 100, start_offset));
    let from_zero = reads(&database, "SELECT 1", &read(1, 100, 0));
    assert!(from_start_offset[2] <= 5, "{from_start_offset:?}");
    assert!(from_zero[2] >= 1000, "{from_zero:?}: no dead rows are left, so that the test proves nothing");
    let prune = "SELECT tenure.prune_partition(1, 0, now() - interval '1 day', NULL, 1000)";
    assert!(reads(&database, "SELECT 1", prune)[2] <= 5);
    open_transaction.rollback().await.unwrap();
}

/// The views of a topic read only the ends of its partitions, those of a group only its unread events.
#[tokio::test(flavor = "multi_thread")]
async fn views_do_not_scan_the_events() {
    let (database, store) = with_topic(4).await;
    database.psql(&publish_singly(2000)).unwrap();
    store.set_group(&group("t", "g"), &Default::default(), StartOffset::Latest).await.unwrap();
    database.psql(&publish_singly(8)).unwrap();
    let views = [
        ("SELECT count(*) FROM tenure.consumer_groups g, tenure.group_json(g)", 60),
        ("SELECT count(*) FROM generate_series(0, 3) s, tenure.partition_offsets(1, s)", 20),
        ("SELECT count(*) FROM tenure.get_event(1, (SELECT last_value - 1 FROM tenure.event_sequence))", 10),
        ("SELECT count(*) FROM tenure.get_event(1, 2000000)", 10),
        ("SELECT tenure.resolve_offset(1, 0, 'published_at_ms', tenure.to_unix_ms(now()) - 1000)", 60),
        (
            "SELECT tenure.find_event_offset(1, e.partition, e.id) FROM tenure.events e ORDER BY e.transaction_id DESC LIMIT 1",
            10,
        ),
    ];
    for statistics in ["SELECT 1", "ANALYZE tenure.events, tenure.commit_batches"] {
        for (view, max) in views {
            let got = reads(&database, statistics, view);
            assert!(got[0] == 0 && got[2] <= max, "{statistics}, {view}: {got:?}");
        }
    }
}

/// The events of a transaction over many partitions are not read again for each partition.
#[tokio::test(flavor = "multi_thread")]
async fn assigning_offsets_reads_each_event_a_few_times() {
    for plan_mode in PLAN_MODES {
        let (database, store) = with_topic(64).await;
        let events: Vec<_> = (0..1000).map(|n| keyed(&format!("k{n}"), n)).collect();
        store.publish(&topic("t"), &events).await.unwrap();
        let publish = "SELECT count(*) FROM tenure.publish_many('t', (SELECT jsonb_agg(jsonb_build_object('key', 'k' || n)) \
                       FROM generate_series(1, 1000) n)); SET CONSTRAINTS ALL IMMEDIATE";
        let got = reads(&database, &format!("SET plan_cache_mode = {plan_mode}"), publish);
        assert!(got[0] == 0 && got[1] == 0 && got[3] <= 3_500, "{plan_mode}: {got:?}");
        assert_eq!(all(&store, 64).await.len(), 1000);
    }
}
