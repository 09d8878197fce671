//! Cached queues, workers, pools and tasks for the pages.
//!
//! Pages are rendered from here, so a hundred viewers of a queue cost the store as much as one. All queues
//! are read together: every few seconds in any case, so that a newly opened page has history, and about once
//! a second while a page is viewed. Everything else is read on demand and kept while it is fresh; concurrent
//! requests share one read. The result of a slow read stays fresh for longer.
//!
//! Cached data may be outdated, carries its age, and is never written back.

mod cache;
mod queue_history;
mod task_detail;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::port::{
    AuditEntry, ErrorKind, FinishedTask, PoolKey, PoolView, QueueKey, QueueView, Store, StoreError,
    TaskFilter, TaskId, TaskState, TaskView, WorkerView,
};
use tenure::runtime::Runtime;
use tenure::{BootInstant, Name};
use tokio::task::AbortHandle;

pub(crate) use self::cache::{BACKOFF_FACTOR, Cache, FRESH, with_timeout};
use self::queue_history::{MEASURED, Throughput, ends, is_busy, throughput};
pub(crate) use self::queue_history::{QueueHistory, QueueSample, TimedSample, WINDOW, remember};
pub(crate) use self::task_detail::TaskDetail;
use self::task_detail::{read_task_detail, without_payload};

/// Refresh interval without viewers.
pub(crate) const IDLE: Duration = Duration::from_secs(5);
/// Refresh interval for a store without queues.
pub(crate) const UNSUPPORTED_INTERVAL: Duration = Duration::from_secs(60);
/// Number of queues whose throughput is measured per refresh.
const CONCURRENCY: usize = 24;
/// Number of finished tasks in the statistics of a queue.
pub(crate) const STATISTICS: u32 = 1000;
/// Number of audit entries of a namespace that are searched for those of one object.
const AUDIT_ENTRIES: u32 = 200;

/// Cached queues, workers, pools and tasks.
pub(crate) struct QueueCache {
    shared: Arc<QueueCacheShared>,
    task: AbortHandle,
}

struct QueueCacheShared {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    snapshot: RwLock<Arc<QueuesSnapshot>>,
    /// Held during a read of all queues.
    refreshing: tokio::sync::Mutex<()>,
    workers: Cache<(), Arc<[WorkerView]>>,
    pools: Cache<Option<PoolKey>, Arc<[PoolView]>>,
    tasks: Cache<String, Arc<[TaskView]>>,
    finished: Cache<QueueKey, Arc<[FinishedTask]>>,
    task: Cache<(Name, TaskId), Option<Arc<TaskDetail>>>,
    audit_entries: Cache<Name, Arc<[AuditEntry]>>,
}

/// Queues as last read.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueuesSnapshot {
    pub(crate) queues: BTreeMap<QueueKey, Arc<QueueHistory>>,
    /// When they were read; zero before the first read.
    pub(crate) at: BootInstant,
    /// Until when they are fresh.
    until: BootInstant,
    /// Error of the last read, if it failed.
    pub(crate) error: Option<StoreError>,
}

