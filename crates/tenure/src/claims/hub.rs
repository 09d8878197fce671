//! What all claims of one process share.
//!
//! The store owns the truth about tasks; here are only the lines of those who wait, the words that wait to be said, and a
//! memory of what was handed to whom. The hub lives as long as its [`Tenure`](crate::Tenure) and holds no handle to it: when
//! the last user's handle is gone, the session ends, and everything here with it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::port::{
    Backend, GroupKey, Mode, NewEvent, NewTask, Outcome, PoolKey, Published, QueueKey, Settled, Settlement,
    StoreError, Submission, Submitted, TaskId, TopicKey, Trouble,
};
use tenure_core::{Name, SessionId, Timing, Token};
use tokio::sync::{mpsc, watch};

use super::batch::{Batcher, Measure};
use super::holdings::{Holdings, release};
use super::keeper::Standing;
use super::line::{Lane, Line};
use super::link;
use super::reconcile::dispel;
use crate::driver::{Message, Shared};
use crate::runtime::Runtime;
use crate::{Leadership, metrics};

/// The most words about claims in one statement.
const SETTLE_MAX: usize = 1_000;

/// The most bytes of outputs, or of payloads, in one statement that several callers share.
const SHARED_BYTES: usize = 4 << 20;

/// How many lines and the like are remembered when nobody uses them.
pub(crate) const IDLE_KEPT: usize = 1_024;

/// A time in office of this process as the one that hands out what is exclusive, and keeps.
pub(crate) struct Reign {
    pub(crate) session: SessionId,
    pub(crate) token: Token,
    pub(crate) leadership: Leadership,
}

/// Where the broker listens, if it is said.
#[derive(Clone, Debug, Default)]
pub(crate) struct BrokerAddress {
    /// Host and port to bind.
    pub(crate) listen: Option<String>,
    /// Host and port to tell others.
    pub(crate) advertise: Option<String>,
    /// The store's address, by the way to which our own is found.
    pub(crate) store_url: String,
}

pub(crate) struct Hub {
    pub(crate) name: String,
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) timing: Timing,
    pub(crate) handle: tokio::runtime::Handle,
    pub(crate) broker: BrokerAddress,
    inbox: mpsc::UnboundedSender<Message>,
    /// Set while this process leads.
    pub(crate) reign: watch::Sender<Option<Arc<Reign>>>,
    pub(crate) holdings: Holdings,
    pub(crate) link: link::Client,
    pub(crate) standing: Standing,
    pub(crate) settler: Batcher<Settlement, Settled>,
    submitters: Mutex<HashMap<QueueKey, Batcher<NewTask, Submitted>>>,
    pub(crate) publishers: Mutex<HashMap<TopicKey, Batcher<NewEvent, Published>>>,
    /// The groups of which this process is a member: a session is one member.
    pub(crate) groups: Mutex<HashSet<GroupKey>>,
    pub(crate) matchers: Mutex<HashMap<PoolKey, Batcher<(), super::route::Matched>>>,
    /// What is asked for of pools, by pool and key.
    pub(crate) wishes: Mutex<HashMap<(PoolKey, String), Arc<crate::pool::Wish>>>,
    lines: Mutex<HashMap<(QueueKey, Lane), Arc<Line>>>,
    modes: Mutex<HashMap<QueueKey, Mode>>,
    pool_modes: Mutex<HashMap<PoolKey, Mode>>,
    /// Where calls were made whose outcome nobody knows. From the first on, somebody looks into it.
    pub(crate) doubts: watch::Sender<BTreeSet<Name>>,
    attended: std::sync::Once,
}

impl Hub {
    pub(crate) fn new(
        name: String,
        timing: Timing,
        store: Arc<dyn Backend>,
        runtime: Arc<dyn Runtime>,
        shared: Arc<Shared>,
        inbox: mpsc::UnboundedSender<Message>,
        broker: BrokerAddress,
    ) -> Arc<Hub> {
        let handle = tokio::runtime::Handle::current();
        let settler = settler(&handle, &store, &runtime, timing);
        Arc::new(Hub {
            name,
            store,
            runtime,
            shared,
            timing,
            handle,
            broker,
            inbox,
            reign: watch::Sender::new(None),
            holdings: Holdings::default(),
            link: link::Client::default(),
            standing: Standing::default(),
            settler,
            submitters: Mutex::default(),
            publishers: Mutex::default(),
            groups: Mutex::default(),
            matchers: Mutex::default(),
            wishes: Mutex::default(),
            lines: Mutex::default(),
            modes: Mutex::default(),
            pool_modes: Mutex::default(),
            doubts: watch::Sender::default(),
            attended: std::sync::Once::new(),
        })
    }

    pub(crate) fn session(&self) -> Option<SessionId> {
        self.shared.session.borrow().clone()
    }

