//! Snapshot of the elections of the store.
//!
//! Reads are answered from here, so ten thousand readers cost the store as much as one. One task refreshes
//! the snapshot: elections named by a notification at once, everything every two seconds, heartbeats every
//! second; one call at a time, and less often if the store is slow. The snapshot is at most as old as the
//! last full refresh ([`ElectionsSnapshot::age`]). A reader that needs certainty reads the store
//! (`?consistent=true`), and a writer writes under a token. While the store is unreachable, the last snapshot
//! is served with its age and the error.

mod entry;
mod poller;
mod refresh;
mod subscriptions;
mod terms;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tenure::port::{
    ElectionView, ElectionsObservation, ErrorKind, Finding, Notification, SessionView, Store, StoreError,
    Term,
};
use tenure::runtime::{Runtime, RuntimeEntropy};
use tenure::{BootInstant, ElectionKey, Name, SessionId};
use tenure_core::rules::lease::{CandidateDecision, ProxyCandidate};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;

pub use self::entry::CachedElection;
use self::refresh::RefreshRequest;
use self::subscriptions::Subscriptions;
pub use self::subscriptions::{ElectionReceiver, ElectionUpdate, TermTransition};
pub(crate) use self::terms::TermMark;

/// How long a request waits for the first snapshot of a new server.
const FIRST_REFRESH_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of notifications buffered for a slow receiver; beyond it the receiver must refresh everything.
const NOTIFICATIONS_MAX: usize = 1024;

/// Minimum interval between checks of the store.
const FINDINGS_MAX_AGE: Duration = Duration::from_secs(30);
/// Maximum number of terms of an election; stores keep no more.
pub const TERMS_MAX: u32 = 100;

/// Cache of the elections of the store.
pub struct ElectionCache {
    shared: Arc<ElectionCacheShared>,
    tasks: [AbortHandle; 2],
}

/// State shared between the cache and its tasks.
struct ElectionCacheShared {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    snapshot: RwLock<Arc<ElectionsSnapshot>>,
    changes: watch::Sender<u64>,
    closed: AtomicBool,
    /// Notifications of the store, for any number of receivers. The store sees one.
    notifications: broadcast::Sender<ReceivedNotification>,
    /// What to refresh next.
    refresh_request: Mutex<RefreshRequest>,
    refresh_requested: Notify,
    /// Last completed refresh round.
    round: watch::Sender<u64>,
    /// Decides for candidates of plain HTTP clients. It observes every snapshot.
    proxy_candidate: Mutex<ProxyCandidate>,
    findings: tokio::sync::Mutex<Option<(BootInstant, Findings)>>,
    /// Watchers; `None` during shutdown.
    subscriptions: Mutex<Option<Subscriptions>>,
    /// Latest known start or end of a term, by the store's clock.
    mark_ms: AtomicI64,
}

/// Notification as received from the store.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedNotification {
    pub(crate) notification: Notification,
    /// Namespaces of the elections that the ended session took part in.
    pub(crate) namespaces: Arc<BTreeSet<Name>>,
}

/// Findings of a check of the store.
pub type Findings = Arc<[Finding]>;

/// Snapshot of the elections.
#[derive(Clone, Debug, Default)]
pub struct ElectionsSnapshot {
    /// Elections.
    pub elections: BTreeMap<ElectionKey, Arc<CachedElection>>,
    /// Live sessions with their last observed heartbeats.
    pub sessions: Arc<HashMap<SessionId, LastHeartbeat>>,
    /// Number of live sessions per owner.
    pub sessions_by_owner: Arc<HashMap<String, usize>>,
    /// Number of candidacies per session.
    pub candidacies_by_session: Arc<HashMap<SessionId, usize>>,
    /// When the last successful full refresh was *sent*: the snapshot is at least as new. Zero before the
    /// first one.
    pub at: BootInstant,
    /// Duration of the last read, successful or not.
    pub latency: Duration,
    /// Error of the last read, if it failed.
    pub error: Option<StoreError>,
    /// Epoch of the store.
    pub epoch: u32,
    /// Number of the snapshot.
    pub number: u64,
}

/// Last observed heartbeat of a session.
#[derive(Clone, Debug)]
pub struct LastHeartbeat {
    /// Session as last observed.
    pub session: SessionView,
    /// When the heartbeat count was last observed to change.
    pub changed_at: BootInstant,
}

