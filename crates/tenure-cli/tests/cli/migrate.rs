//! `tenure migrate`, and programs with other schema versions.

use tenure::store::migrations::{Schema, SchemaMigrator};
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure::store::sqlite::{SqliteOptions, SqliteStore};

use crate::support::{World, output_text};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(future)
}

/// The previous schema version; `None` if this is the first.
fn previous(schema: Schema) -> Option<Schema> {
    let migrations = &schema.migrations[..schema.migrations.len() - 1];
    (!migrations.is_empty()).then(|| Schema { migrations, oldest_schema: schema.version() - 1 })
}

fn version() -> i64 {
    SqliteOptions::new("").schema.version()
}

/// A newer build migrated the database: this build continues if it is compatible, or reports why it cannot.
#[test]
fn an_older_build_runs_on_a_compatible_newer_schema() {
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
    assert!(world.ok(&["elections", "list"]).contains("nightly"));
    let up = world.run(&["migrate", "up"]);
    assert_eq!(up.status.code(), Some(0), "{}", output_text(&up));
    assert!(output_text(&up).contains("newer"), "{}", output_text(&up));
    assert!(!output_text(&up).contains("up to date"), "{}", output_text(&up));
    assert!(world.ok(&["migrate", "status"]).contains("compatible with this program"));

    record(newer);
    for args in [&["elections", "list"][..], &["migrate", "up"], &["run", "nightly", "--", "true"]] {
        let refused = world.run(args);
        assert_eq!(refused.status.code(), Some(69), "{args:?}: {}", output_text(&refused));
        assert!(
            output_text(&refused).contains("Upgrade this program"),
            "{args:?}: {}",
            output_text(&refused)
        );
    }
    let status = world.run(&["migrate", "status"]);
    assert_eq!(status.status.code(), Some(69), "{}", output_text(&status));
}

/// Regression: `migrate up` reported "up to date" although a table was missing.
#[test]
fn a_missing_table_is_named() {
    let world = World::postgres();
    world.psql("DROP TABLE tenure.leader_requests").expect("psql");
    let up = world.run(&["migrate", "up"]);
    assert_eq!(up.status.code(), Some(69), "{}", output_text(&up));
    assert!(output_text(&up).contains("table leader_requests"), "{}", output_text(&up));
    let status = world.run(&["migrate", "status", "-o", "json"]);
    assert_eq!(status.status.code(), Some(69));
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(
        status["missing"],
        serde_json::json!(["index leader_requests_session", "table leader_requests"])
    );
}

#[test]
fn a_blocked_migration_names_the_blocking_process_and_times_out() {
    let world = World::empty_postgres();
    block_on(async {
        let store =
            PostgresStore::connect_unchecked(PostgresOptions::new(&world.store)).await.expect("a database");
        let mut other = store.pool().begin().await.expect("a transaction");
        let lock = "SELECT pg_backend_pid() FROM (SELECT pg_advisory_xact_lock(hashtextextended('tenure.migrations', 0))) l";
        let pid: i32 = sqlx::query_scalar(lock).fetch_one(&mut *other).await.expect("the lock");
        let up = world.run(&["migrate", "up", "--timeout", "2s"]);
        assert_eq!(up.status.code(), Some(69), "{}", output_text(&up));
        let waits = format!("the migration lock is held by process {pid}");
        assert!(
            output_text(&up).lines().any(|line| line.contains("waiting (") && line.contains(&waits)),
            "{}",
            output_text(&up)
        );
        assert!(
            output_text(&up).lines().any(|line| line.contains("within") && line.contains(&waits)),
            "{}",
            output_text(&up)
        );
        other.rollback().await.expect("it ends");
    });
    assert!(output_text(&world.run(&["migrate", "up"])).contains("applied"));
}

/// Regression: a read command created the file on a new machine, and a newer program migrated an older file.
#[test]
fn read_commands_create_no_file_and_run_no_migration() {
    let reads: &[&[&str]] = &[
        &["elections", "list"],
        &["queues", "list"],
        &["tasks", "list"],
        &["workers", "list"],
        &["pools", "list"],
        &["events", "topics", "list"],
        &["events", "groups", "list"],
        &["schedules", "list"],
        &["credentials", "list"],
        &["migrate", "status"],
    ];
    let world = World::sqlite();
    for args in reads {
        world.ok(args);
    }
    for args in [&["doctor"][..], &["elections", "watch"], &["elections", "list", "--watch"]] {
        let refused = world.run(args);
        assert_eq!(refused.status.code(), Some(69), "{args:?}: {}", output_text(&refused));
        assert!(output_text(&refused).contains("tenure migrate up"), "{args:?}: {}", output_text(&refused));
    }
    let left: Vec<_> = std::fs::read_dir(world.folder.path()).expect("the folder").flatten().collect();
    assert!(left.is_empty(), "{left:?}");

    let mut options = SqliteOptions::new(world.path("tenure.db"));
    let Some(older) = previous(options.schema) else { return };
    options.schema = older;
    let found = block_on(async {
        SqliteStore::open(options.clone()).await.expect("an older file");
        for args in reads {
            let refused = world.run(args);
            let expected = if args[0] == "migrate" { 0 } else { 69 };
            assert_eq!(refused.status.code(), Some(expected), "{args:?}: {}", output_text(&refused));
        }
        SqliteStore::open(options)
            .await
            .expect("the older program continues")
            .schema_status()
            .await
            .expect("a version")
    });
    assert_eq!(found.found, Some(version() - 1));
    world.ok(&["migrate", "up"]);
    world.ok(&["elections", "list"]);
}
