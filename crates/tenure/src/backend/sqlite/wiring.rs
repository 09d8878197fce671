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

use super::migrate::NoFile;
use super::{Sqlite, SqliteOptions};
use crate::backend::StoreOptions;
use crate::backend::memory::Memory;
use crate::backend::migrations::Migrate;
use crate::events::{Outbox, OutboxDatabase};
use crate::guard::{Claim, Fenced, Guarded};
use crate::{FenceError, GuardError};

/// Opens the store at `sqlite:PATH`. With [`StoreOptions::existing_only`], a file that does not exist or has no tables is
/// an empty store: no program has used it yet.
pub(crate) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Backend>, StoreError>> {
    Box::pin(async {
        let at = at(&options.url)?;
        if !options.existing_only {
            return Ok(Arc::new(Sqlite::open(at).await?) as Arc<dyn Backend>);
        }
        let path = at.path.clone();
        if !is_missing(&at)? {
            let store = Sqlite::open(at.create(false).migrate(false)).await?;
            if store.has_tables().await? {
                return Ok(Arc::new(store) as Arc<dyn Backend>);
            }
        }
        tracing::warn!(file = %path.display(), "the database does not exist yet; it is shown as empty");
        Ok(Arc::new(Memory::new()) as Arc<dyn Backend>)
    })
}

/// Whether the file is missing. The folder of a file that somebody named must exist.
fn is_missing(at: &SqliteOptions) -> Result<bool, StoreError> {
    if at.path.exists() {
        return Ok(false);
    }
    if !at.create_folders {
        super::place(at)?;
    }
    Ok(true)
}

/// Opens the store at `sqlite:PATH` without touching its tables.
pub(crate) fn migrator_for_url(
    options: &StoreOptions,
) -> BoxFuture<'_, Result<Arc<dyn Migrate>, StoreError>> {
    Box::pin(async {
        let at = at(&options.url)?.create(!options.existing_only).migrate(false);
        if options.existing_only && is_missing(&at)? {
            return Ok(Arc::new(NoFile { path: at.path, schema: at.schema }) as Arc<dyn Migrate>);
        }
        Ok(Arc::new(Sqlite::open(at).await?) as Arc<dyn Migrate>)
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
