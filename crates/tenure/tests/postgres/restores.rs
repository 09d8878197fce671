//! Restores, copies, upgrades and promotions start a new epoch, so that no token is granted twice.
//!
//! Only one PostgreSQL version is installed for tests, so that a dump into a new cluster stands for `pg_upgrade`: both reset the
//! WAL timeline and the system identifier.

use std::sync::Arc;

use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{ElectionAdmin, ElectionStore, EpochBump, EventAdmin, EventStore, TopicSettings};
use tenure_testkit::conformance::TestSession;
use tenure_testkit::conformance::restores::{GrantsBeforeRestore, RestoreCheck};
use tenure_testkit::rig::{FreshDatabase, PgCluster, PgStandby, fresh_database};

use crate::events::*;
use crate::support::*;

async fn connected(url: &str) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::connect(PostgresOptions::new(url)).await.unwrap())
}

/// Negative control: use the WAL timeline as the epoch.
const BY_TIMELINE: &str = "CREATE OR REPLACE FUNCTION tenure.current_epoch() RETURNS bigint LANGUAGE sql AS 'SELECT tenure.timeline()'";

/// Grants tokens, dumps the database, and grants tokens that the dump does not contain.
async fn dumped(control: bool) -> (FreshDatabase, String, GrantsBeforeRestore) {
    let (database, store) = fresh().await;
    if control {
        database.psql(BY_TIMELINE).unwrap();
    }
    let before = RestoreCheck::begin(Arc::new(store)).await;
    let dump = database.dump(&[]).unwrap();
    (database, dump, before.go_on().await)
}

/// Regression test: after a restore into a new database, tokens were granted again.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_in_a_new_database_continues_above_all_tokens() {
    let (_original, dump, lost) = dumped(false).await;
    let restored = fresh_database().unwrap();
    restored.psql(&dump).unwrap();
    let store = connected(restored.url()).await;
    lost.is_exceeded_by(store.clone()).await;
    let info = store.epoch().await.unwrap().unwrap();
    assert_eq!(info.reason, "other database");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_epochs_a_restored_dump_repeats_tokens() {
    let (_original, dump, lost) = dumped(true).await;
    let restored = fresh_database().unwrap();
    restored.psql(&dump).unwrap();
    let store = connected(restored.url()).await;
    let repeated = tokio::spawn(async move { lost.is_exceeded_by(store).await }).await;
    assert!(repeated.is_err(), "tokens were granted again, and the check did not notice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_restored_in_place_continues_above_all_tokens() {
    let (database, dump, lost) = dumped(false).await;
    database.psql("DROP SCHEMA tenure CASCADE").unwrap();
    database.psql(&dump).unwrap();
    lost.is_exceeded_by(connected(database.url()).await).await;
}

/// Only the rows are restored, into the same tables.
#[tokio::test(flavor = "multi_thread")]
async fn rows_restored_in_place_continue_above_all_tokens() {
    let (database, store) = fresh().await;
    let before = RestoreCheck::begin(Arc::new(store)).await;
    let dump = database.dump(&["--data-only", "--schema=tenure"]).unwrap();
    let lost = before.go_on().await;
    let tables = "SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables WHERE schemaname = 'tenure'";
    let tables = database.psql(tables).unwrap();
    database.psql(&format!("TRUNCATE {}", tables.trim())).unwrap();
    database.psql(&dump).unwrap();
    let store = connected(database.url()).await;
    lost.is_exceeded_by(store.clone()).await;
    assert_eq!(store.epoch().await.unwrap().unwrap().reason, "restored");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_database_continues_above_all_tokens() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.create_database("app").unwrap()).await;
    let before = RestoreCheck::begin(Arc::new(store)).await;
    let copy = "ALTER DATABASE app ALLOW_CONNECTIONS false; \
                SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'app'; \
                CREATE DATABASE copied TEMPLATE app; ALTER DATABASE app ALLOW_CONNECTIONS true";
    cluster.psql("postgres", copy).unwrap();
    let before = before.through(connected(&cluster.url_for_db("app")).await);
    let lost = before.go_on().await;
    lost.is_exceeded_by(connected(&cluster.url_for_db("copied")).await).await;
}

