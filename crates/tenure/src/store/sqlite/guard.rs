//! Guards and fences: checks that reject writes of former leaders. A guard works in the same file, a fence in any database.

use std::sync::LazyLock;

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tenure_core::port::{ErrorKind, StoreError};
use tenure_core::{ElectionKey, SessionId, Token};

use super::connection::query;
use super::{QUERIES, error};
use crate::store::queries::Queries;
use crate::{FenceError, GuardError, runtime};

/// The unmodified statements.
pub(super) static STATEMENTS: LazyLock<Queries> = LazyLock::new(|| Queries::parse(QUERIES));

/// Ensure that the transaction on `conn` commits only while the session holds the lease in the same database file.
///
/// The guard takes the write lock of the file with an `UPDATE` that changes nothing. SQLite has one writer at a time, so no takeover
/// can happen before the commit. If the transaction has read before an earlier takeover, its snapshot is old, and SQLite rejects the
/// write (`SQLITE_BUSY_SNAPSHOT`); a transaction that starts with `BEGIN IMMEDIATE` avoids this error.
///
/// A process that is stopped during such a transaction keeps the write lock and blocks every writer of the file until it continues or
/// dies. Keep guarded transactions short.
pub async fn guard(
    conn: &mut SqliteConnection,
    election: &ElectionKey,
    slot: u32,
    token: Token,
    session: &SessionId,
) -> Result<(), GuardError> {
    guard_with(&STATEMENTS, conn, election, slot, token, session).await
}

pub(super) async fn guard_with(
    queries: &Queries,
    conn: &mut SqliteConnection,
    election: &ElectionKey,
    slot: u32,
    token: Token,
    session: &SessionId,
) -> Result<(), GuardError> {
    if !conn.is_in_transaction() {
        return Err(GuardError::NotInTransaction);
    }
    let held = query(queries.get("lease_guard"))
        .bind(election.namespace.as_str())
        .bind(election.name.as_str())
        .bind(slot)
        .bind(number(token)?)
        .bind(session.as_str())
        .fetch_optional(conn)
        .await
        .map_err(|error| explain_error("guarding a transaction", &error))?;
    match held {
        Some(_) => Ok(()),
        None => Err(GuardError::NotHeld { election: election.clone(), slot, token }),
    }
}

/// Record the highest token seen under `name` in the transaction on `conn`, and reject a lower one. The token may come from any store;
/// this database only needs the tables of Tenure.
pub async fn fence(conn: &mut SqliteConnection, name: &str, token: Token) -> Result<(), FenceError> {
    if !conn.is_in_transaction() {
        return Err(FenceError::NotInTransaction);
    }
    let explain = |error: sqlx::Error| explain_error("fencing a transaction", &error);
    let put = query(STATEMENTS.get("fence")).bind(name).bind(number(token)?).bind(runtime::wall_ms());
    if put.execute(&mut *conn).await.map_err(explain)?.rows_affected() > 0 {
        return Ok(());
    }
    let seen: i64 = query(STATEMENTS.get("fence_get"))
        .bind(name)
        .fetch_one(conn)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(explain)?;
    Err(FenceError::Stale { name: name.to_owned(), highest: Token::from_u64(seen.cast_unsigned()), token })
}

fn number(token: Token) -> Result<i64, StoreError> {
    i64::try_from(token.as_u64()).map_err(|_| {
        StoreError::new(ErrorKind::Request, format!("token {token} is out of range; no store grants it"))
    })
}

fn explain_error(doing: &str, error: &sqlx::Error) -> StoreError {
    error::sqlite("the database".as_ref(), doing, error)
}
