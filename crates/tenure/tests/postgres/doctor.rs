//! Findings of `tenure doctor`.

use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{ElectionAdmin, Finding, FindingStatus};
use tenure_testkit::rig::{PgCluster, PgStandby};

use crate::support::*;

async fn found(store: &PostgresStore, check: &str) -> Vec<Finding> {
    store.diagnose().await.unwrap().into_iter().filter(|finding| finding.check == check).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_transaction_is_reported_with_its_process_and_age() {
    let cluster = PgCluster::builder().settable_clock().start().unwrap();
    let store = migrated(&cluster.url()).await;
    assert_eq!(found(&store, "old transactions").await[0].value, "none");
    let mut old = store.pool().begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *old).await.unwrap();
    cluster.clock().unwrap().set(3600).unwrap();
    let findings = found(&store, "old transactions").await;
    let finding =
        findings.iter().find(|f| f.value.contains(&format!("process {pid} "))).expect("it is reported");
    assert_eq!(finding.status, FindingStatus::Warning);
    let age =
        finding.value.split("open for ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(age.is_some_and(|age| age >= 3500), "{finding:?}");
    assert!(finding.advice.contains("pg_terminate_backend"), "{finding:?}");
    old.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_direct_address_of_a_standby_is_an_error() {
    let primary = PgCluster::start().unwrap();
    migrated(&primary.url()).await;
    let standby = PgStandby::of(&primary).unwrap();
    standby.wait_caught_up().unwrap();
    let mut options = PostgresOptions::new(primary.url());
    options.direct_url = Some(standby.url());
    let store = PostgresStore::connect(options).await.unwrap();
    assert!(found(&store, "address").await.is_empty());
    let finding = found(&store, "direct address").await.remove(0);
    assert_eq!(finding.status, FindingStatus::Error);
    assert!(finding.value.contains("read-only server"), "{finding:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_limit_that_processes_can_exceed_is_a_warning() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    assert_eq!(found(&store, "connections").await[0].status, FindingStatus::Ok);
    database.psql(&format!("ALTER DATABASE {} CONNECTION LIMIT 40", database.name())).unwrap();
    assert_eq!(found(&store, "connections").await[0].status, FindingStatus::Ok, "one process fits");
    opened(&store, "b").await;
    let finding = found(&store, "connections").await.remove(0);
    assert_eq!(finding.status, FindingStatus::Warning);
    assert!(
        finding.value.starts_with("2 processes") && finding.value.ends_with("the database allows 40"),
        "{finding:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_an_error() {
    let (database, store) = fresh().await;
    assert!(found(&store, "schema").await.iter().all(|finding| finding.status == FindingStatus::Ok));
    database.psql("DROP TABLE tenure.fences").unwrap();
    let findings = found(&store, "schema").await;
    assert!(
        findings.iter().any(|f| f.status == FindingStatus::Error && f.value.contains("table fences")),
        "{findings:?}"
    );
}
