//! What the queues looked like in the last minutes, kept in memory; and looks that many share.
//!
//! Pages about work and resources are rendered from here, so that a hundred who watch a queue cost the store what one
//! does. All queues are looked at together: every few seconds in any case, so that whoever opens a page sees what went
//! before, and about once a second while somebody watches. Whatever else a page shows is looked at when it is asked for,
//! and not again while it is fresh; whoever comes while a look is under way waits for what comes of it. A look that took
//! long stays fresh for longer.
//!
//! Nothing here is ever written back: it may be old, and says how old it is.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tenure::port::{
    Backend, Deed, Finished, PoolKey, PoolView, QueueKey, QueueView, StoreError, TaskFilter, TaskId,
    TaskState, TaskView, Trouble, Why, WorkerView,
};
use tenure::runtime::Runtime;
use tenure::{Moment, Name};
use tokio::task::AbortHandle;

use crate::pages::Laid;

/// How far back a queue's picture goes.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);
/// For how long a look is fresh.
pub(crate) const FRESH: Duration = Duration::from_millis(800);
/// A look that took long is fresh for this many times as long.
pub(crate) const LEISURE: u32 = 10;
/// How often all is looked at while nobody watches.
pub(crate) const IDLE: Duration = Duration::from_secs(5);
/// How often a store is asked that keeps nothing of the sort.
pub(crate) const UNFIT: Duration = Duration::from_secs(60);
/// How long one request to the store may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// The throughput of how many queues is measured at once, and from how many tasks.
const MEASURED: (usize, u32) = (24, 500);
/// How many different looks of one sort are kept.
const KEPT: usize = 64;
/// Of how many finished tasks the statistics of a queue are made.
pub(crate) const STATISTICS: u32 = 1000;
/// The most relatives of a task that are read, and the most of whose outputs are kept.
const RELATIVES: (usize, usize) = (24, 8);
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

/// A queue, and what it looked like before.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(crate) view: QueueView,
    /// The oldest first. Between two that are alike nothing changed.
    pub(crate) samples: VecDeque<Sample>,
    measure: Measure,
}

/// How fast tasks of a queue finish, as it was last measured.
#[derive(Clone, Copy, Debug, Default)]
struct Measure {
    /// How many in a second.
    rate: f64,
    /// When the last one did, by the store's wall clock, as far as that was looked at.
    last_ms: Option<i64>,
    /// What moves when tasks finish, as it was then.
    ends: [u64; 4],
    /// When it was measured, by ours.
    at: Moment,
}

/// A queue at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: Moment,
    /// Tasks that wait for a worker.
    pub(crate) ready: u64,
    pub(crate) claimed: u64,
    /// How many finished in a second.
    pub(crate) rate: f64,
}

/// A task, its relatives, and what keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// The task, without what it carries.
    pub(crate) task: TaskView,
    pub(crate) why: Vec<Why>,
    /// Those it waits for, those that wait for it, and theirs, without what they carry.
    pub(crate) relatives: BTreeMap<TaskId, TaskView>,
    pub(crate) payload: Laid,
    /// What its parents have given it.
    pub(crate) inputs: Vec<(TaskId, Laid)>,
    pub(crate) output: Option<Laid>,
}

impl Track {
    #[cfg(test)]
    pub(crate) fn of(view: QueueView, samples: VecDeque<Sample>) -> Track {
        Track { view, samples, measure: Measure::default() }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.measure.rate
    }

    fn push(&mut self, sample: Sample) {
        let same = |a: &Sample, b: &Sample| (a.ready, a.claimed, a.rate) == (b.ready, b.claimed, b.rate);
        remember(&mut self.samples, sample, same);
    }
}

/// How something was at a moment.
pub(crate) trait Sampled: Copy {
    fn at(&self) -> Moment;
}

impl Sampled for Sample {
    fn at(&self) -> Moment {
        self.at
    }
}

/// Puts one more to what is remembered: a window of it, and of what stays the same only the ends.
pub(crate) fn remember<S: Sampled>(samples: &mut VecDeque<S>, sample: S, same: impl Fn(&S, &S) -> bool) {
    let flat = samples.len() >= 2 && samples.iter().rev().take(2).all(|before| same(before, &sample));
    if flat {
        samples.pop_back();
    }
    samples.push_back(sample);
    // The one before the first of the window is where its line begins.
    while samples.get(1).is_some_and(|second| sample.at().since(second.at()) > WINDOW) {
        samples.pop_front();
    }
}

