//! Least privilege: what each role can do and cannot do. The conformance suite, which runs as tenure_server and
//! tenure_runtime, shows that these roles have all the rights they need.

use tenure::store::migrations::SchemaMigrator;
use tenure::store::postgres::{PostgresOptions, PostgresStore, fence, guard};
use tenure_core::Token;
use tenure_core::port::{
    AccessStore, AuditEntry, ElectionAdmin, ElectionStore, ErrorKind, HeartbeatResponse, TakeoverMode,
};
use tenure_testkit::rig::{FreshDatabase, fresh_database};

use crate::support::*;

fn with_roles() -> FreshDatabase {
    let database = fresh_database().unwrap();
    database.psql(&tenure::store::roles_sql("postgres:").unwrap()).unwrap();
    database
}

async fn connected(database: &FreshDatabase, role: &str) -> PostgresStore {
    PostgresStore::connect(PostgresOptions::new(database.url_as(role))).await.unwrap()
}

/// A database as in production, created by its owner.
pub(crate) async fn owned() -> FreshDatabase {
    let database = with_roles();
    // The default since PostgreSQL 15. Before, everyone may create tables in `public`, which Tenure does not change.
    database.psql("REVOKE CREATE ON SCHEMA public FROM PUBLIC").unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    database
}

fn refused(database: &FreshDatabase, role: &str, statements: &[&str]) {
    for sql in statements {
        let error = database.psql_as(role, sql).expect_err(sql).to_string();
        assert!(error.contains("permission denied") || error.contains("must be owner"), "{sql}: {error}");
    }
}

const SCHEMA_CHANGES: &[&str] = &[
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
    "DROP TABLE tenure.audit_log",
    "DROP FUNCTION tenure.fence(text, bigint)",
    "DROP SCHEMA tenure CASCADE",
    "TRUNCATE tenure.leases",
    "INSERT INTO tenure.migrations (version, name) VALUES (999, 'mine')",
    "CREATE ROLE mine",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_role_cannot_change_the_schema() {
    let database = owned().await;
    refused(&database, "tenure_runtime", SCHEMA_CHANGES);
    let store = PostgresStore::connect_unchecked(PostgresOptions::new(database.url_as("tenure_runtime")));
    let error = store.await.unwrap().migrate().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("tenure_owner"), "{error}");
}

/// The rights of programs on each table: I(nsert), U(pdate), D(elete). They may not write to other tables.
const RUNTIME: &[(&str, &str)] = &[
    ("sessions", "IUD"),
    ("elections", "IU"),
    ("leases", "IU"),
    ("adopted_leases", "IU"),
    ("fences", "IU"),
    ("candidates", "IUD"),
    ("leader_requests", "IUD"),
    ("terms", "IUD"),
    ("queues", "IU"),
    ("queue_counters", "IU"),
    ("concurrency_locks", "U"),
    ("namespaces", "IU"),
    ("pools", "IU"),
    ("task_requirements", "ID"),
    ("requirements_prune_state", "U"),
    ("tasks", "IUD"),
    ("task_dependencies", "ID"),
    ("queue_waiters", "IUD"),
    ("workers", "IUD"),
    ("resources", "IUD"),
    ("pool_requests", "IUD"),
    ("broker_endpoint", "IUD"),
    ("topics", "IUD"),
    ("events", "ID"),
    ("commit_batches", "ID"),
    ("partition_start_offsets", "IUD"),
    ("topic_partitions", "IUD"),
    ("topic_waiters", "IUD"),
    ("consumer_groups", "IUD"),
    ("group_webhooks", "IUD"),
    ("group_members", "IUD"),
    ("partition_leases", "IUD"),
    ("committed_offsets", "IUD"),
    ("processed_events", "ID"),
    ("parked_events", "IUD"),
    ("schedules", "IUD"),
    ("schedule_state", "IUD"),
    ("schedule_versions", "U"),
    ("schedule_webhook_secrets", "IUD"),
    ("ticks", "ID"),
    ("skipped_ticks", "ID"),
    ("tracked_runs", "ID"),
    ("orphaned_ticks", "IUD"),
];

