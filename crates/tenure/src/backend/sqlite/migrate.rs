//! From an empty file, or an old one, to the tables that this program needs.
//!
//! Ten processes may open a new file at once. Switching to the write-ahead log needs the file for itself and SQLite
//! does not wait for that, so a process that finds the file busy tries again. Then one transaction that holds the write
//! lock reads the version and applies what is pending: the second process finds nothing to do.
//!
//! A program that writes migrates the file by itself, but only if programs of the version found can still run
//! afterwards. All other migrations need `tenure migrate up`. Commands that only read never migrate.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Executor, Row};
use tenure_core::port::StoreError;

use super::Sqlite;
use super::connection::{Explain, Transaction, query};
use super::error;
use crate::backend::migrations::{Blocked, Migrate, MigrateOptions, Migration, Schema, SchemaStatus};
use crate::backend::schema;
use crate::runtime;

/// All steps, in order.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "elections",
        sql: include_str!("migrations/0001_elections.sql"),
        oldest_compatible: 1,
    },
    Migration {
        version: 2,
        name: "server",
        sql: include_str!("migrations/0002_server.sql"),
        oldest_compatible: 2,
    },
    Migration {
        version: 3,
        name: "claims",
        sql: include_str!("migrations/0003_claims.sql"),
        oldest_compatible: 3,
    },
    Migration {
        version: 4,
        name: "events",
        sql: include_str!("migrations/0004_events.sql"),
        oldest_compatible: 4,
    },
    Migration {
        version: 5,
        name: "schedules",
        sql: include_str!("migrations/0005_schedules.sql"),
        oldest_compatible: 5,
    },
];

/// The schema that this program was built for.
pub(super) const SCHEMA: Schema = Schema { migrations: MIGRATIONS, oldest_schema: 5 };

/// How long opening a file waits for others that open it too.
const PATIENCE: Duration = Duration::from_secs(10);

impl Sqlite {
    /// Switches the file to the write-ahead log, for good, and migrates it if that locks no other program out. Fails if
    /// this program cannot run on the file's schema.
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        let until = runtime::now() + PATIENCE;
        loop {
            match self.write_ahead().await {
                Err(error) if error::is_busy(&error) && runtime::now() < until => a_moment().await,
                other => break other.explain(self.path(), "switching to the write-ahead log")?,
            }
        }
        let status = self.schema_status().await?;
        if schema::migrates_unasked(&self.inner.schema, &status) {
            self.migrate_with(MigrateOptions { timeout: PATIENCE, progress: &|_| {} }).await?;
        } else {
            schema::check(&status, &self.place())?;
        }
        loop {
            match self.verify_epoch().await {
                Err(error) if error::is_busy(&error) && runtime::now() < until => a_moment().await,
                other => return other.explain(self.path(), "looking whether it was restored"),
            }
        }
    }

    /// Whether the file has tables. Fails if it has and this program cannot run on them. Changes nothing.
    pub(super) async fn has_tables(&self) -> Result<bool, StoreError> {
        let status = self.schema_status().await?;
        if status.found.is_none() {
            return Ok(false);
        }
        schema::check(&status, &self.place()).map(|()| true)
    }

    fn place(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    async fn write_ahead(&self) -> sqlx::Result<()> {
        let mut connection = self.inner.pools.writes.acquire().await?;
        let mode: String = connection.fetch_one("PRAGMA journal_mode = WAL").await?.try_get(0)?;
        if mode != "wal" {
            let message =
                format!("SQLite keeps the journal mode {mode}; is this an in-memory or read-only file?");
            return Err(sqlx::Error::Configuration(message.into()));
        }
        Ok(())
    }

    async fn apply(&self) -> sqlx::Result<Result<Vec<(i64, &'static str)>, StoreError>> {
        let mut transaction = Transaction::write(&self.inner.pools.writes).await?;
        let status = self.status_in(&mut transaction).await?;
        if let Err(error) = schema::check_migratable(&status, &self.place()) {
            return Ok(Err(error));
        }
        let pending = self.inner.schema.migrations.iter().filter(|m| m.version > status.found.unwrap_or(0));
        for migration in pending {
            sqlx::raw_sql(migration.sql).execute(transaction.connection()).await?;
            let record = query(self.queries.get("schema_record"))
                .bind(migration.version)
                .bind(migration.name)
                .bind(migration.oldest_compatible)
                .bind(runtime::wall_ms());
            transaction.execute(record).await?;
        }
        transaction.commit().await?;
        Ok(Ok(status.pending))
    }

    async fn status_in(&self, transaction: &mut Transaction) -> sqlx::Result<SchemaStatus> {
        let recorded = match transaction.one(query(self.queries.get("schema_version"))).await {
            Ok(Some(row)) => {
                let version: Option<i64> = row.try_get("version")?;
                let oldest: Option<i64> = row.try_get("oldest_compatible")?;
                version.map(|version| (version, oldest.unwrap_or(version)))
            }
            Ok(None) => None,
            Err(error) if is_missing(&error) => None,
            Err(error) => return Err(error),
        };
        let mut status = schema::status(&self.inner.schema, recorded);
        let rows = transaction.all(query(self.queries.get("schema_objects"))).await?;
        let present =
            rows.iter().map(|row| row.try_get("object")).collect::<sqlx::Result<BTreeSet<String>>>()?;
        schema::note_missing(&mut status, &self.inner.schema, &present);
        Ok(status)
    }
}

