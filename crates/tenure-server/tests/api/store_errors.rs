//! Stores that are unreachable or send no notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tenure::port::{
    AccessStore, BoxNotificationSource, Candidacy, ElectionAdmin, ElectionStore, ElectionView,
    ElectionsObservation, ErrorKind, ExpireSessionRequest, HeartbeatResponse, JoinElectionResponse,
    LeaderRequest, Notification, NotificationSource, ObserveScope, OpenSessionRequest, Pause,
    ReleaseLeaseRequest, SessionView, Store, StoreError, StoreGuarantees, TakeLeaseRequest, Term,
};
use tenure::store::memory::MemoryStore;
use tenure::{ElectionKey, Name, SessionId, Token};

use super::support::{join, key, on, take};

/// In-memory store that can be made unreachable and sends no notifications.
#[derive(Clone)]
struct FlakyStore {
    inner: MemoryStore,
    away: Arc<AtomicBool>,
    /// Whether the store has stopped permanently.
    stopped: Arc<AtomicBool>,
}

impl FlakyStore {
    fn new() -> FlakyStore {
        FlakyStore { inner: MemoryStore::new(), away: Arc::default(), stopped: Arc::default() }
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.away.load(Ordering::Relaxed) {
            true => Err(StoreError::new(ErrorKind::Unreachable, "no response from secret.host")),
            false => Ok(()),
        }
    }
}

struct NoNotifications;

#[async_trait]
impl NotificationSource for NoNotifications {
    async fn next(&mut self) -> Option<Notification> {
        std::future::pending().await
    }
}

#[async_trait]
impl ElectionStore for FlakyStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        self.check()?;
        self.inner.open_session(session).await
    }
    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        self.check()?;
        self.inner.heartbeat(session).await
    }
    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.inner.end_session(session).await
    }
    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.inner.join_election(candidacy).await
    }
    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.inner.leave_election(session, election).await
    }
    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        self.check()?;
        self.inner.observe(session, scope).await
    }
    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        self.inner.take_lease(take).await
    }
    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        self.inner.release_lease(release).await
    }
    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        self.inner.expire_session(expire).await
    }
    async fn request_leader(&self, ask: &LeaderRequest) -> Result<bool, StoreError> {
        self.inner.request_leader(ask).await
    }
    fn notifications(&self) -> BoxNotificationSource {
        Box::new(NoNotifications)
    }
}

#[async_trait]
impl ElectionAdmin for FlakyStore {
    fn guarantees(&self) -> StoreGuarantees {
        self.inner.guarantees()
    }
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.inner.elections(namespace).await
    }
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.inner.election(key).await
    }
    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.inner.term_history(key, limit).await
    }
    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.inner.set_election_paused(key, pause).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.check()?;
        self.inner.sessions(which).await
    }
    async fn failed(&self) -> StoreError {
        match self.stopped.load(Ordering::Relaxed) {
            true => StoreError::new(ErrorKind::Unavailable, "the disk of secret.host is full"),
            false => std::future::pending().await,
        }
    }
}

impl AccessStore for FlakyStore {}

/// Regression: A server whose Raft store had stopped stayed healthy forever and was not restarted.
#[tokio::test]
async fn a_server_with_a_stopped_store_is_neither_healthy_nor_ready() {
    let moody = FlakyStore::new();
    let app = on(Arc::new(moody.clone()) as Arc<dyn Store>);
    app.get("/healthz").await.of(200);
    moody.stopped.store(true, Ordering::Relaxed);
    let alive = app.get("/healthz").await;
    assert!(
        !String::from_utf8_lossy(&alive.bytes).contains("secret.host"),
        "unauthenticated clients see no addresses"
    );
    alive.problem(503, "store-failed", None);
    let ready = app.get("/readyz").await;
    assert!(String::from_utf8_lossy(&ready.bytes).contains("stopped permanently"));
    ready.problem(503, "not-ready", None);
}

#[tokio::test]
async fn without_notifications_the_snapshot_is_still_refreshed() {
    let store: Arc<dyn Store> = Arc::new(FlakyStore::new());
    let app = on(store.clone());
    app.app.elections().ready().await.unwrap();
    let session = join(store.as_ref(), "web-1", "nightly", 0).await;
    take(store.as_ref(), &session, "nightly").await;
    let mut changes = app.app.elections().changes();
    while app
        .app
        .elections()
        .snapshot()
        .elections
        .get(&key("nightly"))
        .is_none_or(|e| e.holders().count() == 0)
    {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn while_the_store_is_unreachable_the_snapshot_is_served_with_age_and_error() {
    let moody = FlakyStore::new();
    let store: Arc<dyn Store> = Arc::new(moody.clone());
    let app = on(store.clone());
    let session = join(store.as_ref(), "web-1", "nightly", 0).await;
    take(store.as_ref(), &session, "nightly").await;
    app.app.elections().refresh_all().await.unwrap();
    moody.away.store(true, Ordering::Relaxed);
    let mut changes = app.app.elections().changes();
    while app.app.elections().snapshot().error.is_none() {
        changes.changed().await.unwrap();
    }
    let answer = app.get("/v1/elections/nightly/leader").await;
    assert_eq!(answer.header("tenure-store-error"), "unreachable");
    assert_eq!(answer.of(200)["name"], "web-1");
    app.get("/v1/elections/nightly?consistent=true").await.problem(503, "store-unavailable", None);
    let state = app.get("/v1/store").await.of(200);
    assert_eq!((&state["ok"], &state["error_kind"]), (&false.into(), &"unreachable".into()));
    moody.away.store(false, Ordering::Relaxed);
    while app.app.elections().snapshot().error.is_some() {
        changes.changed().await.unwrap();
    }
    assert_eq!(app.get("/v1/elections/nightly?consistent=true").await.of(200)["leader"], "web-1");
}

#[tokio::test]
async fn a_server_that_never_reached_its_store_reports_it() {
    let moody = FlakyStore::new();
    moody.away.store(true, Ordering::Relaxed);
    let app = on(Arc::new(moody));
    app.get("/v1/elections").await.problem(503, "store-unavailable", None);
    app.get("/v1/elections/nightly").await.problem(503, "store-unavailable", None);
}

impl tenure::port::TaskStore for FlakyStore {}
impl tenure::port::TaskAdmin for FlakyStore {}
impl tenure::port::PoolStore for FlakyStore {}

impl tenure::port::EventStore for FlakyStore {}

impl tenure::port::EventAdmin for FlakyStore {}
impl tenure::port::ScheduleStore for FlakyStore {}
impl tenure::port::ScheduleAdmin for FlakyStore {}
