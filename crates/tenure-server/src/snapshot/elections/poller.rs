//! Tasks that refresh the snapshot and receive notifications.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::port::{
    BoxNotificationSource, ErrorKind, Notification, ObserveScope, SessionView, Store, StoreError,
};
use tenure::runtime::Runtime;
use tenure::{BootInstant, ElectionKey, SessionId};

use super::refresh::RefreshRequest;
use super::{
    CachedElection, ElectionCacheShared, ElectionUpdate, ElectionsSnapshot, LastHeartbeat,
    ReceivedNotification, TermMark,
};

/// Interval between full refreshes, independent of notifications.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between reads of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// After a slow read, the next one waits this many times its duration.
const BACKOFF_FACTOR: u32 = 20;
/// Maximum number of elections to refresh individually; beyond it everything is refreshed.
const LISTED_MAX: usize = 200;
/// Timeout of one store call.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// First and maximum backoff after failures.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Receive notifications until the source ends.
pub(super) async fn listen(shared: Arc<ElectionCacheShared>, mut notifications: BoxNotificationSource) {
    while let Some(notification) = notifications.next().await {
        let snapshot = shared.snapshot();
        // Notifications about this process's own connections are never forwarded.
        if !matches!(notification, Notification::SessionExpired(_) | Notification::ConnectionLost(_)) {
            let places = match &notification {
                Notification::SessionEnded(session) => {
                    snapshot.elections_of(session).map(|key| key.namespace).collect()
                }
                _ => BTreeSet::new(),
            };
            // An error means that there are no receivers.
            let _ = shared.notifications.send(ReceivedNotification {
                notification: notification.clone(),
                namespaces: Arc::new(places),
            });
        }
        shared.request_refresh(|request| request.add_notification(notification, &snapshot));
    }
}

/// Refresh the snapshot until the task is aborted.
pub(super) async fn run(shared: Arc<ElectionCacheShared>) {
    let (store, runtime) = (shared.store.clone(), shared.runtime.clone());
    let mut poller = ElectionPoller {
        cache: shared,
        store,
        runtime,
        all_at: BootInstant::ZERO,
        heartbeats_at: BootInstant::ZERO,
        rest: BootInstant::ZERO,
        failures: 0,
    };
    loop {
        let request = poller.cache.refresh_request().take();
        let round = request.round;
        poller.poll(request).await;
        poller.cache.round.send_replace(round);
        poller.wait().await;
    }
}

/// Task that refreshes the snapshot.
struct ElectionPoller {
    cache: Arc<ElectionCacheShared>,
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    /// When the next full refresh is due.
    all_at: BootInstant,
    /// When the next read of heartbeats is due.
    heartbeats_at: BootInstant,
    /// End of the backoff. No store call is made before.
    rest: BootInstant,
    failures: u32,
}

impl ElectionPoller {
    /// One round: at most one read of elections and one of heartbeats.
    async fn poll(&mut self, mut request: RefreshRequest) {
        let begun = self.runtime.now();
        let received_ms = self.cache.mark_ms.load(Ordering::Relaxed);
        for session in std::mem::take(&mut request.expired) {
            self.cache.proxy_candidate().died(session);
        }
        let result = self.read_elections(&mut request, begun).await;
        let result = match result {
            Ok(snapshot) => self.read_heartbeats(snapshot).await,
            Err(error) => Err(error),
        };
        let latency = self.runtime.now().since(begun);
        let snapshot = match result {
            Ok(Some(snapshot)) => {
                (self.failures, self.rest) = (0, BootInstant::ZERO);
                ElectionsSnapshot { latency, error: None, ..snapshot }
            }
            Ok(None) => return,
            Err(error) => {
                self.back_off();
                tracing::warn!(%error, "refreshing the snapshot failed");
                ElectionsSnapshot { latency, error: Some(error), ..(*self.cache.snapshot()).clone() }
            }
        };
        let before = self.cache.snapshot();
        let now = self.cache.publish(snapshot);
        self.announce(&before, &now, received_ms).await;
    }

    /// Notify watchers of changes. Terms are read once per change, and only if there are watchers.
    async fn announce(&self, before: &ElectionsSnapshot, now: &ElectionsSnapshot, received_ms: i64) {
        let different = |(key, entry): &(&ElectionKey, &Arc<CachedElection>)| {
            before.elections.get(*key).is_none_or(|old| old.version() != entry.version())
        };
        let listens = |key: &ElectionKey| {
            self.cache.subscriptions().as_ref().is_some_and(|subscriptions| subscriptions.has_watchers(key))
        };
        let received = now.elections.iter().filter(different).filter(|(key, _)| listens(key));
        for (key, entry) in received {
            let mark = match before.elections.get(key) {
                Some(old) => TermMark::of(old, received_ms),
                // First snapshot: earlier terms are not news.
                None if !before.is_loaded() => TermMark::of(entry, i64::MAX),
                None => TermMark::Tokens(Vec::new()),
            };
            let terms = within(entry.terms(self.store.as_ref())).await;
            if let Some(subscriptions) = self.cache.subscriptions().as_mut() {
                match terms {
                    Ok(terms) => {
                        let transitions = mark.transitions_after(&terms);
                        let ended =
                            transitions.iter().filter_map(|transitions| transitions.term().ended_at_ms).max();
                        self.cache.mark_ms.fetch_max(ended.unwrap_or(0), Ordering::Relaxed);
                        let mark_ms = self.cache.mark_ms.load(Ordering::Relaxed);
                        subscriptions.send(&Arc::new(ElectionUpdate::new(
                            now.number,
                            entry.clone(),
                            transitions,
                            mark_ms,
                        )));
                    }
                    Err(_) => subscriptions.disconnect(key),
                }
            }
        }
        if let Some(subscriptions) = self.cache.subscriptions().as_mut() {
            subscriptions.remove_unused();
        }
    }

