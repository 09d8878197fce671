//! Calls of handlers, and commits of their events.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use tenure_core::port::{CommitResult, ErrorKind, PartitionCommit};

use super::batch::EventBatch;
use super::handler_error::HandlerError;
use crate::callback;
use crate::queue::context::ClientContext;

/// First and longest delay after a store error.
pub(super) const ERROR_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Result of calling a handler.
#[derive(Debug)]
pub(super) enum DeliveryOutcome {
    /// The events are processed and committed.
    Done,
    /// These partitions have another holder. Nothing was committed, and the transaction of the handler was
    /// rolled back.
    Stale(Vec<u32>),
    /// The handler failed, or made the database fail. Nothing was committed.
    Failed(HandlerError),
    /// The outcome is unknown: the partitions must be taken again, which waits for transactions that are still
    /// running.
    Unknown(String),
}

/// A handler of events.
#[async_trait]
pub(super) trait EventHandler: Send + Sync + 'static {
    /// Calls the handler with these events, and commits `commits` together with or after its effects.
    async fn deliver(
        &self,
        batch: EventBatch,
        commits: Vec<PartitionCommit>,
        limit: Duration,
    ) -> DeliveryOutcome;
}

/// Runs a handler call with a time limit. A panic is a failure.
pub(super) async fn run_handler(
    ctx: &ClientContext,
    limit: Duration,
    run: impl Future<Output = Result<(), HandlerError>>,
) -> Result<(), HandlerError> {
    let run = AssertUnwindSafe(run).catch_unwind();
    tokio::select! {
        biased;
        result = run => result.unwrap_or_else(|panic| {
            callback::report("event handler", &*panic);
            Err(HandlerError::fail(callback::panic_message(&*panic)))
        }),
        () = ctx.runtime.sleep_until(ctx.runtime.now() + limit) => {
            Err(HandlerError::late(format!("the handler did not return within {limit:?}")))
        }
    }
}

/// Commits, and retries until the store responds. Committing twice under one token has the effect of once.
pub(super) async fn commit_with_retry(ctx: &ClientContext, commits: &[PartitionCommit]) -> DeliveryOutcome {
    let mut wait = ERROR_BACKOFF.0;
    loop {
        match ctx.bounded(ctx.store.commit_partitions(commits)).await {
            Ok(committed) => return check_commits(commits, &committed),
            Err(error) if error.kind == ErrorKind::Request => {
                tracing::error!("committing offsets rejected: {error}");
                ctx.pause(ERROR_BACKOFF.0).await;
                return DeliveryOutcome::Unknown(error.message);
            }
            Err(error) => tracing::warn!("committing offsets failed, retrying: {error}"),
        }
        ctx.pause(wait).await;
        wait = (wait * 2).min(ERROR_BACKOFF.1);
    }
}

/// Whether all commits were accepted.
pub(super) fn check_commits(commits: &[PartitionCommit], committed: &[CommitResult]) -> DeliveryOutcome {
    let stale = commits.iter().zip(committed).filter(|(_, committed)| **committed == CommitResult::LeaseLost);
    let stale: Vec<u32> = stale.map(|(commit, _)| commit.partition).collect();
    if stale.is_empty() { DeliveryOutcome::Done } else { DeliveryOutcome::Stale(stale) }
}

type PlainHandlerFn = Arc<dyn Fn(EventBatch) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>;

/// A handler whose effects are external. Its events are committed afterwards, so each is handled at least once.
pub(super) struct PlainHandler {
    pub(super) ctx: Arc<ClientContext>,
    pub(super) handler: PlainHandlerFn,
}

#[async_trait]
impl EventHandler for PlainHandler {
    async fn deliver(
        &self,
        batch: EventBatch,
        commits: Vec<PartitionCommit>,
        limit: Duration,
    ) -> DeliveryOutcome {
        // The call happens inside, so that a panic before the handler returns a future is caught, too.
        let run = async { (self.handler)(batch).await };
        match run_handler(&self.ctx, limit, run).await {
            Ok(()) => commit_with_retry(&self.ctx, &commits).await,
            Err(error) => DeliveryOutcome::Failed(error),
        }
    }
}
