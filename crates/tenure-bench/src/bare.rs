//! What the database and the kernel need without us.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgListener};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tenure::runtime::now;

use crate::{BenchError, REST};

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

/// One way: `NOTIFY` by one connection until another has heard it. And there and back.
pub(crate) async fn notify(url: &str, rounds: u32) -> Result<(Vec<Duration>, Vec<Duration>), BenchError> {
    let channel = |side: &str| format!("tenure_bench_{side}_{}", std::process::id());
    let (there, back) = (channel("there"), channel("back"));
    let mut listener = PgListener::connect(url).await?;
    listener.listen(&there).await?;
    let mut far = PgListener::connect(url).await?;
    far.listen(&back).await?;
    let mut near_sender = PgConnection::connect(url).await?;
    let mut far_sender = PgConnection::connect(url).await?;
    let (mut one_way, mut round_trip) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        tokio::time::sleep(REST).await;
        let start = now();
        let (sent, heard) =
            tokio::join!(near_sender.execute(AssertSqlSafe(format!("NOTIFY {there}"))), listener.recv());
        sent?;
        heard?;
        one_way.push(now().since(start));
        tokio::time::sleep(REST).await;
        let start = now();
        let answer = async {
            listener.recv().await?;
            far_sender.execute(AssertSqlSafe(format!("NOTIFY {back}"))).await
        };
        let (sent, answered, heard) =
            tokio::join!(near_sender.execute(AssertSqlSafe(format!("NOTIFY {there}"))), answer, far.recv());
        sent?;
        answered?;
        heard?;
        round_trip.push(now().since(start));
    }
    Ok((one_way, round_trip))
}

/// One small durable write to a SQLite file.
pub(crate) async fn sqlite_write(folder: &Folder, rounds: u32) -> Result<Vec<Duration>, BenchError> {
    let mut connection: SqliteConnection = SqliteConnectOptions::new()
        .filename(folder.path("bare.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .connect()
        .await?;
    connection
        .execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO t VALUES (1, 0)")
        .await?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        tokio::time::sleep(REST).await;
        let start = now();
        connection.execute("UPDATE t SET n = n + 1 WHERE id = 1").await?;
        times.push(now().since(start));
    }
    Ok(times)
}
