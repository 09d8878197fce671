//! How the rest of the crate reaches this backend: by address, and by a user's transaction.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use sqlx::postgres::PgConnection;
use sqlx::{Postgres as Dialect, Transaction};
use tenure_core::Token;
use tenure_core::port::{Backend, Committed, NewEvent, Published, ShareCommit, StoreError, TopicKey};

use super::{Postgres, PostgresOptions};
use crate::backend::StoreOptions;
use crate::backend::migrations::Migrate;
use crate::events::{Outbox, OutboxDatabase};
use crate::guard::{Claim, Fenced, Guarded};
use crate::{FenceError, GuardError};

/// Opens the store at an address; its tables must be there.
pub(crate) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Backend>, StoreError>> {
    Box::pin(async { Ok(Arc::new(Postgres::connect(at(options)).await?) as Arc<dyn Backend>) })
}

/// Opens the store at an address without a look at its tables.
pub(crate) fn migrator_for_url(
    options: &StoreOptions,
) -> BoxFuture<'_, Result<Arc<dyn Migrate>, StoreError>> {
    Box::pin(async { Ok(Arc::new(Postgres::connect_unchecked(at(options)).await?) as Arc<dyn Migrate>) })
}

fn at(options: &StoreOptions) -> PostgresOptions {
    let mut at = PostgresOptions::new(&options.url);
    at.direct_url.clone_from(&options.direct_url);
    at.strict = options.strict;
    at
}

#[async_trait]
impl Guarded for PgConnection {
    async fn guard(&mut self, claim: &Claim) -> Result<(), GuardError> {
        super::guard(self, &claim.election, claim.slot, claim.token, &claim.session, claim.lease).await
    }
}

#[async_trait]
impl Guarded for Transaction<'_, Dialect> {
    async fn guard(&mut self, claim: &Claim) -> Result<(), GuardError> {
        (**self).guard(claim).await
    }
}

#[async_trait]
impl Fenced for PgConnection {
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
    const BEGIN: &'static str = "BEGIN";
    const ALONE: bool = false;
}

#[async_trait]
impl Outbox for PgConnection {
    async fn publish(&mut self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        super::publish(self, topic, events).await
    }

    async fn commit_share(&mut self, commit: &ShareCommit, lease: Duration) -> Result<Committed, StoreError> {
        super::commit_share(self, commit, lease).await
    }

    async fn commit_shares(
        &mut self,
        commits: &[ShareCommit],
        lease: Duration,
    ) -> Result<Vec<Committed>, StoreError> {
        super::commit_shares(self, commits, lease).await
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

    async fn commit_shares(
        &mut self,
        commits: &[ShareCommit],
        lease: Duration,
    ) -> Result<Vec<Committed>, StoreError> {
        (**self).commit_shares(commits, lease).await
    }
}