/// Regression test: an upgrade, a dump into a new cluster or a logical migration resets the WAL timeline to 1. A promoted standby
/// of that cluster then granted the tokens of the lost primary again, so that two leaders had the same token.
#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_after_an_upgrade_continues_above_all_tokens() {
    let old = PgCluster::start().unwrap();
    let before = RestoreCheck::begin(Arc::new(migrated(&old.url()).await)).await;
    let dump = old.dump("postgres", &["--schema=tenure"]).unwrap();
    let lost = before.go_on().await;
    let new = PgCluster::start().unwrap();
    new.psql("postgres", &dump).unwrap();
    let store = connected(&new.url()).await;
    lost.is_exceeded_by(store.clone()).await;
    let upgraded = store.epoch().await.unwrap().unwrap();
    assert_eq!(upgraded.reason, "other server");
    drop(store);
    let standby = PgStandby::of(&new).unwrap();
    standby.wait_caught_up().unwrap();
    standby.disconnect().unwrap();
    // Tokens that the standby does not receive.
    let store = connected(&new.url()).await;
    let actor = TestSession::open(store, "c").await;
    let key = election("nightly");
    actor.join(&key).await;
    let overbid = actor.takeover_request(&key, 0).await;
    let unreplicated = actor.store.take_lease(&overbid).await.unwrap().unwrap();
    new.kill9().unwrap();
    standby.promote().unwrap();
    let store = connected(&standby.url()).await;
    let actor = TestSession::open(store.clone(), "d").await;
    assert!(actor.epoch > upgraded.epoch);
    actor.join(&key).await;
    let overbid = actor.takeover_request(&key, 0).await;
    let taken = actor.store.take_lease(&overbid).await.unwrap().unwrap();
    assert!(taken > unreplicated, "{taken} after {unreplicated}");
    assert_eq!(store.epoch().await.unwrap().unwrap().reason, "promotion");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_or_table_rewrite_starts_no_epoch() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    let key = election("e");
    let first = leading(&store, "a", &key).await;
    assert_eq!(first.to_string(), "1.1");
    cluster.restart().unwrap();
    let epoch = async |store: Arc<PostgresStore>| TestSession::open(store, "b").await.epoch;
    assert_eq!(epoch(connected(&cluster.url()).await).await, 1);
    cluster.kill9().unwrap();
    cluster.start_again().unwrap();
    assert_eq!(epoch(connected(&cluster.url()).await).await, 1);
    for rewrite in
        ["VACUUM FULL tenure.epoch", "VACUUM FREEZE tenure.epoch", "CLUSTER tenure.epoch USING epoch_pkey"]
    {
        cluster.psql("postgres", rewrite).unwrap();
        assert_eq!(epoch(connected(&cluster.url()).await).await, 1, "{rewrite}");
    }
}

/// The change may be detected in a subtransaction.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_started_in_a_subtransaction_is_not_started_again() {
    let (database, _store) = fresh().await;
    database.psql("SELECT tenure.current_epoch()").unwrap();
    database.psql("UPDATE tenure.epoch SET system_identifier = 4711, server_started_at = NULL").unwrap();
    let renewed = "BEGIN; SAVEPOINT a; SELECT tenure.current_epoch(); RELEASE a; COMMIT";
    let epoch = database.psql(renewed).unwrap();
    assert_eq!(database.psql("SELECT tenure.current_epoch()").unwrap(), epoch.trim());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_can_start_an_epoch_above_a_fenced_token() {
    let (database, store) = fresh().await;
    let key = election("e");
    let first = leading(&store, "a", &key).await;
    let bump =
        EpochBump { at_least: 0, above: Some("7000.12".parse().unwrap()), reason: "a snapshot".into() };
    let info = store.bump_epoch(&bump).await.unwrap();
    assert_eq!((info.epoch, info.reason.as_str()), (7001, "a snapshot"));
    assert_eq!(store.take_lease(&takeover("b", &key, first, "a", 0)).await.unwrap(), None);
    let response = store.heartbeat(&id("a")).await.unwrap();
    assert_eq!(response, tenure_core::port::HeartbeatResponse::Live { epoch: 7001, leader_requests: vec![] });
    let too_high = EpochBump { at_least: 9000, ..bump };
    assert!(store.bump_epoch(&too_high).await.unwrap_err().message.contains("8191"));
    // Only the owner may start an epoch.
    database.psql(&tenure::store::roles_sql("postgres:").unwrap()).unwrap();
    let refused = database.psql_as("tenure_runtime", "SELECT tenure.bump_epoch(8000, 'mine')").unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
    let refused = database.psql_as("tenure_runtime", "UPDATE tenure.epoch SET epoch = 1").unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
}

