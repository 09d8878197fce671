//! Migrations of the file.
//!
//! Several processes may open a new file at the same time. Switching to the write-ahead log needs exclusive access, and SQLite does
//! not wait for it, so a process that finds the file busy retries. Then one transaction takes the write lock, reads the version and
//! applies the pending migrations; the next process finds none.
//!
//! A program that writes migrates the file automatically, but only if programs of the version found can still run afterwards. All
//! other migrations need `tenure migrate up`. Commands that only read never migrate.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Executor, Row};
use tenure_core::port::StoreError;

use super::SqliteStore;
use super::connection::{Explain, Transaction, query};
use super::error;
use crate::runtime;
use crate::store::migrations::{Blocked, MigrateOptions, Migration, Schema, SchemaMigrator, SchemaStatus};
use crate::store::schema;

/// All migrations, in order.
const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "initial",
    sql: concat!(
        include_str!("migrations/0001/elections.sql"),
        include_str!("migrations/0001/access.sql"),
        include_str!("migrations/0001/tasks.sql"),
        include_str!("migrations/0001/submit.sql"),
        include_str!("migrations/0001/pools.sql"),
        include_str!("migrations/0001/events.sql"),
        include_str!("migrations/0001/publish.sql"),
        include_str!("migrations/0001/schedules.sql"),
    ),
    oldest_compatible: 1,
}];

/// The schema of this program.
pub(super) const SCHEMA: Schema = Schema { migrations: MIGRATIONS, oldest_schema: 1 };

/// How long opening a file waits for other processes that open it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

impl SqliteStore {
    /// Switch the file to the write-ahead log permanently, and migrate it if that excludes no other program. Fails if this program
    /// cannot run on the schema of the file.
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        let until = runtime::now() + OPEN_TIMEOUT;
        loop {
            match self.write_ahead().await {
                Err(error) if error::is_busy(&error) && runtime::now() < until => short_pause().await,
                other => break other.explain(self.path(), "switching to the write-ahead log")?,
            }
        }
        let status = self.schema_status().await?;
        if schema::migrates_automatically(&self.inner.schema, &status) {
            self.migrate_with(MigrateOptions { timeout: OPEN_TIMEOUT, progress: &|_| {} }).await?;
        } else {
            schema::check(&status, &self.store_url())?;
        }
        loop {
            match self.verify_epoch().await {
                Err(error) if error::is_busy(&error) && runtime::now() < until => short_pause().await,
                other => return other.explain(self.path(), "checking the identity of the file"),
            }
        }
    }

    /// Whether the file has tables. Fails if this program cannot run on them. Changes nothing.
    pub(super) async fn has_tables(&self) -> Result<bool, StoreError> {
        let status = self.schema_status().await?;
        if status.found.is_none() {
            return Ok(false);
        }
        schema::check(&status, &self.store_url()).map(|()| true)
    }

    fn store_url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    async fn write_ahead(&self) -> sqlx::Result<()> {
        let mut connection = self.inner.pools.writes.acquire().await?;
        let mode: String = connection.fetch_one("PRAGMA journal_mode = WAL").await?.try_get(0)?;
        if mode != "wal" {
            let message = format!(
                "SQLite keeps the journal mode {mode}; check that the file is not in memory or read-only"
            );
            return Err(sqlx::Error::Configuration(message.into()));
        }
        Ok(())
    }

    async fn apply(&self) -> sqlx::Result<Result<Vec<(i64, &'static str)>, StoreError>> {
        let mut transaction = Transaction::write(&self.inner.pools.writes).await?;
        let status = self.status_in(&mut transaction).await?;
        if let Err(error) = schema::check_migratable(&status, &self.store_url()) {
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

/// Sleep for a few milliseconds with a random spread.
async fn short_pause() {
    let spread = Duration::from_micros(runtime::random() % 10_000);
    tokio::time::sleep(Duration::from_millis(2) + spread).await;
}

fn is_missing(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().contains("no such table"))
}

#[async_trait]
impl SchemaMigrator for SqliteStore {
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError> {
        let read = async {
            let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
            let status = self.status_in(&mut transaction).await?;
            transaction.commit().await?;
            sqlx::Result::Ok(status)
        };
        read.await.explain(self.path(), "reading the schema version")
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
                    short_pause().await;
                }
                other => break other.explain(self.path(), "migrating the tables")?,
            }
        }
    }
}

/// The migrator of a file that does not exist.
pub(super) struct NoFile {
    pub(super) path: PathBuf,
    pub(super) schema: Schema,
}

#[async_trait]
impl SchemaMigrator for NoFile {
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError> {
        Ok(schema::status(&self.schema, None))
    }

    async fn migrate_with(&self, _: MigrateOptions<'_>) -> Result<Vec<(i64, &'static str)>, StoreError> {
        Err(error::no_file(&self.path))
    }
}

/// All migrations as one script that also records them. Opening a new file for writing has the same effect.
pub(crate) fn script() -> String {
    let step = |m: &Migration| {
        let record = "INSERT INTO tenure_migrations (version, name, oldest_compatible, applied_at_ms) VALUES";
        let (version, name, oldest, sql) = (m.version, m.name, m.oldest_compatible, m.sql.trim_end());
        format!(
            "-- {version:04} {name}\n{sql}\n{record} ({version}, '{name}', {oldest}, unixepoch() * 1000);\n"
        )
    };
    format!("BEGIN IMMEDIATE;\n{}COMMIT;\n", MIGRATIONS.iter().map(step).collect::<String>())
}
