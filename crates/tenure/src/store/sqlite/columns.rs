//! Columns that several tables share.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::Token;
use tenure_core::port::{Backoff, Pause};

pub(super) fn backoff(row: &SqliteRow) -> sqlx::Result<Backoff> {
    let column = |name| row.try_get::<i64, _>(name).map(i64::cast_unsigned);
    Ok(Backoff { initial_ms: column("initial_backoff_ms")?, max_ms: column("max_backoff_ms")? })
}

pub(super) fn leader_token(row: &SqliteRow) -> sqlx::Result<Option<Token>> {
    let token: Option<i64> = row.try_get("leader_token")?;
    Ok(token.map(|token| Token::from_u64(token.cast_unsigned())))
}

pub(super) fn token(row: &SqliteRow, column: &str) -> sqlx::Result<Token> {
    row.try_get::<i64, _>(column).map(|token| Token::from_u64(token.cast_unsigned()))
}

pub(super) fn unsigned(row: &SqliteRow, column: &str) -> sqlx::Result<Option<u64>> {
    row.try_get::<Option<i64>, _>(column).map(|n| n.map(i64::cast_unsigned))
}

pub(super) fn pause(row: &SqliteRow, by: &str, reason: &str, at: &str) -> sqlx::Result<Option<Pause>> {
    let text = |column| row.try_get::<Option<String>, _>(column).map(Option::unwrap_or_default);
    let at: Option<i64> = row.try_get(at)?;
    at.map(|at_ms| Ok(Pause { paused_by: text(by)?, reason: text(reason)?, paused_at_ms: at_ms })).transpose()
}