/// Tries every change of every table as the current role, and returns the permitted ones, one per line: `sessions D`, or
/// `credentials U revoked_at` if only some columns may be changed.
const ATTACK: &str = "
    CREATE TEMP TABLE done (what text);
    DO $$
    DECLARE
        t record;
        c record;
        columns_ text[];
    BEGIN
        FOR t IN SELECT r.oid, r.relname FROM pg_class r
                 WHERE r.relnamespace = to_regnamespace('tenure') AND r.relkind IN ('r', 'p') LOOP
            BEGIN
                EXECUTE format('INSERT INTO tenure.%I DEFAULT VALUES', t.relname);
                INSERT INTO done VALUES (t.relname || ' I');
            EXCEPTION WHEN insufficient_privilege THEN NULL;
                      WHEN OTHERS THEN INSERT INTO done VALUES (t.relname || ' I');
            END;
            BEGIN
                EXECUTE format('DELETE FROM tenure.%I', t.relname);
                INSERT INTO done VALUES (t.relname || ' D');
            EXCEPTION WHEN insufficient_privilege THEN NULL;
            END;
            BEGIN
                EXECUTE format('TRUNCATE tenure.%I', t.relname);
                INSERT INTO done VALUES (t.relname || ' T');
            EXCEPTION WHEN insufficient_privilege THEN NULL;
            END;
            columns_ := ARRAY[]::text[];
            FOR c IN SELECT a.attname FROM pg_attribute a
                     WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                       AND a.attidentity = '' LOOP
                BEGIN
                    EXECUTE format('UPDATE tenure.%I SET %I = NULL', t.relname, c.attname);
                    columns_ := columns_ || c.attname::text;
                EXCEPTION WHEN insufficient_privilege THEN NULL;
                          WHEN OTHERS THEN columns_ := columns_ || c.attname::text;
                END;
            END LOOP;
            IF cardinality(columns_) > 0 THEN
                INSERT INTO done VALUES (t.relname || ' U' || CASE WHEN has_table_privilege(t.oid, 'UPDATE') THEN ''
                                         ELSE ' ' || array_to_string(columns_, ',') END);
            END IF;
        END LOOP;
    END
    $$;
    SELECT what FROM done ORDER BY what COLLATE \"C\"";

/// The changes permitted to this role.
fn permitted(database: &FreshDatabase, role: &str) -> Vec<String> {
    database.psql_as(role, ATTACK).unwrap().lines().map(str::to_owned).collect()
}

fn expected_rights(tables: &[(&str, &str)]) -> Vec<String> {
    let each = |(table, verbs): &(&str, &str)| -> Vec<String> {
        verbs.chars().map(|verb| format!("{table} {verb}")).collect()
    };
    let mut all: Vec<String> = tables.iter().flat_map(each).collect();
    // Requirements are shared by tasks, so that only this column may change.
    all.push("task_requirements U retired_xid".to_owned());
    all.sort();
    all
}

