//! Maps the tokens of a store to grant numbers.
//!
//! Tokens only need to grow, so each store may choose its own numbers, such as the revision of etcd or the index of a
//! log entry. The reference store counts grants. So that one suite serves all stores, [`TokenCheckedStore`] replaces
//! each token by the number of its grant in its slot. All clients of a store under test share one [`GrantLog`], which
//! records every grant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tenure_core::port::{
    AccessStore, AuditEntry, BoxNotificationSource, Candidacy, Credential, ElectionAdmin, ElectionStore,
    ElectionView, ElectionsObservation, EventAdmin, EventStore, ExpireSessionRequest, Finding,
    HeartbeatResponse, JoinElectionResponse, LeaderRequest, Notification, NotificationSource, ObserveScope,
    OpenSessionRequest, Pause, PoolStore, ReleaseLeaseRequest, ScheduleAdmin, ScheduleStore, SessionView,
    StoreError, StoreGuarantees, TakeLeaseRequest, TaskAdmin, TaskStore, Term,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};

/// The grants of all slots, in order.
#[derive(Clone, Debug, Default)]
pub struct GrantLog(Arc<Mutex<BTreeMap<Slot, Vec<Token>>>>);

type Slot = (ElectionKey, u32);

impl GrantLog {
    fn granted(&self, key: &ElectionKey, slot: u32, token: Token) -> Token {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grants = all.entry((key.clone(), slot)).or_default();
        assert!(
            grants.last().is_none_or(|last| *last < token),
            "tokens of {key} must grow: {grants:?}, then {token:?}"
        );
        grants.push(token);
        Token::from_u64(grants.len() as u64)
    }

    /// The grant number of a token that the store returned.
    fn shown(&self, key: &ElectionKey, slot: u32, token: Token) -> Token {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grants = all.get(&(key.clone(), slot)).map(Vec::as_slice).unwrap_or_default();
        let number = grants.iter().position(|grant| *grant == token).map_or(0, |at| at + 1);
        assert!(
            number > 0 || token == Token::ZERO,
            "{key} shows {token:?}, which was never granted: {grants:?}"
        );
        Token::from_u64(number as u64)
    }

    /// The store's token for a grant number. For a number that was not granted, returns a token that will never be
    /// granted.
    fn meant(&self, key: &ElectionKey, slot: u32, number: Token) -> Token {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grants = all.get(&(key.clone(), slot)).map(Vec::as_slice).unwrap_or_default();
        match usize::try_from(number.as_u64()).unwrap_or(usize::MAX) {
            0 => Token::ZERO,
            n => grants.get(n - 1).copied().unwrap_or(Token::from_u64(u64::MAX >> 1)),
        }
    }

    fn view(&self, mut view: ElectionView) -> ElectionView {
        for lease in &mut view.leases {
            lease.token = self.shown(&view.key, lease.slot, lease.token);
        }
        view
    }

    fn leader_request(&self, mut leader_request: LeaderRequest) -> LeaderRequest {
        leader_request.token =
            self.shown(&leader_request.election, leader_request.slot, leader_request.token);
        leader_request
    }

    fn response(&self, response: HeartbeatResponse) -> HeartbeatResponse {
        match response {
            HeartbeatResponse::Live { epoch, leader_requests: requests } => HeartbeatResponse::Live {
                epoch,
                leader_requests: requests
                    .into_iter()
                    .map(|leader_request| self.leader_request(leader_request))
                    .collect(),
            },
            HeartbeatResponse::SessionEnded => HeartbeatResponse::SessionEnded,
        }
    }

    fn notification(&self, notification: Notification) -> Notification {
        match notification {
            Notification::LeaseReleased {
                election,
                slot,
                token,
                released_by: by,
                successor,
                start_reason: via,
            } => {
                let token = self.shown(&election, slot, token);
                Notification::LeaseReleased {
                    election,
                    slot,
                    token,
                    released_by: by,
                    successor,
                    start_reason: via,
                }
            }
            other => other,
        }
    }
}

/// A store that replaces tokens by grant numbers in requests and responses.
pub struct TokenCheckedStore<B> {
    store: B,
    grants: GrantLog,
}