impl ElectionsSnapshot {
    /// Maximum age of the data.
    pub fn age(&self, now: BootInstant) -> Duration {
        now.since(self.at)
    }

    /// Remaining lease of a session as this server knows it: two thirds of the lease since the last observed
    /// heartbeat. The session itself counts from before it sent that heartbeat, so it has slightly less.
    /// `None` if the session was not observed.
    pub fn lease_remaining(&self, session: &SessionId, now: BootInstant) -> Option<Duration> {
        let heartbeat = self.sessions.get(session)?;
        let trust = heartbeat.session.lease() * 2 / 3;
        Some(trust.saturating_sub(now.since(heartbeat.changed_at)))
    }

    /// Whether the store was ever read.
    pub fn is_loaded(&self) -> bool {
        self.at != BootInstant::ZERO
    }
}

impl ElectionCache {
    /// Start the cache and its tasks; they run until it is dropped.
    pub fn start(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Arc<ElectionCache> {
        let notifications = store.notifications();
        let shared = Arc::new(ElectionCacheShared {
            store,
            runtime,
            snapshot: RwLock::default(),
            changes: watch::Sender::new(0),
            closed: AtomicBool::new(false),
            notifications: broadcast::Sender::new(NOTIFICATIONS_MAX),
            refresh_request: Mutex::new(RefreshRequest::everything()),
            refresh_requested: Notify::new(),
            round: watch::Sender::new(0),
            proxy_candidate: Mutex::default(),
            findings: tokio::sync::Mutex::default(),
            subscriptions: Mutex::new(Some(Subscriptions::default())),
            mark_ms: AtomicI64::new(0),
        });
        let receiver = tokio::spawn(poller::listen(shared.clone(), notifications));
        let poller = tokio::spawn(poller::run(shared.clone()));
        Arc::new(ElectionCache { shared, tasks: [receiver.abort_handle(), poller.abort_handle()] })
    }

    /// Current snapshot.
    pub fn snapshot(&self) -> Arc<ElectionsSnapshot> {
        self.shared.snapshot()
    }

    /// Subscribe to notifications of the store.
    pub(crate) fn notifications(&self) -> broadcast::Receiver<ReceivedNotification> {
        self.shared.notifications.subscribe()
    }

    /// Receiver that is notified of every new snapshot.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Start the shutdown: waiting requests and watchers end.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        *self.shared.subscriptions() = None;
        self.shared.changes.send_modify(|n| *n += 1);
    }

    /// Whether the server is shutting down.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Watch an election; `None` during shutdown.
    pub fn watch(&self, election: &ElectionKey) -> Option<ElectionReceiver> {
        self.shared.subscriptions().as_mut().map(|subscriptions| subscriptions.election(election))
    }

    /// Watch the elections of a namespace, or all; `None` during shutdown.
    pub fn watch_all(&self, namespace: Option<&Name>) -> Option<ElectionReceiver> {
        self.shared.subscriptions().as_mut().map(|subscriptions| subscriptions.namespace(namespace))
    }

    /// Latest known start or end of a term, by the store's clock.
    pub(crate) fn mark_ms(&self) -> i64 {
        self.shared.mark_ms.load(Ordering::Relaxed)
    }

    /// Current snapshot; a new server waits for its first one.
    pub async fn ready(&self) -> Result<Arc<ElectionsSnapshot>, StoreError> {
        let snapshot = self.snapshot();
        if snapshot.is_loaded() {
            return Ok(snapshot);
        }
        let mut changes = self.changes();
        let first = async {
            loop {
                let snapshot = self.snapshot();
                if snapshot.is_loaded() || snapshot.error.is_some() || changes.changed().await.is_err() {
                    return snapshot;
                }
            }
        };
        let snapshot =
            tokio::time::timeout(FIRST_REFRESH_TIMEOUT, first).await.unwrap_or_else(|_| self.snapshot());
        if snapshot.is_loaded() {
            return Ok(snapshot);
        }
        let slow = || StoreError::new(ErrorKind::Timeout, "the store has not responded to this server yet");
        Err(snapshot.error.clone().unwrap_or_else(slow))
    }

