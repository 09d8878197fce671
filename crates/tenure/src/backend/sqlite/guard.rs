//! Writes that an old leader can not make: the guard, inside the same file, and the fence, in any.

use std::sync::LazyLock;

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tenure_core::port::{StoreError, Trouble};
use tenure_core::{ElectionKey, SessionId, Token};

use super::connection::query;
use super::{QUERIES, error};
use crate::backend::queries::Queries;
use crate::{FenceError, GuardError, runtime};

/// The statements as they are in their files.
pub(super) static PRISTINE: LazyLock<Queries> = LazyLock::new(|| Queries::parse(QUERIES));

/// Makes sure that the transaction on `conn` commits only as the holder of a lease in the same database file.
///
/// It takes the file's write lock at once, by an `UPDATE` that changes nothing. That is enough: SQLite has one writer at
/// a time, so from here to the commit nobody can take the lease over. And had the transaction begun by reading, before
/// a take-over that it does not see, its snapshot is old, and SQLite refuses to let it write (`SQLITE_BUSY_SNAPSHOT`).
/// Begin with `BEGIN IMMEDIATE` and neither can happen.
///
/// What no lease can bound: a process that is stopped in the middle of such a transaction keeps the write lock, and with
/// it every writer of the file waiting, until it goes on or dies. Keep guarded transactions short.
pub async fn guard(
    conn: &mut SqliteConnection,
    election: &ElectionKey,
    slot: u32,
    token: Token,
    session: &SessionId,
) -> Result<(), GuardError> {
    guard_with(&PRISTINE, conn, election, slot, token, session).await
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
        .map_err(|error| trouble("guarding a transaction", &error))?;
    match held {
        Some(_) => Ok(()),
        None => Err(GuardError::NotHeld { election: election.clone(), slot, token }),
    }
}

/// Remembers the greatest token seen under `name`, in the transaction on `conn`, and refuses a lower one. The token may
/// come from any store; this database need only have Tenure's tables.
pub async fn fence(conn: &mut SqliteConnection, name: &str, token: Token) -> Result<(), FenceError> {
    if !conn.is_in_transaction() {
        return Err(FenceError::NotInTransaction);
    }
    let explain = |error: sqlx::Error| trouble("fencing a transaction", &error);
    let put = query(PRISTINE.get("fence")).bind(name).bind(number(token)?).bind(runtime::wall_ms());
    if put.execute(&mut *conn).await.map_err(explain)?.rows_affected() > 0 {
        return Ok(());
    }
    let seen: i64 = query(PRISTINE.get("fence_seen"))
        .bind(name)
        .fetch_one(conn)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(explain)?;
    Err(FenceError::Stale {
        name: name.to_owned(),
        seen: Token::from_u64(seen.cast_unsigned()),
        given: token,
    })
}

fn number(token: Token) -> Result<i64, StoreError> {
    i64::try_from(token.as_u64())
        .map_err(|_| StoreError::new(Trouble::Request, format!("no store grants token {token}")))
}

fn trouble(doing: &str, error: &sqlx::Error) -> StoreError {
    error::sqlite("the database".as_ref(), doing, error)
}
