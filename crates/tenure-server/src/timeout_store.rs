//! Store with a timeout for every call.
//!
//! A request that waits for a hanging store would hold its permit forever. So every call of a request has a
//! timeout; its outcome is then unknown, as after every store error.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::port::{
    AdoptLeaseRequest, BoxNotificationSource, Candidacy, ElectionAdmin, ElectionStore, ElectionView,
    ElectionsObservation, ErrorKind, ExpireSessionRequest, Finding, HeartbeatResponse, JoinElectionResponse,
    LeaderRequest, ObserveScope, OpenSessionRequest, Pause, RaftMemberAction, RaftStatus,
    ReleaseLeaseRequest, SessionView, Store, StoreError, StoreGuarantees, TakeLeaseRequest, Term,
};
use tenure::{ElectionKey, Name, SessionId, Timing, Token};

type StoreResult<T> = Result<T, StoreError>;

/// Store with a timeout for every call.
pub(crate) struct TimeoutStore {
    inner: Arc<dyn Store>,
    limit: Duration,
}

impl TimeoutStore {
    pub(crate) fn new(inner: Arc<dyn Store>, limit: Duration) -> TimeoutStore {
        TimeoutStore { inner, limit }
    }

    async fn within<T>(&self, call: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
        tokio::time::timeout(self.limit, call).await.unwrap_or_else(|_| {
            let message = format!("the store did not respond within {:?}", self.limit);
            Err(StoreError::new(ErrorKind::Timeout, message))
        })
    }
}

#[async_trait]
impl ElectionStore for TimeoutStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> StoreResult<HeartbeatResponse> {
        self.within(self.inner.open_session(session)).await
    }
    async fn heartbeat(&self, session: &SessionId) -> StoreResult<HeartbeatResponse> {
        self.within(self.inner.heartbeat(session)).await
    }
    async fn end_session(&self, session: &SessionId) -> StoreResult<()> {
        self.within(self.inner.end_session(session)).await
    }
    async fn join_election(&self, candidacy: &Candidacy) -> StoreResult<JoinElectionResponse> {
        self.within(self.inner.join_election(candidacy)).await
    }
    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> StoreResult<()> {
        self.within(self.inner.leave_election(session, election)).await
    }
    async fn observe(&self, session: &SessionId, scope: &ObserveScope) -> StoreResult<ElectionsObservation> {
        self.within(self.inner.observe(session, scope)).await
    }
    async fn take_lease(&self, take: &TakeLeaseRequest) -> StoreResult<Option<Token>> {
        self.within(self.inner.take_lease(take)).await
    }
    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> StoreResult<()> {
        self.within(self.inner.release_lease(release)).await
    }
    async fn expire_session(&self, expire: &ExpireSessionRequest) -> StoreResult<()> {
        self.within(self.inner.expire_session(expire)).await
    }
    async fn request_leader(&self, ask: &LeaderRequest) -> StoreResult<bool> {
        self.within(self.inner.request_leader(ask)).await
    }
    fn supports_adoption(&self) -> bool {
        self.inner.supports_adoption()
    }
    async fn adopt_lease(&self, adopt: &AdoptLeaseRequest) -> StoreResult<bool> {
        self.within(self.inner.adopt_lease(adopt)).await
    }
    fn watch_sessions(&self, sessions: &[SessionId]) {
        self.inner.watch_sessions(sessions);
    }
    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        self.inner.kernel_lock(session)
    }
    fn notifications(&self) -> BoxNotificationSource {
        self.inner.notifications()
    }
}

#[async_trait]
impl ElectionAdmin for TimeoutStore {
    fn guarantees(&self) -> StoreGuarantees {
        self.inner.guarantees()
    }
    async fn identity(&self) -> StoreResult<String> {
        self.within(self.inner.identity()).await
    }
    async fn elections(&self, namespace: Option<&Name>) -> StoreResult<Vec<ElectionView>> {
        self.within(self.inner.elections(namespace)).await
    }
    async fn election(&self, key: &ElectionKey) -> StoreResult<Option<ElectionView>> {
        self.within(self.inner.election(key)).await
    }
    async fn term_history(&self, key: &ElectionKey, limit: u32) -> StoreResult<Vec<Term>> {
        self.within(self.inner.term_history(key, limit)).await
    }
    async fn set_election_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> StoreResult<bool> {
        self.within(self.inner.set_election_paused(key, pause)).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> StoreResult<Vec<SessionView>> {
        self.within(self.inner.sessions(which)).await
    }
    async fn raft_status(&self) -> StoreResult<Option<RaftStatus>> {
        self.within(self.inner.raft_status()).await
    }
    /// The store itself limits this call: a new member must catch up first.
    async fn change_raft_members(&self, order: &RaftMemberAction) -> StoreResult<()> {
        self.inner.change_raft_members(order).await
    }
    fn default_timing(&self) -> Option<Timing> {
        self.inner.default_timing()
    }
    async fn clock_seconds(&self) -> StoreResult<Option<f64>> {
        self.within(self.inner.clock_seconds()).await
    }
    async fn failed(&self) -> StoreError {
        self.inner.failed().await
    }
    async fn diagnose(&self) -> StoreResult<Vec<Finding>> {
        self.within(self.inner.diagnose()).await
    }
}

/// Forward calls with the timeout; in brackets, calls that do not reach the store.
macro_rules! bounded {
    (impl $port:path {
        $([$plain:ident -> $value:ty])*
        $($call:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*
    }) => {
        #[async_trait]
        impl $port for TimeoutStore {
            $(fn $plain(&self) -> $value {
                self.inner.$plain()
            })*
            $(async fn $call(&self, $($name: $kind),*) -> StoreResult<$answer> {
                self.within(self.inner.$call($($name),*)).await
            })*
        }
    };
}

tenure::pass_on_work!(bounded);
