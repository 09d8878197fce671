//! Copies of a file: a new epoch starts, and no token repeats. Tests of restores over the same file are in the tests of `tenure-cli`.

use std::path::Path;
use std::sync::Arc;

use tenure::store::sqlite::SqliteStore;
use tenure_core::port::{ElectionAdmin, ElectionStore, EpochBump, HeartbeatResponse};
use tenure_testkit::conformance::restores::{GrantsBeforeRestore, RestoreCheck};
use tenure_testkit::conformance::{TestSession, election};

use super::child::open;

async fn copied(directory: &Path) -> (SqliteStore, GrantsBeforeRestore) {
    let store = open(&directory.join("t.db")).await;
    let before = RestoreCheck::begin(Arc::new(store.clone())).await;
    let copy = format!("VACUUM INTO '{}'", directory.join("copy.db").display());
    sqlx::query(sqlx::AssertSqlSafe(copy.as_str())).execute(store.pool()).await.unwrap();
    (store, before.go_on().await)
}

/// Regression test: after a restore from a copy, the store granted a token that it had granted before.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_copy_exceed_all_earlier_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let (original, lost) = copied(directory.path()).await;
    let store = open(&directory.path().join("copy.db")).await;
    lost.is_exceeded_by(Arc::new(store.clone())).await;
    assert_eq!(store.epoch().await.unwrap().unwrap().reason, "other file");
    // The original is unchanged.
    assert_eq!(original.epoch().await.unwrap().unwrap().epoch, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_without_a_new_epoch_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let (_original, lost) = copied(directory.path()).await;
    let path = directory.path().join("copy.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    // Remove the identity of the file from the copy.
    sqlx::query("UPDATE tenure_epoch SET file_identity = ''").execute(&mut connection).await.unwrap();
    sqlx::Connection::close(connection).await.unwrap();
    let store = Arc::new(open(&path).await);
    let repeated = tokio::spawn(async move { lost.is_exceeded_by(store).await }).await;
    assert!(repeated.is_err(), "the test does not detect repeated tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn reopening_and_vacuum_keep_the_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.db");
    let key = election("nightly");
    let mut last = None;
    for round in 0..3 {
        let store = open(&path).await;
        let a = TestSession::open(Arc::new(store.clone()), "a").await;
        assert_eq!(a.epoch, 0, "round {round}");
        a.join(&key).await;
        let token = a.take(&key, 0).await;
        assert!(Some(token) > last);
        last = Some(token);
        a.release(&key, 0, token).await;
        for tidy in ["PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM"] {
            sqlx::query(tidy).execute(store.pool()).await.unwrap();
        }
        if round == 1 {
            // The mark file was removed.
            std::fs::remove_file(directory.path().join("t.db.tenure/epoch")).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_starts_an_epoch_and_heartbeats_report_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("t.db")).await;
    let (a, key) = (TestSession::open(Arc::new(store.clone()), "a").await, election("nightly"));
    a.join(&key).await;
    let seen = a.take_request(&key, 0).await;
    let bump = EpochBump { at_least: 7000, above: None, reason: "a snapshot".into() };
    assert_eq!(store.bump_epoch(&bump).await.unwrap().epoch, 7000);
    assert_eq!(store.take_lease(&seen).await, Ok(None), "the observation is from another epoch");
    assert!(matches!(store.heartbeat(&a.id).await, Ok(HeartbeatResponse::Live { epoch: 7000, .. })));
    let beyond = EpochBump { at_least: 9000, ..bump };
    assert!(store.bump_epoch(&beyond).await.unwrap_err().message.contains("8191"));
}
