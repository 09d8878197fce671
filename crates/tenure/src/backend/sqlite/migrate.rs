//! From an empty file, or an old one, to the tables that this program needs.
//!
//! Ten processes may open a new file at once. Switching to the write-ahead log needs the file for itself and SQLite
//! does not wait for that, so whoever finds it busy tries again. Then one transaction that holds the write lock looks
//! at the version and applies what is missing: the second to come finds nothing to do.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Executor, Row};
use tenure_core::port::{StoreError, Trouble};

use super::Sqlite;
use super::connection::{Explain, Transaction, query};
use super::error;
use crate::backend::migrations::{Migrate, Migration, SchemaStatus};
use crate::backend::schema;
use crate::runtime;

/// All steps, in order.
const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "elections", sql: include_str!("migrations/0001_elections.sql") },
    Migration { version: 2, name: "server", sql: include_str!("migrations/0002_server.sql") },
    Migration { version: 3, name: "claims", sql: include_str!("migrations/0003_claims.sql") },
    Migration { version: 4, name: "events", sql: include_str!("migrations/0004_events.sql") },
    Migration { version: 5, name: "schedules", sql: include_str!("migrations/0005_schedules.sql") },
];

/// How long opening a file waits for others that open it too.
const PATIENCE: Duration = Duration::from_secs(10);

impl Sqlite {
    /// Switches the file to the write-ahead log, for good, and brings its tables up to date.
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        let until = runtime::now() + PATIENCE;
        loop {
            match self.write_ahead().await {
                Err(error) if error::is_busy(&error) && runtime::now() < until => a_moment().await,
                other => break other.explain(self.path(), "switching to the write-ahead log")?,
            }
        }
        self.migrate().await?;
        loop {
            match self.verify_epoch().await {
                Err(error) if error::is_busy(&error) && runtime::now() < until => a_moment().await,
                other => return other.explain(self.path(), "looking whether it was restored"),
            }
        }
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

    async fn apply(&self) -> sqlx::Result<Result<Vec<(i64, &'static str)>, SchemaStatus>> {
        let mut transaction = Transaction::write(&self.inner.pools.writes).await?;
        let status = schema::status(MIGRATIONS, self.version(&mut transaction).await?);
        if status.found > Some(status.wanted) {
            return Ok(Err(status));
        }
        let pending = MIGRATIONS.iter().filter(|m| m.version > status.found.unwrap_or(0));
        for migration in pending {
            sqlx::raw_sql(migration.sql).execute(transaction.connection()).await?;
            let record = query(self.queries.get("schema_record"));
            transaction
                .execute(record.bind(migration.version).bind(migration.name).bind(runtime::wall_ms()))
                .await?;
        }
        transaction.commit().await?;
        Ok(Ok(status.pending))
    }

    async fn version(&self, transaction: &mut Transaction) -> sqlx::Result<Option<i64>> {
        match transaction.one(query(self.queries.get("schema_version"))).await {
            Ok(row) => row.map_or(Ok(None), |row| row.try_get(0)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
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
            let found = self.version(&mut transaction).await?;
            transaction.commit().await?;
            sqlx::Result::Ok(found)
        };
        let found = read.await.explain(self.path(), "reading the version of its tables")?;
        Ok(schema::status(MIGRATIONS, found))
    }

    async fn migrate(&self) -> Result<Vec<(i64, &'static str)>, StoreError> {
        let until = runtime::now() + PATIENCE;
        let applied = loop {
            match self.apply().await {
                Err(error) if error::is_busy(&error) && runtime::now() < until => a_moment().await,
                other => break other.explain(self.path(), "bringing its tables up to date")?,
            }
        };
        applied.map_err(|status| match schema::check(&status, &format!("sqlite:{}", self.path().display())) {
            Err(error) => error,
            Ok(()) => StoreError::new(Trouble::Other, "the schema changed while it was looked at; try again"),
        })
    }
}

/// All migrations as one script that also notes them down. A program that opens the file does this by itself.
pub(crate) fn script() -> String {
    let step = |m: &Migration| {
        let note = "INSERT INTO tenure_migrations (version, name, applied_at) VALUES";
        let (version, name, sql) = (m.version, m.name, m.sql.trim_end());
        format!("-- {version:04} {name}\n{sql}\n{note} ({version}, '{name}', unixepoch() * 1000);\n")
    };
    format!("BEGIN IMMEDIATE;\n{}COMMIT;\n", MIGRATIONS.iter().map(step).collect::<String>())
}
