//! Opening the store by URL, and its use in transactions of the application.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Sqlite as Dialect, Transaction};
use tenure_core::Token;
use tenure_core::port::{
    CommitResult, NewEvent, PartitionCommit, PublishReceipt, Store, StoreError, TopicKey,
};

use super::migrate::NoFile;
use super::{SqliteOptions, SqliteStore};
use crate::event::{Outbox, OutboxDatabase};
use crate::guard::{Fenceable, Guardable, GuardedLease};
use crate::store::StoreOptions;
use crate::store::memory::MemoryStore;
use crate::store::migrations::SchemaMigrator;
use crate::{FenceError, GuardError};

/// Open the store at `sqlite:PATH`. With [`StoreOptions::existing_only`], a file that does not exist or has no tables is an empty store.
pub(crate) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(async {
        let at = parse_url(&options.url)?;
        if !options.existing_only {
            return Ok(Arc::new(SqliteStore::open(at).await?) as Arc<dyn Store>);
        }
        let path = at.path.clone();
        if !is_missing(&at)? {
            let store = SqliteStore::open(at.create(false).migrate(false)).await?;
            if store.has_tables().await? {
                return Ok(Arc::new(store) as Arc<dyn Store>);
            }
        }
        tracing::warn!(file = %path.display(), "database does not exist; showing an empty store");
        Ok(Arc::new(MemoryStore::new()) as Arc<dyn Store>)
    })
}

/// Whether the file is missing. The directory of a file that the user named must exist.
fn is_missing(at: &SqliteOptions) -> Result<bool, StoreError> {
    if at.path.exists() {
        return Ok(false);
    }
    if !at.create_directories {
        super::resolve_path(at)?;
    }
    Ok(true)
}

/// Open the store at `sqlite:PATH` without using its tables.
pub(crate) fn migrator_for_url(
    options: &StoreOptions,
) -> BoxFuture<'_, Result<Arc<dyn SchemaMigrator>, StoreError>> {
    Box::pin(async {
        let at = parse_url(&options.url)?.create(!options.existing_only).migrate(false);
        if options.existing_only && is_missing(&at)? {
            return Ok(Arc::new(NoFile { path: at.path, schema: at.schema }) as Arc<dyn SchemaMigrator>);
        }
        Ok(Arc::new(SqliteStore::open(at).await?) as Arc<dyn SchemaMigrator>)
    })
}

/// Parse `sqlite:PATH` or `sqlite://PATH`; `sqlite:` alone is the default file of the user.
fn parse_url(url: &str) -> Result<SqliteOptions, StoreError> {
    let path = url.strip_prefix("sqlite:").unwrap_or(url);
    let path = path.strip_prefix("//").unwrap_or(path);
    match path {
        "" => SqliteOptions::default_location(),
        path => Ok(SqliteOptions::new(Path::new(path))),
    }
}

#[async_trait]
impl Guardable for SqliteConnection {
    async fn guard(&mut self, claim: &GuardedLease) -> Result<(), GuardError> {
        super::guard(self, &claim.election, claim.slot, claim.token, &claim.session).await
    }
}

#[async_trait]
impl Guardable for Transaction<'_, Dialect> {
    async fn guard(&mut self, claim: &GuardedLease) -> Result<(), GuardError> {
        (**self).guard(claim).await
    }
}

#[async_trait]
impl Fenceable for SqliteConnection {
    async fn fence(&mut self, name: &str, token: Token) -> Result<(), FenceError> {
        super::fence(self, name, token).await
    }
}

#[async_trait]
impl Fenceable for Transaction<'_, Dialect> {
    async fn fence(&mut self, name: &str, token: Token) -> Result<(), FenceError> {
        (**self).fence(name, token).await
    }
}

impl OutboxDatabase for Dialect {
    // Take the write lock at once: SQLite rejects the write of a transaction that has read before another one committed.
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const BLOCKS_WRITERS: bool = true;
}

#[async_trait]
impl Outbox for SqliteConnection {
    async fn publish(
        &mut self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        super::publish(self, topic, events).await
    }

    async fn commit_partition(
        &mut self,
        commit: &PartitionCommit,
        _: Duration,
    ) -> Result<CommitResult, StoreError> {
        super::commit_partition(self, commit).await
    }
}

#[async_trait]
impl Outbox for Transaction<'_, Dialect> {
    async fn publish(
        &mut self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        (**self).publish(topic, events).await
    }

    async fn commit_partition(
        &mut self,
        commit: &PartitionCommit,
        lease: Duration,
    ) -> Result<CommitResult, StoreError> {
        (**self).commit_partition(commit, lease).await
    }
}
