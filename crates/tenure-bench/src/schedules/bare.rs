//! The same rows, and nothing else.

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection};
use tenure::runtime::now;

use super::PAYLOAD;
use crate::BenchError;
use crate::bare::Folder;
use crate::claims::pgbench;

const TABLES: &str = include_str!("bare/tables.sql");
const INSERT: &str = include_str!("bare/insert.sql");
const SQLITE_TABLES: &str = include_str!("bare/sqlite_tables.sql");
const SQLITE_EVENTS: &str = include_str!("bare/sqlite_events.sql");
const SQLITE_TICKS: &str = include_str!("bare/sqlite_ticks.sql");

/// The bare side.
pub(super) enum Bare {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Bare {
    pub(super) async fn open(postgres: Option<&str>, folder: &Folder) -> Result<Bare, BenchError> {
        if let Some(url) = postgres {
            pgbench::prepare(url, TABLES).await?;
            return Ok(Bare::Postgres(PgConnection::connect(url).await?));
        }
        let options =
            SqliteConnectOptions::new().filename(folder.path("bare-ticks.db")).create_if_missing(true);
        // As Tenure has its own.
        let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Normal);
        let mut connection = options.connect().await?;
        connection.execute(SQLITE_TABLES).await?;
        Ok(Bare::Sqlite(connection))
    }

    /// Inserts a tick and an event for each of so many schedules, in one transaction; in milliseconds.
    pub(super) async fn insert(&mut self, at_ms: i64, count: u64) -> Result<f64, BenchError> {
        let keys: Vec<String> = (0..count).map(|number| format!("due-{number}")).collect();
        let headers: Vec<String> = keys
            .iter()
            .map(|key| format!(r#"{{"tenure-schedule":"{key}","tenure-tick":"2026-11-15T02:00:00Z"}}"#))
            .collect();
        match self {
            Bare::Postgres(connection) => {
                let payloads = vec![PAYLOAD; keys.len()];
                let start = now();
                let query = sqlx::query(INSERT).bind(at_ms).bind(&keys).bind(&headers).bind(&payloads);
                query.execute(connection).await?;
                Ok(now().since(start).as_secs_f64() * 1e3)
            }
            Bare::Sqlite(connection) => {
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
