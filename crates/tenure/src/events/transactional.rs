//! Handlers that work in a transaction of the user's own: what they do there, and how far the group has read, is one.
//!
//! The handler is given the transaction as a [`Tx`], which puts it back where it came from when it is dropped; so it can be moved
//! into a future, and the handler stays a plain closure. When the handler is done, the shares are committed in the same transaction,
//! under their tokens, and then the transaction is. If a token is stale, or the handler fails, panics, takes too long or is dropped,
//! everything is rolled back.
//!
//! A `COMMIT` whose answer is lost may have happened. Then nobody says it again: the shares are given up and taken anew, which
//! waits for a transaction that still has them locked, and tells how far they are read.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use sqlx::{Pool, Transaction};
use tenure_core::port::{Committed, NewEvent, Published, ShareCommit, StoreError, TopicKey, Trouble};

use super::batch::Batch;
use super::consumer::ConsumerBuilder;
use super::handler::{Deliver, Delivered, TROUBLE, handled, judged};
use super::outbox::Outbox;
use super::report::{Handled, HandlerError};
use super::sql::may_pass;
use crate::claims::hub::{Hub, locked};

/// A database in which Tenure's tables and the user's can be changed in one transaction.
pub trait OutboxDatabase: sqlx::Database<Connection: Outbox> {
    /// How a transaction begins.
    const BEGIN: &'static str;

    /// Whether nobody else can write meanwhile: not even the process itself, that it lives.
    const ALONE: bool;
}

type Slot<DB> = Arc<Mutex<Option<Transaction<'static, DB>>>>;

/// The transaction in which a handler works; [`&mut *tx`](DerefMut) is what statements are executed on. It commits when the handler
/// returns, if that is without an error, and is rolled back otherwise.
pub struct Tx<DB: sqlx::Database> {
    transaction: Option<Transaction<'static, DB>>,
    home: Slot<DB>,
}

impl<DB: sqlx::Database> Deref for Tx<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.transaction.as_ref().expect("it is there until dropped")
    }
}

impl<DB: sqlx::Database> DerefMut for Tx<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.transaction.as_mut().expect("it is there until dropped")
    }
}

impl<DB: sqlx::Database> Drop for Tx<DB> {
    fn drop(&mut self) {
        *locked(&self.home) = self.transaction.take();
    }
}

