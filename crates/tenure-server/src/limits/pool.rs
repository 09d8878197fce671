//! A fixed number of slots, with a short queue of requests that wait for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{Reason, refused};
use crate::problem::Problem;

/// A fixed number of slots.
#[derive(Debug)]
pub(super) struct Pool {
    slots: Arc<Semaphore>,
    queued: AtomicUsize,
    queue: usize,
    patience: Duration,
}

impl Pool {
    /// A pool of `slots`; at most `queue` requests wait for one of them, each for `patience`.
    pub(super) fn new(slots: usize, queue: usize, patience: Duration) -> Pool {
        let slots = Arc::new(Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS)));
        Pool { slots, queued: AtomicUsize::new(0), queue, patience }
    }

    /// Takes a slot, at once or after a short wait.
    pub(super) async fn take(&self) -> Result<OwnedSemaphorePermit, Problem> {
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            return Ok(slot);
        }
        let _queued = Queued::enter(&self.queued, self.queue).ok_or_else(busy)?;
        let waited = tokio::time::timeout(self.patience, self.slots.clone().acquire_owned()).await;
        // The semaphore is never closed.
        waited.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

/// The answer when no slot is free.
pub(super) fn busy() -> Problem {
    refused(Reason::Overload);
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "this server has more to do than it can")
        .remedy("try again, or ask another replica")
        .retry_after(1)
}

/// A place in the queue.
struct Queued<'a>(&'a AtomicUsize);

impl Queued<'_> {
    fn enter(queue: &AtomicUsize, most: usize) -> Option<Queued<'_>> {
        let before = queue.fetch_add(1, Ordering::Relaxed);
        let queued = Queued(queue);
        (before < most).then_some(queued)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
