//! Elections for sessions: the election store grants leases, and the data store adopts them.

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use tenure_core::port::{
    AdoptLeaseRequest, BoxNotificationSource, Candidacy, ElectionStore, ElectionsObservation, ErrorKind,
    ExpireSessionRequest, HeartbeatResponse, JoinElectionResponse, LeaderRequest, Notification,
    NotificationSource, ObserveScope, OpenSessionRequest, ReleaseLeaseRequest, StartReason, StoreError,
    TakeLeaseRequest, TakeoverMode,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::PairedStore;
use crate::store::no_notifications;

#[async_trait]
impl ElectionStore for PairedStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        session.check()?;
        // Leadership must not depend on the connection to the data store.
        let in_data_store = OpenSessionRequest { takeover: TakeoverMode::Lease, ..session.clone() };
        let HeartbeatResponse::Live { epoch, .. } = self.data_store.open_session(&in_data_store).await?
        else {
            return Ok(HeartbeatResponse::SessionEnded);
        };
        let response = self.election_store.open_session(session).await?;
        match response {
            HeartbeatResponse::Live { .. } => drop(self.is_in_start_epoch(&session.id, epoch)),
            HeartbeatResponse::SessionEnded => self.data_store.end_session(&session.id).await?,
        }
        Ok(response)
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        // Data store first: a process that cannot reach it must also stop its heartbeats in the election store, so
        // that another candidate takes over.
        match self.data_store.heartbeat(session).await? {
            HeartbeatResponse::Live { epoch, .. } if self.is_in_start_epoch(session, epoch) => {}
            // The session has ended in the data store. Without further heartbeats in the election store, other
            // candidates take over after a whole lease, when this leader has stopped.
            _ => {
                self.forget_start_epoch(session);
                return Ok(HeartbeatResponse::SessionEnded);
            }
        }
        let response = self.election_store.heartbeat(session).await?;
        if response == HeartbeatResponse::SessionEnded {
            self.expire_in_data_store_later(session);
        }
        Ok(response)
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.forget_start_epoch(session);
        let (in_data_store, in_election_store) =
            tokio::join!(self.data_store.end_session(session), self.election_store.end_session(session));
        in_election_store.and(in_data_store)
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.election_store.join_election(candidacy).await
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.election_store.leave_election(session, election).await
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        self.election_store.observe(session, scope).await
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        let token = self.election_store.take_lease(take).await?;
        let taken = match token {
            Some(token) => self.adopt(take, token).await,
            None => Ok(None),
        };
        // The silent session expires even if the lease was refused. The new leader does not wait for it.
        if let Some(expired) = &take.expire {
            let (paired, session) = (self.clone(), expired.session.clone());
            tokio::spawn(async move { paired.expire_in_data_store_if_ended(&session).await });
        }
        taken
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        let (in_data_store, in_election_store) =
            tokio::join!(self.data_store.release_lease(release), self.election_store.release_lease(release));
        // If the data store still holds the lease, the next adoption replaces it, because the next token is higher.
        if let Err(error) = in_data_store {
            tracing::debug!(election = %release.election, "releasing a lease in the data store failed: {error}");
        }
        in_election_store
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        let id = std::slice::from_ref(&expire.session);
        let known = |views: Vec<tenure_core::port::SessionView>| views.into_iter().next();
        match known(self.election_store.sessions(Some(id)).await?) {
            // A session that the election store does not know has the heartbeat count of the data store; see `sessions`.
            None => {
                let epoch = self.epoch.load(std::sync::atomic::Ordering::Relaxed);
                return self
                    .data_store
                    .expire_session(&ExpireSessionRequest { epoch, ..expire.clone() })
                    .await;
            }
            Some(view) if view.live => self.election_store.expire_session(expire).await?,
            Some(_) => {}
        }
        match known(self.election_store.sessions(Some(id)).await?) {
            Some(view) if view.live => Ok(()),
            _ => self.expire_in_data_store(&expire.session).await,
        }
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        self.election_store.request_leader(request).await
    }

    fn watch_sessions(&self, sessions: &[SessionId]) {
        self.election_store.watch_sessions(sessions);
    }

    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        self.election_store.kernel_lock(session).or_else(|| self.data_store.kernel_lock(session))
    }

    fn notifications(&self) -> BoxNotificationSource {
        Box::new(MergedNotificationSource {
            election_store: self.election_store.notifications(),
            data_store: self.data_store.notifications(),
        })
    }
}

