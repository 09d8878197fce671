//! Entry points of this store: opening by URL, and traits for connections and transactions of the user.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use sqlx::postgres::PgConnection;
use sqlx::{Postgres as Dialect, Transaction};
use tenure_core::Token;
use tenure_core::port::{
    CommitResult, NewEvent, PartitionCommit, PublishReceipt, Store, StoreError, TopicKey,
};

use super::{PostgresOptions, PostgresStore};
use crate::event::{Outbox, OutboxDatabase};
use crate::guard::{Fenceable, Guardable, GuardedLease};
use crate::store::StoreOptions;
use crate::store::migrations::SchemaMigrator;
use crate::{FenceError, GuardError};

/// Open the store at a URL. Its tables must exist.
pub(crate) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(async {
        Ok(Arc::new(PostgresStore::connect(postgres_options(options)).await?) as Arc<dyn Store>)
    })
}

/// Open the store at a URL without a check of its tables.
pub(crate) fn migrator_for_url(
    options: &StoreOptions,
) -> BoxFuture<'_, Result<Arc<dyn SchemaMigrator>, StoreError>> {
    Box::pin(async {
        Ok(Arc::new(PostgresStore::connect_unchecked(postgres_options(options)).await?)
            as Arc<dyn SchemaMigrator>)
    })
}

fn postgres_options(options: &StoreOptions) -> PostgresOptions {
    let mut postgres = PostgresOptions::new(&options.url);
    postgres.direct_url.clone_from(&options.direct_url);
    postgres.sync_replication = options.sync_replication;
    postgres
}

#[async_trait]
impl Guardable for PgConnection {
    async fn guard(&mut self, lease: &GuardedLease) -> Result<(), GuardError> {
        super::guard(self, &lease.election, lease.slot, lease.token, &lease.session, lease.lease).await
    }
}

#[async_trait]
impl Guardable for Transaction<'_, Dialect> {
    async fn guard(&mut self, lease: &GuardedLease) -> Result<(), GuardError> {
        (**self).guard(lease).await
    }
}

#[async_trait]
impl Fenceable for PgConnection {
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
    const BEGIN: &'static str = "BEGIN";
    const BLOCKS_WRITERS: bool = false;
}

#[async_trait]
impl Outbox for PgConnection {
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
        lease: Duration,
    ) -> Result<CommitResult, StoreError> {
        super::commit_partition(self, commit, lease).await
    }

    async fn commit_partitions(
        &mut self,
        commits: &[PartitionCommit],
        lease: Duration,
    ) -> Result<Vec<CommitResult>, StoreError> {
        super::commit_partitions(self, commits, lease).await
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

    async fn commit_partitions(
        &mut self,
        commits: &[PartitionCommit],
        lease: Duration,
    ) -> Result<Vec<CommitResult>, StoreError> {
        (**self).commit_partitions(commits, lease).await
    }
}
