//! How the rest of the crate reaches this backend: by address, and by a user's transaction.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Sqlite as Dialect, Transaction};
use tenure_core::Token;
use tenure_core::port::{Backend, Committed, NewEvent, Published, ShareCommit, StoreError, TopicKey};

use super::{Sqlite, SqliteOptions};
use crate::backend::StoreOptions;
use crate::backend::migrations::Migrate;
use crate::events::{Outbox, OutboxDatabase};
use crate::guard::{Claim, Fenced, Guarded};
use crate::{FenceError, GuardError};

/// Opens the store at `sqlite:PATH`.
pub(crate) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Backend>, StoreError>> {
    Box::pin(async { Ok(Arc::new(Sqlite::open(at(&options.url)?).await?) as Arc<dyn Backend>) })
}

/// Opens the store at `sqlite:PATH` without touching its tables.
pub(crate) fn migrator_for_url(
    options: &StoreOptions,
) -> BoxFuture<'_, Result<Arc<dyn Migrate>, StoreError>> {
    Box::pin(async {
        Ok(Arc::new(Sqlite::open(at(&options.url)?.migrate(false)).await?) as Arc<dyn Migrate>)
    })
}

/// `sqlite:PATH`, also written `sqlite://PATH`; `sqlite:` alone is the file of this user.
fn at(url: &str) -> Result<SqliteOptions, StoreError> {
    let path = url.strip_prefix("sqlite:").unwrap_or(url);
    let path = path.strip_prefix("//").unwrap_or(path);
    match path {
        "" => SqliteOptions::default_location(),
        path => Ok(SqliteOptions::new(Path::new(path))),
    }
}

#[async_trait]
impl Guarded for SqliteConnection {
    async fn guard(&mut self, claim: &Claim) -> Result<(), GuardError> {
        super::guard(self, &claim.election, claim.slot, claim.token, &claim.session).await
    }
}

#[async_trait]
impl Guarded for Transaction<'_, Dialect> {
    async fn guard(&mut self, claim: &Claim) -> Result<(), GuardError> {
        (**self).guard(claim).await
    }
}

#[async_trait]
impl Fenced for SqliteConnection {
    async fn fence(&mut self, name: &str, token: Token) -> Result<(), FenceError> {
        super::fence(self, name, token).await
    }
}

#[async_trait]
impl Fenced for Transaction<'_, Dialect> {
    async fn fence(&mut self, name: &str, token: Token) -> Result<(), FenceError> {
        (**self).fence(name, token).await
    }
}

impl OutboxDatabase for Dialect {
    // The write lock at once: a transaction that began by reading is refused it when somebody else has written meanwhile.
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const ALONE: bool = true;
}

#[async_trait]
impl Outbox for SqliteConnection {
    async fn publish(&mut self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        super::publish(self, topic, events).await
    }

    async fn commit_share(&mut self, commit: &ShareCommit, _: Duration) -> Result<Committed, StoreError> {
        super::commit_share(self, commit).await
    }
}

#[async_trait]
impl Outbox for Transaction<'_, Dialect> {
    async fn publish(&mut self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        (**self).publish(topic, events).await
    }

    async fn commit_share(&mut self, commit: &ShareCommit, lease: Duration) -> Result<Committed, StoreError> {
        (**self).commit_share(commit, lease).await
    }
}