    /// Refresh an election together with everything else that is due. The result was read after this call.
    pub async fn refresh(&self, election: &ElectionKey) -> Result<Arc<ElectionsSnapshot>, StoreError> {
        self.refreshed(|wanted| {
            wanted.elections.insert(election.clone());
        })
        .await
    }

    /// Refresh everything.
    pub async fn refresh_all(&self) -> Result<Arc<ElectionsSnapshot>, StoreError> {
        self.refreshed(|wanted| wanted.all = true).await
    }

    /// Last terms of an election, newest first, at most [`TERMS_MAX`]. Read once after each change.
    pub async fn terms(&self, election: &CachedElection) -> Result<Arc<[Term]>, StoreError> {
        election.terms(self.shared.store.as_ref()).await
    }

    /// Findings about the store; checked at most every [`FINDINGS_MAX_AGE`].
    pub async fn findings(&self) -> Result<Findings, StoreError> {
        // Concurrent callers wait for the running check.
        let mut last = self.shared.findings.lock().await;
        let now = self.shared.runtime.now();
        if let Some((_, findings)) = last.as_ref().filter(|(at, _)| now.since(*at) < FINDINGS_MAX_AGE) {
            return Ok(findings.clone());
        }
        let findings: Findings = self.shared.store.diagnose().await?.into();
        *last = Some((now, findings.clone()));
        Ok(findings)
    }

    /// Decision for a candidate, by the last observation of its election.
    pub(crate) fn decide(
        &self,
        view: &ElectionView,
        session: &SessionId,
        runtime: &dyn Runtime,
    ) -> CandidateDecision {
        self.shared.proxy_candidate().decide(view, session, runtime.now(), &mut RuntimeEntropy(runtime))
    }

    /// Record an observation that a client made through this server.
    pub(crate) fn record_observation(&self, observation: &ElectionsObservation) {
        self.shared.proxy_candidate().observe_some(observation, self.shared.runtime.now());
    }

    /// Whether this server observed that a session was silent for its whole lease. `session` must have just
    /// been read from the store, in `epoch`.
    pub(crate) fn is_silent(&self, session: &SessionView, epoch: u32) -> bool {
        self.shared.proxy_candidate().is_silent(session, epoch, self.shared.runtime.now())
    }

    async fn refreshed(
        &self,
        request: impl FnOnce(&mut RefreshRequest),
    ) -> Result<Arc<ElectionsSnapshot>, StoreError> {
        let mut round = self.shared.round.subscribe();
        let mine = self.shared.request_refresh(request);
        let closed = |_| StoreError::new(ErrorKind::Unavailable, "the server is shutting down");
        round.wait_for(|done| *done >= mine).await.map_err(closed)?;
        let snapshot = self.snapshot();
        snapshot.error.clone().map_or(Ok(snapshot), Err)
    }
}

impl Drop for ElectionCache {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl ElectionCacheShared {
    fn snapshot(&self) -> Arc<ElectionsSnapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn subscriptions(&self) -> MutexGuard<'_, Option<Subscriptions>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn proxy_candidate(&self) -> MutexGuard<'_, ProxyCandidate> {
        self.proxy_candidate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refresh_request(&self) -> MutexGuard<'_, RefreshRequest> {
        self.refresh_request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Request a refresh and return the round that will contain it.
    fn request_refresh(&self, add: impl FnOnce(&mut RefreshRequest)) -> u64 {
        let mut request = self.refresh_request();
        add(&mut request);
        let round = request.round;
        drop(request);
        self.refresh_requested.notify_one();
        round
    }

    /// Wait until a refresh is requested.
    async fn wait_for_request(&self) {
        while self.refresh_request().is_empty() {
            self.refresh_requested.notified().await;
        }
    }

    /// Publish a snapshot.
    fn publish(&self, mut snapshot: ElectionsSnapshot) -> Arc<ElectionsSnapshot> {
        let mut place = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
        snapshot.number = place.number + 1;
        let number = snapshot.number;
        let snapshot = Arc::new(snapshot);
        *place = snapshot.clone();
        drop(place);
        self.changes.send_replace(number);
        snapshot
    }
}

impl std::fmt::Debug for ElectionCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ElectionCache").field("seen", &self.snapshot()).finish_non_exhaustive()
    }
}
