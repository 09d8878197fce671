//! How a handler is called, and how what it did is made to count.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use tenure_core::port::{Committed, ShareCommit, Trouble};

use super::batch::Batch;
use super::report::HandlerError;
use crate::callback;
use crate::claims::hub::Hub;

/// How long to wait after the first trouble, and at most.
pub(super) const TROUBLE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What came of giving events to a handler.
#[derive(Debug)]
pub(super) enum Delivered {
    /// They are done, and what was said about them counts.
    Done,
    /// These slots are not ours any more. Nothing counts, and what the handler did in its transaction is undone.
    Stale(Vec<u32>),
    /// The handler failed, or the database did because of it. Nothing counts.
    Failed(HandlerError),
    /// Nobody knows whether it counts: the slots have to be taken anew, which waits for whatever is still under way.
    Doubt(String),
}

/// A handler, in one of its forms.
#[async_trait]
pub(super) trait Deliver: Send + Sync + 'static {
    /// Gives these events to the handler, and says `commits` together with, or after, what it does.
    async fn deliver(&self, batch: Batch, commits: Vec<ShareCommit>, limit: Duration) -> Delivered;
}

/// Runs what the handler made of its events, for no longer than this. Its panics are failures.
pub(super) async fn handled(
    hub: &Hub,
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
        () = hub.runtime.sleep_until(hub.runtime.now() + limit) => {
            Err(HandlerError::late(format!("the handler did not return within {limit:?}")))
        }
    }
}

/// Says it to the store, again and again until it is heard: to say it twice under one token is to say it once.
pub(super) async fn say(hub: &Hub, commits: &[ShareCommit]) -> Delivered {
    let mut wait = TROUBLE.0;
    loop {
        match hub.bounded(hub.store.commit_shares(commits)).await {
            Ok(committed) => return judged(commits, &committed),
            Err(error) if error.kind == Trouble::Request => {
                tracing::error!("the store refuses what is said about events: {error}");
                hub.pause(TROUBLE.0).await;
                return Delivered::Doubt(error.message);
            }
            Err(error) => tracing::warn!("can not say how far events are read, saying it again: {error}"),
        }
        hub.pause(wait).await;
        wait = (wait * 2).min(TROUBLE.1);
    }
}

/// Whether all of it counts.
pub(super) fn judged(commits: &[ShareCommit], committed: &[Committed]) -> Delivered {
    let stale = commits.iter().zip(committed).filter(|(_, committed)| **committed == Committed::Stale);
    let stale: Vec<u32> = stale.map(|(commit, _)| commit.slot).collect();
    if stale.is_empty() { Delivered::Done } else { Delivered::Stale(stale) }
}

type Plainly = Arc<dyn Fn(Batch) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>;

/// A handler whose effects are elsewhere: what it did is said afterwards, so each event is handled at least once.
pub(super) struct Plain {
    pub(super) hub: Arc<Hub>,
    pub(super) handler: Plainly,
}

#[async_trait]
impl Deliver for Plain {
    async fn deliver(&self, batch: Batch, commits: Vec<ShareCommit>, limit: Duration) -> Delivered {
        // Called inside, so that a handler that panics before it returns a future is caught, too.
        let run = async { (self.handler)(batch).await };
        match handled(&self.hub, limit, run).await {
            Ok(()) => say(&self.hub, &commits).await,
            Err(error) => Delivered::Failed(error),
        }
    }
}
