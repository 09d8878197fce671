//! State that all capabilities of one process share: the store, the runtime, batchers, wait queues and caches.
//!
//! The store is the only authority on tasks. This state only batches calls and remembers which claims this
//! process holds. It lives as long as its [`Tenure`](crate::Tenure) and holds no handle to it: when the last
//! handle is dropped, the session ends and this state with it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::port::{
    AssignmentMode, ClaimOutcome, ErrorKind, GroupKey, NewEvent, NewTask, PoolKey, PublishReceipt, QueueKey,
    SettleResult, Settlement, Store, StoreError, Submission, SubmitReceipt, TaskId, TopicKey,
};
use tenure_core::{Name, SessionId, Timing, Token};
use tokio::sync::{mpsc, watch};

use super::batcher::{BatchLimits, Batcher};
use super::broker;
use super::held_claims::{HeldClaims, release};
use super::maintenance::MaintenanceCandidacy;
use super::reconcile::reconcile_claims;
use super::wait_queue::{ClaimRoute, WaitQueue};
use crate::runtime::Runtime;
use crate::session::driver::{DriverMessage, SessionShared};
use crate::{Leadership, metrics};

/// Maximum number of settlements in one statement.
const SETTLE_MAX: usize = 1_000;

/// Maximum bytes of results or payloads in one statement that several callers share.
const SHARED_BYTES: usize = 4 << 20;

/// Maximum number of idle wait queues, batchers and cached modes.
pub(crate) const IDLE_MAX: usize = 1_024;

/// A term of this process as broker and maintenance leader.
pub(crate) struct BrokerTerm {
    pub(crate) session: SessionId,
    pub(crate) token: Token,
    pub(crate) leadership: Leadership,
}

/// Where the broker listens and what address it advertises, if configured.
#[derive(Clone, Debug, Default)]
pub(crate) struct BrokerOptions {
    /// Host and port to bind.
    pub(crate) listen: Option<String>,
    /// Host and port to advertise.
    pub(crate) advertise: Option<String>,
    /// The store URL; the local address on the route to the store is the default.
    pub(crate) store_url: String,
}

pub(crate) struct ClientContext {
    pub(crate) name: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) timing: Timing,
    pub(crate) handle: tokio::runtime::Handle,
    pub(crate) broker: BrokerOptions,
    inbox: mpsc::UnboundedSender<DriverMessage>,
    /// Set while this process is the broker.
    pub(crate) broker_term: watch::Sender<Option<Arc<BrokerTerm>>>,
    pub(crate) held_claims: HeldClaims,
    pub(crate) broker_client: broker::BrokerClient,
    pub(crate) maintenance_candidacy: MaintenanceCandidacy,
    pub(crate) settler: Batcher<Settlement, SettleResult>,
    submitters: Mutex<HashMap<QueueKey, Batcher<NewTask, SubmitReceipt>>>,
    pub(crate) publishers: Mutex<HashMap<TopicKey, Batcher<NewEvent, PublishReceipt>>>,
    /// Groups of which this process is a member. A session can be a member of a group once.
    pub(crate) groups: Mutex<HashSet<GroupKey>>,
    pub(crate) matchers: Mutex<HashMap<PoolKey, Batcher<(), super::claim_route::MatchResult>>>,
    /// Pool requests shared by callers of this process, by pool and idempotency key.
    pub(crate) shared_requests: Mutex<HashMap<(PoolKey, String), Arc<crate::pool::SharedPoolRequest>>>,
    wait_queues: Mutex<HashMap<(QueueKey, ClaimRoute), Arc<WaitQueue>>>,
    modes: Mutex<HashMap<QueueKey, AssignmentMode>>,
    pool_modes: Mutex<HashMap<PoolKey, AssignmentMode>>,
    /// Namespaces with calls of unknown outcome. The first one starts the reconciliation task.
    pub(crate) uncertain_namespaces: watch::Sender<BTreeSet<Name>>,
    monitor_started: std::sync::Once,
}

impl ClientContext {
    pub(crate) fn new(
        name: String,
        timing: Timing,
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        shared: Arc<SessionShared>,
        inbox: mpsc::UnboundedSender<DriverMessage>,
        broker: BrokerOptions,
    ) -> Arc<ClientContext> {
        let handle = tokio::runtime::Handle::current();
        let settler = settler(&handle, &store, &runtime, timing);
        Arc::new(ClientContext {
            name,
            store,
            runtime,
            shared,
            timing,
            handle,
            broker,
            inbox,
            broker_term: watch::Sender::new(None),
            held_claims: HeldClaims::default(),
            broker_client: broker::BrokerClient::default(),
            maintenance_candidacy: MaintenanceCandidacy::default(),
            settler,
            submitters: Mutex::default(),
            publishers: Mutex::default(),
            groups: Mutex::default(),
            matchers: Mutex::default(),
            shared_requests: Mutex::default(),
            wait_queues: Mutex::default(),
            modes: Mutex::default(),
            pool_modes: Mutex::default(),
            uncertain_namespaces: watch::Sender::default(),
            monitor_started: std::sync::Once::new(),
        })
    }

