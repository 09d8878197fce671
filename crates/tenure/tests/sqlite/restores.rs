//! Copies of a file: a new epoch begins, and nothing that was granted is granted again. What is restored over the same file is tested with
//! real processes, in `tenure-cli/tests/rungs/restores.rs`.

use std::path::Path;
use std::sync::Arc;

use tenure::backend::sqlite::Sqlite;
use tenure_core::port::{Directory, EpochBump, Pulse, Store};
use tenure_testkit::conformance::restores::{Before, Lost};
use tenure_testkit::conformance::{Actor, election};

use super::child::open;

async fn copied(folder: &Path) -> (Sqlite, Lost) {
    let store = open(&folder.join("t.db")).await;
    let before = Before::begin(Arc::new(store.clone())).await;
    let copy = format!("VACUUM INTO '{}'", folder.join("copy.db").display());
    sqlx::query(sqlx::AssertSqlSafe(copy.as_str())).execute(store.pool()).await.unwrap();
    (store, before.go_on().await)
}

/// After a file was restored from a copy, the next token was one that had been granted before.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_above_every_token() {
    let folder = tempfile::tempdir().unwrap();
    let (original, lost) = copied(folder.path()).await;
    let store = open(&folder.path().join("copy.db")).await;
    lost.is_exceeded_by(Arc::new(store.clone())).await;
    assert_eq!(store.epoch().await.unwrap().unwrap().reason, "other file");
    // Nothing has happened to the original.
    assert_eq!(original.epoch().await.unwrap().unwrap().epoch, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_taken_for_the_same_file_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (_original, lost) = copied(folder.path()).await;
    let path = folder.path().join("copy.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    // As if there were no such sign.
    sqlx::query("UPDATE tenure_epoch SET file = ''").execute(&mut connection).await.unwrap();
    sqlx::Connection::close(connection).await.unwrap();
    let store = Arc::new(open(&path).await);
    let repeated = tokio::spawn(async move { lost.is_exceeded_by(store).await }).await;
    assert!(repeated.is_err(), "tokens are granted again, and the claim does not see it");
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_again_and_vacuum_begin_no_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.db");
    let key = election("nightly");
    let mut last = None;
    for round in 0..3 {
        let store = open(&path).await;
        let a = Actor::open(Arc::new(store.clone()), "a").await;
        assert_eq!(a.epoch, 0, "round {round}");
        a.stand(&key).await;
        let token = a.take(&key, 0).await;
        assert!(Some(token) > last);
        last = Some(token);
        a.release(&key, 0, token).await;
        for tidy in ["PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM"] {
            sqlx::query(tidy).execute(store.pool()).await.unwrap();
        }
        if round == 1 {
            // Somebody tidies up.
            std::fs::remove_file(folder.path().join("t.db.tenure/epoch")).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_begins_an_epoch_and_leaders_hear_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("t.db")).await;
    let (a, key) = (Actor::open(Arc::new(store.clone()), "a").await, election("nightly"));
    a.stand(&key).await;
    let seen = a.bid(&key, 0).await;
    let bump = EpochBump { at_least: 7000, above: None, reason: "a snapshot".into() };
    assert_eq!(store.bump_epoch(&bump).await.unwrap().epoch, 7000);
    assert_eq!(store.take(&seen).await, Ok(None), "it was seen in another epoch");
    assert!(matches!(store.beat(&a.id).await, Ok(Pulse::Alive { epoch: 7000, .. })));
    let beyond = EpochBump { at_least: 9000, ..bump };
    assert!(store.bump_epoch(&beyond).await.unwrap_err().message.contains("8191"));
}
