//! Baseline: inserts of the same rows.

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use tenure::runtime::now;

use super::PAYLOAD;
use crate::BenchError;
use crate::baseline::BenchDirectory;
use crate::queues::pgbench;

const TABLES: &str = include_str!("baseline/tables.sql");
const INSERT: &str = include_str!("baseline/insert.sql");
const SQLITE_TABLES: &str = include_str!("baseline/sqlite_tables.sql");
const SQLITE_EVENTS: &str = include_str!("baseline/sqlite_events.sql");
const SQLITE_TICKS: &str = include_str!("baseline/sqlite_ticks.sql");

/// The baseline database.
pub(super) enum FireBaseline {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl FireBaseline {
    pub(super) async fn open(
        postgres: Option<&str>,
        directory: &BenchDirectory,
    ) -> Result<FireBaseline, BenchError> {
        if let Some(url) = postgres {
            pgbench::prepare(url, TABLES).await?;
            return Ok(FireBaseline::Postgres(PgConnection::connect(url).await?));
        }
        let options =
            SqliteConnectOptions::new().filename(directory.path("baseline-ticks.db")).create_if_missing(true);
        // The same settings as Tenure's own files.
        let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Normal);
        let mut connection = options.connect().await?;
        connection.execute(SQLITE_TABLES).await?;
        Ok(FireBaseline::Sqlite(connection))
    }

    /// Insert a tick and an event for each of `count` schedules in one transaction; returns milliseconds.
    pub(super) async fn insert(&mut self, at_ms: i64, count: u64) -> Result<f64, BenchError> {
        let keys: Vec<String> = (0..count).map(|number| format!("due-{number}")).collect();
        let headers: Vec<String> = keys
            .iter()
            .map(|key| format!(r#"{{"tenure-schedule":"{key}","tenure-tick":"2026-11-15T02:00:00Z"}}"#))
            .collect();
        match self {
            FireBaseline::Postgres(connection) => {
                let payloads = vec![PAYLOAD; keys.len()];
                let start = now();
                let query = sqlx::query(INSERT).bind(at_ms).bind(&keys).bind(&headers).bind(&payloads);
                query.execute(connection).await?;
                Ok(now().since(start).as_secs_f64() * 1e3)
            }
            FireBaseline::Sqlite(connection) => {
                let rows: Vec<_> =
                    keys.iter().zip(&headers).map(|(key, headers)| (key, headers, PAYLOAD)).collect();
                let rows = serde_json::to_string(&rows).map_err(super::helper)?;
                let start = now();
                let mut tx = connection.begin().await?;
                sqlx::query(SQLITE_EVENTS).bind(at_ms).bind(&rows).execute(&mut *tx).await?;
                sqlx::query(SQLITE_TICKS).bind(at_ms).bind(&rows).execute(&mut *tx).await?;
                tx.commit().await?;
                Ok(now().since(start).as_secs_f64() * 1e3)
            }
        }
    }
}
