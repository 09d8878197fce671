//! Transactional handlers: the handler's writes and the committed offset are one transaction.
//!
//! The handler receives the transaction as a [`Tx`] and can move it into its future. A dropped [`Tx`] returns the
//! transaction to the consumer. When the handler has returned, the consumer commits the offsets in the same
//! transaction under their tokens, and then commits the transaction. If a token is stale, or the handler fails,
//! panics, times out or is dropped, everything is rolled back.
//!
//! A `COMMIT` whose response is lost may have taken effect. It is not repeated: the partitions are released and
//! taken again, which waits for a transaction that still locks them and returns the committed offset.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use sqlx::{Pool, Transaction};
use tenure_core::port::{
    CommitResult, ErrorKind, NewEvent, PartitionCommit, PublishReceipt, StoreError, TopicKey,
};

use super::batch::EventBatch;
use super::consumer::ConsumerBuilder;
use super::handler::{DeliveryOutcome, ERROR_BACKOFF, EventHandler, check_commits, run_handler};
use super::handler_error::{HandlerError, IntoHandlerResult};
use super::outbox::Outbox;
use super::transient_error::is_transient_sql;
use crate::queue::context::{ClientContext, locked};

/// A database in which Tenure's tables and the user's tables can be changed in one transaction.
pub trait OutboxDatabase: sqlx::Database<Connection: Outbox> {
    /// Statement that begins a transaction.
    const BEGIN: &'static str;

    /// Whether a transaction blocks all other writers, including the heartbeats of this process.
    const BLOCKS_WRITERS: bool;
}

type TransactionCell<DB> = Arc<Mutex<Option<Transaction<'static, DB>>>>;

/// The transaction of a handler; execute statements on [`&mut *tx`](DerefMut). It commits when the handler
/// returns without an error, and is rolled back otherwise.
pub struct Tx<DB: sqlx::Database> {
    transaction: Option<Transaction<'static, DB>>,
    cell: TransactionCell<DB>,
}

impl<DB: sqlx::Database> Deref for Tx<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.transaction.as_ref().expect("the transaction is present until dropped")
    }
}

impl<DB: sqlx::Database> DerefMut for Tx<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.transaction.as_mut().expect("the transaction is present until dropped")
    }
}

impl<DB: sqlx::Database> Drop for Tx<DB> {
    fn drop(&mut self) {
        *locked(&self.cell) = self.transaction.take();
    }
}

