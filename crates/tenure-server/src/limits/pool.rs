//! Fixed number of request permits, with a short queue of waiting requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{RejectReason, rejected};
use crate::problem::Problem;

/// Fixed number of permits.
#[derive(Debug)]
pub(super) struct Pool {
    permits: Arc<Semaphore>,
    queued: AtomicUsize,
    queue: usize,
    max_wait: Duration,
}

impl Pool {
    /// Create a pool of `permits` permits; at most `queue` requests wait, each for up to `max_wait`.
    pub(super) fn new(permits: usize, queue: usize, max_wait: Duration) -> Pool {
        let permits = Arc::new(Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS)));
        Pool { permits, queued: AtomicUsize::new(0), queue, max_wait }
    }

    /// Take a permit, at once or after a short wait.
    pub(super) async fn take(&self) -> Result<OwnedSemaphorePermit, Problem> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let _queued = QueuedGuard::enter(&self.queued, self.queue).ok_or_else(busy)?;
        let waited = tokio::time::timeout(self.max_wait, self.permits.clone().acquire_owned()).await;
        // The semaphore is never closed.
        waited.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

/// Problem: no permit is free.
pub(super) fn busy() -> Problem {
    rejected(RejectReason::Overload);
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "the server is overloaded")
        .remedy("retry, or use another replica")
        .retry_after(1)
}

/// Entry in the queue.
struct QueuedGuard<'a>(&'a AtomicUsize);

impl QueuedGuard<'_> {
    fn enter(queue: &AtomicUsize, most: usize) -> Option<QueuedGuard<'_>> {
        let before = queue.fetch_add(1, Ordering::Relaxed);
        let queued = QueuedGuard(queue);
        (before < most).then_some(queued)
    }
}

impl Drop for QueuedGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
