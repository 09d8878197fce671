//! The reference store behind the simulated network, with an asynchronous standby.

use tenure_core::model::elections::Elections;
use tenure_core::port::{ErrorKind, ExpireSessionRequest, HeartbeatResponse, StoreError, TakeLeaseRequest};
use tenure_core::rules::lease::{StoreCommand, StoreResponse};
use tenure_core::{ElectionKey, SessionId, Token};

use super::InjectedBug;

pub(super) struct SimStore {
    pub(super) elections: Elections,
    /// Data that the standby has received.
    standby: Elections,
    bug: Option<InjectedBug>,
    epochs_forgotten: u32,
}

impl SimStore {
    pub(super) fn new(bug: Option<InjectedBug>) -> Self {
        // The first epoch of a server is 1.
        let mut elections = Elections::default();
        elections.promote();
        SimStore { standby: elections.clone(), elections, bug, epochs_forgotten: 0 }
    }

    /// Copies the current state to the standby.
    pub(super) fn replicate(&mut self) {
        self.standby = self.elections.clone();
        self.standby.drain_notifications();
    }

    /// Promotes the standby with the data it has received.
    pub(super) fn promote(&mut self) {
        self.elections = self.standby.clone();
        if self.bug == Some(InjectedBug::TokensForgetTheEpoch) {
            self.epochs_forgotten += 1;
        } else {
            self.elections.promote();
        }
        self.standby = self.elections.clone();
    }

    /// Applies a command. `None` for a command without a response.
    pub(super) fn call(&mut self, command: &StoreCommand, wall_ms: i64) -> Option<StoreResponse> {
        let elections = &mut self.elections;
        let response = match command {
            StoreCommand::Open(session) => {
                let known = elections.session(&session.id).is_some_and(|session| session.live);
                if known && self.bug == Some(InjectedBug::HostnameAsSessionId) {
                    StoreResponse::Heartbeat(Ok(elections.heartbeat(&session.id, wall_ms)))
                } else {
                    StoreResponse::Heartbeat(Ok(elections.open_session(session, wall_ms)))
                }
            }
            StoreCommand::Heartbeat(id) => {
                StoreResponse::Heartbeat(Ok(match elections.heartbeat(id, wall_ms) {
                    HeartbeatResponse::SessionEnded
                        if self.bug == Some(InjectedBug::HeartbeatRevivesAnExpiredSession) =>
                    {
                        HeartbeatResponse::Live { epoch: elections.epoch(), leader_requests: Vec::new() }
                    }
                    other => other,
                }))
            }
            StoreCommand::End(id) => {
                elections.end_session(id, wall_ms);
                StoreResponse::Done(Ok(()))
            }
            StoreCommand::Join(candidacy) => {
                StoreResponse::Joined(Ok(elections.join_election(candidacy, wall_ms)))
            }
            StoreCommand::Leave(id, key) => {
                elections.leave_election(id, key);
                StoreResponse::Done(Ok(()))
            }
            StoreCommand::Observe(id, scope) => StoreResponse::Observed(Ok(elections.observe(id, scope))),
            StoreCommand::Take(take) => StoreResponse::Taken(Ok(self.take(take, wall_ms))),
            StoreCommand::Release(release) => {
                elections.release_lease(release, wall_ms);
                StoreResponse::Done(Ok(()))
            }
            StoreCommand::Expire(expire) => {
                let expire = self.careless(expire);
                self.elections.expire_session(&expire, wall_ms);
                StoreResponse::Done(Ok(()))
            }
            StoreCommand::RequestLeader(request) => {
                StoreResponse::LeaderRequested(Ok(elections.request_leader(request)))
            }
            StoreCommand::Watch(_) => return None,
        };
        Some(self.with_epoch(response))
    }

    fn take(&mut self, take: &TakeLeaseRequest, wall_ms: i64) -> Option<Token> {
        let mut take = take.clone();
        take.epoch -= self.epochs_forgotten.min(take.epoch);
        take.expire = take.expire.map(|expire| self.careless(&expire));
        if self.bug == Some(InjectedBug::TakeWithoutCompareAndSwap) {
            let view = self.elections.election(&take.election)?;
            let lease = view.leases.get(take.slot as usize)?;
            let holder = lease.holder.as_ref().map(|holder| holder.id.clone());
            take.token = lease.token;
            take.expire = holder
                .clone()
                .filter(|holder| *holder != take.session)
                .map(|session| ExpireSessionRequest { session, epoch: take.epoch, heartbeat_count: None });
            take.holder = holder;
        }
        self.elections.take_lease(&take, wall_ms)
    }

    fn careless(&self, expire: &ExpireSessionRequest) -> ExpireSessionRequest {
        let mut expire = expire.clone();
        expire.epoch -= self.epochs_forgotten.min(expire.epoch);
        if self.bug == Some(InjectedBug::ExpiryIgnoresTheHeartbeat) {
            expire.heartbeat_count = None;
        }
        expire
    }

    /// Sets the real epoch in responses if the injected bug drops the epoch from tokens, so that only the tokens are
    /// wrong.
    fn with_epoch(&self, mut response: StoreResponse) -> StoreResponse {
        match &mut response {
            StoreResponse::Heartbeat(Ok(HeartbeatResponse::Live { epoch, .. })) => {
                *epoch += self.epochs_forgotten
            }
            StoreResponse::Observed(Ok(seen)) => seen.epoch += self.epochs_forgotten,
            _ => {}
        }
        response
    }

    /// Whether this session holds this slot under this token, as the guard checks.
    pub(super) fn holds(&self, key: &ElectionKey, slot: u32, token: Token, session: &SessionId) -> bool {
        let Some(view) = self.elections.election(key) else { return false };
        let lease = view.leases.get(slot as usize).filter(|lease| lease.token == token);
        lease.is_some_and(|l| l.holder.as_ref().is_some_and(|holder| holder.live && holder.id == *session))
    }

    pub(super) fn is_live(&self, session: &SessionId) -> bool {
        self.elections.session(session).is_some_and(|session| session.live)
    }
}

/// The error of this kind that a process gets as the result of a command; `None` if the command has no response.
pub(super) fn no_answer(command: &StoreCommand, kind: ErrorKind) -> Option<StoreResponse> {
    let error = StoreError::new(kind, "");
    Some(match command {
        StoreCommand::Open(_) | StoreCommand::Heartbeat(_) => StoreResponse::Heartbeat(Err(error)),
        StoreCommand::Join(_) => StoreResponse::Joined(Err(error)),
        StoreCommand::Observe(..) => StoreResponse::Observed(Err(error)),
        StoreCommand::Take(_) => StoreResponse::Taken(Err(error)),
        StoreCommand::End(_)
        | StoreCommand::Leave(..)
        | StoreCommand::Release(_)
        | StoreCommand::Expire(_) => StoreResponse::Done(Err(error)),
        StoreCommand::RequestLeader(_) => StoreResponse::LeaderRequested(Err(error)),
        StoreCommand::Watch(_) => return None,
    })
}
