//! Cached schedules and ticks for the pages.
//!
//! The cache follows the rules of [`snapshot`](crate::snapshot), but reads nothing unless a page asks. There
//! may be a hundred thousand schedules, so lists are read in parts and statistics are computed in the store.
//! Upcoming ticks are computed once per read.
//!
//! Cached data may be outdated and is never written back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::port::{
    RawJson, ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleView, Store, StoreError, TaskId, TaskState,
    TickFilter, TickView, webhook_queue,
};
use tenure::runtime::Runtime;
use tenure::{BootInstant, Name};
use tenure_core::rules::schedule::ScheduleTarget;

use crate::snapshot::queues::{Cache, with_timeout};
use crate::web::{FormattedPayload, UpcomingTicks};

/// Number of schedules per read.
pub(crate) const PAGE_SIZE: u32 = 200;

/// Number of the newest ticks that are searched for a finished run.
const RUNS: u32 = 4;
/// Number of concurrent reads.
const CONCURRENCY: usize = 8;
/// How long the last run of a schedule is cached, unless the schedule fires again.
const RUN_MAX_AGE: Duration = Duration::from_secs(10);
/// Maximum number of schedules whose last run is cached.
const RUNS_MAX: usize = 4096;

/// Newest run of a schedule that succeeded or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) task: TaskId,
    /// Error of a failed run; `None` if it succeeded. A failed run may still be retried.
    pub(crate) error: Option<String>,
}

/// Cached last run, with the number of firings it is valid for and its expiry.
#[derive(Debug)]
struct KnownRun {
    fired: u64,
    until: BootInstant,
    run: Option<Run>,
}

/// Namespace, and the schedule after which the part starts.
type ScheduleListKey = (Option<Name>, Option<ScheduleKey>);

/// Cached schedules.
pub(crate) struct ScheduleCache {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    pieces: Cache<ScheduleListKey, Arc<[ScheduleView]>>,
    one: Cache<ScheduleKey, Option<Arc<ScheduleDetail>>>,
    ticks: Cache<(ScheduleKey, Option<i64>, u32), Arc<[TickView]>>,
    stats: Cache<(), Arc<[ScheduleStats]>>,
    runs: Mutex<HashMap<ScheduleKey, KnownRun>>,
}

/// Schedule with its upcoming ticks.
#[derive(Clone, Debug)]
pub(crate) struct ScheduleDetail {
    /// Schedule without its payload.
    pub(crate) view: ScheduleView,
    /// Formatted payload.
    pub(crate) payload: FormattedPayload,
    pub(crate) ahead: UpcomingTicks,
}

impl ScheduleDetail {
    pub(crate) fn of(view: ScheduleView, wall_ms: i64) -> ScheduleDetail {
        let payload = FormattedPayload::of(&view.definition.payload);
        let ahead = UpcomingTicks::of(&view, wall_ms);
        ScheduleDetail { view: without_payload(view), payload, ahead }
    }
}

/// Remove the payload, which may have a megabyte and is not shown in lists.
fn without_payload(mut view: ScheduleView) -> ScheduleView {
    view.definition.payload = RawJson::default();
    view
}