/// What moves when tasks finish.
fn ends(view: &QueueView) -> [u64; 4] {
    [TaskState::Claimed, TaskState::Completed, TaskState::Dead, TaskState::Cancelled]
        .map(|state| view.count(state))
}

/// How many finished in a second since the last look, and when the last one did. Only times of the store are compared with
/// one another, and only ours with ours.
fn throughput(finished: &[Finished], last_ms: Option<i64>, elapsed: Duration) -> (f64, Option<i64>) {
    let newest = finished.iter().map(|one| one.at_ms).max();
    let (Some(newest), Some(last)) = (newest, last_ms) else { return (0.0, newest.or(last_ms).or(Some(0))) };
    let fresh = finished.iter().filter(|one| one.at_ms > last).count();
    let rate = if fresh == finished.len() && fresh >= MEASURED.1 as usize {
        let oldest = finished.iter().map(|one| one.at_ms).min().unwrap_or(newest);
        fresh as f64 * 1000.0 / (newest - oldest).max(1) as f64
    } else {
        fresh as f64 / elapsed.as_secs_f64().max(0.1)
    };
    (rate, Some(newest))
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
                let unfit = seen.trouble.as_ref().is_some_and(|error| error.kind == Trouble::Unfit);
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
        for (measured_at, known, view) in busy.into_iter().take(MEASURED.0) {
            // A store that does not answer this will not answer the next.
            let Ok(finished) = within(self.store.finished(&view.key, MEASURED.1)).await else { break };
            let last_ms = known.and_then(|known| known.measure.last_ms);
            let (rate, last_ms) = throughput(&finished, last_ms, at.since(measured_at));
            measured.insert(view.key.clone(), Measure { rate, last_ms, ends: ends(view), at });
        }
        measured
    }
}

/// Whether tasks of a queue finish, or may have since it was measured.
fn is_busy(known: Option<&Arc<Track>>, view: &QueueView) -> bool {
    let (before, rate) = known.map_or(([0; 4], 0.0), |known| (known.measure.ends, known.measure.rate));
    ends(view) != before || rate > 0.0
}

/// A task without what it carries: lists do not show that, and it may be large.
fn light(mut task: TaskView) -> TaskView {
    task.payload = Default::default();
    task.output = None;
    task
}

async fn life(store: &dyn Backend, namespace: &Name, id: TaskId) -> Result<Option<Arc<Life>>, StoreError> {
    let Some(task) = store.task(namespace, id).await? else { return Ok(None) };
    let why =
        if task.state.is_final() { Vec::new() } else { store.why(namespace, id).await?.unwrap_or_default() };
    let (mut relatives, mut inputs) = (BTreeMap::new(), Vec::new());
    // The nearest first: parents, then children, then theirs, each in its own direction.
    let mut next: VecDeque<(TaskId, bool)> = task.parents.iter().map(|parent| (*parent, true)).collect();
    next.extend(task.children.iter().map(|child| (*child, false)));
    while let Some((relative, up)) = next.pop_front() {
        if relatives.len() >= RELATIVES.0 {
            break;
        }
        if relative == id || relatives.contains_key(&relative) {
            continue;
        }
        let Some(view) = store.task(namespace, relative).await? else { continue };
        let further = if up { &view.parents } else { &view.children };
        next.extend(further.iter().map(|one| (*one, up)));
        let output = view.output.as_ref().filter(|_| task.parents.contains(&relative));
        if let Some(output) = output.filter(|_| inputs.len() < RELATIVES.1) {
            inputs.push((relative, Laid::of(output)));
        }
        relatives.insert(relative, light(view));
    }
    let (payload, output) = (Laid::of(&task.payload), task.output.as_ref().map(Laid::of));
    Ok(Some(Arc::new(Life { task: light(task), why, relatives, payload, inputs, output })))
}