/// Regression test: with a sequence that is behind, as after logical replication, 20 committed events got offsets below the
/// committed offset and were never delivered.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_delivered_after_a_reset_of_the_sequence() {
    let (database, store) = fresh().await;
    store.set_topic(&topic("t"), &TopicSettings { partitions: 1, ..TopicSettings::default() }).await.unwrap();
    for n in 1..=40 {
        store.publish(&topic("t"), &[keyed("k", n)]).await.unwrap();
    }
    let read = all(&store, 1).await.last().unwrap().offset;
    let lease = member(&store, "s", &[0]).await.remove(0);
    store.commit_partitions(&[commit(0, lease.token, read)]).await.unwrap();
    let publish: [&dyn Fn(u64) -> String; 3] = [
        &|n| format!("SELECT tenure.publish('t', '{n}', key => 'k')"),
        &|n| format!("BEGIN; SELECT tenure.publish('t', '{n}', key => 'k'); COMMIT"),
        &|n| format!("SELECT tenure.publish('t', '{n}', key => 'k', idempotency_key => '{n}')"),
    ];
    let mut expected: Vec<u64> = (1..=40).collect();
    for (round, publish) in publish.iter().enumerate() {
        database.psql("ALTER SEQUENCE tenure.event_sequence RESTART 1").unwrap();
        for n in 0..20 {
            let n = 100 * (round as u64 + 1) + n;
            database.psql(&publish(n)).unwrap();
            expected.push(n);
        }
    }
    database.psql("ALTER SEQUENCE tenure.event_sequence RESTART 1").unwrap();
    for n in 400..420 {
        store.publish(&topic("t"), &[keyed("k", n)]).await.unwrap();
        expected.push(n);
    }
    let events = all(&store, 1).await;
    assert_eq!(payloads(&events), expected, "all events in order");
    let later = events.iter().filter(|event| event.offset > read).count();
    assert_eq!(later, 80, "above the committed offset");
    let mut ids: Vec<_> = events.iter().map(|event| event.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), events.len(), "event ids are unique");
}

/// Regression test: events published with synchronous_commit = off were visible, a server crash lost them, and their offsets were
/// given to other events, which readers then skipped.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_were_read_survive_a_server_crash() {
    let cluster = PgCluster::builder()
        .settings(&[("wal_writer_delay", "10s"), ("wal_writer_flush_after", "1GB")])
        .start()
        .unwrap();
    let store = migrated(&cluster.url()).await;
    store.set_topic(&topic("t"), &TopicSettings { partitions: 1, ..TopicSettings::default() }).await.unwrap();
    let publish = "SET synchronous_commit = off; SELECT tenure.publish('t', '1', key => 'k'); \
                    BEGIN; SELECT tenure.publish('t', '2', key => 'k'); SELECT tenure.publish('t', '3', key => 'k'); COMMIT; \
                    SELECT tenure.publish('t', '4', idempotency_key => 'x')";
    cluster.psql("postgres", publish).unwrap();
    let before = all(&store, 1).await;
    assert_eq!(payloads(&before), [1, 2, 3, 4]);
    cluster.kill9().unwrap();
    cluster.start_again().unwrap();
    let store = connected(&cluster.url()).await;
    let offsets =
        |events: &[tenure_core::port::Event]| events.iter().map(|it| (it.id, it.offset)).collect::<Vec<_>>();
    assert_eq!(offsets(&all(&store, 1).await), offsets(&before));
}
