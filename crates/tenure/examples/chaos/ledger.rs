//! The tables that leaders write to, in either dialect: `journal` under the guard, `fenced` behind the fence only.
//!
//! Each row draws its serial number *after* the guard or the fence has taken its lock, so within one lease serial order
//! is commit order, and tokens must not decrease along it. Statements go by the simple protocol: PgBouncer in
//! transaction mode gives each transaction another connection.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Row};
use tenure::{FenceError, GuardError, Leadership, Token, fence};

/// The tables, for PostgreSQL.
pub(crate) const POSTGRES_TABLES: &str = "
CREATE TABLE journal (serial bigserial PRIMARY KEY, election text, slot int, token bigint, worker int);
CREATE TABLE fenced (serial bigserial PRIMARY KEY, election text, slot int, token bigint, worker int);";

/// The tables, for SQLite.
pub(crate) const SQLITE_TABLES: &str = "
CREATE TABLE journal (serial INTEGER PRIMARY KEY AUTOINCREMENT, election, slot, token, worker);
CREATE TABLE fenced (serial INTEGER PRIMARY KEY AUTOINCREMENT, election, slot, token, worker);";

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Refused,
    /// It failed in another way, or its commit was not confirmed.
    Unknown,
}

/// Where a row belongs.
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
        // Names and numbers of our own: nothing to escape.
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
pub(crate) enum Ledger {
    Postgres(PgPool),
    Sqlite(SqlitePool),
    /// A file beside a store that has no tables: a leader has nothing but its token to show there.
    Elsewhere(SqlitePool),
}

impl Ledger {
    /// Connects when it is first used.
    pub(crate) fn open(url: &str) -> Result<Self, sqlx::Error> {
        let wait = Duration::from_secs(1);
        if let Some(path) = url.strip_prefix("sqlite:") {
            let options = SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_millis(500));
            let pool = SqlitePoolOptions::new().max_connections(3).acquire_timeout(wait);
            return Ok(Ledger::Sqlite(pool.connect_lazy_with(options)));
        }
        let options: PgConnectOptions = url.parse()?;
        let pool = PgPoolOptions::new().max_connections(4).acquire_timeout(wait).test_before_acquire(false);
        Ok(Ledger::Postgres(pool.connect_lazy_with(options)))
    }

    /// Tables in an SQLite file, for leaders that were elected elsewhere.
    pub(crate) fn elsewhere(url: &str) -> Result<Self, sqlx::Error> {
        Self::open(url).map(|ledger| match ledger {
            Ledger::Sqlite(pool) => Ledger::Elsewhere(pool),
            other => other,
        })
    }

    /// Writes under the guard. `midway` runs inside the transaction, after the guard.
    pub(crate) async fn guarded(
        &self,
        leadership: &Leadership,
        row: &Entry,
        midway: impl FnOnce(),
    ) -> Outcome {
        let insert = row.insert("journal");
        let done = match self {
            Ledger::Postgres(pool) => {
                async {
                    let mut tx = pool.begin().await.map_err(|_| Outcome::Unknown)?;
                    leadership.guard(&mut tx).await.map_err(|error| refused_by_guard(&error))?;
                    midway();
                    sqlx::raw_sql(insert).execute(&mut *tx).await.map_err(|_| Outcome::Unknown)?;
                    tx.commit().await.map_err(|_| Outcome::Unknown)
                }
                .await
            }
            Ledger::Sqlite(pool) => {
                async {
                    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|_| Outcome::Unknown)?;
                    leadership.guard(&mut tx).await.map_err(|error| refused_by_guard(&error))?;
                    midway();
                    sqlx::raw_sql(insert).execute(&mut *tx).await.map_err(|_| Outcome::Unknown)?;
                    tx.commit().await.map_err(|_| Outcome::Unknown)
                }
                .await
            }
            Ledger::Elsewhere(_) => return self.fenced(row, "journal").await,
        };
        done.map_or_else(|outcome| outcome, |()| Outcome::Done)
    }

    /// Writes with a token only, whoever leads by now.
    pub(crate) async fn careless(&self, row: &Entry) -> Outcome {
        self.fenced(row, "fenced").await
    }

    async fn fenced(&self, row: &Entry, table: &str) -> Outcome {
        let (insert, name) = (row.insert(table), row.fence_name());
        let done = match self {
            Ledger::Postgres(pool) => {
                async {
                    let mut tx = pool.begin().await.map_err(|_| Outcome::Unknown)?;
                    fence(&mut tx, &name, row.token).await.map_err(|error| refused_by_fence(&error))?;
                    sqlx::raw_sql(insert).execute(&mut *tx).await.map_err(|_| Outcome::Unknown)?;
                    tx.commit().await.map_err(|_| Outcome::Unknown)
                }
                .await
            }
            Ledger::Sqlite(pool) | Ledger::Elsewhere(pool) => {
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

    /// The rows of a table in serial order: which lease, and which token.
    pub(crate) async fn rows(&self, table: &str) -> Result<Vec<(String, u64)>, sqlx::Error> {
        let sql = AssertSqlSafe(format!(
            "SELECT election || '/' || CAST(slot AS text), CAST(token AS bigint) FROM {table} ORDER BY serial"
        ));
        Ok(match self {
            Ledger::Postgres(pool) => {
                let rows = sqlx::raw_sql(sql).fetch_all(pool).await?;
                rows.iter().map(|row| (row.get(0), row.get::<i64, _>(1).cast_unsigned())).collect()
            }
            Ledger::Sqlite(pool) | Ledger::Elsewhere(pool) => {
                let rows = sqlx::raw_sql(sql).fetch_all(pool).await?;
                rows.iter().map(|row| (row.get(0), row.get::<i64, _>(1).cast_unsigned())).collect()
            }
        })
    }

    /// Runs statements of our own.
    pub(crate) async fn execute(&self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Ledger::Postgres(pool) => sqlx::raw_sql(sql).execute(pool).await.map(|_| ()),
            Ledger::Sqlite(pool) | Ledger::Elsewhere(pool) => {
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