/// A request to the store, bounded: one that hangs must not stop all others.
pub(crate) async fn within<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = || StoreError::new(Trouble::Timeout, format!("the store did not answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, request).await.unwrap_or_else(|_| Err(late()))
}

/// Looks of one sort, each kept while it is fresh.
pub(crate) struct Shelf<K, V>(Mutex<HashMap<K, Arc<Place<V>>>>);

/// Until when it is fresh, and what was seen or why it was not.
type Place<V> = tokio::sync::Mutex<Option<(Moment, Result<V, StoreError>)>>;

impl<K, V> Default for Shelf<K, V> {
    fn default() -> Self {
        Shelf(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Shelf<K, V> {
    pub(crate) async fn get(
        &self,
        key: K,
        runtime: &dyn Runtime,
        look: impl Future<Output = Result<V, StoreError>>,
    ) -> Result<V, StoreError> {
        let place = {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if places.len() >= KEPT && !places.contains_key(&key) {
                // Those that somebody waits for are not lost: they have them.
                places.clear();
            }
            places.entry(key).or_default().clone()
        };
        let mut place = place.lock().await;
        let begun = runtime.now();
        if let Some((_, seen)) = place.as_ref().filter(|(until, _)| begun < *until) {
            return seen.clone();
        }
        let seen = within(look).await;
        let now = runtime.now();
        *place = Some((now + FRESH.max(now.since(begun) * LEISURE), seen.clone()));
        seen
    }

    /// Forgets what is not fresh any more.
    pub(crate) fn sweep(&self, now: Moment) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is locked is being looked at.
        places.retain(|_, place| {
            place.try_lock().map_or(true, |place| place.as_ref().is_some_and(|(until, _)| now < *until))
        });
    }

    /// Forgets all of it.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tenure::runtime::System;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    fn track() -> Track {
        let key = QueueKey::new("a".parse().expect("a name"), "b".parse().expect("a name"));
        let view = QueueView {
            key,
            settings: Default::default(),
            paused: None,
            counts: BTreeMap::new(),
            oldest_ready_ms: None,
        };
        Track::of(view, VecDeque::new())
    }

    fn finished(at_ms: i64) -> Finished {
        Finished { kind: String::new(), completed: true, at_ms, wait_ms: 0, run_ms: 0 }
    }

    #[test]
    fn a_queue_that_rests_takes_no_room_and_one_that_works_a_window() {
        let mut track = track();
        for second in 0..5000 {
            track.push(Sample { at: at(second), ready: 7, claimed: 0, rate: 0.0 });
        }
        assert_eq!(track.samples.len(), 2);
        for second in 5000..9000 {
            track.push(Sample { at: at(second), ready: second, claimed: 0, rate: 0.0 });
        }
        assert_eq!(track.samples.len() as u64, WINDOW.as_secs() + 2);
        // Nothing is known to have been otherwise at the left edge.
        assert!(at(8999).since(track.samples[0].at) > WINDOW);
    }

    #[test]
    fn throughput_is_told_from_the_stores_clock_or_from_ours_but_never_from_both() {
        let second = Duration::from_secs(1);
        assert_eq!(throughput(&[], None, second), (0.0, Some(0)));
        // The first look says only when the last one was.
        assert_eq!(throughput(&[finished(1_000_000)], None, second), (0.0, Some(1_000_000)));
        let some: Vec<_> = (0..20).map(|n| finished(1000 + n * 10)).collect();
        assert_eq!(throughput(&some, Some(1095), second * 2), (5.0, Some(1190)));
        assert_eq!(throughput(&some, Some(1190), second), (0.0, Some(1190)));
        // More than are read: what is read says how fast they come.
        let many: Vec<_> = (0..500).map(|n| finished(5000 + n / 10)).collect();
        let (rate, _) = throughput(&many, Some(10), second * 60);
        assert!((10_000.0..10_500.0).contains(&rate), "{rate}");
    }

    #[tokio::test]
    async fn however_many_ask_the_store_is_asked_once() {
        let (shelf, asked) = (Shelf::<u8, u32>::default(), AtomicU32::new(0));
        let look = || async {
            tokio::task::yield_now().await;
            Ok(asked.fetch_add(1, Ordering::Relaxed))
        };
        let all = futures_util::future::join_all((0..100).map(|_| shelf.get(1, &System, look()))).await;
        assert!(all.iter().all(|seen| *seen == Ok(0)));
        // After a change from here it is asked again.
        shelf.clear();
        assert_eq!(shelf.get(1, &System, look()).await, Ok(1));
        for n in 0..200 {
            let _ = shelf.get(n, &System, look()).await;
        }
        let kept = || shelf.0.lock().expect("sound").len();
        assert!((1..=KEPT).contains(&kept()));
        shelf.sweep(System.now() + Duration::from_secs(60));
        assert_eq!(kept(), 0);
    }

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
        let keys: Vec<_> = (0..2 * MEASURED.0 + 1)
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
            assert!(seen.len() <= look * MEASURED.0, "{} were measured at once", seen.len());
        }
        assert_eq!(seen.len(), keys.len());
    }
}
