//! What schedules look like, kept for a moment: looks that many share.
//!
//! Pages about schedules are rendered from here by the rules of the [`floor`](crate::floor), but nothing is looked at while nobody
//! asks: there may be a hundred thousand schedules, so a list is read in pieces, and how it stands with all of them is counted in
//! the store. What is ahead of a schedule is worked out once for each look.
//!
//! Nothing here is ever written back: it may be old.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::port::{
    Backend, Json, ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleView, StoreError, TaskId, TaskState,
    TickFilter, TickView, calls_queue,
};
use tenure::runtime::Runtime;
use tenure::{Moment, Name};
use tenure_core::schedule::Target;

use crate::floor::{Shelf, within};
use crate::pages::{Ahead, Laid};

/// How many schedules are read at once.
pub(crate) const PIECE: u32 = 200;

/// Among how many of the newest ticks of a schedule a run is looked for that has succeeded or failed.
const RUNS: u32 = 4;
/// How many schedules are asked about at once.
const AT_ONCE: usize = 8;
/// How long the last run of a schedule is known for, unless the schedule fires again.
const RUN_KEPT: Duration = Duration::from_secs(10);
/// Of how many schedules the last run is known at once.
const RUNS_KEPT: usize = 4096;

/// The newest run of a schedule that has succeeded or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) task: TaskId,
    /// Why it failed; `None`: it succeeded. A run that failed may still be tried again.
    pub(crate) error: Option<String>,
}

/// The last run of a schedule, known for how many firings and until when.
#[derive(Debug)]
struct KnownRun {
    fired: u64,
    until: Moment,
    run: Option<Run>,
}

/// Of which namespace, and after which schedule.
type Piece = (Option<Name>, Option<ScheduleKey>);

/// What is known of schedules.
pub(crate) struct Agenda {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    pieces: Shelf<Piece, Arc<[ScheduleView]>>,
    one: Shelf<ScheduleKey, Option<Arc<Planned>>>,
    ticks: Shelf<(ScheduleKey, Option<i64>, u32), Arc<[TickView]>>,
    stats: Shelf<(), Arc<[ScheduleStats]>>,
    runs: Mutex<HashMap<ScheduleKey, KnownRun>>,
}

/// A schedule, and what is ahead of it.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// The schedule, without what its ticks carry.
    pub(crate) view: ScheduleView,
    /// What its ticks carry, laid out.
    pub(crate) payload: Laid,
    pub(crate) ahead: Ahead,
}

impl Planned {
    pub(crate) fn of(view: ScheduleView, wall_ms: i64) -> Planned {
        let payload = Laid::of(&view.definition.payload);
        let ahead = Ahead::of(&view, wall_ms);
        Planned { view: light(view), payload, ahead }
    }
}

/// A schedule without what its ticks carry: that may be a megabyte, and nobody reads it in a list.
fn light(mut view: ScheduleView) -> ScheduleView {
    view.definition.payload = Json::default();
    view
}

