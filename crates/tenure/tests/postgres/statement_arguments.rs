//! Arguments of statements, as a real server reads them.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{ElectionAdmin, ElectionStore};

use crate::support::*;

/// Stores a candidate with this name, priority and metadata, and reads it back.
async fn round_trip(
    store: &PostgresStore,
    id: &str,
    priority: i32,
    key: &str,
    value: &str,
) -> (String, i32, String) {
    let mut candidate = candidacy("a", &election("e"));
    (candidate.name, candidate.priority) = (id.into(), priority);
    candidate.metadata.insert(key.into(), value.into());
    store.join_election(&candidate).await.unwrap();
    let mut view = store.election(&election("e")).await.unwrap().unwrap();
    let candidate = view.candidates.remove(0);
    (candidate.name, candidate.priority, candidate.metadata.get(key).cloned().unwrap_or_default())
}

#[test]
fn texts_and_numbers_are_stored_unchanged() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (database, store) = runtime.block_on(fresh());
    runtime.block_on(opened(&store, "a"));
    // The setting must not change how backslashes are read.
    let sql = format!("ALTER DATABASE {} SET standard_conforming_strings = off", database.name());
    database.psql(&sql).unwrap();
    let old_rules = runtime.block_on(PostgresStore::connect(PostgresOptions::new(database.url()))).unwrap();
    let awkward = r#"['"\\$0-9;a-z/*-]{0,20}"#;
    let text = prop_oneof!["[^\0]{0,30}", awkward];
    let strategy = (text, any::<i32>(), awkward, "[^\0]{0,30}");
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    runner
        .run(&strategy, |(id, priority, key, value)| {
            for store in [&store, &old_rules] {
                let back = runtime.block_on(round_trip(store, &id, priority, &key, &value));
                prop_assert_eq!(back, (id.clone(), priority, value.clone()));
            }
            Ok(())
        })
        .unwrap();
}
