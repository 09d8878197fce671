//! Write transactions.

use tenure_core::port::{LeaderRequest, Notification};
use tenure_core::{SessionId, Token};

use super::connection::{Transaction, query};
use super::{SqliteStore, fifo};
use crate::runtime;

/// A write transaction, with the notifications to send after its commit.
pub(super) struct WriteTransaction<'a> {
    pub(super) store: &'a SqliteStore,
    pub(super) transaction: Transaction,
    pub(super) wall_ms: i64,
    pub(super) notifications: Vec<Notification>,
}

/// A statement by name, with namespace and name of a key bound.
macro_rules! of_key {
    ($store:expr, $name:literal, $key:expr) => {
        query($store.queries.get($name)).bind($key.namespace.as_str()).bind($key.name.as_str())
    };
}
pub(super) use of_key;

impl SqliteStore {
    /// Begin a write transaction.
    pub(super) async fn begin_write(&self) -> sqlx::Result<WriteTransaction<'_>> {
        let transaction = Transaction::write(&self.inner.pools.writes).await?;
        let wall_ms = runtime::wall_ms();
        Ok(WriteTransaction { store: self, transaction, wall_ms, notifications: Vec::new() })
    }
}

impl WriteTransaction<'_> {
    /// Commit, then send the notifications.
    pub(super) async fn commit(self) -> sqlx::Result<()> {
        self.transaction.commit().await?;
        fifo::notify(&self.store.inner.directory, &self.notifications);
        Ok(())
    }

    /// Store a leader request for the holder of a term.
    pub(super) async fn put(&mut self, request: &LeaderRequest, holder: &str) -> sqlx::Result<()> {
        let put = of_key!(self.store, "leader_request_put", request.election)
            .bind(request.slot)
            .bind(number(request.token))
            .bind(holder)
            .bind(request.kind.as_str())
            .bind(request.kind.successor().map(SessionId::as_str))
            .bind(&request.requested_by)
            .bind(self.wall_ms);
        self.transaction.execute(put).await?;
        self.notifications.push(Notification::LeaderRequested(SessionId::from_stored(holder)));
        Ok(())
    }
}

/// A token as a SQLite integer. A number that does not fit becomes -1, which matches no row.
pub(super) fn number(token: Token) -> i64 {
    i64::try_from(token.as_u64()).unwrap_or(-1)
}
