//! Least privilege: what each role may do, and what it may not. That the runtime role can do everything that a program
//! needs is shown by the conformance suite, which runs as it.

use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{Postgres, PostgresOptions, fence, guard};
use tenure_core::Token;
use tenure_core::port::{Deed, Directory, Office, Pulse, Store, Takeover, Trouble};
use tenure_testkit::rig::{FreshDatabase, fresh_database};

use crate::support::*;

fn with_roles() -> FreshDatabase {
    let database = fresh_database().unwrap();
    database.psql(&tenure::backend::roles_sql("postgres:").unwrap()).unwrap();
    database
}

async fn connected(database: &FreshDatabase, role: &str) -> Postgres {
    Postgres::connect(PostgresOptions::new(database.url_as(role))).await.unwrap()
}

/// A database as in production: made by its owner.
async fn owned() -> FreshDatabase {
    let database = with_roles();
    migrated(&database.url_as("tenure_owner")).await;
    database
}

fn refused(database: &FreshDatabase, role: &str, statements: &[&str]) {
    for sql in statements {
        let error = database.psql_as(role, sql).expect_err(sql).to_string();
        assert!(error.contains("permission denied") || error.contains("must be owner"), "{sql}: {error}");
    }
}

const CHANGES_OF_TABLES: &[&str] = &[
    "CREATE TABLE tenure.mine (n integer)",
    "CREATE TABLE public.mine (n integer)",
    "CREATE SCHEMA mine",
    "CREATE VIEW tenure.mine AS SELECT 1",
    "CREATE INDEX mine ON tenure.sessions (name)",
    "CREATE OR REPLACE FUNCTION tenure.current_epoch() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    "CREATE FUNCTION tenure.mine() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    "ALTER TABLE tenure.sessions ADD COLUMN mine text",
    "ALTER TABLE tenure.leases DISABLE TRIGGER ALL",
    "ALTER SCHEMA tenure RENAME TO mine",
    "ALTER FUNCTION tenure.guard(text, text, integer, bigint, text) RENAME TO mine",
    "DROP TABLE tenure.audit",
    "DROP FUNCTION tenure.fence(text, bigint)",
    "DROP SCHEMA tenure CASCADE",
    "TRUNCATE tenure.leases",
    "INSERT INTO tenure.migrations (version, name) VALUES (999, 'mine')",
    "CREATE ROLE mine",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_role_can_not_change_tables() {
    let database = owned().await;
    refused(&database, "tenure_runtime", CHANGES_OF_TABLES);
    let store = Postgres::connect_unchecked(PostgresOptions::new(database.url_as("tenure_runtime")));
    let error = store.await.unwrap().migrate().await.unwrap_err();
    assert_eq!(error.kind, Trouble::Denied);
    assert!(error.message.contains("tenure_owner"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_role_can_not_undo_what_must_last() {
    let database = owned().await;
    let statements = [
        "DELETE FROM tenure.leases",
        "DELETE FROM tenure.elections",
        "DELETE FROM tenure.fences",
        "UPDATE tenure.audit SET principal = 'somebody else'",
        "UPDATE tenure.credentials SET grants = '[]'",
        "UPDATE tenure.credentials SET proof = 'mine'",
    ];
    refused(&database, "tenure_runtime", &statements);
}

/// What the conformance suite does not use.
#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_role_guards_fences_and_examines() {
    let database = owned().await;
    let store = connected(&database, "tenure_runtime").await;
    let key = election("e");
    let token = leading(&store, "a", &key).await;
    let mut transaction = store.pool().begin().await.unwrap();
    guard(&mut transaction, &key, 0, token, &id("a"), LEASE).await.unwrap();
    fence(&mut transaction, "a table", token).await.unwrap();
    sqlx::raw_sql("SELECT tenure.guard('default', 'e', 0, 1, 'a')").execute(store.pool()).await.unwrap_err();
    transaction.commit().await.unwrap();
    let mut stale = store.pool().begin().await.unwrap();
    assert!(fence(&mut stale, "a table", Token::ZERO).await.is_err());
    let connection = new_session("c", LEASE, Takeover::Connection);
    assert!(matches!(store.open(&connection).await.unwrap(), Pulse::Alive { epoch: 1, .. }));
    assert!(!store.examine().await.unwrap().is_empty());
    assert!(store.clock_seconds().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reader_looks_and_does_nothing_else() {
    let database = owned().await;
    let (runtime, reader) =
        (connected(&database, "tenure_runtime").await, connected(&database, "tenure_reader").await);
    let key = election("e");
    let token = leading(&runtime, "a", &key).await;
    let deed = Deed {
        n: 0,
        at_ms: 1,
        principal: "ops".into(),
        action: "pause".into(),
        namespace: None,
        target: "e".into(),
        detail: String::new(),
        request_id: String::new(),
    };
    runtime.record(&deed).await.unwrap();
    let view = reader.election(&key).await.unwrap().unwrap();
    assert_eq!((view.leases[0].token, view.candidates.len()), (token, 1));
    assert_eq!(reader.sessions(None).await.unwrap().len(), 1);
    assert_eq!(reader.history(&key, 5).await.unwrap().len(), 1);
    assert_eq!(reader.deeds(None, None, 5).await.unwrap().len(), 1);
    assert_eq!(database.psql_as("tenure_reader", "SELECT id FROM tenure.node_records").unwrap(), "a");
    database.psql_as("tenure_reader", "SELECT id, name, grants FROM tenure.credentials").unwrap();
    assert_eq!(reader.credentials().await.unwrap_err().kind, Trouble::Denied, "it sees no digests");

    let denied = [
        reader.open(&new_session("b", LEASE, Takeover::Lease)).await.unwrap_err(),
        reader.beat(&id("a")).await.unwrap_err(),
        reader.end(&id("a")).await.unwrap_err(),
        reader.record(&deed).await.unwrap_err(),
        reader.forget(i64::from(u32::MAX)).await.unwrap_err(),
    ];
    assert!(denied.iter().all(|error| error.kind == Trouble::Denied), "{denied:?}");
    refused(&database, "tenure_reader", CHANGES_OF_TABLES);
    let tables =
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind = 'r'";
    for table in database.psql(tables).unwrap().lines() {
        let insert = format!("INSERT INTO tenure.{table} DEFAULT VALUES");
        let delete = format!("DELETE FROM tenure.{table}");
        let lock = format!("SELECT 1 FROM tenure.{table} FOR SHARE");
        refused(&database, "tenure_reader", &[&insert, &delete, &lock]);
    }
    refused(
        &database,
        "tenure_reader",
        &["SELECT tenure.fence('a table', 1)", "SELECT proof FROM tenure.credentials"],
    );
}

/// A new table that nobody thought of here would be found out by its first user.
#[tokio::test(flavor = "multi_thread")]
async fn every_table_is_somebodys() {
    let database = owned().await;
    for role in ["tenure_runtime", "tenure_reader"] {
        let forgotten = format!(
            "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace
             AND c.relkind IN ('r', 'p', 'v') AND NOT has_any_column_privilege('{role}', c.oid, 'SELECT')"
        );
        assert_eq!(database.psql(&forgotten).unwrap(), "", "{role}");
    }
}

/// The roles come late, after somebody else made the tables; and a second time.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_there_get_their_owner() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    for _ in 0..2 {
        database.psql(&tenure::backend::roles_sql("postgres:").unwrap()).unwrap();
    }
    let others = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace
                  AND c.relowner <> 'tenure_owner'::regrole
                  UNION SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace
                  AND p.proowner <> 'tenure_owner'::regrole";
    assert_eq!(database.psql(others).unwrap(), "");
    assert!(matches!(store.beat(&id("a")).await.unwrap(), Pulse::Alive { .. }), "nobody was disturbed");
    let runtime = connected(&database, "tenure_runtime").await;
    assert!(matches!(runtime.beat(&id("a")).await.unwrap(), Pulse::Alive { .. }));
    database.psql_as("tenure_owner", "ALTER TABLE tenure.sessions ADD COLUMN later text").unwrap();
}

/// Roles are the whole cluster's. Those of one database are nothing in another.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_did_not_ask_for_roles_has_none() {
    let _elsewhere = with_roles();
    let (database, _) = fresh().await;
    let sees = "SELECT has_schema_privilege('tenure_runtime', 'tenure', 'USAGE')";
    assert_eq!(database.psql(sees).unwrap(), "f");
}
