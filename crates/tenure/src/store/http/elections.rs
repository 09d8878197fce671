//! Sessions and elections through a server.

use async_trait::async_trait;
use http::Method;
use serde::Deserialize;
use tenure_core::port::{
    BoxNotificationSource, Candidacy, ElectionStore, ElectionsObservation, ExpireSessionRequest,
    HeartbeatResponse, JoinElectionResponse, LeaderRequest, ObserveScope, OpenSessionRequest,
    ReleaseLeaseRequest, StoreError, TakeLeaseRequest,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::HttpStore;
use super::client::{bare, part, send};

#[derive(Deserialize)]
struct TakeLeaseResponse {
    token: Option<Token>,
}

#[derive(Deserialize)]
struct LeaderRequestResponse {
    delivered: bool,
}

#[async_trait]
impl ElectionStore for HttpStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        let response = self.client.call(&send(Method::POST, "/internal/v1/sessions".into(), session)).await?;
        match response.is_session_ended() {
            // The id was used: by another client with the same 128 random bits, or by the first attempt of
            // this call.
            true if response.tries > 1 => self.heartbeat(&session.id).await,
            true => Ok(HeartbeatResponse::SessionEnded),
            false => response.read(),
        }
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        let response = self.client.call(&bare(Method::POST, at(session, "/heartbeat"))).await?;
        // After a change of credentials the session belongs to another principal: the client must open a new
        // one.
        let lost =
            response.is_session_ended() || response.code().as_deref() == Some("session-owned-by-other");
        if lost { Ok(HeartbeatResponse::SessionEnded) } else { response.read() }
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        let response = self.client.call(&bare(Method::DELETE, at(session, ""))).await?;
        if response.is_session_ended() { Ok(()) } else { response.done() }
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        let path = candidacy_path(&candidacy.session, &candidacy.election, "");
        let response = self.client.call(&send(Method::PUT, path, candidacy)).await?;
        if response.is_session_ended() { Ok(JoinElectionResponse::SessionEnded) } else { response.read() }
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let response = self.client.call(&bare(Method::DELETE, candidacy_path(session, election, ""))).await?;
        if response.is_session_ended() { Ok(()) } else { response.done() }
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        self.client.call(&send(Method::POST, internal_session_path(session, "/observe"), scope)).await?.read()
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        let path = candidacy_path(&take.session, &take.election, "/take-lease");
        let response = self.client.call(&send(Method::POST, path, take)).await?;
        // The server has not observed the silence for as long as this client: the client retries.
        if response.is_session_ended() || response.says("session-still-live") {
            return Ok(None);
        }
        response.read().map(|taken: TakeLeaseResponse| taken.token)
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        let path = candidacy_path(&release.session, &release.election, "/release-lease");
        let response = self.client.call(&send(Method::POST, path, release)).await?;
        if response.is_session_ended() { Ok(()) } else { response.done() }
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        let response =
            self.client.call(&send(Method::POST, "/internal/v1/expire-session".into(), expire)).await?;
        if response.says("session-still-live") { Ok(()) } else { response.done() }
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        let path = internal(&request.election, "/leader-request");
        let response = self.client.call(&send(Method::POST, path, request)).await?;
        // The priorities changed since they were observed.
        if response.says("priority-too-low") {
            return Ok(false);
        }
        response.read().map(|response: LeaderRequestResponse| response.delivered)
    }

    fn notifications(&self) -> BoxNotificationSource {
        super::notifications::open(self.client.clone())
    }
}

/// Public path of a session.
fn at(session: &SessionId, rest: &str) -> String {
    format!("/v1/sessions/{}{rest}", part(session.as_str()))
}

/// Internal path of a session.
fn internal_session_path(session: &SessionId, rest: &str) -> String {
    format!("/internal/v1/sessions/{}{rest}", part(session.as_str()))
}

/// Internal path of a candidacy.
fn candidacy_path(session: &SessionId, key: &ElectionKey, rest: &str) -> String {
    let path =
        format!("/elections/{}{rest}?namespace={}", part(key.name.as_str()), part(key.namespace.as_str()));
    internal_session_path(session, &path)
}

/// Internal path of an election.
pub(super) fn internal(key: &ElectionKey, rest: &str) -> String {
    let (name, namespace) = (part(key.name.as_str()), part(key.namespace.as_str()));
    format!("/internal/v1/elections/{name}{rest}?namespace={namespace}")
}

/// Public path of an election.
pub(super) fn of(key: &ElectionKey, rest: &str) -> String {
    format!("/v1/elections/{}{rest}?namespace={}", part(key.name.as_str()), part(key.namespace.as_str()))
}
