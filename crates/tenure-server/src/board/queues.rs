//! Queues, as they were seen last.
//!
//! To count what stands where is the store's work, and it costs the more the more there is. So all who want to know share one
//! look, nobody looks while somebody does, and a look that took long is not soon repeated. While somebody watches, one task
//! looks a few times a second; while nobody does, nothing is looked at that was not asked for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::Moment;
use tenure::port::{Backend, QueueKey, QueueView, StoreError};
use tenure::runtime::Runtime;
use tokio::sync::{Mutex, watch};

/// How often queues are looked at while somebody watches.
const WATCHED_EVERY: Duration = Duration::from_millis(250);
/// A look that took long is not repeated before this many times as long has passed.
const LEISURE: u32 = 10;
/// How soon it is tried again after a look failed.
const RETRY: Duration = Duration::from_secs(2);

/// Queues, and who watches them.
pub(crate) struct QueueBoard {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    seen: RwLock<Arc<QueuesSeen>>,
    /// Held by whoever looks.
    looking: Mutex<()>,
    /// Grows when something is different.
    changes: watch::Sender<u64>,
    /// Whether a task looks for those who watch.
    watched: AtomicBool,
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct QueuesSeen {
    /// When the look was sent; zero before the first one.
    pub(crate) at: Moment,
    /// How long it took.
    took: Duration,
    /// The queues.
    pub(crate) queues: BTreeMap<QueueKey, Arc<QueueView>>,
}

impl QueueBoard {
    pub(crate) fn new(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Arc<QueueBoard> {
        Arc::new(QueueBoard {
            store,
            runtime,
            seen: RwLock::default(),
            looking: Mutex::new(()),
            changes: watch::Sender::new(0),
            watched: AtomicBool::new(false),
        })
    }

    /// What was seen last, whenever that was.
    pub(crate) fn last(&self) -> Arc<QueuesSeen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was seen this long ago at most, or what is seen now. With nought, what comes back was asked of the store after this
    /// was called.
    pub(crate) async fn seen(&self, age: Duration) -> Result<Arc<QueuesSeen>, StoreError> {
        let asked = self.runtime.now();
        let fresh = |seen: &QueuesSeen| {
            let leisure = if age.is_zero() { Duration::ZERO } else { seen.took * LEISURE };
            seen.at >= asked || (seen.at != Moment::ZERO && asked.since(seen.at) < age.max(leisure))
        };
        let last = self.last();
        if fresh(&last) {
            return Ok(last);
        }
        let _looking = self.looking.lock().await;
        // Whoever looked meanwhile may have done so for us, too.
        let last = self.last();
        if fresh(&last) {
            return Ok(last);
        }
        let at = self.runtime.now();
        let views = self.store.queues(None).await?;
        let took = self.runtime.now().since(at);
        let queues = views.into_iter().map(|view| (view.key.clone(), Arc::new(view))).collect();
        let seen = Arc::new(QueuesSeen { at, took, queues });
        *self.seen.write().unwrap_or_else(PoisonError::into_inner) = seen.clone();
        if !is_same(&last.queues, &seen.queues) {
            self.changes.send_modify(|n| *n += 1);
        }
        Ok(seen)
    }

    /// Changes when a queue does, for as long as it is held on to.
    pub(crate) fn watch(self: &Arc<Self>) -> watch::Receiver<u64> {
        let receiver = self.changes.subscribe();
        self.look_on();
        receiver
    }

    /// Sees to it that a task looks while somebody watches.
    fn look_on(self: &Arc<Self>) {
        if self.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let board = self.clone();
        tokio::spawn(async move {
            while board.changes.receiver_count() > 0 {
                let pause = match board.seen(WATCHED_EVERY).await {
                    Ok(_) => WATCHED_EVERY,
                    Err(_) => RETRY,
                };
                board.runtime.sleep_until(board.runtime.now() + pause).await;
            }
            board.watched.store(false, Ordering::Release);
            // Who came between the last count and this found the task still there.
            if board.changes.receiver_count() > 0 {
                board.look_on();
            }
        });
    }
}

type Queues = BTreeMap<QueueKey, Arc<QueueView>>;

/// Whether nothing that people watch is different. How long the oldest task waits is different all the time.
fn is_same(before: &Queues, now: &Queues) -> bool {
    before.len() == now.len() && before.iter().zip(now).all(|((_, a), (_, b))| is_same_queue(a, b))
}

/// Whether a queue is as it was, but for the age of what waits in it.
pub(crate) fn is_same_queue(a: &QueueView, b: &QueueView) -> bool {
    (&a.key, &a.settings, &a.paused, &a.counts) == (&b.key, &b.settings, &b.paused, &b.counts)
}
