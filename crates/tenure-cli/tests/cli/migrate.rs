//! `tenure migrate`, and programs of other versions beside it.

use tenure::backend::migrations::{Migrate, Schema};
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::backend::sqlite::{Sqlite, SqliteOptions};

use crate::support::{World, said};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(future)
}

/// The schema of the version before.
fn before(schema: Schema) -> Schema {
    let migrations = &schema.migrations[..schema.migrations.len() - 1];
    Schema { migrations, oldest_schema: schema.version() - 1 }
}

fn version() -> i64 {
    SqliteOptions::new("").schema.version()
}

/// A newer build has migrated the database; this build runs on, or says why it does not.
#[test]
fn an_older_build_runs_on_a_newer_schema_that_allows_it() {
    let world = World::postgres();
    let (newer, current) = (version() + 1, version());
    let record = |oldest: i64| {
        let sql = format!(
            "INSERT INTO tenure.migrations (version, name, oldest_compatible) VALUES ({newer}, 'next', {oldest})
             ON CONFLICT (version) DO UPDATE SET oldest_compatible = EXCLUDED.oldest_compatible"
        );
        world.psql(&sql).expect("psql");
    };
    record(current);
    world.ok(&["run", "nightly", "--", "true"]);
    assert!(world.ok(&["leader", "list"]).contains("nightly"));
    let up = world.run(&["migrate", "up"]);
    assert_eq!(up.status.code(), Some(0), "{}", said(&up));
    assert!(said(&up).contains("newer"), "{}", said(&up));
    assert!(!said(&up).contains("up to date"), "{}", said(&up));
    assert!(world.ok(&["migrate", "status"]).contains("this program can run on it"));

    record(newer);
    for args in [&["leader", "list"][..], &["migrate", "up"], &["run", "nightly", "--", "true"]] {
        let refused = world.run(args);
        assert_eq!(refused.status.code(), Some(69), "{args:?}: {}", said(&refused));
        assert!(said(&refused).contains("Upgrade this program"), "{args:?}: {}", said(&refused));
    }
    let status = world.run(&["migrate", "status"]);
    assert_eq!(status.status.code(), Some(69), "{}", said(&status));
}

/// `migrate up` said "up to date" when a table was missing.
#[test]
fn a_lost_table_is_named() {
    let world = World::postgres();
    world.psql("DROP TABLE tenure.requests").expect("psql");
    let up = world.run(&["migrate", "up"]);
    assert_eq!(up.status.code(), Some(69), "{}", said(&up));
    assert!(said(&up).contains("table requests"), "{}", said(&up));
    let status = world.run(&["migrate", "status", "-o", "json"]);
    assert_eq!(status.status.code(), Some(69));
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["missing"], serde_json::json!(["index requests_session", "table requests"]));
}

#[test]
fn a_migration_that_waits_says_for_whom_and_gives_up_in_time() {
    let world = World::empty_postgres();
    block_on(async {
        let mut options = PostgresOptions::new(&world.store);
        options.schema = before(options.schema);
        let older = Postgres::connect_unchecked(options).await.expect("a database");
        older.migrate().await.expect("migrated");
        let mut other = older.pool().begin().await.expect("a transaction");
        let lock = "SELECT pg_backend_pid() FROM (SELECT pg_advisory_xact_lock(hashtextextended('tenure.migrations', 0))) l";
        let pid: i32 = sqlx::query_scalar(lock).fetch_one(&mut *other).await.expect("the lock");
        let up = world.run(&["migrate", "up", "--timeout", "2s"]);
        assert_eq!(up.status.code(), Some(69), "{}", said(&up));
        let waits = format!("the lock for migrations is held by process {pid}");
        assert!(
            said(&up).lines().any(|line| line.contains("waiting (") && line.contains(&waits)),
            "{}",
            said(&up)
        );
        assert!(
            said(&up).lines().any(|line| line.contains("within") && line.contains(&waits)),
            "{}",
            said(&up)
        );
        other.rollback().await.expect("it ends");
    });
    assert!(said(&world.run(&["migrate", "up"])).contains("applied"));
}

/// A read command on a fresh machine created the file, and a newer one migrated an older file.
#[test]
fn commands_that_read_create_and_migrate_nothing() {
    let reads: &[&[&str]] = &[
        &["leader", "list"],
        &["queue", "list"],
        &["tasks", "list"],
        &["workers", "list"],
        &["pool", "list"],
        &["events", "topics", "list"],
        &["events", "groups", "list"],
        &["schedule", "list"],
        &["token", "list"],
        &["migrate", "status"],
    ];
    let world = World::sqlite();
    for args in reads {
        world.ok(args);
    }
    for args in [&["doctor"][..], &["watch"], &["leader", "list", "--watch"]] {
        let refused = world.run(args);
        assert_eq!(refused.status.code(), Some(69), "{args:?}: {}", said(&refused));
        assert!(said(&refused).contains("tenure migrate up"), "{args:?}: {}", said(&refused));
    }
    let left: Vec<_> = std::fs::read_dir(world.folder.path()).expect("the folder").flatten().collect();
    assert!(left.is_empty(), "{left:?}");

    let found = block_on(async {
        let path = world.path("tenure.db");
        let mut options = SqliteOptions::new(&path);
        options.schema = before(options.schema);
        Sqlite::open(options.clone()).await.expect("an older file");
        for args in reads {
            let refused = world.run(args);
            let expected = if args[0] == "migrate" { 0 } else { 69 };
            assert_eq!(refused.status.code(), Some(expected), "{args:?}: {}", said(&refused));
        }
        Sqlite::open(options)
            .await
            .expect("the older program runs on")
            .schema_status()
            .await
            .expect("a version")
    });
    assert_eq!(found.found, Some(version() - 1));
    world.ok(&["migrate", "up"]);
    world.ok(&["leader", "list"]);
}