impl Agenda {
    /// What is known of a store's schedules.
    pub(crate) fn new(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Agenda {
        Agenda {
            store,
            runtime,
            pieces: Shelf::default(),
            one: Shelf::default(),
            ticks: Shelf::default(),
            stats: Shelf::default(),
            runs: Mutex::default(),
        }
    }

    /// The first schedules after one, by namespace and name: [`PIECE`], if there are so many.
    pub(crate) async fn piece(
        &self,
        namespace: Option<&Name>,
        after: Option<&ScheduleKey>,
    ) -> Result<Arc<[ScheduleView]>, StoreError> {
        let filter = ScheduleFilter {
            namespace: namespace.cloned(),
            source: None,
            after: after.cloned(),
            limit: PIECE,
        };
        let look = async { Ok(self.store.schedules(&filter).await?.into_iter().map(light).collect()) };
        self.pieces.get((filter.namespace.clone(), filter.after.clone()), self.runtime.as_ref(), look).await
    }

    /// One schedule.
    pub(crate) async fn schedule(&self, key: &ScheduleKey) -> Result<Option<Arc<Planned>>, StoreError> {
        let look = async {
            let view = self.store.schedule(key).await?;
            Ok(view.map(|view| Arc::new(Planned::of(view, self.runtime.wall_ms()))))
        };
        self.one.get(key.clone(), self.runtime.as_ref(), look).await
    }

    /// The last ticks of a schedule, the newest first.
    pub(crate) async fn ticks(&self, filter: &TickFilter) -> Result<Arc<[TickView]>, StoreError> {
        let look = async { Ok(self.store.ticks(filter).await?.into()) };
        let which = (filter.key.clone(), filter.before_ms, filter.limit);
        self.ticks.get(which, self.runtime.as_ref(), look).await
    }

    /// The newest run of each of these schedules that has succeeded or failed. Schedules that publish events have no runs. What
    /// cannot be read is left out: the page says that the store is away.
    pub(crate) async fn runs(&self, views: &[&ScheduleView]) -> HashMap<ScheduleKey, Run> {
        let mut found = HashMap::new();
        for some in views.chunks(AT_ONCE) {
            let runs = futures_util::future::join_all(some.iter().map(|view| self.run(view))).await;
            found.extend(some.iter().zip(runs).filter_map(|(view, run)| Some((view.key(), run?))));
        }
        found
    }

    async fn run(&self, view: &ScheduleView) -> Option<Run> {
        let namespace = match &view.definition.target {
            Target::Call { .. } => calls_queue().namespace,
            Target::Task { .. } => view.namespace.clone(),
            _ => return None,
        };
        let (key, now) = (view.key(), self.runtime.now());
        let known = |known: &&KnownRun| known.fired == view.fired && now < known.until;
        if let Some(known) = self.known_runs().get(&key).filter(known) {
            return known.run.clone();
        }
        let run = within(self.look_for_run(&key, &namespace)).await.ok()?;
        let mut all = self.known_runs();
        if all.len() >= RUNS_KEPT {
            all.retain(|_, known| now < known.until);
        }
        if all.len() < RUNS_KEPT {
            all.insert(key, KnownRun { fired: view.fired, until: now + RUN_KEPT, run: run.clone() });
        }
        run
    }

    async fn look_for_run(&self, key: &ScheduleKey, namespace: &Name) -> Result<Option<Run>, StoreError> {
        let filter = TickFilter { key: key.clone(), before_ms: None, limit: RUNS };
        for id in self.store.ticks(&filter).await?.iter().filter_map(|tick| tick.task) {
            let Some(task) = self.store.task(namespace, id).await? else { continue };
            let error = task.failures.last().map(|failure| failure.error.clone());
            match task.state {
                TaskState::Completed => return Ok(Some(Run { task: id, error: None })),
                TaskState::Dead => {
                    let error = error.or(task.reason).unwrap_or_default();
                    return Ok(Some(Run { task: id, error: Some(error) }));
                }
                TaskState::Cancelled => {}
                // It is tried again.
                _ if error.is_some() => return Ok(Some(Run { task: id, error })),
                // Its first attempt is not over: the run before it tells more.
                _ => {}
            }
        }
        Ok(None)
    }

    fn known_runs(&self) -> std::sync::MutexGuard<'_, HashMap<ScheduleKey, KnownRun>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands with all of them, by namespace.
    pub(crate) async fn stats(&self) -> Result<Arc<[ScheduleStats]>, StoreError> {
        let look = async { Ok(self.store.schedule_stats().await?.into()) };
        self.stats.get((), self.runtime.as_ref(), look).await
    }

    /// Something was changed from here: what is shown next is looked at after this was called.
    pub(crate) fn changed(&self) {
        self.pieces.clear();
        self.one.clear();
        self.ticks.clear();
        self.stats.clear();
        self.known_runs().clear();
    }
}