impl QueueCache {
    /// Start the cache; it is refreshed until it is dropped.
    pub(crate) fn start(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Arc<QueueCache> {
        let shared = Arc::new(QueueCacheShared {
            store,
            runtime,
            snapshot: RwLock::default(),
            refreshing: tokio::sync::Mutex::default(),
            workers: Cache::default(),
            pools: Cache::default(),
            tasks: Cache::default(),
            finished: Cache::default(),
            task: Cache::default(),
            audit_entries: Cache::default(),
        });
        let watcher = shared.clone();
        let task = tokio::spawn(async move {
            loop {
                let snapshot = watcher.refresh(IDLE).await;
                let unsupported = snapshot.error.as_ref().is_some_and(|error| {
                    matches!(error.kind, ErrorKind::Misconfigured | ErrorKind::Unsupported)
                });
                let pause = if unsupported { UNSUPPORTED_INTERVAL } else { IDLE };
                watcher.sweep();
                watcher.runtime.sleep_until(watcher.runtime.now() + pause).await;
            }
        });
        Arc::new(QueueCache { shared, task: task.abort_handle() })
    }

    /// Queues, at most about one second old while the store responds.
    pub(crate) async fn queues(&self) -> Result<Arc<QueuesSnapshot>, StoreError> {
        let snapshot = self.shared.refresh(FRESH).await;
        match (&snapshot.error, snapshot.at) {
            (Some(error), BootInstant::ZERO) => Err(error.clone()),
            _ => Ok(snapshot),
        }
    }

    /// Queues as last read, of any age.
    pub(crate) fn snapshot(&self) -> Arc<QueuesSnapshot> {
        self.shared.snapshot()
    }

    /// One queue; `None` if it does not exist. A queue missing in the cache is read now.
    pub(crate) async fn queue(&self, key: &QueueKey) -> Result<Option<Arc<QueueHistory>>, StoreError> {
        if let Some(history) = self.queues().await?.queues.get(key) {
            return Ok(Some(history.clone()));
        }
        // Check one row before all queues are read: requests for unknown queues must be cheap.
        if with_timeout(self.shared.store.queue(key)).await?.is_none() {
            return Ok(None);
        }
        Ok(self.shared.refresh(Duration::ZERO).await.queues.get(key).cloned())
    }

    /// Start of the last successful read, and the error of the last one if it failed. `None` before the first
    /// success.
    pub(crate) fn status(&self) -> Option<(BootInstant, Option<StoreError>)> {
        let snapshot = self.shared.snapshot();
        (snapshot.at != BootInstant::ZERO).then(|| (snapshot.at, snapshot.error.clone()))
    }

    /// Refresh after a change through this server: later results were read after this call.
    pub(crate) async fn invalidate(&self) {
        let shared = &self.shared;
        shared.workers.clear();
        shared.pools.clear();
        shared.tasks.clear();
        shared.finished.clear();
        shared.task.clear();
        shared.audit_entries.clear();
        shared.refresh(Duration::ZERO).await;
    }

    /// Workers of all namespaces.
    pub(crate) async fn workers(&self) -> Result<Arc<[WorkerView]>, StoreError> {
        let QueueCacheShared { store, runtime, workers, .. } = &*self.shared;
        workers.get((), runtime.as_ref(), async { Ok(store.workers(None).await?.into()) }).await
    }

    /// Pools of all namespaces.
    pub(crate) async fn pools(&self) -> Result<Arc<[PoolView]>, StoreError> {
        let QueueCacheShared { store, runtime, pools, .. } = &*self.shared;
        pools.get(None, runtime.as_ref(), async { Ok(store.pools(None).await?.into()) }).await
    }

    /// One pool, as a list.
    pub(crate) async fn pool(&self, key: &PoolKey) -> Result<Arc<[PoolView]>, StoreError> {
        let QueueCacheShared { store, runtime, pools, .. } = &*self.shared;
        let read = async { Ok(store.pool(key).await?.into_iter().collect()) };
        pools.get(Some(key.clone()), runtime.as_ref(), read).await
    }

    /// Tasks without payloads.
    pub(crate) async fn tasks(&self, filter: &TaskFilter) -> Result<Arc<[TaskView]>, StoreError> {
        let QueueCacheShared { store, runtime, tasks, .. } = &*self.shared;
        let read = async { Ok(store.tasks(filter).await?.into_iter().map(without_payload).collect()) };
        tasks.get(format!("{filter:?}"), runtime.as_ref(), read).await
    }

    /// Last finished tasks of a queue.
    pub(crate) async fn finished(&self, key: &QueueKey) -> Result<Arc<[FinishedTask]>, StoreError> {
        let QueueCacheShared { store, runtime, finished, .. } = &*self.shared;
        let read = async { Ok(store.finished_tasks(key, STATISTICS).await?.into()) };
        finished.get(key.clone(), runtime.as_ref(), read).await
    }

    /// Last audit entries of a namespace.
    pub(crate) async fn audit_entries(&self, namespace: &Name) -> Result<Arc<[AuditEntry]>, StoreError> {
        let QueueCacheShared { store, runtime, audit_entries, .. } = &*self.shared;
        let read = async { Ok(store.audit_entries(Some(namespace), None, AUDIT_ENTRIES).await?.into()) };
        audit_entries.get(namespace.clone(), runtime.as_ref(), read).await
    }

    /// A task with its dependencies and wait reasons; `None` if it does not exist.
    pub(crate) async fn task_detail(
        &self,
        namespace: &Name,
        id: TaskId,
    ) -> Result<Option<Arc<TaskDetail>>, StoreError> {
        let QueueCacheShared { store, runtime, task, .. } = &*self.shared;
        let read = read_task_detail(store.as_ref(), namespace, id);
        task.get((namespace.clone(), id), runtime.as_ref(), read).await
    }
}

impl Drop for QueueCache {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl QueueCacheShared {
    fn snapshot(&self) -> Arc<QueuesSnapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drop cached results that are no longer fresh.
    fn sweep(&self) {
        let now = self.runtime.now();
        self.workers.sweep(now);
        self.pools.sweep(now);
        self.tasks.sweep(now);
        self.finished.sweep(now);
        self.task.sweep(now);
        self.audit_entries.sweep(now);
    }

    /// Return the cached queues. Read them again unless they are fresh or younger than `age`; zero forces a
    /// read.
    async fn refresh(&self, age: Duration) -> Arc<QueuesSnapshot> {
        let forced = age.is_zero();
        let fresh = |snapshot: &QueuesSnapshot, now: BootInstant| {
            !forced && (now < snapshot.until || now.since(snapshot.at) < age)
        };
        let snapshot = self.snapshot();
        if fresh(&snapshot, self.runtime.now()) {
            return snapshot;
        }
        let _one = self.refreshing.lock().await;
        // Another caller may have read them meanwhile.
        let before = self.snapshot();
        let begun = self.runtime.now();
        if fresh(&before, begun) {
            return before;
        }
        let result = match with_timeout(self.store.queues(None)).await {
            Ok(views) => self.with_history(&before, views, begun).await,
            Err(error) => QueuesSnapshot { error: Some(error), ..(*before).clone() },
        };
        let now = self.runtime.now();
        let result =
            Arc::new(QueuesSnapshot { until: now + FRESH.max(now.since(begun) * BACKOFF_FACTOR), ..result });
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = result.clone();
        result
    }