/// A little while, not the same for everybody.
async fn a_moment() {
    let spread = Duration::from_micros(runtime::random() % 10_000);
    tokio::time::sleep(Duration::from_millis(2) + spread).await;
}

fn is_missing(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains("no such table"))
}

#[async_trait]
impl Migrate for Sqlite {
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError> {
        let read = async {
            let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
            let status = self.status_in(&mut transaction).await?;
            transaction.commit().await?;
            sqlx::Result::Ok(status)
        };
        read.await.explain(self.path(), "reading the version of its tables")
    }

    async fn migrate_with(
        &self,
        options: MigrateOptions<'_>,
    ) -> Result<Vec<(i64, &'static str)>, StoreError> {
        let start = runtime::now();
        let mut blocked = Blocked { lock: "the write lock of the file".into(), ..Blocked::default() };
        loop {
            match self.apply().await {
                Err(error) if error::is_busy(&error) && runtime::now().since(start) < options.timeout => {
                    (blocked.attempts, blocked.waited) = (blocked.attempts + 1, runtime::now().since(start));
                    (options.progress)(&blocked);
                    a_moment().await;
                }
                other => break other.explain(self.path(), "migrating its tables")?,
            }
        }
    }
}

/// The schema of a file that does not exist: it has no tables.
pub(super) struct NoFile {
    pub(super) path: PathBuf,
    pub(super) schema: Schema,
}

#[async_trait]
impl Migrate for NoFile {
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError> {
        Ok(schema::status(&self.schema, None))
    }

    async fn migrate_with(&self, _: MigrateOptions<'_>) -> Result<Vec<(i64, &'static str)>, StoreError> {
        Err(error::no_file(&self.path))
    }
}

/// All migrations as one script that also records them. A program that writes to a new file does this by itself.
pub(crate) fn script() -> String {
    let step = |m: &Migration| {
        let record = "INSERT INTO tenure_migrations (version, name, oldest_compatible, applied_at) VALUES";
        let (version, name, oldest, sql) = (m.version, m.name, m.oldest_compatible, m.sql.trim_end());
        format!(
            "-- {version:04} {name}\n{sql}\n{record} ({version}, '{name}', {oldest}, unixepoch() * 1000);\n"
        )
    };
    format!("BEGIN IMMEDIATE;\n{}COMMIT;\n", MIGRATIONS.iter().map(step).collect::<String>())
}