impl PairedStore {
    /// Adopt a granted lease in the data store, or release it in the election store.
    async fn adopt(&self, take: &TakeLeaseRequest, token: Token) -> Result<Option<Token>, StoreError> {
        // Read the identity after the grant: a cluster that was restored in between has another identity.
        let granted_by = self.election_store.identity().await?;
        let (session, election, slot) = (take.session.clone(), take.election.clone(), take.slot);
        let adopt = AdoptLeaseRequest { session, election, slot, token, granted_by };
        // After an error the result is unknown. The candidate then releases a lease that it finds under its name, and does not trust it
        // before this call succeeds.
        if self.data_store.adopt_lease(&adopt).await? {
            return Ok(Some(token));
        }
        let AdoptLeaseRequest { session, election, slot, token, granted_by } = adopt;
        let message = format!(
            "{granted_by} granted {election} under token {token}, but {} does not adopt it, because another leader holds the lease \
             there; if this continues, start all processes with the same --election-store",
            self.data_store.guarantees().backend
        );
        let release = ReleaseLeaseRequest {
            session,
            election,
            slot,
            token,
            successor: None,
            start_reason: StartReason::Release,
            leave: false,
        };
        self.election_store.release_lease(&release).await?;
        Err(StoreError::new(ErrorKind::Unavailable, message))
    }

    /// Expire a session in the data store in the background.
    pub(super) fn expire_in_data_store_later(&self, session: &SessionId) {
        let (paired, session) = (self.clone(), session.clone());
        tokio::spawn(async move { paired.try_expire_in_data_store(&session).await });
    }

    async fn expire_in_data_store_if_ended(&self, session: &SessionId) {
        match self.election_store.sessions(Some(std::slice::from_ref(session))).await {
            Ok(views) if views.iter().any(|view| view.live) => {}
            Ok(_) => self.try_expire_in_data_store(session).await,
            Err(error) => tracing::debug!(
                session = session.short(),
                "reading a session from the election store failed: {error}"
            ),
        }
    }

    async fn try_expire_in_data_store(&self, session: &SessionId) {
        if let Err(error) = self.expire_in_data_store(session).await {
            // The broker expires it after its lease.
            tracing::debug!(
                session = session.short(),
                "expiring a session in the data store failed: {error}"
            );
        }
    }
}

/// The notifications of both stores: about elections from one, about everything else from the other.
struct MergedNotificationSource {
    election_store: BoxNotificationSource,
    data_store: BoxNotificationSource,
}

#[async_trait]
impl NotificationSource for MergedNotificationSource {
    async fn next(&mut self) -> Option<Notification> {
        loop {
            tokio::select! {
                notification = self.election_store.next() => match notification {
                    Some(notification) => return Some(notification),
                    None => self.election_store = no_notifications(),
                },
                notification = self.data_store.next() => match notification {
                    Some(notification) if is_data_notification(&notification) => return Some(notification),
                    Some(_) => {}
                    None => self.data_store = no_notifications(),
                },
            }
        }
    }
}

fn is_data_notification(notification: &Notification) -> bool {
    match notification {
        Notification::QueueReady(_)
        | Notification::ClaimCancelled(_)
        | Notification::PoolChanged(_)
        | Notification::TopicPublished(_)
        | Notification::GroupChanged(_)
        | Notification::SchedulesChanged
        | Notification::Resync => true,
        Notification::LeaseReleased { .. }
        | Notification::ElectionChanged(_)
        | Notification::LeaderRequested(_)
        | Notification::SessionEnded(_)
        | Notification::SessionExpired(_)
        | Notification::ConnectionLost(_) => false,
    }
}