    /// The session, when there is one that is trusted.
    pub(crate) async fn trusted_session(&self) -> SessionId {
        let mut sessions = self.shared.session.subscribe();
        loop {
            let session = sessions.borrow_and_update().clone();
            if let Some(session) = session.filter(|_| self.runtime.now() < self.shared.trust.until()) {
                return session;
            }
            tokio::select! {
                _ = sessions.changed() => {}
                () = self.pause(self.timing.retry()) => {}
            }
        }
    }

    /// Completes when this session is not ours any more, or not trusted.
    pub(crate) async fn distrusted(&self, session: &SessionId) {
        let mut sessions = self.shared.session.subscribe();
        loop {
            let until = self.shared.trust.until();
            if sessions.borrow_and_update().as_ref() != Some(session) || self.runtime.now() >= until {
                return;
            }
            tokio::select! {
                _ = sessions.changed() => {}
                () = self.runtime.sleep_until(until) => {}
            }
        }
    }

    /// Completes when the session has ended for good.
    pub(crate) async fn closed(&self) {
        self.inbox.closed().await;
    }

    /// Our time in office, if it is one *now*: the clock is compared.
    pub(crate) fn reign(&self) -> Option<Arc<Reign>> {
        self.reign.borrow().clone().filter(|reign| reign.leadership.is_leader())
    }

    /// How long one call about claims may take. Longer than one about leases: it may move a thousand rows, and no trust hangs
    /// on it.
    pub(crate) fn call_limit(&self) -> Duration {
        call_limit(self.timing)
    }

    /// A call to the store, given up after a while.
    pub(crate) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        bounded(self.runtime.as_ref(), self.call_limit(), call).await
    }

    /// This long, give or take a fifth.
    pub(crate) fn jittered(&self, about: Duration) -> Duration {
        let fifth = about / 5;
        let share = (self.runtime.random() >> 32) as u32;
        about - fifth
            + Duration::from_secs_f64(fifth.as_secs_f64() * 2.0 * f64::from(share) / f64::from(u32::MAX))
    }

    pub(crate) async fn pause(&self, about: Duration) {
        self.runtime.sleep_until(self.runtime.now() + self.jittered(about)).await;
    }

    pub(crate) fn line(&self, key: &QueueKey, lane: Lane) -> Arc<Line> {
        let mut lines = locked(&self.lines);
        if let Some(line) = lines.get(&(key.clone(), lane)) {
            return line.clone();
        }
        if lines.len() >= IDLE_KEPT {
            lines.retain(|_, line| Arc::strong_count(line) > 1 || !line.is_idle());
        }
        let line = Arc::new(Line::new(key.clone(), lane));
        lines.insert((key.clone(), lane), line.clone());
        line
    }

    /// Until nothing is under way any more that may claim something for who has left the lines of this queue.
    pub(crate) async fn looks_over(&self, key: &QueueKey) {
        for lane in [Lane::Direct, Lane::Leader, Lane::Fallback] {
            let line = locked(&self.lines).get(&(key.clone(), lane)).cloned();
            if let Some(line) = line {
                line.looks_over().await;
            }
        }
        self.link.called_off_are_over().await;
    }

    pub(crate) fn mode(&self, key: &QueueKey) -> Mode {
        locked(&self.modes).get(key).copied().unwrap_or_default()
    }

    /// What the store said the mode is. It is asked in that mode until it says otherwise.
    pub(crate) fn set_mode(&self, key: &QueueKey, mode: Mode) {
        remember(&self.modes, key, mode);
    }

    pub(crate) fn pool_mode(&self, key: &PoolKey) -> Mode {
        locked(&self.pool_modes).get(key).copied().unwrap_or_default()
    }

    pub(crate) fn set_pool_mode(&self, key: &PoolKey, mode: Mode) {
        remember(&self.pool_modes, key, mode);
    }

    /// Submits one task together with those that come at the same time.
    pub(crate) async fn submit_one(&self, key: &QueueKey, task: NewTask) -> Result<Submitted, StoreError> {
        let submitter = {
            let mut submitters = locked(&self.submitters);
            if submitters.len() >= IDLE_KEPT {
                submitters.retain(|_, submitter| !submitter.is_idle());
            }
            let make = || submitter(&self.handle, &self.store, &self.runtime, self.timing, key);
            submitters.entry(key.clone()).or_insert_with(make).clone()
        };
        submitter.call(task).await
    }

    /// Says something about a claim, and forgets the claim if that ends it.
    pub(crate) async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let (task, token) = (settlement.task, settlement.token);
        let ends = !matches!(settlement.outcome, Outcome::Progress { .. });
        let word = metrics::outcome(&settlement.outcome);
        let namespace = settlement.namespace.clone();
        let settled = self.settler.call(settlement).await?;
        metrics::settled(&namespace, word, settled);
        if ends || settled == Settled::Lost {
            self.holdings.remove(task, token);
        }
        Ok(settled)
    }

    /// A task that nobody here will work on goes back to its queue. If the store can not be told, it goes back when the session
    /// ends, or is found by [`doubt`](Self::doubt).
    pub(crate) fn give_back(self: &Arc<Self>, namespace: &Name, task: TaskId, token: Token) {
        self.holdings.remove(task, token);
        let (hub, namespace) = (Arc::downgrade(self), namespace.clone());
        self.settler.say(
            release(&namespace, task, token),
            Box::new(move |result| {
                if let (Err(error), Some(hub)) = (result, hub.upgrade()) {
                    tracing::debug!(%task, "not given back: {error}");
                    hub.doubt(&namespace);
                }
            }),
        );
    }

    /// A call whose outcome nobody knows may have claimed something that lives on our beat: see [`dispel`].
    pub(crate) fn doubt(self: &Arc<Self>, namespace: &Name) {
        let mut first = false;
        self.doubts.send_modify(|doubts| {
            first = doubts.is_empty();
            doubts.insert(namespace.clone());
        });
        if first {
            self.handle.spawn(dispel(self.clone()));
        }
    }

    /// From now on there are workers whose claims have to be looked after.
    pub(crate) fn attend_workers(self: &Arc<Self>) {
        self.attended.call_once(|| drop(self.handle.spawn(crate::worker::attend(self.clone()))));
    }
}

