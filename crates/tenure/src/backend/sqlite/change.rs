//! One change of the store: a transaction, and what must follow its commit.

use tenure_core::port::{Ask, Wake};
use tenure_core::{SessionId, Token};

use super::connection::{Transaction, query};
use super::{Sqlite, wake};
use crate::runtime;

/// One change: a transaction, and what to do once it has been committed.
pub(super) struct Change<'a> {
    pub(super) store: &'a Sqlite,
    pub(super) transaction: Transaction,
    pub(super) wall_ms: i64,
    pub(super) wakes: Vec<Wake>,
}

/// A statement of the store by name, with the two names of an election or a topic bound.
macro_rules! of_key {
    ($store:expr, $name:literal, $key:expr) => {
        query($store.queries.get($name)).bind($key.namespace.as_str()).bind($key.name.as_str())
    };
}
pub(super) use of_key;

impl Sqlite {
    /// Begins a change.
    pub(super) async fn change(&self) -> sqlx::Result<Change<'_>> {
        let transaction = Transaction::write(&self.inner.pools.writes).await?;
        let wall_ms = runtime::wall_ms();
        Ok(Change { store: self, transaction, wall_ms, wakes: Vec::new() })
    }
}

impl Change<'_> {
    /// Commits, and tells the others.
    pub(super) async fn commit(self) -> sqlx::Result<()> {
        self.transaction.commit().await?;
        wake::ring(&self.store.inner.folder, &self.wakes);
        Ok(())
    }

    /// Leaves a request for the holder of a term.
    pub(super) async fn put(&mut self, ask: &Ask, holder: &str) -> sqlx::Result<()> {
        let put = of_key!(self.store, "request_put", ask.election)
            .bind(ask.slot)
            .bind(number(ask.token))
            .bind(holder)
            .bind(ask.kind.word())
            .bind(ask.kind.successor().map(SessionId::as_str))
            .bind(&ask.by)
            .bind(self.wall_ms);
        self.transaction.execute(put).await?;
        self.wakes.push(Wake::Asked(SessionId::from_stored(holder)));
        Ok(())
    }
}

/// A token as SQLite keeps it. One that no store grants matches no row.
pub(super) fn number(token: Token) -> i64 {
    i64::try_from(token.as_u64()).unwrap_or(-1)
}
