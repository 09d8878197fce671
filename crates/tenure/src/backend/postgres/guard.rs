//! The guard and the fence: leadership checked inside the user's own transaction, by the database.
//!
//! A [`guard`] locks the lease's row, so that a take-over waits until the transaction is over; a [`fence`] needs no lease
//! in this database and compares tokens only. After an error of either, roll back: what the transaction was about to do
//! is no longer this leader's to do.

use std::time::Duration;

use sqlx::PgConnection;
use tenure_core::port::{StoreError, Trouble};
use tenure_core::{ElectionKey, SessionId, Token};

use super::error::explain;
use super::message::Message;
use super::store::{int, key};
use super::value::Value;
use super::{Postgres, QUERIES, Queries, get};
use crate::{FenceError, GuardError};

/// What errors call the database of the user's own connection.
const HERE: &str = "this connection";

/// Goes on only if the lease is held under this token by this session, and then keeps it from being taken over until the
/// transaction on this connection is over.
///
/// The rest of the transaction is bounded by the lease (`idle_in_transaction_session_timeout`, `statement_timeout`, and
/// `transaction_timeout` on servers from 17 on; limits are only ever lowered): a leader that is stopped in the middle must
/// not block the next one for longer.
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

/// Goes on only if no greater token than this one has been seen under this name, and remembers it. The token may come
/// from any store. The transaction on this connection holds it until it is over.
pub async fn fence(conn: &mut PgConnection, name: &str, token: Token) -> Result<(), FenceError> {
    let given = i64::try_from(token.as_u64()).map_err(|_| {
        StoreError::new(
            Trouble::Request,
            format!("token {token} is beyond what PostgreSQL's bigint can hold"),
        )
    })?;
    let message = Message::for_user(&QUERIES).then("fence", &[name.into(), Value::Int(given)])?;
    let Err(error) = message.run_on(conn).await else { return Ok(()) };
    if error.sqlstate() == Some("TN001") {
        let seen = error.detail().and_then(|seen| seen.parse().ok()).unwrap_or_default();
        return Err(FenceError::Stale { name: name.to_owned(), seen: Token::from_u64(seen), given: token });
    }
    Err(explain(&error, HERE).into())
}

impl Postgres {
    /// [`guard`] with this store's statements, sabotaged ones included.
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
    // Not less than a millisecond: nought means "no limit".
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX).max(1);
    let [namespace, name] = key(election);
    let values = [namespace, name, slot.into(), int(token.as_u64()), session.as_str().into()];
    let message = Message::for_user(queries)
        .then("lease_bound", &[Value::Int(lease_ms)])?
        .then("lease_guard", &values)?;
    let answers = message.run_on(conn).await.map_err(|error| explain(&error, HERE))?;
    match answers.last().and_then(|rows| rows.first()) {
        None => Err(GuardError::NotHeld { election: election.clone(), slot, token }),
        Some(row) if get(row, "lasting")? => Ok(()),
        Some(_) => Err(GuardError::NotInTransaction),
    }
}