    pub(crate) fn session(&self) -> Option<SessionId> {
        self.shared.session.borrow().clone()
    }

    /// Waits for a session that is trusted, and returns it.
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

    /// Completes when `session` has ended or is no longer trusted.
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

    /// Completes when the session has ended permanently.
    pub(crate) async fn closed(&self) {
        self.inbox.closed().await;
    }

    /// The broker term of this process, if it leads *now*. Compares the clock.
    pub(crate) fn broker_term(&self) -> Option<Arc<BrokerTerm>> {
        self.broker_term.borrow().clone().filter(|broker_term| broker_term.leadership.is_leader())
    }

    /// Time limit of a call about tasks. It is longer than that of lease calls: the call may change a thousand
    /// rows, and no trust depends on it.
    pub(crate) fn call_limit(&self) -> Duration {
        call_limit(self.timing)
    }

    /// Runs a store call with a time limit.
    pub(crate) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        bounded(self.runtime.as_ref(), self.call_limit(), call).await
    }

    /// A random duration within a fifth of `about`.
    pub(crate) fn jittered(&self, about: Duration) -> Duration {
        let fifth = about / 5;
        let fraction = (self.runtime.random() >> 32) as u32;
        about - fifth
            + Duration::from_secs_f64(fifth.as_secs_f64() * 2.0 * f64::from(fraction) / f64::from(u32::MAX))
    }

    pub(crate) async fn pause(&self, about: Duration) {
        self.runtime.sleep_until(self.runtime.now() + self.jittered(about)).await;
    }

    pub(crate) fn wait_queue(&self, key: &QueueKey, route: ClaimRoute) -> Arc<WaitQueue> {
        let mut wait_queues = locked(&self.wait_queues);
        if let Some(wait_queue) = wait_queues.get(&(key.clone(), route)) {
            return wait_queue.clone();
        }
        if wait_queues.len() >= IDLE_MAX {
            wait_queues.retain(|_, wait_queue| Arc::strong_count(wait_queue) > 1 || !wait_queue.is_idle());
        }
        let wait_queue = Arc::new(WaitQueue::new(key.clone(), route));
        wait_queues.insert((key.clone(), route), wait_queue.clone());
        wait_queue
    }

    /// Completes when no poll is running that may claim tasks for callers that have left the wait queues of
    /// this queue.
    pub(crate) async fn polls_finished(&self, key: &QueueKey) {
        for route in [ClaimRoute::Direct, ClaimRoute::Broker, ClaimRoute::Fallback] {
            let wait_queue = locked(&self.wait_queues).get(&(key.clone(), route)).cloned();
            if let Some(wait_queue) = wait_queue {
                wait_queue.polls_finished().await;
            }
        }
        self.broker_client.cancellations_confirmed().await;
    }

    pub(crate) fn mode(&self, key: &QueueKey) -> AssignmentMode {
        locked(&self.modes).get(key).copied().unwrap_or_default()
    }

    /// Caches the mode that the store reported. Claims use it until the store reports another.
    pub(crate) fn set_mode(&self, key: &QueueKey, mode: AssignmentMode) {
        cache_mode(&self.modes, key, mode);
    }

    pub(crate) fn pool_mode(&self, key: &PoolKey) -> AssignmentMode {
        locked(&self.pool_modes).get(key).copied().unwrap_or_default()
    }

    pub(crate) fn set_pool_mode(&self, key: &PoolKey, mode: AssignmentMode) {
        cache_mode(&self.pool_modes, key, mode);
    }

    /// Submits one task together with concurrent submissions.
    pub(crate) async fn submit_one(
        &self,
        key: &QueueKey,
        task: NewTask,
    ) -> Result<SubmitReceipt, StoreError> {
        let submitter = {
            let mut submitters = locked(&self.submitters);
            if submitters.len() >= IDLE_MAX {
                submitters.retain(|_, submitter| !submitter.is_idle());
            }
            let make = || submitter(&self.handle, &self.store, &self.runtime, self.timing, key);
            submitters.entry(key.clone()).or_insert_with(make).clone()
        };
        submitter.call(task).await
    }

    /// Settles a claim, and forgets it if that ends it.
    pub(crate) async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        let (task, token) = (settlement.task, settlement.token);
        let ends = !matches!(settlement.outcome, ClaimOutcome::Heartbeat { .. });
        let outcome = metrics::settlement_outcome(&settlement.outcome);
        let namespace = settlement.namespace.clone();
        let settled = self.settler.call(settlement).await?;
        metrics::task_settled(&namespace, outcome, settled);
        if ends || settled == SettleResult::ClaimLost {
            self.held_claims.remove(task, token);
        }
        Ok(settled)
    }

    /// Returns a task to its queue. If the store cannot be reached, the task returns when the session ends, or
    /// [`reconcile_claims`] finds it.
    pub(crate) fn release_task(self: &Arc<Self>, namespace: &Name, task: TaskId, token: Token) {
        self.held_claims.remove(task, token);
        let (ctx, namespace) = (Arc::downgrade(self), namespace.clone());
        self.settler.enqueue(
            release(&namespace, task, token),
            Box::new(move |result| {
                if let (Err(error), Some(ctx)) = (result, ctx.upgrade()) {
                    tracing::debug!(%task, "releasing the task failed: {error}");
                    ctx.mark_uncertain(&namespace);
                }
            }),
        );
    }

    /// Notes a call with unknown outcome. It may have claimed tasks on this session; see [`reconcile_claims`].
    pub(crate) fn mark_uncertain(self: &Arc<Self>, namespace: &Name) {
        let mut first = false;
        self.uncertain_namespaces.send_modify(|uncertain_namespaces| {
            first = uncertain_namespaces.is_empty();
            uncertain_namespaces.insert(namespace.clone());
        });
        if first {
            self.handle.spawn(reconcile_claims(self.clone()));
        }
    }

    /// Starts the monitoring of claims held by workers, once.
    pub(crate) fn monitor_workers(self: &Arc<Self>) {
        self.monitor_started
            .call_once(|| drop(self.handle.spawn(crate::worker::monitor_claims(self.clone()))));
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
        () = runtime.sleep_until(runtime.now() + limit) => Err(no_answer(ErrorKind::Timeout, limit)),
    }
}

