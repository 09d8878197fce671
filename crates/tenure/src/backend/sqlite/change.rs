//! One change of the store: a transaction, and what must follow its commit.

use sqlx::Row;
use tenure_core::port::{Ask, Expire, Take, Via, Wake};
use tenure_core::{SessionId, Token};

use super::connection::{Transaction, election_of, query};
use super::lock::Life;
use super::{Sqlite, TIMELINE, wake};
use crate::runtime;

/// One change: a transaction, and what to do once it has been committed.
pub(super) struct Change<'a> {
    store: &'a Sqlite,
    pub(super) transaction: Transaction,
    pub(super) wall_ms: i64,
    pub(super) wakes: Vec<Wake>,
    over: Vec<SessionId>,
}

/// A statement of the store by name, with the election's two names bound.
macro_rules! of_election {
    ($store:expr, $name:literal, $key:expr) => {
        query($store.queries.get($name)).bind($key.namespace.as_str()).bind($key.name.as_str())
    };
}
pub(super) use of_election;

impl Sqlite {
    /// Begins a change.
    pub(super) async fn change(&self) -> sqlx::Result<Change<'_>> {
        let transaction = Transaction::write(&self.inner.pools.writes).await?;
        let wall_ms = runtime::wall_ms();
        Ok(Change { store: self, transaction, wall_ms, wakes: Vec::new(), over: Vec::new() })
    }
}

impl Change<'_> {
    /// Commits; then removes the lock files of sessions that are over, and tells the others.
    pub(super) async fn commit(self) -> sqlx::Result<()> {
        self.transaction.commit().await?;
        let inner = &self.store.inner;
        for session in &self.over {
            inner.folder.remove(session);
        }
        wake::ring(&inner.folder, &self.wakes);
        Ok(())
    }

    /// Declares a session dead, if it is.
    pub(super) async fn expire(&mut self, expire: &Expire) -> sqlx::Result<()> {
        if expire.timeline != TIMELINE {
            return Ok(());
        }
        // A hint that the process is dead is not believed, however it came: the kernel is asked, here and now.
        if expire.beat.is_none() && self.store.inner.folder.life(&expire.session) != Life::Dead {
            return Ok(());
        }
        let update = query(self.store.queries.get("session_expire"))
            .bind(expire.session.as_str())
            .bind(self.wall_ms)
            .bind(expire.beat.map(u64::cast_signed));
        if self.transaction.execute(update).await?.rows_affected() > 0 {
            self.free_all(&expire.session, Via::Takeover, "expired").await?;
        }
        Ok(())
    }

    /// Frees all that a session held and removes its candidates; its row already says that it is over.
    pub(super) async fn free_all(&mut self, session: &SessionId, via: Via, how: &str) -> sqlx::Result<()> {
        let (store, id) = (self.store, session.as_str());
        let free = query(store.queries.get("lease_free")).bind(id).bind(via.as_str());
        let mut rows = self.transaction.all(free).await?;
        rows.extend(self.transaction.all(query(store.queries.get("candidate_clear")).bind(id)).await?);
        self.transaction.execute(query(store.queries.get("request_clear_session")).bind(id)).await?;
        let end = query(store.queries.get("term_end_session")).bind(id).bind(self.wall_ms).bind(how);
        self.transaction.execute(end).await?;
        let mut touched = rows.iter().map(election_of).collect::<sqlx::Result<Vec<_>>>()?;
        touched.sort();
        touched.dedup();
        self.wakes.extend(touched.into_iter().map(Wake::Changed));
        self.over.push(session.clone());
        Ok(())
    }

    /// Takes a lease; `None` if what was seen is no longer so.
    pub(super) async fn take(&mut self, take: &Take) -> sqlx::Result<Option<Token>> {
        if take.timeline != TIMELINE {
            return Ok(None);
        }
        let (store, key) = (self.store, &take.election);
        let holder = take.holder.as_ref().map(SessionId::as_str);
        // Compare and swap: what was seen must still be so.
        let seen = of_election!(store, "lease_seen", key)
            .bind(take.slot)
            .bind(number(take.token))
            .bind(holder)
            .bind(take.session.as_str());
        let Some(row) = self.transaction.one(seen).await? else { return Ok(None) };
        let free_via = Via::from_word(row.try_get("via")?);
        // A session whose beat stood still is dead whether or not the lease can be had.
        if let Some(expire) = &take.expire {
            self.expire(expire).await?;
        }
        let via = if take.holder.is_some() { Via::Takeover } else { free_via };
        let grant = of_election!(store, "lease_take", key)
            .bind(take.slot)
            .bind(number(take.token))
            .bind(holder)
            .bind(take.session.as_str())
            .bind(via.as_str())
            .bind(self.wall_ms);
        let Some(row) = self.transaction.one(grant).await? else { return Ok(None) };
        let token: i64 = row.try_get("token")?;
        let begin = of_election!(store, "term_begin", key)
            .bind(take.slot)
            .bind(token)
            .bind(take.session.as_str())
            .bind(via.as_str())
            .bind(self.wall_ms);
        self.transaction.execute(begin).await?;
        self.transaction.execute(of_election!(store, "term_prune", key)).await?;
        self.wakes.push(Wake::Changed(key.clone()));
        Ok(Some(Token::from_u64(token.cast_unsigned())))
    }

    /// Leaves a request for the holder of a term.
    pub(super) async fn put(&mut self, ask: &Ask, holder: &str) -> sqlx::Result<()> {
        let put = of_election!(self.store, "request_put", ask.election)
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