pub(crate) fn call_limit(timing: Timing) -> Duration {
    timing.lease().max(Duration::from_secs(5))
}

pub(crate) async fn bounded<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::select! {
        biased;
        result = call => result,
        () = runtime.sleep_until(runtime.now() + limit) => Err(no_answer(Trouble::Timeout, limit)),
    }
}

fn settler(
    handle: &tokio::runtime::Handle,
    store: &Arc<dyn Backend>,
    runtime: &Arc<dyn Runtime>,
    timing: Timing,
) -> Batcher<Settlement, Settled> {
    let measure = Measure {
        parts: SETTLE_MAX,
        weight: SHARED_BYTES,
        under_way: 2,
        weigh: weight,
        // Two words about one task are two statements, in their order.
        identity: Some(|settlement: &Settlement| settlement.task.0),
        // To settle again under the same token is what every caller does who gets such an error.
        halve: |error| matches!(error.kind, Trouble::Timeout | Trouble::Unavailable),
    };
    let (store, runtime) = (store.clone(), runtime.clone());
    Batcher::new(handle.clone(), measure, move |batch: Vec<Settlement>| {
        let (store, runtime) = (store.clone(), runtime.clone());
        async move {
            tokio::select! {
                biased;
                result = store.settle(&batch) => result,
                // Not a timeout of the store's own, which says that nothing happened.
                () = runtime.sleep_until(runtime.now() + call_limit(timing)) => {
                    Err(no_answer(Trouble::Unreachable, call_limit(timing)))
                }
            }
        }
    })
}

fn no_answer(kind: Trouble, limit: Duration) -> StoreError {
    let message =
        format!("the store did not answer within {limit:?}; whether the call happened is not known");
    StoreError::new(kind, message)
}

fn weight(settlement: &Settlement) -> usize {
    match &settlement.outcome {
        Outcome::Complete(Some(output)) => output.as_str().len(),
        Outcome::Fail { error, .. } => error.len(),
        _ => 0,
    }
}

fn submitter(
    handle: &tokio::runtime::Handle,
    store: &Arc<dyn Backend>,
    runtime: &Arc<dyn Runtime>,
    timing: Timing,
    key: &QueueKey,
) -> Batcher<NewTask, Submitted> {
    let measure = Measure {
        parts: SETTLE_MAX,
        weight: SHARED_BYTES,
        under_way: 2,
        weigh: |task: &NewTask| task.payload.as_str().len(),
        identity: None,
        halve: |_| false,
    };
    let (store, runtime, key) = (store.clone(), runtime.clone(), key.clone());
    Batcher::new(handle.clone(), measure, move |tasks: Vec<NewTask>| {
        let (store, runtime) = (store.clone(), runtime.clone());
        let submission = Submission { queue: key.clone(), tasks };
        async move { bounded(runtime.as_ref(), call_limit(timing), store.submit(&submission)).await }
    })
}

fn remember<K: std::hash::Hash + Eq + Clone>(map: &Mutex<HashMap<K, Mode>>, key: &K, mode: Mode) {
    let mut map = locked(map);
    if map.len() >= IDLE_KEPT && !map.contains_key(key) {
        // Those that are asked again say again what they are.
        map.clear();
    }
    map.insert(key.clone(), mode);
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
