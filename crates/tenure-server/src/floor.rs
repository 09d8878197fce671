//! What the queues looked like in the last minutes, kept in memory; and looks that many share.
//!
//! Pages about work and resources are rendered from here, so that a hundred who watch a queue cost the store what one
//! does. All queues are looked at together: every few seconds in any case, so that whoever opens a page sees what went
//! before, and about once a second while somebody watches. Whatever else a page shows is looked at when it is asked for,
//! and not again while it is fresh; whoever comes while a look is under way waits for what comes of it. A look that took
//! long stays fresh for longer.
//!
//! Nothing here is ever written back: it may be old, and says how old it is.

mod life;
mod shelf;
mod track;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::port::{
    Backend, Deed, Finished, PoolKey, PoolView, QueueKey, QueueView, StoreError, TaskFilter, TaskId,
    TaskState, TaskView, Trouble, WorkerView,
};
use tenure::runtime::Runtime;
use tenure::{Moment, Name};
use tokio::task::AbortHandle;

pub(crate) use self::life::Life;
use self::life::{life, light};
pub(crate) use self::shelf::{FRESH, LEISURE, Shelf, within};
use self::track::{MEASURED, Measure, ends, is_busy, throughput};
pub(crate) use self::track::{Sample, Sampled, Track, WINDOW, remember};

/// How often all is looked at while nobody watches.
pub(crate) const IDLE: Duration = Duration::from_secs(5);
/// How often a store is asked that keeps nothing of the sort.
pub(crate) const UNFIT: Duration = Duration::from_secs(60);
/// The throughput of how many queues is measured at once.
const AT_ONCE: usize = 24;
/// Of how many finished tasks the statistics of a queue are made.
pub(crate) const STATISTICS: u32 = 1000;
/// Among how many deeds of a namespace those of one thing are looked for.
const DEEDS: u32 = 200;

/// What is known of work and resources.
pub(crate) struct Floor {
    desk: Arc<Desk>,
    task: AbortHandle,
}

struct Desk {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    seen: RwLock<Arc<Seen>>,
    /// Held by whoever looks at all queues.
    looking: tokio::sync::Mutex<()>,
    workers: Shelf<(), Arc<[WorkerView]>>,
    pools: Shelf<Option<PoolKey>, Arc<[PoolView]>>,
    tasks: Shelf<String, Arc<[TaskView]>>,
    finished: Shelf<QueueKey, Arc<[Finished]>>,
    task: Shelf<(Name, TaskId), Option<Arc<Life>>>,
    deeds: Shelf<Name, Arc<[Deed]>>,
}

/// All queues, as they were last seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) queues: BTreeMap<QueueKey, Arc<Track>>,
    /// When they were looked at; zero before the first time.
    pub(crate) at: Moment,
    /// Until when that is fresh.
    until: Moment,
    /// Why the last look failed, if it did.
    pub(crate) trouble: Option<StoreError>,
}

