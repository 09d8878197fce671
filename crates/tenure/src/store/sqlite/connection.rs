//! Connection pools, and transactions that can be dropped at any point.
//!
//! | pool | connections | for | `synchronous` |
//! |---|---|---|---|
//! | `writes` | 1 | every write except heartbeats | `FULL` |
//! | `heartbeats` | 1 | heartbeats of sessions whose kernel lock this client holds | `NORMAL` |
//! | `reads` | up to 4 | reads | – |
//! | `application` | up to 8 | transactions of the application, see [`Sqlite::pool`](super::Sqlite::pool) | `FULL` |
//!
//! A grant must survive a power loss, or its token could be granted twice; so its commit waits for the disk. A heartbeat of a
//! process on this machine need not survive: the power loss ends the process too. (Heartbeats that a server sends for a remote client
//! use `writes`.) SQLite recovers a prefix of the commits, so a lost heartbeat does not lose earlier commits. On a machine with a
//! fast disk, a heartbeat took 0.2 ms this way and 0.4 ms with `FULL`; a grant took 0.9 ms, half of it waiting for the disk.
//!
//! One connection writes, so that the writers of one process queue in memory in order of arrival. Writers of several processes wait
//! for each other by the retries of SQLite.

use std::path::Path;
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions,
    SqliteQueryResult, SqliteRow, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Either, Executor, Row, Sqlite as Dialect};
use tenure_core::ElectionKey;
use tenure_core::port::StoreError;

use super::error;

/// The connection pools of one client.
#[derive(Debug)]
pub(super) struct ConnectionPools {
    pub(super) writes: SqlitePool,
    pub(super) heartbeats: SqlitePool,
    pub(super) reads: SqlitePool,
    pub(super) application: SqlitePool,
}

impl ConnectionPools {
    /// Pools for this file. They connect on first use.
    pub(super) fn new(path: &Path, busy_timeout: Duration) -> ConnectionPools {
        // The journal mode is set in `migrate.rs`, because SQLite does not wait for the lock that this needs.
        // `SqliteStore::open` creates the file, because SQLite would use the mode of the umask. SQLite gives the log files the mode
        // of the database file.
        let connect =
            SqliteConnectOptions::new().filename(path).create_if_missing(false).busy_timeout(busy_timeout);
        let pool = |most: u32, synchronous: SqliteSynchronous| {
            SqlitePoolOptions::new()
                .max_connections(most)
                .acquire_timeout((busy_timeout * 2).max(Duration::from_millis(500)))
                .test_before_acquire(false)
                .max_lifetime(None)
                .idle_timeout(None)
                .connect_lazy_with(connect.clone().synchronous(synchronous))
        };
        ConnectionPools {
            writes: pool(1, SqliteSynchronous::Full),
            heartbeats: pool(1, SqliteSynchronous::Normal),
            reads: pool(4, SqliteSynchronous::Full),
            application: pool(8, SqliteSynchronous::Full),
        }
    }
}

/// A query from a statement of Tenure.
pub(super) fn query(sql: &str) -> Query<'_, Dialect, SqliteArguments> {
    sqlx::query(AssertSqlSafe(sql))
}

/// A transaction. If it is dropped without a commit, its connection is closed, which rolls back in every state that an error or a
/// dropped future can leave. (After a full disk, SQLite has rolled back by itself, and sqlx does not know.)
pub(super) struct Transaction {
    connection: PoolConnection<Dialect>,
    open: bool,
}

/// The result of one statement of a script.
pub(super) struct StatementResult {
    /// The number of changed rows.
    pub(super) changed: u64,
    /// The returned rows.
    pub(super) rows: Vec<SqliteRow>,
}

impl Transaction {
    /// The text of a script that runs these statements in one write transaction.
    pub(super) fn whole(statements: &[&str]) -> String {
        format!("BEGIN IMMEDIATE;\n{};\nCOMMIT", statements.join(";\n"))
    }

