//! Least privilege: what each role may do, and what it may not. That a role can do everything that it needs is shown by
//! the conformance suite, which runs as tenure_server and tenure_runtime.

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
pub(crate) async fn owned() -> FreshDatabase {
    let database = with_roles();
    // The default of servers from 15 on. Before, everybody may create tables in `public`, and that is not for Tenure to change.
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

/// What programs may do to each table: I(nsert), U(pdate), D(elete). Every table that is not here is for its owner alone.
const RUNTIME: &[(&str, &str)] = &[
    ("sessions", "IUD"),
    ("elections", "IU"),
    ("leases", "IU"),
    ("adoptions", "IU"),
    ("fences", "IU"),
    ("candidates", "IUD"),
    ("requests", "IUD"),
    ("terms", "IUD"),
    ("queues", "IU"),
    ("turnstiles", "IU"),
    ("key_locks", "U"),
    ("namespaces", "IU"),
    ("pools", "IU"),
    ("demands", "ID"),
    ("demand_sweep", "U"),
    ("tasks", "IUD"),
    ("parents", "ID"),
    ("waiters", "IUD"),
    ("workers", "IUD"),
    ("resources", "IUD"),
    ("pool_requests", "IUD"),
    ("posts", "IUD"),
    ("topics", "IUD"),
    ("events", "ID"),
    ("event_units", "ID"),
    ("event_floors", "IUD"),
    ("event_slots", "IUD"),
    ("event_waiters", "IUD"),
    ("event_groups", "IUD"),
    ("event_pushes", "IUD"),
    ("event_members", "IUD"),
    ("event_shares", "IUD"),
    ("event_offsets", "IUD"),
    ("event_done", "ID"),
    ("event_asides", "IUD"),
    ("schedules", "IUD"),
    ("schedule_progress", "IUD"),
    ("schedule_floor", "U"),
    ("schedule_secrets", "IUD"),
    ("ticks", "ID"),
    ("tick_skips", "ID"),
    ("tick_runs", "ID"),
    ("tick_strays", "IUD"),
];

/// Tries every change of every table as the role that is logged in, and returns those that are not refused, one in a line:
/// `sessions D`, and `credentials U revoked_at` where only some columns can be changed.
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

/// What an attack as this role achieves.
fn achieved(database: &FreshDatabase, role: &str) -> Vec<String> {
    database.psql_as(role, ATTACK).unwrap().lines().map(str::to_owned).collect()
}

fn allowed(tables: &[(&str, &str)]) -> Vec<String> {
    let each = |(table, verbs): &(&str, &str)| -> Vec<String> {
        verbs.chars().map(|verb| format!("{table} {verb}")).collect()
    };
    let mut all: Vec<String> = tables.iter().flat_map(each).collect();
    // What a demand demands is not rewritten: tasks share it.
    all.push("demands U retired".to_owned());
    all.sort();
    all
}

/// The runtime role could widen credentials and rewrite the audit: it could delete rows and insert others.
#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_role_changes_what_programs_need_and_nothing_else() {
    let database = owned().await;
    assert_eq!(achieved(&database, "tenure_runtime"), allowed(RUNTIME));
    let statements = [
        "SELECT proof FROM tenure.credentials",
        "SELECT id FROM tenure.credentials",
        "SELECT tenure.prune_audit(now())",
        "SELECT tenure.prune_credentials(now())",
        "SET ROLE tenure_server",
        "SET ROLE tenure_owner",
    ];
    refused(&database, "tenure_runtime", &statements);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_role_manages_credentials_and_can_not_widen_one() {
    let database = owned().await;
    let mut expected = allowed(RUNTIME);
    expected.extend(["credentials I".to_owned(), "credentials U expires_at,revoked_at".to_owned()]);
    expected.sort();
    assert_eq!(achieved(&database, "tenure_server"), expected);
    refused(&database, "tenure_server", CHANGES_OF_TABLES);
    let insert =
        "INSERT INTO tenure.credentials (id, name, kind, proof, grants, created_at, created_by, revoked_at)
                  VALUES ('ID', 'ID', 'token', 'x', '[]', now(), 'test', now() - interval 'AGO')";
    for (id, ago) in [("young", "399 days"), ("old", "401 days")] {
        database.psql_as("tenure_server", &insert.replace("ID", id).replace("AGO", ago)).unwrap();
    }
    database.psql_as("tenure_server", "SELECT tenure.prune_credentials(now() + interval '1 year')").unwrap();
    assert_eq!(database.psql("SELECT id FROM tenure.credentials").unwrap(), "young");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_changes_nothing_but_events() {
    let database = owned().await;
    let achieved = achieved(&database, "tenure_publisher");
    assert!(achieved.iter().all(|what| what.starts_with("event")), "{achieved:?}");
    let statements = [
        "SELECT id FROM tenure.credentials",
        "SELECT secret FROM tenure.event_pushes",
        "SELECT payload FROM tenure.events",
        "SELECT tenure.append_audit(now(), 'me', 'a', NULL, 't', 'd', 'r')",
        "SELECT tenure.prune_audit(now())",
        "SELECT tenure.prune_credentials(now())",
        "SELECT tenure.remove_probe('e', '{}')",
    ];
    refused(&database, "tenure_publisher", &statements);
    refused(&database, "tenure_publisher", CHANGES_OF_TABLES);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_stamped_appended_to_and_not_rewritten() {
    let database = owned().await;
    // A program claims to be another, at another time, and puts a table of its own in the way.
    database
        .psql_as(
            "tenure_runtime",
            "CREATE TEMP TABLE audit (n integer); SET search_path = pg_temp, tenure;
             SELECT tenure.append_audit(now() - interval '2 years', 'admin', 'pause', NULL, 'e', '', '');
             SELECT tenure.append_audit(now(), 'admin', 'resume', NULL, 'e', '', '')",
        )
        .unwrap();
    let stamped =
        "SELECT action, recorded_by, recorded_at > now() - interval '1 hour' FROM tenure.audit ORDER BY n";
    assert_eq!(database.psql(stamped).unwrap(), "pause|tenure_runtime|t\nresume|tenure_runtime|t");
    for role in ["tenure_server", "tenure_runtime", "tenure_publisher", "tenure_reader"] {
        let attacks = [
            "INSERT INTO tenure.audit (at, principal, action, target, detail, request_id)
             VALUES (now(), 'me', 'nothing', '', '', '')",
            "UPDATE tenure.audit SET principal = 'somebody else'",
            "DELETE FROM tenure.audit",
            "TRUNCATE tenure.audit",
        ];
        refused(&database, role, &attacks);
    }
    // What is younger than the retention stays, whatever the caller says.
    database.psql_as("tenure_server", "SELECT tenure.prune_audit(now() + interval '1 year')").unwrap();
    assert_eq!(database.psql("SELECT action FROM tenure.audit").unwrap(), "resume");
}

/// A function with the owner's rights that resolves names by its caller's search path runs its caller's code as the owner.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_with_the_owners_rights_has_a_search_path_of_its_own() {
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
async fn a_probe_is_removed_and_nothing_else() {
    let database = owned().await;
    let store = connected(&database, "tenure_runtime").await;
    leading(&store, "a", &election("e")).await;
    let rows = "SELECT count(*) FROM tenure.elections UNION ALL SELECT count(*) FROM tenure.leases
                UNION ALL SELECT count(*) FROM tenure.sessions";
    let before = database.psql(rows).unwrap();
    store.remove_probe(&"e".parse().unwrap(), &[id("a")]).await.unwrap();
    assert_eq!(database.psql(rows).unwrap(), before);
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
        (connected(&database, "tenure_server").await, connected(&database, "tenure_reader").await);
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
    assert_eq!(achieved(&database, "tenure_reader"), Vec::<String>::new());
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
            "SELECT proof FROM tenure.credentials",
            "SELECT secret FROM tenure.event_pushes",
            "SELECT tenure.append_audit(now(), 'me', 'a', NULL, 't', 'd', 'r')",
            "SELECT tenure.remove_probe('e', '{}')",
        ],
    );
}

/// A new table that nobody thought of here would be found out by its first user.
#[tokio::test(flavor = "multi_thread")]
async fn every_table_is_somebodys() {
    let database = owned().await;
    for role in ["tenure_server", "tenure_reader"] {
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