#[async_trait]
impl<DB: OutboxDatabase> Outbox for Tx<DB> {
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

type TransactionalHandlerFn<DB> =
    Box<dyn Fn(EventBatch, Tx<DB>) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>;

/// A handler that writes to the database of the store, in one transaction with the committed offset.
struct Transactional<DB: OutboxDatabase> {
    ctx: Arc<ClientContext>,
    pool: Pool<DB>,
    handler: TransactionalHandlerFn<DB>,
}

#[async_trait]
impl<DB: OutboxDatabase> EventHandler for Transactional<DB> {
    async fn deliver(
        &self,
        batch: EventBatch,
        commits: Vec<PartitionCommit>,
        limit: Duration,
    ) -> DeliveryOutcome {
        let cell = TransactionCell::<DB>::default();
        let transaction = match self.pool.begin_with(DB::BEGIN).await {
            Ok(transaction) => transaction,
            // The handler was not called.
            Err(error) => return DeliveryOutcome::Failed(HandlerError::transient(error)),
        };
        let tx = Tx { transaction: Some(transaction), cell: cell.clone() };
        let run = async { (self.handler)(batch, tx).await };
        // End before trust ends: work interrupted by lost trust would be retried without limit and without
        // counting attempts.
        let trust_limit = self.ctx.timing.trust() / 2;
        let shortened = DB::BLOCKS_WRITERS && trust_limit < limit;
        if let Err(mut error) = run_handler(&self.ctx, if shortened { trust_limit } else { limit }, run).await
        {
            if shortened && error.is_late() {
                error.message += "; its transaction blocks the heartbeats of this process, so its limit is half of the time that \
                                  the session is trusted: do less in it, or set a longer lease";
                // Roll back first, so that the process can send its heartbeat: the next attempt would lock the
                // database again.
                drop(locked(&cell).take());
                self.ctx.pause(self.ctx.timing.heartbeat_interval()).await;
            }
            return DeliveryOutcome::Failed(error);
        }
        let Some(transaction) = locked(&cell).take() else {
            return DeliveryOutcome::Failed(HandlerError::fail(
                "the handler returned without dropping its transaction; drop `tx` before it returns",
            ));
        };
        self.finish(transaction, &commits).await
    }
}

impl<DB: OutboxDatabase> Transactional<DB> {
    /// Commits the offsets, then the transaction.
    async fn finish(
        &self,
        mut transaction: Transaction<'static, DB>,
        commits: &[PartitionCommit],
    ) -> DeliveryOutcome {
        let committed = match (*transaction).commit_partitions(commits, self.ctx.timing.lease()).await {
            Ok(committed) => committed,
            // The handler left the transaction in a failed state, as PostgreSQL does after an error.
            Err(error) if error.kind == ErrorKind::Other => {
                return DeliveryOutcome::Failed(HandlerError::fail(error));
            }
            // The store rejects the commit, for example because an event was pruned meanwhile: read again.
            Err(error) if error.kind == ErrorKind::Request => {
                self.ctx.pause(ERROR_BACKOFF.0).await;
                return DeliveryOutcome::Unknown(error.message);
            }
            // Missing permissions or tables, or an unavailable server: unrelated to the events.
            Err(error) => return DeliveryOutcome::Failed(HandlerError::transient(error)),
        };
        if let stale @ DeliveryOutcome::Stale(_) = check_commits(commits, &committed) {
            // Dropping the transaction rolls it back.
            return stale;
        }
        match transaction.commit().await {
            Ok(()) => DeliveryOutcome::Done,
            Err(error) => failed_commit(&error),
        }
    }
}

/// Outcome of a failed `COMMIT`. An error reported by the database means a rollback, unless the server was
/// shutting down.
fn failed_commit(error: &sqlx::Error) -> DeliveryOutcome {
    let code = error.as_database_error().and_then(|error| error.code());
    match code {
        Some(code) if !code.starts_with("57P") && !code.starts_with("08") && code != "40003" => {
            let error = if is_transient_sql(error) {
                HandlerError::transient(error)
            } else {
                HandlerError::fail(error)
            };
            DeliveryOutcome::Failed(error)
        }
        _ => DeliveryOutcome::Unknown(error.to_string()),
    }
}

impl ConsumerBuilder {
    /// Sets a handler that works in a transaction on this pool, which must be of the store's own database. Its
    /// effects there happen exactly once for each event, whatever fails. Other effects happen at least once.
    ///
    /// The handler receives a batch and the transaction, and returns nothing or a `Result`. An error or a panic
    /// is a failure: the transaction is rolled back, and the events are retried. On SQLite the transaction
    /// holds the only write lock of the file from its beginning, which blocks the heartbeats of this process:
    /// keep it short. There, a transaction that takes longer than a third of the lease fails, whatever
    /// [`timeout`](ConsumerBuilder::timeout) is set.
    ///
    #[cfg_attr(feature = "sqlite", doc = "```")]
    #[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
    /// # use tenure::{Tenure, port::{NewEvent, TopicSettings}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    /// let tenure = Tenure::open(&url).await?;
    /// let pool = sqlx::SqlitePool::connect(&url).await?;
    /// # sqlx::query("CREATE TABLE payments (event INTEGER, event_type TEXT)").execute(&pool).await?;
    /// # let orders = tenure.publisher("orders")?;
    /// # orders.create_topic(&TopicSettings::default()).await?;
    /// # orders.publish(NewEvent::new("order.paid")).await?;
    /// let books = tenure
    ///     .consumer("orders", "books")
    ///     .transactional(&pool, |batch, mut tx| async move {
    ///         for event in &batch {
    ///             sqlx::query("INSERT INTO payments VALUES (?, ?)")
    ///                 .bind(i64::try_from(event.id.0)?)
    ///                 .bind(&event.event_type)
    ///                 .execute(&mut *tx)
    ///                 .await?;
    ///         }
    ///         Ok::<_, tenure::HandlerError>(())
    ///     })
    ///     .start()
    ///     .await?;
    /// # loop {
    /// #     let paid: i64 = sqlx::query_scalar("SELECT count(*) FROM payments").fetch_one(&pool).await?;
    /// #     if paid == 1 { break }
    /// #     tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    /// # }
    /// books.drain().await?;
    /// # tenure.close().await?; Ok(()) }
    /// ```
    pub fn transactional<DB, F, Fut>(mut self, pool: &Pool<DB>, handler: F) -> Self
    where
        DB: OutboxDatabase,
        F: Fn(EventBatch, Tx<DB>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoHandlerResult> + Send + 'static,
    {
        let handler: TransactionalHandlerFn<DB> =
            Box::new(move |batch, tx| handler(batch, tx).map(IntoHandlerResult::into_handler_result).boxed());
        let (ctx, pool) = (self.tenure.ctx().clone(), pool.clone());
        self.handler = Some(Arc::new(Transactional { ctx, pool, handler }));
        self
    }
}
