//! Restores, copies, upgrades and promotions: each begins a new epoch, and nothing that was granted is granted again.
//!
//! Only one version of PostgreSQL is installed here, so `pg_upgrade` is stood in for by a dump into a new cluster: it resets the WAL timeline
//! and the system identifier as `pg_upgrade` does.

use std::sync::Arc;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{Bureau, Directory, EpochBump, Events, Store, TopicSettings};
use tenure_testkit::conformance::Actor;
use tenure_testkit::conformance::restores::{Before, Lost};
use tenure_testkit::rig::{FreshDatabase, PgCluster, PgStandby, fresh_database};

use crate::events::*;
use crate::support::*;

async fn connected(url: &str) -> Arc<Postgres> {
    Arc::new(Postgres::connect(PostgresOptions::new(url)).await.unwrap())
}

/// The epoch that a store which does not know of epochs shows: that of the WAL.
const BY_TIMELINE: &str = "CREATE OR REPLACE FUNCTION tenure.current_epoch() RETURNS bigint LANGUAGE sql AS 'SELECT tenure.timeline()'";

/// Grants, dumps with these options, grants what the dump does not know.
async fn dumped(control: bool) -> (FreshDatabase, String, Lost) {
    let (database, store) = fresh().await;
    if control {
        database.psql(BY_TIMELINE).unwrap();
    }
    let before = Before::begin(Arc::new(store)).await;
    let dump = database.dump(&[]).unwrap();
    (database, dump, before.go_on().await)
}

/// After `pg_dump` and `pg_restore` into a new database, the next token was one that had been granted before.
#[tokio::test(flavor = "multi_thread")]
async fn a_dump_in_a_new_database_goes_on_above_every_token() {
    let (_original, dump, lost) = dumped(false).await;
    let restored = fresh_database().unwrap();
    restored.psql(&dump).unwrap();
    let store = connected(restored.url()).await;
    lost.is_exceeded_by(store.clone()).await;
    let shown = store.epoch().await.unwrap().unwrap();
    assert_eq!(shown.reason, "other database");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_is_taken_for_the_same_store_is_found() {
    let (_original, dump, lost) = dumped(true).await;
    let restored = fresh_database().unwrap();
    restored.psql(&dump).unwrap();
    let store = connected(restored.url()).await;
    let repeated = tokio::spawn(async move { lost.is_exceeded_by(store).await }).await;
    assert!(repeated.is_err(), "tokens are granted again, and the claim does not see it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_is_restored_in_place_goes_on_above_every_token() {
    let (database, dump, lost) = dumped(false).await;
    database.psql("DROP SCHEMA tenure CASCADE").unwrap();
    database.psql(&dump).unwrap();
    lost.is_exceeded_by(connected(database.url()).await).await;
}

/// The tables stay the same, and only what is in them goes back.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_restored_in_place_go_on_above_every_token() {
    let (database, store) = fresh().await;
    let before = Before::begin(Arc::new(store)).await;
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
async fn a_copy_of_the_database_goes_on_above_every_token() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.create_database("app").unwrap()).await;
    let before = Before::begin(Arc::new(store)).await;
    let copy = "ALTER DATABASE app ALLOW_CONNECTIONS false; \
                SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'app'; \
                CREATE DATABASE copied TEMPLATE app; ALTER DATABASE app ALLOW_CONNECTIONS true";
    cluster.psql("postgres", copy).unwrap();
    let before = before.through(connected(&cluster.url_for_db("app")).await);
    let lost = before.go_on().await;
    lost.is_exceeded_by(connected(&cluster.url_for_db("copied")).await).await;
}