impl ScheduleCache {
    /// Create the cache.
    pub(crate) fn new(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> ScheduleCache {
        ScheduleCache {
            store,
            runtime,
            pieces: Cache::default(),
            one: Cache::default(),
            ticks: Cache::default(),
            stats: Cache::default(),
            runs: Mutex::default(),
        }
    }

    /// Part of the list after a schedule, by namespace and name: up to [`PAGE_SIZE`] schedules.
    pub(crate) async fn page(
        &self,
        namespace: Option<&Name>,
        after: Option<&ScheduleKey>,
    ) -> Result<Arc<[ScheduleView]>, StoreError> {
        let filter = ScheduleFilter {
            namespace: namespace.cloned(),
            source: None,
            after: after.cloned(),
            limit: PAGE_SIZE,
        };
        let read =
            async { Ok(self.store.schedules(&filter).await?.into_iter().map(without_payload).collect()) };
        self.pieces.get((filter.namespace.clone(), filter.after.clone()), self.runtime.as_ref(), read).await
    }

    /// One schedule.
    pub(crate) async fn schedule(
        &self,
        key: &ScheduleKey,
    ) -> Result<Option<Arc<ScheduleDetail>>, StoreError> {
        let read = async {
            let view = self.store.schedule(key).await?;
            Ok(view.map(|view| Arc::new(ScheduleDetail::of(view, self.runtime.wall_ms()))))
        };
        self.one.get(key.clone(), self.runtime.as_ref(), read).await
    }

    /// Last ticks of a schedule, newest first.
    pub(crate) async fn ticks(&self, filter: &TickFilter) -> Result<Arc<[TickView]>, StoreError> {
        let read = async { Ok(self.store.ticks(filter).await?.into()) };
        let which = (filter.key.clone(), filter.before_ms, filter.limit);
        self.ticks.get(which, self.runtime.as_ref(), read).await
    }

    /// Newest finished run of each of these schedules. Schedules that publish events have no runs. Unreadable
    /// runs are omitted: the page shows the store error separately.
    pub(crate) async fn runs(&self, views: &[&ScheduleView]) -> HashMap<ScheduleKey, Run> {
        let mut found = HashMap::new();
        for some in views.chunks(CONCURRENCY) {
            let runs = futures_util::future::join_all(some.iter().map(|view| self.run(view))).await;
            found.extend(some.iter().zip(runs).filter_map(|(view, run)| Some((view.key(), run?))));
        }
        found
    }

    async fn run(&self, view: &ScheduleView) -> Option<Run> {
        let namespace = match &view.definition.target {
            ScheduleTarget::Webhook { .. } => webhook_queue().namespace,
            ScheduleTarget::Task { .. } => view.namespace.clone(),
            _ => return None,
        };
        let (key, now) = (view.key(), self.runtime.now());
        let known = |known: &&KnownRun| known.fired == view.fired_count && now < known.until;
        if let Some(known) = self.known_runs().get(&key).filter(known) {
            return known.run.clone();
        }
        let run = with_timeout(self.find_run(&key, &namespace)).await.ok()?;
        let mut all = self.known_runs();
        if all.len() >= RUNS_MAX {
            all.retain(|_, known| now < known.until);
        }
        if all.len() < RUNS_MAX {
            all.insert(key, KnownRun { fired: view.fired_count, until: now + RUN_MAX_AGE, run: run.clone() });
        }
        run
    }

    async fn find_run(&self, key: &ScheduleKey, namespace: &Name) -> Result<Option<Run>, StoreError> {
        let filter = TickFilter { key: key.clone(), before_ms: None, limit: RUNS };
        for id in self.store.ticks(&filter).await?.iter().filter_map(|tick| tick.task_id) {
            let Some(task) = self.store.task(namespace, id).await? else { continue };
            let error = task.failures.last().map(|failure| failure.error.clone());
            match task.state {
                TaskState::Completed => return Ok(Some(Run { task: id, error: None })),
                TaskState::Dead => {
                    let error = error.or(task.end_reason).unwrap_or_default();
                    return Ok(Some(Run { task: id, error: Some(error) }));
                }
                TaskState::Cancelled => {}
                // The run is retried.
                _ if error.is_some() => return Ok(Some(Run { task: id, error })),
                // The first attempt is not finished: show the previous run.
                _ => {}
            }
        }
        Ok(None)
    }

    fn known_runs(&self) -> std::sync::MutexGuard<'_, HashMap<ScheduleKey, KnownRun>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Statistics by namespace.
    pub(crate) async fn stats(&self) -> Result<Arc<[ScheduleStats]>, StoreError> {
        let read = async { Ok(self.store.schedule_stats().await?.into()) };
        self.stats.get((), self.runtime.as_ref(), read).await
    }

    /// Invalidate the cache after a change through this server.
    pub(crate) fn invalidate(&self) {
        self.pieces.clear();
        self.one.clear();
        self.ticks.clear();
        self.stats.clear();
        self.known_runs().clear();
    }
}
