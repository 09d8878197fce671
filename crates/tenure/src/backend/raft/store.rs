//! The port, question by question.

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tenure_core::port::{
    Ask, Candidacy, Credential, Deed, Directory, ElectionView, Expire, Finding, Joined, MemberOrder,
    MemberView, Membership, NewSession, Observation, Office, Pause, Promises, Pulse, Release, Scope,
    SessionView, Store, StoreError, Take, Takeover, Term, Trouble, Verdict, Wakes,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};

use super::net::Question;
use super::types::{Change, IDENTITY, Look};
use super::{Kind, follow};
use super::{Member, Raft, Status};
use crate::backend::Heard;
use crate::backend::told::Told;

impl Raft {
    async fn write<T: DeserializeOwned>(&self, change: Change) -> Result<T, StoreError> {
        self.change(change).await?.read()
    }

    async fn read<T: DeserializeOwned>(&self, look: Look) -> Result<T, StoreError> {
        self.look(look).await?.read()
    }
}

/// What it promises.
pub const PROMISES: Promises = Promises {
    backend: "Raft",
    at_most_one: "yes, for clock rates within 1.2x",
    netsplit: "the minority has none",
    after_crash: "an election timeout and a lease",
};

#[async_trait]
impl Store for Raft {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        session.check()?;
        if session.takeover == Takeover::Connection {
            return Err(StoreError::new(
                Trouble::Request,
                "raft has no take-over mode `connection`: a session belongs to no connection; use `lease`",
            ));
        }
        self.write(Change::Open(session.clone())).await
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        self.write(Change::Beat(session.clone())).await
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        self.write(Change::End(session.clone())).await
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.write(Change::Join(candidacy.clone())).await
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.write(Change::Leave(session.clone(), election.clone())).await
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        self.read(Look::Observe(session.clone(), scope.clone())).await
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        self.write(Change::Take(take.clone())).await
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        self.write(Change::Release(release.clone())).await
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        self.write(Change::Expire(expire.clone())).await
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        self.write(Change::Ask(ask.clone())).await
    }

    fn wakes(&self) -> Wakes {
        match &self.kind {
            Kind::Member(node) => Box::new(Heard(node.wakes.subscribe())),
            Kind::Client { lines, peers, .. } => {
                Box::new(Told(follow(lines.clone(), peers.clone(), self.runtime.clone())))
            }
        }
    }
}

#[async_trait]
impl Directory for Raft {
    fn promises(&self) -> Promises {
        PROMISES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let known: Option<String> = self.read(Look::Get(IDENTITY.into())).await?;
        let name = match known {
            Some(name) => name,
            None => self.write(Change::Identify(format!("{:016x}", self.runtime.random()))).await?,
        };
        Ok(format!("raft {name}"))
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.read(Look::Elections(namespace.cloned())).await
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.read(Look::Election(key.clone())).await
    }

    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.read(Look::History(key.clone(), limit)).await
    }

    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.write(Change::SetPaused(key.clone(), pause.cloned())).await
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.read(Look::Sessions(which.map(<[SessionId]>::to_vec))).await
    }

    async fn membership(&self) -> Result<Option<Membership>, StoreError> {
        let Status { node, leader, term, index, members } = self.status().await?;
        let members = members.into_iter().map(|member| {
            let Member { node, place, votes, behind } = member;
            MemberView { node, place, votes, behind }
        });
        Ok(Some(Membership { node, leader, term, index, members: members.collect() }))
    }

    async fn order_member(&self, order: &MemberOrder) -> Result<(), StoreError> {
        match order {
            MemberOrder::Admit { node, place } => self.admit(*node, place).await,
            MemberOrder::Dismiss { node } => self.dismiss(*node).await,
            MemberOrder::Transfer { node } => self.transfer(*node).await,
        }
    }

    async fn failed(&self) -> StoreError {
        match &self.kind {
            Kind::Member(node) => node.until_stopped().await,
            Kind::Client { .. } => std::future::pending().await,
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        let status = self.status().await?;
        let leader = match status.leader {
            Some(leader) => Finding::new(
                "leader of the cluster",
                format!("node {leader}, term {}", status.term),
                Verdict::Good,
                "",
            ),
            None => Finding::new(
                "leader of the cluster",
                "none",
                Verdict::Bad,
                "fewer than half of the members can be reached",
            ),
        };
        let voters = status.members.iter().filter(|member| member.votes).count();
        let (verdict, advice) = match voters {
            1 => (Verdict::Fair, "a cluster of one ends with its machine; three survive the loss of one"),
            n if n % 2 == 0 => (Verdict::Fair, "an even number survives no more losses than one fewer"),
            _ => (Verdict::Good, ""),
        };
        Ok(vec![leader, Finding::new("members that vote", voters.to_string(), verdict, advice)])
    }
}

#[async_trait]
impl Office for Raft {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.read(Look::Credentials).await
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.write(Change::PutCredential(Box::new(credential.clone()))).await
    }

    async fn record(&self, deed: &Deed) -> Result<(), StoreError> {
        self.write(Change::Record(Box::new(deed.clone()))).await
    }

    async fn deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Deed>, StoreError> {
        self.read(Look::Deeds(namespace.cloned(), before, limit)).await
    }

    async fn forget(&self, before_ms: i64) -> Result<(), StoreError> {
        self.write(Change::Forget(before_ms)).await
    }
}

/// The members.
impl Raft {
    /// How the cluster stands, as the member that is asked sees it.
    pub async fn status(&self) -> Result<super::Status, StoreError> {
        match &self.kind {
            Kind::Member(node) => Ok(node.status()),
            Kind::Client { .. } => self.ask_any(&Question::Status).await,
        }
    }

    /// Takes a new member in: it learns first, and votes when it has caught up.
    pub async fn admit(&self, node: u64, place: &str) -> Result<(), StoreError> {
        self.manage(Question::Admit(node, place.into())).await
    }

    /// Lets a member go.
    pub async fn dismiss(&self, node: u64) -> Result<(), StoreError> {
        self.manage(Question::Dismiss(node)).await
    }

    /// Has a member lead the cluster.
    pub async fn transfer(&self, node: u64) -> Result<(), StoreError> {
        self.manage(Question::Transfer(node)).await
    }
}