/// An upgrade, a dump into a new cluster or a logical migration reset the WAL timeline to 1, and then a standby of that cluster that was promoted
/// granted what the lost primary had granted: two leaders worked under one token.
#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_after_an_upgrade_goes_on_above_every_token() {
    let old = PgCluster::start().unwrap();
    let before = Before::begin(Arc::new(migrated(&old.url()).await)).await;
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
    // Grants that the standby never hears of.
    let store = connected(&new.url()).await;
    let actor = Actor::open(store, "c").await;
    let key = election("nightly");
    actor.stand(&key).await;
    let overbid = actor.overbid(&key, 0).await;
    let unheard = actor.store.take(&overbid).await.unwrap().unwrap();
    new.kill9().unwrap();
    standby.promote().unwrap();
    let store = connected(&standby.url()).await;
    let actor = Actor::open(store.clone(), "d").await;
    assert!(actor.epoch > upgraded.epoch);
    actor.stand(&key).await;
    let overbid = actor.overbid(&key, 0).await;
    let taken = actor.store.take(&overbid).await.unwrap().unwrap();
    assert!(taken > unheard, "{taken} after {unheard}");
    assert_eq!(store.epoch().await.unwrap().unwrap().reason, "promotion");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_or_a_rewrite_of_the_table_is_no_new_epoch() {
    let cluster = PgCluster::start().unwrap();
    let store = migrated(&cluster.url()).await;
    let key = election("e");
    let first = leading(&store, "a", &key).await;
    assert_eq!(first.to_string(), "1.1");
    cluster.restart().unwrap();
    let epoch = async |store: Arc<Postgres>| Actor::open(store, "b").await.epoch;
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

/// In whatever subtransaction it is found out.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_begins_in_a_subtransaction_is_the_only_one() {
    let (database, _store) = fresh().await;
    database.psql("SELECT tenure.current_epoch()").unwrap();
    database.psql("UPDATE tenure.epoch SET system_identifier = 4711, started_at = NULL").unwrap();
    let renewed = "BEGIN; SAVEPOINT a; SELECT tenure.current_epoch(); RELEASE a; COMMIT";
    let epoch = database.psql(renewed).unwrap();
    assert_eq!(database.psql("SELECT tenure.current_epoch()").unwrap(), epoch.trim());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_begins_an_epoch_beyond_what_a_fence_has_seen() {
    let (database, store) = fresh().await;
    let key = election("e");
    let first = leading(&store, "a", &key).await;
    let bump =
        EpochBump { at_least: 0, above: Some("7000.12".parse().unwrap()), reason: "a snapshot".into() };
    let shown = store.bump_epoch(&bump).await.unwrap();
    assert_eq!((shown.epoch, shown.reason.as_str()), (7001, "a snapshot"));
    assert_eq!(store.take(&take_over("b", &key, first, "a", 0)).await.unwrap(), None);
    let beaten = store.beat(&id("a")).await.unwrap();
    assert_eq!(beaten, tenure_core::port::Pulse::Alive { epoch: 7001, asks: vec![] });
    let beyond = EpochBump { at_least: 9000, ..bump };
    assert!(store.bump_epoch(&beyond).await.unwrap_err().message.contains("8191"));
    // Only the owner may.
    database.psql(&tenure::backend::roles_sql("postgres:").unwrap()).unwrap();
    let refused = database.psql_as("tenure_runtime", "SELECT tenure.bump_epoch(8000, 'mine')").unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
    let refused = database.psql_as("tenure_runtime", "UPDATE tenure.epoch SET epoch = 1").unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
}

/// With the sequence behind, as logical replication leaves it, 20 committed events lay before what was read, and were never delivered.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_delivered_though_their_sequence_was_reset() {
    let (database, store) = fresh().await;
    store.set_topic(&topic("t"), &TopicSettings { slots: 1, ..TopicSettings::default() }).await.unwrap();
    for n in 1..=40 {
        store.publish(&topic("t"), &[keyed("k", n)]).await.unwrap();
    }
    let read = all(&store, 1).await.last().unwrap().position;
    let share = member(&store, "s", &[0]).await.remove(0);
    store.commit_shares(&[commit(0, share.token, read)]).await.unwrap();
    let ways: [&dyn Fn(u64) -> String; 3] = [
        &|n| format!("SELECT tenure.publish('t', '{n}', key => 'k')"),
        &|n| format!("BEGIN; SELECT tenure.publish('t', '{n}', key => 'k'); COMMIT"),
        &|n| format!("SELECT tenure.publish('t', '{n}', key => 'k', idempotency_key => '{n}')"),
    ];
    let mut expected: Vec<u64> = (1..=40).collect();
    for (round, way) in ways.iter().enumerate() {
        database.psql("ALTER SEQUENCE tenure.event_numbers RESTART 1").unwrap();
        for n in 0..20 {
            let n = 100 * (round as u64 + 1) + n;
            database.psql(&way(n)).unwrap();
            expected.push(n);
        }
    }
    database.psql("ALTER SEQUENCE tenure.event_numbers RESTART 1").unwrap();
    for n in 400..420 {
        store.publish(&topic("t"), &[keyed("k", n)]).await.unwrap();
        expected.push(n);
    }
    let events = all(&store, 1).await;
    assert_eq!(payloads(&events), expected, "all of them, in order");
    let later = events.iter().filter(|event| event.position > read).count();
    assert_eq!(later, 80, "beyond what the group has read");
    let mut ids: Vec<_> = events.iter().map(|event| event.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), events.len(), "no number is given twice");
}

/// A publisher that does not wait for the disk (synchronous_commit = off) showed events that a crash of the server then took back, and their positions were
/// given to others: whoever had read so far never saw those.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_is_still_there_after_a_crash_of_the_server() {
    let cluster = PgCluster::builder()
        .settings(&[("wal_writer_delay", "10s"), ("wal_writer_flush_after", "1GB")])
        .start()
        .unwrap();
    let store = migrated(&cluster.url()).await;
    store.set_topic(&topic("t"), &TopicSettings { slots: 1, ..TopicSettings::default() }).await.unwrap();
    let careless = "SET synchronous_commit = off; SELECT tenure.publish('t', '1', key => 'k'); \
                    BEGIN; SELECT tenure.publish('t', '2', key => 'k'); SELECT tenure.publish('t', '3', key => 'k'); COMMIT; \
                    SELECT tenure.publish('t', '4', idempotency_key => 'x')";
    cluster.psql("postgres", careless).unwrap();
    let before = all(&store, 1).await;
    assert_eq!(payloads(&before), [1, 2, 3, 4]);
    cluster.kill9().unwrap();
    cluster.start_again().unwrap();
    let store = connected(&cluster.url()).await;
    let positions = |events: &[tenure_core::port::Event]| {
        events.iter().map(|it| (it.id, it.position)).collect::<Vec<_>>()
    };
    assert_eq!(positions(&all(&store, 1).await), positions(&before));
}
