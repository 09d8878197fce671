//! The in-memory store, for tests and for elections within one process.
//!
//! One mutex protects the models of elections ([`Elections`]) and work ([`Work`]), which all clones share. Another mutex protects the
//! [`Credentials`]. The state ends with the process.

mod events;
mod schedules;
mod work;

use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use tenure_core::model::credentials::Credentials;
use tenure_core::model::elections::Elections;
use tenure_core::model::work::Work;
use tenure_core::port::{
    AccessStore, AdoptLeaseRequest, AuditEntry, BoxNotificationSource, Candidacy, Credential, ElectionAdmin,
    ElectionStore, ElectionView, ElectionsObservation, ErrorKind, ExpireSessionRequest, HeartbeatResponse,
    JoinElectionResponse, LeaderRequest, Notification, ObserveScope, OpenSessionRequest, Pause,
    ReleaseLeaseRequest, SessionView, StoreError, StoreGuarantees, TakeLeaseRequest, Term,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};
use tokio::sync::broadcast;

use super::BroadcastNotificationSource;
use crate::runtime::{Runtime, SystemRuntime};

/// The guarantees of the in-memory store.
pub const GUARANTEES: StoreGuarantees = StoreGuarantees {
    backend: "memory",
    at_most_one: "in this process",
    netsplit: "not applicable",
    after_crash: "none; the state ends with the process",
};

/// The in-memory store. Clones share its state.
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// let store = tenure::store::memory::MemoryStore::new();
/// let a = tenure::Tenure::builder().store(store.clone()).name("a").open().await?;
/// let b = tenure::Tenure::builder().store(store).name("b").open().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<MemoryState>>,
    credentials: Arc<Mutex<Credentials>>,
    notifications: broadcast::Sender<Notification>,
    runtime: Arc<dyn Runtime>,
    /// Distinguishes this store from others, whose tokens do not compare.
    identity: Arc<str>,
}

/// The models that change together under one lock.
#[derive(Default)]
struct MemoryState {
    elections: Elections,
    work: Work,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_runtime(Arc::new(SystemRuntime))
    }

    /// An empty store with the wall clock of this runtime.
    pub fn with_runtime(runtime: Arc<dyn Runtime>) -> Self {
        let identity = format!("memory {:016x}", crate::runtime::random()).into();
        let notifications = broadcast::channel(1024).0;
        MemoryStore { state: Arc::default(), credentials: Arc::default(), notifications, runtime, identity }
    }

    fn lock_state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock_credentials(&self) -> MutexGuard<'_, Credentials> {
        self.credentials.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Change the elections, then send the resulting notifications.
    fn with_elections<T>(&self, change: impl FnOnce(&mut Elections, i64) -> T) -> T {
        self.with_state(|state, now| change(&mut state.elections, now))
    }

    /// Change the work model, which reads live sessions from the elections, then send the resulting notifications.
    fn with_work<T>(&self, change: impl FnOnce(&mut Work, &Elections, i64) -> T) -> T {
        self.with_state(|state, now| change(&mut state.work, &state.elections, now))
    }

    fn with_state<T>(&self, change: impl FnOnce(&mut MemoryState, i64) -> T) -> T {
        let mut state = self.lock_state();
        let result = change(&mut state, self.runtime.wall_ms());
        let notifications = [state.elections.drain_notifications(), state.work.drain_notifications()];
        for notification in notifications.into_iter().flatten() {
            // An error means that no client listens.
            let _ = self.notifications.send(notification);
        }
        result
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl ElectionStore for MemoryStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        session.check()?;
        Ok(self.with_elections(|elections, now| elections.open_session(session, now)))
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        Ok(self.with_elections(|elections, now| elections.heartbeat(session, now)))
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.with_elections(|elections, now| elections.end_session(session, now));
        Ok(())
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        Ok(self.with_elections(|elections, now| elections.join_election(candidacy, now)))
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.with_elections(|elections, _| elections.leave_election(session, election));
        Ok(())
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        Ok(self.lock_state().elections.observe(session, scope))
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        Ok(self.with_elections(|elections, now| elections.take_lease(take, now)))
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        self.with_elections(|elections, now| elections.release_lease(release, now));
        Ok(())
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        self.with_elections(|elections, now| elections.expire_session(expire, now));
        Ok(())
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        Ok(self.with_elections(|elections, _| elections.request_leader(request)))
    }

    fn supports_adoption(&self) -> bool {
        true
    }

    async fn adopt_lease(&self, adopt: &AdoptLeaseRequest) -> Result<bool, StoreError> {
        Ok(self.with_elections(|elections, now| elections.adopt_lease(adopt, now)))
    }

    fn notifications(&self) -> BoxNotificationSource {
        Box::new(BroadcastNotificationSource(self.notifications.subscribe()))
    }
}

#[async_trait]
impl ElectionAdmin for MemoryStore {
    fn guarantees(&self) -> StoreGuarantees {
        GUARANTEES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        Ok(self.identity.as_ref().to_owned())
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        Ok(self.lock_state().elections.elections(namespace))
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        Ok(self.lock_state().elections.election(key))
    }

    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        Ok(self.lock_state().elections.term_history(key, limit))
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        Ok(self.lock_state().elections.sessions(which))
    }

    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.with_elections(|elections, _| elections.set_election_paused(key, pause))
            .ok_or_else(|| no_such_election(key))
    }
}

#[async_trait]
impl AccessStore for MemoryStore {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        Ok(self.lock_credentials().credentials())
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.lock_credentials().put_credential(credential)
    }

    async fn append_audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        self.lock_credentials().append_audit(entry);
        Ok(())
    }

    async fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(self.lock_credentials().audit_entries(namespace, before, limit))
    }

    async fn prune_access(&self, before_ms: i64) -> Result<(), StoreError> {
        self.lock_credentials().prune_access(before_ms);
        Ok(())
    }
}

/// The error for an election that does not exist.
pub(crate) fn no_such_election(key: &ElectionKey) -> StoreError {
    StoreError::new(
        ErrorKind::Request,
        format!("election {key} does not exist; list elections with `tenure elections list`"),
    )
}