fn settler(
    handle: &tokio::runtime::Handle,
    store: &Arc<dyn Store>,
    runtime: &Arc<dyn Runtime>,
    timing: Timing,
) -> Batcher<Settlement, SettleResult> {
    let limits = BatchLimits {
        parts: SETTLE_MAX,
        weight: SHARED_BYTES,
        concurrent: 2,
        weigh: weight,
        // Settlements of the same task go into separate statements, in order.
        identity: Some(|settlement: &Settlement| settlement.task.0),
        // Settling again under the same token is safe, and callers do it after such an error.
        halve: |error| matches!(error.kind, ErrorKind::Timeout | ErrorKind::Unavailable),
    };
    let (store, runtime) = (store.clone(), runtime.clone());
    Batcher::new(handle.clone(), limits, move |batch: Vec<Settlement>| {
        let (store, runtime) = (store.clone(), runtime.clone());
        async move {
            tokio::select! {
                biased;
                result = store.settle(&batch) => result,
                // Not `ErrorKind::Timeout`, which would halve the batch: if the store itself reports a timeout, it
                // changed nothing, but here the outcome is unknown.
                () = runtime.sleep_until(runtime.now() + call_limit(timing)) => {
                    Err(no_answer(ErrorKind::Unreachable, call_limit(timing)))
                }
            }
        }
    })
}

fn no_answer(kind: ErrorKind, limit: Duration) -> StoreError {
    let message =
        format!("the store did not respond within {limit:?}; it is unknown whether the call took effect");
    StoreError::new(kind, message)
}

fn weight(settlement: &Settlement) -> usize {
    match &settlement.outcome {
        ClaimOutcome::Complete(Some(output)) => output.as_str().len(),
        ClaimOutcome::Fail { error, .. } => error.len(),
        _ => 0,
    }
}

fn submitter(
    handle: &tokio::runtime::Handle,
    store: &Arc<dyn Store>,
    runtime: &Arc<dyn Runtime>,
    timing: Timing,
    key: &QueueKey,
) -> Batcher<NewTask, SubmitReceipt> {
    let limits = BatchLimits {
        parts: SETTLE_MAX,
        weight: SHARED_BYTES,
        concurrent: 2,
        weigh: |task: &NewTask| task.payload.as_str().len(),
        identity: None,
        halve: |_| false,
    };
    let (store, runtime, key) = (store.clone(), runtime.clone(), key.clone());
    Batcher::new(handle.clone(), limits, move |tasks: Vec<NewTask>| {
        let (store, runtime) = (store.clone(), runtime.clone());
        let submission = Submission { queue: key.clone(), tasks };
        async move { bounded(runtime.as_ref(), call_limit(timing), store.submit(&submission)).await }
    })
}

fn cache_mode<K: std::hash::Hash + Eq + Clone>(
    map: &Mutex<HashMap<K, AssignmentMode>>,
    key: &K,
    mode: AssignmentMode,
) {
    let mut map = locked(map);
    if map.len() >= IDLE_MAX && !map.contains_key(key) {
        // Queues in use report their mode again with the next claim.
        map.clear();
    }
    map.insert(key.clone(), mode);
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
