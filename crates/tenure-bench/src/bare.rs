//! What the database and the kernel need without us.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgListener};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tenure::runtime::now;

use crate::{BenchError, REST};

/// The least that makes a commit of PostgreSQL wait for its disk.
pub(crate) const DURABLE_WRITE: &str = "SELECT pg_logical_emit_message(true, 'tenure-bench', '')";

/// A folder of the run's own, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Result<Folder, BenchError> {
        let path = std::env::temp_dir().join(format!(
            "tenure-bench-{}-{:x}",
            std::process::id(),
            tenure::runtime::random()
        ));
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn store(&self, name: &str) -> String {
        format!("sqlite:{}", self.path(&format!("{name}.db")).display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder in the temporary folder that cannot be removed harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a server needs to pass a word on between two clients that are connected.
pub(crate) struct Server {
    there: String,
    back: String,
    near: PgConnection,
    far: PgConnection,
    near_ear: PgListener,
    far_ear: PgListener,
}

impl Server {
    pub(crate) async fn connect(url: &str) -> Result<Server, BenchError> {
        let channel = |side: &str| format!("tenure_bench_{side}_{}", std::process::id());
        let (there, back) = (channel("there"), channel("back"));
        let (mut near_ear, mut far_ear) = (PgListener::connect(url).await?, PgListener::connect(url).await?);
        far_ear.listen(&there).await?;
        near_ear.listen(&back).await?;
        let (near, far) = (PgConnection::connect(url).await?, PgConnection::connect(url).await?);
        Ok(Server { there, back, near, far, near_ear, far_ear })
    }

    /// One way: `NOTIFY` by one connection until another has heard it.
    pub(crate) async fn one_way(&mut self) -> Result<Duration, BenchError> {
        tokio::time::sleep(REST).await;
        let start = now();
        let notify = self.near.execute(AssertSqlSafe(format!("NOTIFY {}", self.there)));
        let (sent, heard) = tokio::join!(notify, self.far_ear.recv());
        sent?;
        heard?;
        Ok(now().since(start))
    }

    /// There and back. Neither waits for the disk.
    pub(crate) async fn there_and_back(&mut self) -> Result<Duration, BenchError> {
        let notify = format!("NOTIFY {}", self.back);
        self.answered_by(&notify).await
    }

    /// There, and back with something that is on the disk before it is told, as a grant must be.
    pub(crate) async fn there_and_durably_back(&mut self) -> Result<Duration, BenchError> {
        let write = format!("{DURABLE_WRITE}; NOTIFY {}", self.back);
        self.answered_by(&write).await
    }

    async fn answered_by(&mut self, answer: &str) -> Result<Duration, BenchError> {
        tokio::time::sleep(REST).await;
        let start = now();
        let notify = self.near.execute(AssertSqlSafe(format!("NOTIFY {}", self.there)));
        let answer = async {
            self.far_ear.recv().await?;
            self.far.execute(AssertSqlSafe(answer)).await
        };
        let (sent, answered, heard) = tokio::join!(notify, answer, self.near_ear.recv());
        sent?;
        answered?;
        heard?;
        Ok(now().since(start))
    }
}

/// A SQLite file for small durable writes.
pub(crate) struct Writer(SqliteConnection);

impl Writer {
    pub(crate) async fn open(folder: &Folder) -> Result<Writer, BenchError> {
        let mut connection: SqliteConnection = SqliteConnectOptions::new()
            .filename(folder.path("bare.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .connect()
            .await?;
        let table = "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, n INTEGER); \
                     INSERT INTO t VALUES (1, 0) ON CONFLICT DO NOTHING";
        connection.execute(table).await?;
        Ok(Writer(connection))
    }

    pub(crate) async fn write(&mut self) -> Result<(), BenchError> {
        self.0.execute("UPDATE t SET n = n + 1 WHERE id = 1").await?;
        Ok(())
    }
}