    async fn with_history(
        &self,
        before: &QueuesSnapshot,
        views: Vec<QueueView>,
        at: BootInstant,
    ) -> QueuesSnapshot {
        let measured = self.measure(before, &views, at).await;
        let mut queues = BTreeMap::new();
        for view in views {
            let known = before.queues.get(&view.key);
            let busy = is_busy(known, &view);
            let measure = measured.get(&view.key).copied().unwrap_or(match known {
                // The queue is not measured in this round.
                Some(known) if busy => known.measure,
                Some(known) => Throughput { rate: 0.0, ..known.measure },
                // No task of this queue had finished before, so its first finished task is recent.
                None if !busy => Throughput { last_ms: Some(0), at, ..Throughput::default() },
                None => Throughput::default(),
            });
            let sample = QueueSample {
                at,
                ready: view.count(TaskState::Ready),
                claimed: view.count(TaskState::Claimed),
                rate: measure.rate,
            };
            let samples = known.map(|known| known.samples.clone()).unwrap_or_default();
            let key = view.key.clone();
            let mut history = QueueHistory { view, samples, measure };
            history.push(sample);
            queues.insert(key, Arc::new(history));
        }
        QueuesSnapshot { queues, at, until: BootInstant::ZERO, error: None }
    }

    /// Measure the throughput of the queues in which tasks finish; if there are many, of some in turn.
    async fn measure(
        &self,
        before: &QueuesSnapshot,
        views: &[QueueView],
        at: BootInstant,
    ) -> HashMap<QueueKey, Throughput> {
        let mut busy: Vec<_> = views
            .iter()
            .map(|view| (before.queues.get(&view.key), view))
            .filter(|(known, view)| is_busy(*known, view))
            .map(|(known, view)| (known.map_or(BootInstant::ZERO, |known| known.measure.at), known, view))
            .collect();
        busy.sort_by_key(|(measured_at, _, _)| *measured_at);
        let mut measured = HashMap::new();
        for (measured_at, known, view) in busy.into_iter().take(CONCURRENCY) {
            // If the store does not respond to this call, it will not respond to the next.
            let Ok(finished) = with_timeout(self.store.finished_tasks(&view.key, MEASURED)).await else {
                break;
            };
            let last_ms = known.and_then(|known| known.measure.last_ms);
            let (rate, last_ms) = throughput(&finished, last_ms, at.since(measured_at));
            measured.insert(view.key.clone(), Throughput { rate, last_ms, ends: ends(view), at });
        }
        measured
    }
}

#[cfg(test)]
mod tests {
    use tenure::runtime::SystemRuntime;

    use super::*;

    #[tokio::test]
    async fn throughput_is_measured_for_all_queues_in_turn() {
        use tenure::port::{
            ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRequest, NewTask,
            Settlement, Submission, TaskStore as _, WorkerProfile,
        };
        use tenure::store::memory::MemoryStore;
        let store = MemoryStore::new();
        let cache = QueueCache::start(Arc::new(store.clone()), Arc::new(SystemRuntime));
        let namespace = Name::default_namespace();
        let keys: Vec<_> = (0..2 * CONCURRENCY + 1)
            .map(|n| QueueKey::new(namespace.clone(), format!("q{n}").parse().expect("a name")))
            .collect();
        for key in &keys {
            let tasks = vec![NewTask::new("a")];
            store.submit(&Submission { queue: key.clone(), tasks }).await.expect("submitted");
        }
        cache.invalidate().await;
        for key in &keys {
            let worker = WorkerProfile { name: "w".into(), ..WorkerProfile::default() };
            let requests =
                vec![ClaimRequest { worker, limit: 1, session: None, claim_timeout_ms: Some(60_000) }];
            let ask = ClaimBatchRequest { queue: key.clone(), authority: ClaimAuthority::Direct, requests };
            let Ok(ClaimBatchResponse::Served { tasks, .. }) = store.claim(&ask).await else {
                panic!("refused")
            };
            let (task, token) = (tasks[0][0].id, tasks[0][0].token);
            let outcome = ClaimOutcome::Complete(None);
            let done = Settlement { namespace: namespace.clone(), task, token, outcome };
            store.settle(&[done]).await.expect("settled");
        }
        let mut snapshot = std::collections::BTreeSet::new();
        for read in 1..=3 {
            cache.invalidate().await;
            let now = cache.queues().await.expect("queues");
            snapshot.extend(
                now.queues.iter().filter(|(_, history)| history.rate() > 0.0).map(|(key, _)| key.clone()),
            );
            assert!(snapshot.len() <= read * CONCURRENCY, "{} were measured at once", snapshot.len());
        }
        assert_eq!(snapshot.len(), keys.len());
    }
}
