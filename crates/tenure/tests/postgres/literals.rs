//! Arguments written into statements, as a real server reads them.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{Directory, Store};

use crate::support::*;

/// What comes back for a candidate of this id, priority and metadata.
async fn round_trip(
    store: &Postgres,
    id: &str,
    priority: i32,
    key: &str,
    value: &str,
) -> (String, i32, String) {
    let mut candidate = candidacy("a", &election("e"));
    (candidate.id, candidate.priority) = (id.into(), priority);
    candidate.metadata.insert(key.into(), value.into());
    store.join(&candidate).await.unwrap();
    let mut view = store.election(&election("e")).await.unwrap().unwrap();
    let candidate = view.candidates.remove(0);
    (candidate.id, candidate.priority, candidate.metadata.get(key).cloned().unwrap_or_default())
}

#[test]
fn any_text_and_number_comes_back_as_it_was() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (database, store) = runtime.block_on(fresh());
    runtime.block_on(opened(&store, "a"));
    // The older rules for backslashes change nothing.
    let sql = format!("ALTER DATABASE {} SET standard_conforming_strings = off", database.name());
    database.psql(&sql).unwrap();
    let old_rules = runtime.block_on(Postgres::connect(PostgresOptions::new(database.url()))).unwrap();
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