impl<B> TokenCheckedStore<B> {
    /// Wraps one client of a store; all clients share `grants`.
    pub fn new(store: B, grants: &GrantLog) -> Self {
        TokenCheckedStore { store, grants: grants.clone() }
    }
}

#[async_trait]
impl<B: ElectionStore> ElectionStore for TokenCheckedStore<B> {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        self.store.open_session(session).await.map(|response| self.grants.response(response))
    }
    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        self.store.heartbeat(session).await.map(|response| self.grants.response(response))
    }
    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.store.end_session(session).await
    }
    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.store.join_election(candidacy).await
    }
    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.store.leave_election(session, election).await
    }
    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        let mut observed = self.store.observe(session, scope).await?;
        observed.elections = observed.elections.into_iter().map(|view| self.grants.view(view)).collect();
        for (key, slot, token) in &mut observed.orphaned_leases {
            *token = self.grants.shown(key, *slot, *token);
        }
        Ok(observed)
    }
    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        let token = self.grants.meant(&take.election, take.slot, take.token);
        let granted = self.store.take_lease(&TakeLeaseRequest { token, ..take.clone() }).await?;
        Ok(granted.map(|token| self.grants.granted(&take.election, take.slot, token)))
    }
    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        let token = self.grants.meant(&release.election, release.slot, release.token);
        self.store.release_lease(&ReleaseLeaseRequest { token, ..release.clone() }).await
    }
    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        self.store.expire_session(expire).await
    }
    async fn request_leader(&self, leader_request: &LeaderRequest) -> Result<bool, StoreError> {
        let token = self.grants.meant(&leader_request.election, leader_request.slot, leader_request.token);
        self.store.request_leader(&LeaderRequest { token, ..leader_request.clone() }).await
    }
    fn watch_sessions(&self, sessions: &[SessionId]) {
        self.store.watch_sessions(sessions);
    }
    fn notifications(&self) -> BoxNotificationSource {
        Box::new(TokenCheckedNotifications {
            notifications: self.store.notifications(),
            grants: self.grants.clone(),
        })
    }
}

struct TokenCheckedNotifications {
    notifications: BoxNotificationSource,
    grants: GrantLog,
}

#[async_trait]
impl NotificationSource for TokenCheckedNotifications {
    async fn next(&mut self) -> Option<Notification> {
        self.notifications.next().await.map(|notification| self.grants.notification(notification))
    }
}

#[async_trait]
impl<B: ElectionAdmin> ElectionAdmin for TokenCheckedStore<B> {
    fn guarantees(&self) -> StoreGuarantees {
        self.store.guarantees()
    }
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        let views = self.store.elections(namespace).await?;
        Ok(views.into_iter().map(|view| self.grants.view(view)).collect())
    }
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        Ok(self.store.election(key).await?.map(|view| self.grants.view(view)))
    }
    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        let mut terms = self.store.term_history(key, limit).await?;
        for term in &mut terms {
            term.token = self.grants.shown(key, term.slot, term.token);
        }
        Ok(terms)
    }
    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.store.set_election_paused(key, pause).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.store.sessions(which).await
    }
    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        self.store.clock_seconds().await
    }
    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        self.store.diagnose().await
    }
}

#[async_trait]
impl<B: AccessStore> AccessStore for TokenCheckedStore<B> {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.store.credentials().await
    }
    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.store.put_credential(credential).await
    }
    async fn append_audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        self.store.append_audit(entry).await
    }
    async fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        self.store.audit_entries(namespace, before, limit).await
    }
    async fn prune_access(&self, before_ms: i64) -> Result<(), StoreError> {
        self.store.prune_access(before_ms).await
    }
}

impl<B: ElectionStore> TaskStore for TokenCheckedStore<B> {}
impl<B: ElectionStore> TaskAdmin for TokenCheckedStore<B> {}
impl<B: ElectionStore> PoolStore for TokenCheckedStore<B> {}
impl<B: ElectionStore> EventStore for TokenCheckedStore<B> {}
impl<B: ElectionStore> EventAdmin for TokenCheckedStore<B> {}
impl<B: ElectionStore> ScheduleStore for TokenCheckedStore<B> {}
impl<B: ElectionStore> ScheduleAdmin for TokenCheckedStore<B> {}