    /// Run a script of [`whole`](Self::whole) in one round trip to the thread of the connection. After an error, it is unknown whether
    /// the script was committed.
    pub(super) async fn run(
        pool: &SqlitePool,
        query: Query<'_, Dialect, SqliteArguments>,
    ) -> sqlx::Result<Vec<StatementResult>> {
        let mut transaction = Transaction { connection: pool.acquire().await?, open: true };
        let (mut done, mut rows) = (Vec::new(), Vec::new());
        let mut steps = transaction.connection.fetch_many(query);
        let ended = loop {
            match steps.try_next().await {
                Ok(Some(Either::Right(row))) => rows.push(row),
                Ok(Some(Either::Left(result))) => {
                    done.push(StatementResult {
                        changed: result.rows_affected(),
                        rows: std::mem::take(&mut rows),
                    });
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(steps);
        // The transaction is closed if the script was committed, or if BEGIN failed because the file was busy.
        transaction.open = ended.as_ref().is_err_and(|error| !(done.is_empty() && error::is_busy(error)));
        ended?;
        // Remove the results of BEGIN and COMMIT.
        done.pop();
        done.remove(0);
        Ok(done)
    }

    /// Begin a write transaction. It takes the write lock of the file.
    pub(super) async fn write(pool: &SqlitePool) -> sqlx::Result<Transaction> {
        Self::begin(pool, "BEGIN IMMEDIATE").await
    }

    /// Begin a read transaction. It reads one snapshot.
    pub(super) async fn read(pool: &SqlitePool) -> sqlx::Result<Transaction> {
        Self::begin(pool, "BEGIN").await
    }

    async fn begin(pool: &SqlitePool, begin: &'static str) -> sqlx::Result<Transaction> {
        let mut transaction = Transaction { connection: pool.acquire().await?, open: true };
        let begun = transaction.connection.execute(begin).await;
        if begun.as_ref().is_err_and(error::is_busy) {
            // BEGIN failed, so there is nothing to roll back, and the connection is still usable.
            transaction.open = false;
        }
        begun.map(|_| transaction)
    }

    /// Commit. After an error, it is unknown whether the transaction was committed.
    pub(super) async fn commit(mut self) -> sqlx::Result<()> {
        self.connection.execute("COMMIT").await?;
        self.open = false;
        Ok(())
    }

    pub(super) async fn execute(
        &mut self,
        query: Query<'_, Dialect, SqliteArguments>,
    ) -> sqlx::Result<SqliteQueryResult> {
        query.execute(&mut *self.connection).await
    }

    pub(super) async fn all(
        &mut self,
        query: Query<'_, Dialect, SqliteArguments>,
    ) -> sqlx::Result<Vec<SqliteRow>> {
        query.fetch_all(&mut *self.connection).await
    }

    pub(super) async fn one(
        &mut self,
        query: Query<'_, Dialect, SqliteArguments>,
    ) -> sqlx::Result<Option<SqliteRow>> {
        query.fetch_optional(&mut *self.connection).await
    }

    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.open {
            self.connection.close_on_drop();
        }
    }
}

/// The election in the columns `namespace` and `election`.
pub(super) fn election_of(row: &SqliteRow) -> sqlx::Result<ElectionKey> {
    Ok(ElectionKey::new(parsed(row, "namespace")?, parsed(row, "election")?))
}

/// A text column, parsed.
pub(super) fn parsed<T>(row: &SqliteRow, column: &str) -> sqlx::Result<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.try_get::<&str, _>(column)?.parse().map_err(|error| decode_error(column, error))
}

/// The error for a column with an invalid value.
pub(super) fn decode_error(
    column: &str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.into(), source: Box::new(error) }
}

/// Adds the file and the action to errors of SQLite.
pub(super) trait Explain<T> {
    fn explain(self, path: &Path, doing: &str) -> Result<T, StoreError>;
}

impl<T> Explain<T> for sqlx::Result<T> {
    fn explain(self, path: &Path, doing: &str) -> Result<T, StoreError> {
        self.map_err(|error| error::sqlite(path, doing, &error))
    }
}
