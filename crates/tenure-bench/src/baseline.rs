//! Baselines without Tenure: the cost of the database and the kernel alone.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgListener};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tenure::runtime::now;

use crate::{BenchError, REST};

/// The smallest statement that makes a PostgreSQL commit wait for its disk.
pub(crate) const DURABLE_WRITE: &str = "SELECT pg_logical_emit_message(true, 'tenure-bench', '')";

/// Temporary directory of a benchmark run, removed at its end.
pub(crate) struct BenchDirectory(PathBuf);

impl BenchDirectory {
    pub(crate) fn new() -> Result<BenchDirectory, BenchError> {
        let path = std::env::temp_dir().join(format!(
            "tenure-bench-{}-{:x}",
            std::process::id(),
            tenure::runtime::random()
        ));
        std::fs::create_dir_all(&path)?;
        Ok(BenchDirectory(path))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn store(&self, name: &str) -> String {
        format!("sqlite:{}", self.path(&format!("{name}.db")).display())
    }
}

impl Drop for BenchDirectory {
    fn drop(&mut self) {
        // A temporary directory that cannot be removed does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Baseline: two connections that notify each other through PostgreSQL.
pub(crate) struct NotifyRoundTrip {
    channel_there: String,
    channel_back: String,
    near: PgConnection,
    far: PgConnection,
    near_listener: PgListener,
    far_listener: PgListener,
}

impl NotifyRoundTrip {
    pub(crate) async fn connect(url: &str) -> Result<NotifyRoundTrip, BenchError> {
        let channel = |side: &str| format!("tenure_bench_{side}_{}", std::process::id());
        let (channel_there, channel_back) = (channel("there"), channel("back"));
        let (mut near_listener, mut far_listener) =
            (PgListener::connect(url).await?, PgListener::connect(url).await?);
        far_listener.listen(&channel_there).await?;
        near_listener.listen(&channel_back).await?;
        let (near, far) = (PgConnection::connect(url).await?, PgConnection::connect(url).await?);
        Ok(NotifyRoundTrip { channel_there, channel_back, near, far, near_listener, far_listener })
    }

    /// Time from `NOTIFY` on one connection until another one receives it.
    pub(crate) async fn one_way(&mut self) -> Result<Duration, BenchError> {
        tokio::time::sleep(REST).await;
        let start = now();
        let notify = self.near.execute(AssertSqlSafe(format!("NOTIFY {}", self.channel_there)));
        let (sent, received) = tokio::join!(notify, self.far_listener.recv());
        sent?;
        received?;
        Ok(now().since(start))
    }

    /// Round trip of two notifications. Neither waits for the disk.
    pub(crate) async fn round_trip(&mut self) -> Result<Duration, BenchError> {
        let notify = format!("NOTIFY {}", self.channel_back);
        self.round_trip_with(&notify).await
    }

    /// Round trip whose reply is durable before it is sent, as a grant must be.
    pub(crate) async fn durable_round_trip(&mut self) -> Result<Duration, BenchError> {
        let write = format!("{DURABLE_WRITE}; NOTIFY {}", self.channel_back);
        self.round_trip_with(&write).await
    }

    async fn round_trip_with(&mut self, answer: &str) -> Result<Duration, BenchError> {
        tokio::time::sleep(REST).await;
        let start = now();
        let notify = self.near.execute(AssertSqlSafe(format!("NOTIFY {}", self.channel_there)));
        let answer = async {
            self.far_listener.recv().await?;
            self.far.execute(AssertSqlSafe(answer)).await
        };
        let (sent, answered, received) = tokio::join!(notify, answer, self.near_listener.recv());
        sent?;
        answered?;
        received?;
        Ok(now().since(start))
    }
}

/// A SQLite file for small durable writes.
pub(crate) struct SqliteWriter(SqliteConnection);

impl SqliteWriter {
    pub(crate) async fn open(directory: &BenchDirectory) -> Result<SqliteWriter, BenchError> {
        let mut connection: SqliteConnection = SqliteConnectOptions::new()
            .filename(directory.path("baseline.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .connect()
            .await?;
        let table = "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, n INTEGER); \
                     INSERT INTO t VALUES (1, 0) ON CONFLICT DO NOTHING";
        connection.execute(table).await?;
        Ok(SqliteWriter(connection))
    }

    pub(crate) async fn write(&mut self) -> Result<(), BenchError> {
        self.0.execute("UPDATE t SET n = n + 1 WHERE id = 1").await?;
        Ok(())
    }
}