impl Floor {
    /// What is known of a store's work from now on, until it is dropped.
    pub(crate) fn watching(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Arc<Floor> {
        let desk = Arc::new(Desk {
            store,
            runtime,
            seen: RwLock::default(),
            looking: tokio::sync::Mutex::default(),
            workers: Shelf::default(),
            pools: Shelf::default(),
            tasks: Shelf::default(),
            finished: Shelf::default(),
            task: Shelf::default(),
            deeds: Shelf::default(),
        });
        let watcher = desk.clone();
        let task = tokio::spawn(async move {
            loop {
                let seen = watcher.look(IDLE).await;
                let unfit = seen
                    .trouble
                    .as_ref()
                    .is_some_and(|error| matches!(error.kind, Trouble::Unfit | Trouble::Unsupported));
                let pause = if unfit { UNFIT } else { IDLE };
                watcher.sweep();
                watcher.runtime.sleep_until(watcher.runtime.now() + pause).await;
            }
        });
        Arc::new(Floor { desk, task: task.abort_handle() })
    }

    /// The queues, about a second old at most while the store answers.
    pub(crate) async fn queues(&self) -> Result<Arc<Seen>, StoreError> {
        let seen = self.desk.look(FRESH).await;
        match (&seen.trouble, seen.at) {
            (Some(error), Moment::ZERO) => Err(error.clone()),
            _ => Ok(seen),
        }
    }

    /// The queues as they were last seen, however long ago.
    pub(crate) fn seen(&self) -> Arc<Seen> {
        self.desk.seen()
    }

    /// One queue; `None` if it was never used. One that came after the last look is looked at now.
    pub(crate) async fn queue(&self, key: &QueueKey) -> Result<Option<Arc<Track>>, StoreError> {
        if let Some(track) = self.queues().await?.queues.get(key) {
            return Ok(Some(track.clone()));
        }
        // A row, before all are counted: whoever asks for what is not there must not cost much.
        if within(self.desk.store.queue(key)).await?.is_none() {
            return Ok(None);
        }
        Ok(self.desk.look(Duration::ZERO).await.queues.get(key).cloned())
    }

    /// When the last look that succeeded began, and why the last one failed, if it did. `None` before the first success.
    pub(crate) fn standing(&self) -> Option<(Moment, Option<StoreError>)> {
        let seen = self.desk.seen();
        (seen.at != Moment::ZERO).then(|| (seen.at, seen.trouble.clone()))
    }

    /// Something was changed from here: what is shown next was looked at after this was called.
    pub(crate) async fn changed(&self) {
        let desk = &self.desk;
        desk.workers.clear();
        desk.pools.clear();
        desk.tasks.clear();
        desk.finished.clear();
        desk.task.clear();
        desk.deeds.clear();
        desk.look(Duration::ZERO).await;
    }

    /// The workers, of all namespaces.
    pub(crate) async fn workers(&self) -> Result<Arc<[WorkerView]>, StoreError> {
        let Desk { store, runtime, workers, .. } = &*self.desk;
        workers.get((), runtime.as_ref(), async { Ok(store.workers(None).await?.into()) }).await
    }

    /// The pools, of all namespaces.
    pub(crate) async fn pools(&self) -> Result<Arc<[PoolView]>, StoreError> {
        let Desk { store, runtime, pools, .. } = &*self.desk;
        pools.get(None, runtime.as_ref(), async { Ok(store.pools(None).await?.into()) }).await
    }

    /// One pool, in a list with nothing else.
    pub(crate) async fn pool(&self, key: &PoolKey) -> Result<Arc<[PoolView]>, StoreError> {
        let Desk { store, runtime, pools, .. } = &*self.desk;
        let look = async { Ok(store.pool(key).await?.into_iter().collect()) };
        pools.get(Some(key.clone()), runtime.as_ref(), look).await
    }

    /// Tasks, without what they carry.
    pub(crate) async fn tasks(&self, filter: &TaskFilter) -> Result<Arc<[TaskView]>, StoreError> {
        let Desk { store, runtime, tasks, .. } = &*self.desk;
        let look = async { Ok(store.tasks(filter).await?.into_iter().map(light).collect()) };
        tasks.get(format!("{filter:?}"), runtime.as_ref(), look).await
    }

    /// The last finished tasks of a queue.
    pub(crate) async fn finished(&self, key: &QueueKey) -> Result<Arc<[Finished]>, StoreError> {
        let Desk { store, runtime, finished, .. } = &*self.desk;
        let look = async { Ok(store.finished(key, STATISTICS).await?.into()) };
        finished.get(key.clone(), runtime.as_ref(), look).await
    }

    /// The last deeds in a namespace.
    pub(crate) async fn deeds(&self, namespace: &Name) -> Result<Arc<[Deed]>, StoreError> {
        let Desk { store, runtime, deeds, .. } = &*self.desk;
        let look = async { Ok(store.deeds(Some(namespace), None, DEEDS).await?.into()) };
        deeds.get(namespace.clone(), runtime.as_ref(), look).await
    }

    /// A task, its relatives, and what keeps it; `None` if there is no such task.
    pub(crate) async fn life(&self, namespace: &Name, id: TaskId) -> Result<Option<Arc<Life>>, StoreError> {
        let Desk { store, runtime, task, .. } = &*self.desk;
        let look = life(store.as_ref(), namespace, id);
        task.get((namespace.clone(), id), runtime.as_ref(), look).await
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Desk {
    fn seen(&self) -> Arc<Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets what nobody has looked at for a while.
    fn sweep(&self) {
        let now = self.runtime.now();
        self.workers.sweep(now);
        self.pools.sweep(now);
        self.tasks.sweep(now);
        self.finished.sweep(now);
        self.task.sweep(now);
        self.deeds.sweep(now);
    }

    /// What was seen, looked at anew unless that is younger than this, or fresh.
    async fn look(&self, age: Duration) -> Arc<Seen> {
        let forced = age.is_zero();
        let fresh = |seen: &Seen, now: Moment| !forced && (now < seen.until || now.since(seen.at) < age);
        let seen = self.seen();
        if fresh(&seen, self.runtime.now()) {
            return seen;
        }
        let _one = self.looking.lock().await;
        // Somebody else may have looked meanwhile.
        let before = self.seen();
        let begun = self.runtime.now();
        if fresh(&before, begun) {
            return before;
        }
        let looked = match within(self.store.queues(None)).await {
            Ok(views) => self.track(&before, views, begun).await,
            Err(error) => Seen { trouble: Some(error), ..(*before).clone() },
        };
        let now = self.runtime.now();
        let looked = Arc::new(Seen { until: now + FRESH.max(now.since(begun) * LEISURE), ..looked });
        *self.seen.write().unwrap_or_else(PoisonError::into_inner) = looked.clone();
        looked
    }

    async fn track(&self, before: &Seen, views: Vec<QueueView>, at: Moment) -> Seen {
        let measured = self.measure(before, &views, at).await;
        let mut queues = BTreeMap::new();
        for view in views {
            let known = before.queues.get(&view.key);
            let busy = is_busy(known, &view);
            let measure = measured.get(&view.key).copied().unwrap_or(match known {
                // It is not its turn to be measured.
                Some(known) if busy => known.measure,
                Some(known) => Measure { rate: 0.0, ..known.measure },
                // Whatever finishes in a queue where nothing has, has just done so.
                None if !busy => Measure { last_ms: Some(0), at, ..Measure::default() },
                None => Measure::default(),
            });
            let sample = Sample {
                at,
                ready: view.count(TaskState::Ready),
                claimed: view.count(TaskState::Claimed),
                rate: measure.rate,
            };
            let samples = known.map(|known| known.samples.clone()).unwrap_or_default();
            let key = view.key.clone();
            let mut track = Track { view, samples, measure };
            track.push(sample);
            queues.insert(key, Arc::new(track));
        }
        Seen { queues, at, until: Moment::ZERO, trouble: None }
    }

    /// Measures the throughput of those in which something finishes; if they are many, of those whose turn it is.
    async fn measure(&self, before: &Seen, views: &[QueueView], at: Moment) -> HashMap<QueueKey, Measure> {
        let mut busy: Vec<_> = views
            .iter()
            .map(|view| (before.queues.get(&view.key), view))
            .filter(|(known, view)| is_busy(*known, view))
            .map(|(known, view)| (known.map_or(Moment::ZERO, |known| known.measure.at), known, view))
            .collect();
        busy.sort_by_key(|(measured_at, _, _)| *measured_at);
        let mut measured = HashMap::new();
        for (measured_at, known, view) in busy.into_iter().take(AT_ONCE) {
            // A store that does not answer this will not answer the next.
            let Ok(finished) = within(self.store.finished(&view.key, MEASURED)).await else { break };
            let last_ms = known.and_then(|known| known.measure.last_ms);
            let (rate, last_ms) = throughput(&finished, last_ms, at.since(measured_at));
            measured.insert(view.key.clone(), Measure { rate, last_ms, ends: ends(view), at });
        }
        measured
    }
}

#[cfg(test)]
mod tests {
    use tenure::runtime::System;

    use super::*;

    #[tokio::test]
    async fn what_finishes_in_many_queues_is_measured_in_all_of_them() {
        use tenure::backend::memory::Memory;
        use tenure::port::{
            Authority, ClaimAnswer, ClaimAsk, NewTask, Outcome, Profile, Seat, Settlement, Submission,
            Tasks as _,
        };
        let store = Memory::new();
        let floor = Floor::watching(Arc::new(store.clone()), Arc::new(System));
        let namespace = Name::default_namespace();
        let keys: Vec<_> = (0..2 * AT_ONCE + 1)
            .map(|n| QueueKey::new(namespace.clone(), format!("q{n}").parse().expect("a name")))
            .collect();
        for key in &keys {
            let tasks = vec![NewTask::new("a")];
            store.submit(&Submission { queue: key.clone(), tasks }).await.expect("submitted");
        }
        floor.changed().await;
        for key in &keys {
            let worker = Profile { name: "w".into(), ..Profile::default() };
            let seats = vec![Seat { worker, limit: 1, session: None, hold_ms: Some(60_000) }];
            let ask = ClaimAsk { queue: key.clone(), authority: Authority::Direct, seats };
            let Ok(ClaimAnswer::Served { tasks, .. }) = store.claim(&ask).await else { panic!("refused") };
            let (task, token) = (tasks[0][0].id, tasks[0][0].token);
            let outcome = Outcome::Complete(None);
            let done = Settlement { namespace: namespace.clone(), task, token, outcome };
            store.settle(&[done]).await.expect("settled");
        }
        let mut seen = std::collections::BTreeSet::new();
        for look in 1..=3 {
            floor.changed().await;
            let now = floor.queues().await.expect("queues");
            seen.extend(
                now.queues.iter().filter(|(_, track)| track.rate() > 0.0).map(|(key, _)| key.clone()),
            );
            assert!(seen.len() <= look * AT_ONCE, "{} were measured at once", seen.len());
        }
        assert_eq!(seen.len(), keys.len());
    }
}