/// Regression test: the runtime role could extend credentials and change the audit log by deleting and inserting rows.
#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_role_has_only_the_rights_that_programs_need() {
    let database = owned().await;
    assert_eq!(permitted(&database, "tenure_runtime"), expected_rights(RUNTIME));
    let statements = [
        "SELECT verifier FROM tenure.credentials",
        "SELECT id FROM tenure.credentials",
        "SELECT tenure.prune_audit(now())",
        "SELECT tenure.prune_credentials(now())",
        "SET ROLE tenure_server",
        "SET ROLE tenure_owner",
    ];
    refused(&database, "tenure_runtime", &statements);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_role_manages_credentials_but_cannot_extend_them() {
    let database = owned().await;
    let mut expected = expected_rights(RUNTIME);
    expected.extend(["credentials I".to_owned(), "credentials U expires_at,revoked_at".to_owned()]);
    expected.sort();
    assert_eq!(permitted(&database, "tenure_server"), expected);
    refused(&database, "tenure_server", SCHEMA_CHANGES);
    let insert =
        "INSERT INTO tenure.credentials (id, name, kind, verifier, grants, created_at, created_by, revoked_at)
                  VALUES ('ID', 'ID', 'access_token', 'x', '[]', now(), 'test', now() - interval 'AGO')";
    for (id, ago) in [("young", "399 days"), ("old", "401 days")] {
        database.psql_as("tenure_server", &insert.replace("ID", id).replace("AGO", ago)).unwrap();
    }
    database.psql_as("tenure_server", "SELECT tenure.prune_credentials(now() + interval '1 year')").unwrap();
    assert_eq!(database.psql("SELECT id FROM tenure.credentials").unwrap(), "young");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_may_change_no_table() {
    let database = owned().await;
    assert_eq!(permitted(&database, "tenure_publisher"), Vec::<String>::new());
    let statements = [
        "SELECT id FROM tenure.credentials",
        "SELECT secret FROM tenure.group_webhooks",
        "SELECT payload FROM tenure.events",
        "SELECT tenure.append_audit(now(), 'me', 'a', NULL, 't', 'd', 'r')",
        "SELECT tenure.prune_audit(now())",
        "SELECT tenure.prune_credentials(now())",
        "SELECT tenure.delete_probe('e', '{}')",
    ];
    refused(&database, "tenure_publisher", &statements);
    refused(&database, "tenure_publisher", SCHEMA_CHANGES);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_append_only_and_stamped_by_the_database() {
    let database = owned().await;
    // A program passes another principal and time, and creates a temporary table with the name of the log.
    database
        .psql_as(
            "tenure_runtime",
            "CREATE TEMP TABLE audit_log (n integer); SET search_path = pg_temp, tenure;
             SELECT tenure.append_audit(now() - interval '2 years', 'admin', 'pause', NULL, 'e', '', '');
             SELECT tenure.append_audit(now(), 'admin', 'resume', NULL, 'e', '', '')",
        )
        .unwrap();
    let stamped =
        "SELECT action, stored_by, stored_at > now() - interval '1 hour' FROM tenure.audit_log ORDER BY seq";
    assert_eq!(database.psql(stamped).unwrap(), "pause|tenure_runtime|t\nresume|tenure_runtime|t");
    for role in ["tenure_server", "tenure_runtime", "tenure_publisher", "tenure_reader"] {
        let attacks = [
            "INSERT INTO tenure.audit_log (recorded_at, principal, action, target, detail, request_id)
             VALUES (now(), 'me', 'nothing', '', '', '')",
            "UPDATE tenure.audit_log SET principal = 'another'",
            "DELETE FROM tenure.audit_log",
            "TRUNCATE tenure.audit_log",
        ];
        refused(&database, role, &attacks);
    }
    // Entries younger than the retention stay, whatever the caller passes.
    database.psql_as("tenure_server", "SELECT tenure.prune_audit(now() + interval '1 year')").unwrap();
    assert_eq!(database.psql("SELECT action FROM tenure.audit_log").unwrap(), "resume");
}

/// A SECURITY DEFINER function that used its caller's search path would run the caller's code as the owner.
#[tokio::test(flavor = "multi_thread")]
async fn every_security_definer_function_sets_its_search_path() {
    let database = owned().await;
    let loose =
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
                 AND NOT coalesce(p.proconfig::text LIKE '%search_path=pg_catalog, pg_temp%', false)";
    assert_eq!(database.psql(loose).unwrap(), "");
    let public =
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
                  AND (has_function_privilege('tenure_reader', p.oid, 'EXECUTE')
                       OR has_function_privilege('public', p.oid, 'EXECUTE'))";
    assert_eq!(database.psql(public).unwrap(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_probe_deletes_only_probes() {
    let database = owned().await;
    let store = connected(&database, "tenure_runtime").await;
    leading(&store, "a", &election("e")).await;
    let rows = "SELECT count(*) FROM tenure.elections UNION ALL SELECT count(*) FROM tenure.leases
                UNION ALL SELECT count(*) FROM tenure.sessions";
    let before = database.psql(rows).unwrap();
    store.remove_probe(&"e".parse().unwrap(), &[id("a")]).await.unwrap();
    assert_eq!(database.psql(rows).unwrap(), before);
}

/// Functions that the conformance suite does not use.
#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_role_may_use_guards_fences_and_diagnostics() {
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
    let connection = new_session("c", LEASE, TakeoverMode::Connection);
    assert!(matches!(
        store.open_session(&connection).await.unwrap(),
        HeartbeatResponse::Live { epoch: 1, .. }
    ));
    assert!(!store.diagnose().await.unwrap().is_empty());
    assert!(store.clock_seconds().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reader_can_only_read() {
    let database = owned().await;
    let (runtime, reader) =
        (connected(&database, "tenure_server").await, connected(&database, "tenure_reader").await);
    let key = election("e");
    let token = leading(&runtime, "a", &key).await;
    let entry = AuditEntry {
        seq: 0,
        recorded_at_ms: 1,
        principal: "ops".into(),
        action: "pause".into(),
        namespace: None,
        target: "e".into(),
        detail: String::new(),
        request_id: String::new(),
    };
    runtime.append_audit(&entry).await.unwrap();
    let view = reader.election(&key).await.unwrap().unwrap();
    assert_eq!((view.leases[0].token, view.candidates.len()), (token, 1));
    assert_eq!(reader.sessions(None).await.unwrap().len(), 1);
    assert_eq!(reader.term_history(&key, 5).await.unwrap().len(), 1);
    assert_eq!(reader.audit_entries(None, None, 5).await.unwrap().len(), 1);
    assert_eq!(database.psql_as("tenure_reader", "SELECT name FROM tenure.candidate_status").unwrap(), "a");
    database.psql_as("tenure_reader", "SELECT id, name, grants FROM tenure.credentials").unwrap();
    assert_eq!(reader.credentials().await.unwrap_err().kind, ErrorKind::Denied, "verifiers are not readable");

    let denied = [
        reader.open_session(&new_session("b", LEASE, TakeoverMode::Lease)).await.unwrap_err(),
        reader.heartbeat(&id("a")).await.unwrap_err(),
        reader.end_session(&id("a")).await.unwrap_err(),
        reader.append_audit(&entry).await.unwrap_err(),
        reader.prune_access(i64::from(u32::MAX)).await.unwrap_err(),
    ];
    assert!(denied.iter().all(|error| error.kind == ErrorKind::Denied), "{denied:?}");
    refused(&database, "tenure_reader", SCHEMA_CHANGES);
    assert_eq!(permitted(&database, "tenure_reader"), Vec::<String>::new());
    let tables =
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind = 'r'";
    for table in database.psql(tables).unwrap().lines() {
        refused(&database, "tenure_reader", &[&format!("SELECT 1 FROM tenure.{table} FOR SHARE")]);
    }
    refused(
        &database,
        "tenure_reader",
        &[
            "SELECT tenure.fence('a table', 1)",
            "SELECT verifier FROM tenure.credentials",
            "SELECT secret FROM tenure.group_webhooks",
            "SELECT tenure.append_audit(now(), 'me', 'a', NULL, 't', 'd', 'r')",
            "SELECT tenure.delete_probe('e', '{}')",
        ],
    );
}

/// Without this test, a new table without grants would first fail in production.
#[tokio::test(flavor = "multi_thread")]
async fn every_table_has_grants() {
    let database = owned().await;
    for role in ["tenure_server", "tenure_reader"] {
        let without_grants = format!(
            "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace
             AND c.relkind IN ('r', 'p', 'v') AND NOT has_any_column_privilege('{role}', c.oid, 'SELECT')"
        );
        assert_eq!(database.psql(&without_grants).unwrap(), "", "{role}");
    }
}

/// Running the roles script on existing tables, even twice, makes tenure_owner the owner of every object.
#[tokio::test(flavor = "multi_thread")]
async fn existing_tables_get_their_owner() {
    let (database, store) = fresh().await;
    opened(&store, "a").await;
    for _ in 0..2 {
        database.psql(&tenure::store::roles_sql("postgres:").unwrap()).unwrap();
    }
    let other_owners = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace
                  AND c.relowner <> 'tenure_owner'::regrole
                  UNION SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace
                  AND p.proowner <> 'tenure_owner'::regrole";
    assert_eq!(database.psql(other_owners).unwrap(), "");
    assert!(
        matches!(store.heartbeat(&id("a")).await.unwrap(), HeartbeatResponse::Live { .. }),
        "connected programs continue"
    );
    let runtime = connected(&database, "tenure_runtime").await;
    assert!(matches!(runtime.heartbeat(&id("a")).await.unwrap(), HeartbeatResponse::Live { .. }));
    database.psql_as("tenure_owner", "ALTER TABLE tenure.sessions ADD COLUMN later text").unwrap();
}

/// Roles belong to the whole cluster, but have no rights in databases that did not grant them.
#[tokio::test(flavor = "multi_thread")]
async fn roles_have_no_rights_in_other_databases() {
    let _other = with_roles();
    let (database, _) = fresh().await;
    let usage = "SELECT has_schema_privilege('tenure_runtime', 'tenure', 'USAGE')";
    assert_eq!(database.psql(usage).unwrap(), "f");
}