#[async_trait]
impl<DB: OutboxDatabase> Outbox for Tx<DB> {
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

type InTransaction<DB> =
    Box<dyn Fn(Batch, Tx<DB>) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>;

/// A handler whose effects are in the store's database.
struct Transactional<DB: OutboxDatabase> {
    hub: Arc<Hub>,
    pool: Pool<DB>,
    handler: InTransaction<DB>,
}

#[async_trait]
impl<DB: OutboxDatabase> Deliver for Transactional<DB> {
    async fn deliver(&self, batch: Batch, commits: Vec<ShareCommit>, limit: Duration) -> Delivered {
        let home = Slot::<DB>::default();
        let transaction = match self.pool.begin_with(DB::BEGIN).await {
            Ok(transaction) => transaction,
            // Without a transaction nothing was tried.
            Err(error) => return Delivered::Failed(HandlerError::passing(error)),
        };
        let tx = Tx { transaction: Some(transaction), home: home.clone() };
        let run = async { (self.handler)(batch, tx).await };
        // Before the session is not trusted any more: what is cut off by that is tried again for ever, and counted by nobody.
        let bound = self.hub.timing.trust() / 2;
        let cut = DB::ALONE && bound < limit;
        if let Err(mut error) = handled(&self.hub, if cut { bound } else { limit }, run).await {
            if cut && error.is_late() {
                error.message += "; its transaction keeps this process from writing that it lives, so it has half of the time that \
                                  the session is trusted: do less in it, or give the process a longer lease";
                // Rolled back first, so that the process can write now what it could not: the next attempt would take the lock again.
                drop(locked(&home).take());
                self.hub.pause(self.hub.timing.beat()).await;
            }
            return Delivered::Failed(error);
        }
        let Some(transaction) = locked(&home).take() else {
            return Delivered::Failed(HandlerError::fail(
                "the handler returned and kept its transaction; drop `tx` before it returns",
            ));
        };
        self.finish(transaction, &commits).await
    }
}

impl<DB: OutboxDatabase> Transactional<DB> {
    /// Says how far it is read, and commits.
    async fn finish(&self, mut transaction: Transaction<'static, DB>, commits: &[ShareCommit]) -> Delivered {
        let committed = match (*transaction).commit_shares(commits, self.hub.timing.lease()).await {
            Ok(committed) => committed,
            // The handler has used the transaction up, as one does in PostgreSQL by going on after an error.
            Err(error) if error.kind == Trouble::Other => {
                return Delivered::Failed(HandlerError::fail(error));
            }
            // What makes no sense to the store now (an event that is forgotten meanwhile) is read anew.
            Err(error) if error.kind == Trouble::Request => {
                self.hub.pause(TROUBLE.0).await;
                return Delivered::Doubt(error.message);
            }
            // Rights or tables are missing, or the server is away: that is not the events' fault.
            Err(error) => return Delivered::Failed(HandlerError::passing(error)),
        };
        if let stale @ Delivered::Stale(_) = judged(commits, &committed) {
            // Dropped, it is rolled back.
            return stale;
        }
        match transaction.commit().await {
            Ok(()) => Delivered::Done,
            Err(error) => undone(&error),
        }
    }
}

/// What became of a transaction whose `COMMIT` failed. What the database answers has not happened, unless it was about to stop.
fn undone(error: &sqlx::Error) -> Delivered {
    let code = error.as_database_error().and_then(|error| error.code());
    match code {
        Some(code) if !code.starts_with("57P") && !code.starts_with("08") && code != "40003" => {
            let error =
                if may_pass(error) { HandlerError::passing(error) } else { HandlerError::fail(error) };
            Delivered::Failed(error)
        }
        _ => Delivered::Doubt(error.to_string()),
    }
}

impl ConsumerBuilder {
    /// What handles events, in a transaction on this pool, which is of the store's own database: what it does there happens exactly
    /// once for each event, whatever fails. Effects elsewhere happen at least once.
    ///
    /// The handler gets a batch and the transaction, and returns nothing or a result. An error is a failure, and so is a panic;
    /// the transaction is rolled back then, and the events are tried again. On SQLite the transaction has the file's only write lock
    /// from its beginning, and the process can not even write that it lives: keep it short. One that takes longer than a third of
    /// the lease has failed there, whatever [`timeout`](ConsumerBuilder::timeout) says.
    ///
    #[cfg_attr(feature = "sqlite", doc = "```")]
    #[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
    /// # use tenure::{Tenure, port::{NewEvent, TopicSettings}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    /// let tenure = Tenure::open(&url).await?;
    /// let pool = sqlx::SqlitePool::connect(&url).await?;
    /// # sqlx::query("CREATE TABLE payments (event INTEGER, kind TEXT)").execute(&pool).await?;
    /// # let orders = tenure.publisher("orders")?;
    /// # orders.create_topic(&TopicSettings::default()).await?;
    /// # orders.publish(NewEvent::new("order.paid")).await?;
    /// let books = tenure
    ///     .consumer("orders", "books")
    ///     .transactional(&pool, |batch, mut tx| async move {
    ///         for event in &batch {
    ///             sqlx::query("INSERT INTO payments VALUES (?, ?)")
    ///                 .bind(i64::try_from(event.id.0)?)
    ///                 .bind(&event.kind)
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
        F: Fn(Batch, Tx<DB>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Handled> + Send + 'static,
    {
        let handler: InTransaction<DB> =
            Box::new(move |batch, tx| handler(batch, tx).map(Handled::handled).boxed());
        let (hub, pool) = (self.tenure.hub().clone(), pool.clone());
        self.handler = Some(Arc::new(Transactional { hub, pool, handler }));
        self
    }
}
