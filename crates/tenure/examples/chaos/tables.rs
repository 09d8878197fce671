//! The tables that leaders write to, in either dialect: `journal` under the guard, `fenced` behind the fence only.
//!
//! A row gets its serial number *after* the guard or the fence has taken its lock. Within one lease the serial order is
//! therefore the commit order, and tokens must not decrease along it. Statements use the simple protocol: PgBouncer in
//! transaction mode gives each transaction another connection.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Row};
use tenure::{FenceError, GuardError, Leadership, Token, fence};

/// The tables in PostgreSQL.
pub(crate) const POSTGRES_TABLES: &str = "
CREATE TABLE journal (serial bigserial PRIMARY KEY, election text, slot int, token bigint, worker int);
CREATE TABLE fenced (serial bigserial PRIMARY KEY, election text, slot int, token bigint, worker int);";

/// The tables in SQLite.
pub(crate) const SQLITE_TABLES: &str = "
CREATE TABLE journal (serial INTEGER PRIMARY KEY AUTOINCREMENT, election, slot, token, worker);
CREATE TABLE fenced (serial INTEGER PRIMARY KEY AUTOINCREMENT, election, slot, token, worker);";

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Refused,
    /// It failed in another way, or its commit was not confirmed.
    Unknown,
}

/// A row to write.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) election: String,
    pub(crate) slot: u32,
    pub(crate) token: Token,
    pub(crate) worker: usize,
}

impl Entry {
    fn insert(&self, table: &str) -> AssertSqlSafe<String> {
        let Entry { election, slot, token, worker } = self;
        let token = token.as_u64();
        // All names are our own; no escaping is needed.
        AssertSqlSafe(format!(
            "INSERT INTO {table} (election, slot, token, worker) \
             VALUES ('{election}', {slot}, {token}, {worker})"
        ))
    }

    fn fence_name(&self) -> String {
        format!("{}/{}", self.election, self.slot)
    }
}

/// The tables, open for writing.
#[derive(Clone)]
pub(crate) enum WriteTables {
    Postgres(PgPool),
    Sqlite(SqlitePool),
    /// A file next to a store without tables: writes are protected by the token only.
    External(SqlitePool),
}

impl WriteTables {
    /// Open the tables; connects on first use.
    pub(crate) fn open(url: &str) -> Result<Self, sqlx::Error> {
        let wait = Duration::from_secs(1);
        if let Some(path) = url.strip_prefix("sqlite:") {
            let options = SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_millis(500));
            let pool = SqlitePoolOptions::new().max_connections(3).acquire_timeout(wait);
            return Ok(WriteTables::Sqlite(pool.connect_lazy_with(options)));
        }
        let options: PgConnectOptions = url.parse()?;
        let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(wait).test_before_acquire(false);
        Ok(WriteTables::Postgres(pool.connect_lazy_with(options)))
    }

    /// Open tables in a SQLite file, for leaders elected in another store.
    pub(crate) fn external(url: &str) -> Result<Self, sqlx::Error> {
        Self::open(url).map(|tables| match tables {
            WriteTables::Sqlite(pool) => WriteTables::External(pool),
            other => other,
        })
    }

    /// Write under the guard. `midway` runs inside the transaction, after the guard.
    pub(crate) async fn guarded(
        &self,
        leadership: &Leadership,
        row: &Entry,
        midway: impl FnOnce(),
    ) -> Outcome {
        let insert = row.insert("journal");
        let done = match self {
            WriteTables::Postgres(pool) => {
                async {
                    let mut tx = pool.begin().await.map_err(|_| Outcome::Unknown)?;
                    leadership.guard(&mut tx).await.map_err(|error| refused_by_guard(&error))?;
                    midway();
                    sqlx::raw_sql(insert).execute(&mut *tx).await.map_err(|_| Outcome::Unknown)?;
                    tx.commit().await.map_err(|_| Outcome::Unknown)
                }
                .await
            }
            WriteTables::Sqlite(pool) => {
                async {
                    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|_| Outcome::Unknown)?;
                    leadership.guard(&mut tx).await.map_err(|error| refused_by_guard(&error))?;
                    midway();
                    sqlx::raw_sql(insert).execute(&mut *tx).await.map_err(|_| Outcome::Unknown)?;
                    tx.commit().await.map_err(|_| Outcome::Unknown)
                }
                .await
            }
            WriteTables::External(_) => return self.fenced(row, "journal").await,
        };
        done.map_or_else(|outcome| outcome, |()| Outcome::Done)
    }

    /// Write with a token only, without checking leadership.
    pub(crate) async fn write_with_token(&self, row: &Entry) -> Outcome {
        self.fenced(row, "fenced").await
    }

    async fn fenced(&self, row: &Entry, table: &str) -> Outcome {
        let (insert, name) = (row.insert(table), row.fence_name());
        let done = match self {
            WriteTables::Postgres(pool) => {
                async {
                    let mut tx = pool.begin().await.map_err(|_| Outcome::Unknown)?;
                    fence(&mut tx, &name, row.token).await.map_err(|error| refused_by_fence(&error))?;
                    sqlx::raw_sql(insert).execute(&mut *tx).await.map_err(|_| Outcome::Unknown)?;
                    tx.commit().await.map_err(|_| Outcome::Unknown)
                }
                .await
            }
            WriteTables::Sqlite(pool) | WriteTables::External(pool) => {
                async {
                    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|_| Outcome::Unknown)?;
                    fence(&mut tx, &name, row.token).await.map_err(|error| refused_by_fence(&error))?;
                    sqlx::raw_sql(insert).execute(&mut *tx).await.map_err(|_| Outcome::Unknown)?;
                    tx.commit().await.map_err(|_| Outcome::Unknown)
                }
                .await
            }
        };
        done.map_or_else(|outcome| outcome, |()| Outcome::Done)
    }

    /// Rows of a table in serial order: lease and token.
    pub(crate) async fn rows(&self, table: &str) -> Result<Vec<(String, u64)>, sqlx::Error> {
        let sql = AssertSqlSafe(format!(
            "SELECT election || '/' || CAST(slot AS text), CAST(token AS bigint) FROM {table} ORDER BY serial"
        ));
        Ok(match self {
            WriteTables::Postgres(pool) => {
                let rows = sqlx::raw_sql(sql).fetch_all(pool).await?;
                rows.iter().map(|row| (row.get(0), row.get::<i64, _>(1).cast_unsigned())).collect()
            }
            WriteTables::Sqlite(pool) | WriteTables::External(pool) => {
                let rows = sqlx::raw_sql(sql).fetch_all(pool).await?;
                rows.iter().map(|row| (row.get(0), row.get::<i64, _>(1).cast_unsigned())).collect()
            }
        })
    }

    /// Run a statement.
    pub(crate) async fn execute(&self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            WriteTables::Postgres(pool) => sqlx::raw_sql(sql).execute(pool).await.map(|_| ()),
            WriteTables::Sqlite(pool) | WriteTables::External(pool) => {
                sqlx::raw_sql(sql).execute(pool).await.map(|_| ())
            }
        }
    }
}

fn refused_by_guard(error: &GuardError) -> Outcome {
    match error {
        GuardError::NotHeld { .. } | GuardError::Untrusted(_) => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

fn refused_by_fence(error: &FenceError) -> Outcome {
    if matches!(error, FenceError::Stale { .. }) { Outcome::Refused } else { Outcome::Unknown }
}
