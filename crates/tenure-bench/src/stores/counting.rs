//! A store that counts its calls.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tenure::port::{
    AccessStore, BoxNotificationSource, Candidacy, ElectionAdmin, ElectionStore, ElectionView,
    ElectionsObservation, EventAdmin, EventStore, ExpireSessionRequest, HeartbeatResponse,
    JoinElectionResponse, LeaderRequest, ObserveScope, OpenSessionRequest, Pause, PoolStore,
    ReleaseLeaseRequest, ScheduleAdmin, ScheduleStore, SessionView, Store, StoreError, StoreGuarantees,
    TakeLeaseRequest, TaskAdmin, TaskStore, Term,
};
use tenure::{ElectionKey, Name, SessionId, Token};

/// Elections on another store, with each call counted.
pub(super) struct CountingStore {
    store: Arc<dyn Store>,
    calls: Arc<AtomicU64>,
}

impl CountingStore {
    pub(super) fn new(store: Arc<dyn Store>) -> (CountingStore, Arc<AtomicU64>) {
        let calls = Arc::new(AtomicU64::new(0));
        (CountingStore { store, calls: calls.clone() }, calls)
    }

    fn counted(&self) -> &Arc<dyn Store> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.store
    }
}

#[async_trait]
impl ElectionStore for CountingStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        self.counted().open_session(session).await
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        self.counted().heartbeat(session).await
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.counted().end_session(session).await
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.counted().join_election(candidacy).await
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.counted().leave_election(session, election).await
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        self.counted().observe(session, scope).await
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        self.counted().take_lease(take).await
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        self.counted().release_lease(release).await
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        self.counted().expire_session(expire).await
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        self.counted().request_leader(request).await
    }

    fn watch_sessions(&self, sessions: &[SessionId]) {
        self.store.watch_sessions(sessions);
    }

    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        self.store.kernel_lock(session)
    }

    fn notifications(&self) -> BoxNotificationSource {
        self.store.notifications()
    }
}

#[async_trait]
impl ElectionAdmin for CountingStore {
    fn guarantees(&self) -> StoreGuarantees {
        self.store.guarantees()
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.counted().elections(namespace).await
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.counted().election(key).await
    }

    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.counted().term_history(key, limit).await
    }

    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.counted().set_election_paused(key, pause).await
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.counted().sessions(which).await
    }
}

impl TaskStore for CountingStore {
    fn supports_work(&self) -> bool {
        false
    }
}

impl AccessStore for CountingStore {}
impl TaskAdmin for CountingStore {}
impl PoolStore for CountingStore {}
impl EventStore for CountingStore {}
impl EventAdmin for CountingStore {}
impl ScheduleStore for CountingStore {}
impl ScheduleAdmin for CountingStore {}
