//! Connections, and transactions that can be abandoned at any point.
//!
//! | pool | connections | for | `synchronous` |
//! |---|---|---|---|
//! | `writes` | 1 | all that changes anything but a beat | `FULL` |
//! | `beats` | 1 | beats of sessions whose kernel lock is ours | `NORMAL` |
//! | `reads` | up to 4 | looks | – |
//! | `users` | up to 8 | the user's own transactions, see [`Sqlite::pool`](super::Sqlite::pool) | `FULL` |
//!
//! A grant must outlive a power loss, or its token would be granted twice; so its commit waits for the disk. A beat of a
//! process on this machine need not: after a power loss that process is dead anyway. (One that a server beats for lives
//! elsewhere, and its beats go through `writes`.) SQLite recovers a prefix of what was
//! committed, so a beat that is lost takes nothing with it that was there before. On one machine with a fast disk a beat
//! took 0.2 ms this way and 0.4 ms with `FULL`; a grant 0.9 ms, of which about half is the wait for the disk.
//!
//! One connection writes, so that the writers of one process queue in memory, first come first served; those of
//! several processes wait for each other as SQLite does, by trying again.

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

/// The pools of one client.
#[derive(Debug)]
pub(super) struct Pools {
    pub(super) writes: SqlitePool,
    pub(super) beats: SqlitePool,
    pub(super) reads: SqlitePool,
    pub(super) users: SqlitePool,
}

impl Pools {
    /// Pools for this file. Nothing is opened yet.
    pub(super) fn new(path: &Path, busy_timeout: Duration) -> Pools {
        // The journal mode is not among these: SQLite does not wait for the lock that setting it needs. See `migrate.rs`.
        // SQLite would create the file with the umask's mode; `Sqlite::open` creates it. The log and its index get the
        // mode of the file.
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
        Pools {
            writes: pool(1, SqliteSynchronous::Full),
            beats: pool(1, SqliteSynchronous::Normal),
            reads: pool(4, SqliteSynchronous::Full),
            users: pool(8, SqliteSynchronous::Full),
        }
    }
}

/// A statement of ours.
pub(super) fn query(sql: &str) -> Query<'_, Dialect, SqliteArguments> {
    sqlx::query(AssertSqlSafe(sql))
}

/// A transaction. Unless it is committed, its connection is closed: that rolls back whatever state an error or a future
/// that was dropped has left it in. (After a full disk, SQLite has rolled back by itself and sqlx does not know.)
pub(super) struct Transaction {
    connection: PoolConnection<Dialect>,
    open: bool,
}

/// What one statement of several did.
pub(super) struct Done {
    /// How many rows it changed.
    pub(super) changed: u64,
    /// What it returned.
    pub(super) rows: Vec<SqliteRow>,
}

impl Transaction {
    /// The text of a whole one that writes.
    pub(super) fn whole(statements: &[&str]) -> String {
        format!("BEGIN IMMEDIATE;\n{};\nCOMMIT", statements.join(";\n"))
    }

    /// Runs a [`whole`](Self::whole) one, in a single trip to the connection's thread. After an error, whether it
    /// happened is unknown.
    pub(super) async fn run(
        pool: &SqlitePool,
        query: Query<'_, Dialect, SqliteArguments>,
    ) -> sqlx::Result<Vec<Done>> {
        let mut transaction = Transaction { connection: pool.acquire().await?, open: true };
        let (mut done, mut rows) = (Vec::new(), Vec::new());
        let mut steps = transaction.connection.fetch_many(query);
        let ended = loop {
            match steps.try_next().await {
                Ok(Some(Either::Right(row))) => rows.push(row),
                Ok(Some(Either::Left(result))) => {
                    done.push(Done { changed: result.rows_affected(), rows: std::mem::take(&mut rows) });
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(steps);
        // Committed; or it did not even begin, and the connection is as good as before.
        transaction.open = ended.as_ref().is_err_and(|error| !(done.is_empty() && error::is_busy(error)));
        ended?;
        // What beginning and committing did is nobody's business.
        done.pop();
        done.remove(0);
        Ok(done)
    }

    /// Begins one that will write: no other can until it is over.
    pub(super) async fn write(pool: &SqlitePool) -> sqlx::Result<Transaction> {
        Self::begin(pool, "BEGIN IMMEDIATE").await
    }

    /// Begins one that sees the database as it is at one moment.
    pub(super) async fn read(pool: &SqlitePool) -> sqlx::Result<Transaction> {
        Self::begin(pool, "BEGIN").await
    }

    async fn begin(pool: &SqlitePool, begin: &'static str) -> sqlx::Result<Transaction> {
        let mut transaction = Transaction { connection: pool.acquire().await?, open: true };
        let begun = transaction.connection.execute(begin).await;
        if begun.as_ref().is_err_and(error::is_busy) {
            // It did not begin, and the connection is as good as before.
            transaction.open = false;
        }
        begun.map(|_| transaction)
    }

    /// Commits. After an error, whether it happened is unknown.
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

/// The election that the columns `namespace` and `election` name.
pub(super) fn election_of(row: &SqliteRow) -> sqlx::Result<ElectionKey> {
    Ok(ElectionKey::new(parsed(row, "namespace")?, parsed(row, "election")?))
}

/// A column whose text is read as something else.
pub(super) fn parsed<T>(row: &SqliteRow, column: &str) -> sqlx::Result<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    row.try_get::<&str, _>(column)?.parse().map_err(|error| broken(column, error))
}

/// An error for a column that does not hold what Tenure writes there.
pub(super) fn broken(column: &str, error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.into(), source: Box::new(error) }
}

/// Gives errors of a call their file and what was being done.
pub(super) trait Explain<T> {
    fn explain(self, path: &Path, doing: &str) -> Result<T, StoreError>;
}

impl<T> Explain<T> for sqlx::Result<T> {
    fn explain(self, path: &Path, doing: &str) -> Result<T, StoreError> {
        self.map_err(|error| error::sqlite(path, doing, &error))
    }
}
