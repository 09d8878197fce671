//! The path of the machine, call by call.

use async_trait::async_trait;
use http::Method;
use serde::Deserialize;
use tenure_core::port::{
    Ask, Candidacy, Expire, Joined, NewSession, Observation, Pulse, Release, Scope, Store, StoreError, Take,
    Wakes,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::Http;
use super::caller::{bare, part, send};

#[derive(Deserialize)]
struct Taken {
    token: Option<Token>,
}

#[derive(Deserialize)]
struct Asked {
    asked: bool,
}

#[async_trait]
impl Store for Http {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        let answer = self.caller.call(&send(Method::POST, "/v1/sessions".into(), session)).await?;
        match answer.is_gone() {
            // The id was used: by whoever chose the same 128 random bits, or by our own first try.
            true if answer.tries > 1 => self.beat(&session.id).await,
            true => Ok(Pulse::Gone),
            false => answer.read(),
        }
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        let answer = self.caller.call(&bare(Method::POST, at(session, "/renew"))).await?;
        // Who is somebody else since its credentials changed can not use the session of whom it was: it begins a new one.
        let lost = answer.is_gone() || answer.code().as_deref() == Some("not-your-session");
        if lost { Ok(Pulse::Gone) } else { answer.read() }
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        let answer = self.caller.call(&bare(Method::DELETE, at(session, ""))).await?;
        if answer.is_gone() { Ok(()) } else { answer.done() }
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        let path = among(&candidacy.session, &candidacy.election, "");
        let answer = self.caller.call(&send(Method::PUT, path, candidacy)).await?;
        if answer.is_gone() { Ok(Joined::Gone) } else { answer.read() }
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let answer = self.caller.call(&bare(Method::DELETE, among(session, election, ""))).await?;
        if answer.is_gone() { Ok(()) } else { answer.done() }
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        self.caller.call(&send(Method::POST, at(session, "/observe"), scope)).await?.read()
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        let path = among(&take.session, &take.election, "/take");
        let answer = self.caller.call(&send(Method::POST, path, take)).await?;
        // The server has not watched for as long as we have: we come again.
        if answer.is_gone() || answer.says("not-silent") {
            return Ok(None);
        }
        answer.read().map(|taken: Taken| taken.token)
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        let path = among(&release.session, &release.election, "/release");
        let answer = self.caller.call(&send(Method::POST, path, release)).await?;
        if answer.is_gone() { Ok(()) } else { answer.done() }
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        let answer = self.caller.call(&send(Method::POST, "/v1/expire".into(), expire)).await?;
        if answer.says("not-silent") { Ok(()) } else { answer.done() }
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        let path = of(&ask.election, "/ask");
        let answer = self.caller.call(&send(Method::POST, path, ask)).await?;
        // What we saw of their priorities is no longer so.
        if answer.says("no-higher-priority") {
            return Ok(false);
        }
        answer.read().map(|answer: Asked| answer.asked)
    }

    fn wakes(&self) -> Wakes {
        super::listen::open(self.caller.clone())
    }
}

/// The path of a session.
fn at(session: &SessionId, rest: &str) -> String {
    format!("/v1/sessions/{}{rest}", part(session.as_str()))
}

/// The path of an election in which a session stands.
fn among(session: &SessionId, key: &ElectionKey, rest: &str) -> String {
    let path =
        format!("/elections/{}{rest}?namespace={}", part(key.name.as_str()), part(key.namespace.as_str()));
    at(session, &path)
}

/// The path of an election.
pub(super) fn of(key: &ElectionKey, rest: &str) -> String {
    format!("/v1/elections/{}{rest}?namespace={}", part(key.name.as_str()), part(key.namespace.as_str()))
}
