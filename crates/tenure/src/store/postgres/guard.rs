//! The guard and the fence: the database checks leadership inside the transaction of the user.
//!
//! A [`guard`] locks the row of the lease, so that a takeover waits until the transaction ends. A [`fence`] needs no lease
//! in this database and compares only tokens. After an error of either, roll back: another candidate may lead.

use std::time::Duration;

use sqlx::PgConnection;
use tenure_core::port::{ErrorKind, StoreError};
use tenure_core::{ElectionKey, SessionId, Token};

use super::error::explain;
use super::message::Message;
use super::store::{int, key};
use super::value::Value;
use super::{PostgresStore, QUERIES, Queries, get};
use crate::{FenceError, GuardError};

/// Name of the user's connection in errors.
const HERE: &str = "this connection";

/// Verify that the session holds the lease under this token, and delay any takeover until the transaction on this
/// connection ends.
///
/// Limits the rest of the transaction to the lease duration (`idle_in_transaction_session_timeout`, `statement_timeout`,
/// and `transaction_timeout` on servers from 17 on; limits are only lowered): a leader that stops in the middle must not
/// block the next one for longer.
pub async fn guard(
    conn: &mut PgConnection,
    election: &ElectionKey,
    slot: u32,
    token: Token,
    session: &SessionId,
    lease: Duration,
) -> Result<(), GuardError> {
    guard_with(&QUERIES, conn, election, slot, token, session, lease).await
}

/// Verify that no greater token has been seen for this name, and store the token. Any store may have granted the
/// token. The row of the name stays locked until the transaction on this connection ends.
pub async fn fence(conn: &mut PgConnection, name: &str, token: Token) -> Result<(), FenceError> {
    let given = i64::try_from(token.as_u64()).map_err(|_| {
        StoreError::new(
            ErrorKind::Request,
            format!("token {token} is beyond what PostgreSQL's bigint can hold"),
        )
    })?;
    let message = Message::for_user(&QUERIES).then("fence", &[name.into(), Value::Int(given)])?;
    let Err(error) = message.run_on(conn).await else { return Ok(()) };
    if error.sqlstate() == Some("TN001") {
        let seen = error.detail().and_then(|seen| seen.parse().ok()).unwrap_or_default();
        return Err(FenceError::Stale { name: name.to_owned(), highest: Token::from_u64(seen), token });
    }
    Err(explain(&error, HERE).into())
}

impl PostgresStore {
    /// [`guard`] with the statements of this store, including injected bugs.
    #[doc(hidden)]
    pub async fn guard(
        &self,
        conn: &mut PgConnection,
        election: &ElectionKey,
        slot: u32,
        token: Token,
        session: &SessionId,
        lease: Duration,
    ) -> Result<(), GuardError> {
        guard_with(&self.queries, conn, election, slot, token, session, lease).await
    }
}

async fn guard_with(
    queries: &Queries,
    conn: &mut PgConnection,
    election: &ElectionKey,
    slot: u32,
    token: Token,
    session: &SessionId,
    lease: Duration,
) -> Result<(), GuardError> {
    // At least a millisecond: zero means "no limit".
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX).max(1);
    let [namespace, name] = key(election);
    let values = [namespace, name, slot.into(), int(token.as_u64()), session.as_str().into()];
    let message = Message::for_user(queries)
        .then("lease_limit_transaction_time", &[Value::Int(lease_ms)])?
        .then("lease_guard", &values)?;
    let answers = message.run_on(conn).await.map_err(|error| explain(&error, HERE))?;
    match answers.last().and_then(|rows| rows.first()) {
        None => Err(GuardError::NotHeld { election: election.clone(), slot, token }),
        Some(row) if get(row, "in_transaction")? => Ok(()),
        Some(_) => Err(GuardError::NotInTransaction),
    }
}