    /// Read the elections that are requested or due; `None` if there are none.
    async fn read_elections(
        &mut self,
        request: &mut RefreshRequest,
        now: BootInstant,
    ) -> Result<Option<ElectionsSnapshot>, StoreError> {
        request.all |= now >= self.all_at || request.elections.len() > LISTED_MAX;
        if !request.all && request.elections.is_empty() {
            return Ok(None);
        }
        let scope = match request.all {
            true => ObserveScope::All,
            false => ObserveScope::Listed(request.elections.iter().cloned().collect()),
        };
        let observation = within(self.store.observe(&no_session(), &scope)).await?;
        let returned = self.runtime.now();
        self.cache.proxy_candidate().observe_all(&observation, returned, request.all);
        let mut snapshot = (*self.cache.snapshot()).clone();
        snapshot.epoch = observation.epoch;
        if request.all {
            snapshot.at = now;
            self.all_at = returned + REFRESH_INTERVAL.max(returned.since(now) * BACKOFF_FACTOR);
        }
        if request.all {
            let candidates = observation.elections.iter().flat_map(|view| &view.candidates);
            snapshot.candidacies_by_session =
                counted(candidates.map(|candidate| candidate.session.id.clone()));
        }
        let old = std::mem::take(&mut snapshot.elections);
        if !request.all {
            snapshot.elections =
                old.iter().filter(|(key, _)| !request.elections.contains(key)).map(clone_entry).collect();
        }
        for view in observation.elections {
            let granted = view.leases.iter().filter_map(|lease| lease.granted_at_ms);
            self.cache.mark_ms.fetch_max(granted.max().unwrap_or(0), Ordering::Relaxed);
            let key = view.key.clone();
            let entry = CachedElection::new(view, old.get(&key).map(Arc::as_ref));
            // Keep the entry of an unchanged election, which is rendered already.
            let known = old.get(&key).filter(|known| known.is_same(&entry)).cloned();
            snapshot.elections.insert(key, known.unwrap_or_else(|| Arc::new(entry)));
        }
        Ok(Some(snapshot))
    }

    /// Read the heartbeats if they are due.
    async fn read_heartbeats(
        &mut self,
        snapshot: Option<ElectionsSnapshot>,
    ) -> Result<Option<ElectionsSnapshot>, StoreError> {
        let begun = self.runtime.now();
        if begun < self.heartbeats_at {
            return Ok(snapshot);
        }
        let sessions = within(self.store.sessions(None)).await?;
        let now = self.runtime.now();
        self.heartbeats_at = now + HEARTBEAT_INTERVAL.max(now.since(begun) * BACKOFF_FACTOR);
        let mut snapshot = snapshot.unwrap_or_else(|| (*self.cache.snapshot()).clone());
        snapshot.sessions_by_owner = counted(sessions.iter().filter_map(|session| session.owner.clone()));
        let heartbeat = |session: SessionView| {
            let known = snapshot
                .sessions
                .get(&session.id)
                .filter(|known| known.session.heartbeat_count == session.heartbeat_count);
            let moved = known.map_or(now, |known| known.changed_at);
            (session.id.clone(), LastHeartbeat { session, changed_at: moved })
        };
        let sessions: HashMap<SessionId, LastHeartbeat> = sessions.into_iter().map(heartbeat).collect();
        snapshot.sessions = Arc::new(sessions);
        Ok(Some(snapshot))
    }

    /// Back off from the store, longer each time; then refresh everything.
    fn back_off(&mut self) {
        let (first, most) = BACKOFF;
        let pause = (first * 2u32.saturating_pow(self.failures.min(10))).min(most);
        let spread = self.runtime.random() % 1000;
        self.failures = self.failures.saturating_add(1);
        self.rest = self.runtime.now() + pause * (750 + u32::try_from(spread / 2).unwrap_or(0)) / 1000;
        self.all_at = self.rest;
    }

    /// Wait until something must be refreshed.
    async fn wait(&self) {
        if self.failures > 0 {
            return self.runtime.sleep_until(self.rest).await;
        }
        tokio::select! {
            () = self.cache.wait_for_request() => {}
            () = self.runtime.sleep_until(self.all_at.min(self.heartbeats_at)) => {}
        }
    }
}

/// Number of occurrences of each item.
fn counted<T: Eq + Hash>(all: impl Iterator<Item = T>) -> Arc<HashMap<T, usize>> {
    let mut counts = HashMap::new();
    all.for_each(|one| *counts.entry(one).or_insert(0) += 1);
    Arc::new(counts)
}

fn clone_entry((key, entry): (&ElectionKey, &Arc<CachedElection>)) -> (ElectionKey, Arc<CachedElection>) {
    (key.clone(), entry.clone())
}

/// Session id of an observer without a session.
fn no_session() -> SessionId {
    SessionId::from_stored("")
}

/// Run a store call with a timeout, so that a hanging call does not block the others.
async fn within<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late =
        || StoreError::new(ErrorKind::Timeout, format!("the store did not respond within {STORE_TIMEOUT:?}"));
    tokio::time::timeout(STORE_TIMEOUT, request).await.unwrap_or_else(|_| Err(late()))
}
