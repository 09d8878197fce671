//! Implementation of the store ports on a Raft cluster.

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tenure_core::port::{
    AccessStore, AuditEntry, BoxNotificationSource, Candidacy, Credential, ElectionAdmin, ElectionStore,
    ElectionView, ElectionsObservation, ErrorKind, ExpireSessionRequest, Finding, FindingStatus,
    HeartbeatResponse, JoinElectionResponse, LeaderRequest, ObserveScope, OpenSessionRequest, Pause,
    RaftMemberAction, RaftStatus, ReleaseLeaseRequest, SessionView, StoreError, StoreGuarantees,
    TakeLeaseRequest, TakeoverMode, Term,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};

use super::RaftStore;
use super::protocol::RaftRequest;
use super::types::{IDENTITY, RaftRead, RaftWrite};
use super::{RaftRole, follow};
use crate::store::BroadcastNotificationSource;
use crate::store::notification_channel::ChannelNotificationSource;

impl RaftStore {
    async fn write<T: DeserializeOwned>(&self, change: RaftWrite) -> Result<T, StoreError> {
        self.execute_write(change).await?.read()
    }

    async fn read<T: DeserializeOwned>(&self, read: RaftRead) -> Result<T, StoreError> {
        self.execute_read(read).await?.read()
    }
}

/// Guarantees of the Raft store.
pub const GUARANTEES: StoreGuarantees = StoreGuarantees {
    backend: "Raft",
    at_most_one: "yes, for clock rates within 1.2x",
    netsplit: "the minority side has no leader",
    after_crash: "an election timeout and a lease",
};

#[async_trait]
impl ElectionStore for RaftStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        session.check()?;
        if session.takeover == TakeoverMode::Connection {
            return Err(StoreError::new(
                ErrorKind::Request,
                "the Raft store does not support the takeover mode `connection`: its sessions are not bound to connections; use `lease`",
            ));
        }
        self.write(RaftWrite::OpenSession(session.clone())).await
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        self.write(RaftWrite::Heartbeat(session.clone())).await
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.write(RaftWrite::EndSession(session.clone())).await
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.write(RaftWrite::JoinElection(candidacy.clone())).await
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.write(RaftWrite::LeaveElection(session.clone(), election.clone())).await
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        self.read(RaftRead::Observe(session.clone(), scope.clone())).await
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        self.write(RaftWrite::TakeLease(take.clone())).await
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        self.write(RaftWrite::ReleaseLease(release.clone())).await
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        self.write(RaftWrite::ExpireSession(expire.clone())).await
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        self.write(RaftWrite::RequestLeader(request.clone())).await
    }

    fn notifications(&self) -> BoxNotificationSource {
        match &self.role {
            RaftRole::Member(node) => Box::new(BroadcastNotificationSource(node.notifications.subscribe())),
            RaftRole::Client { client, peers, .. } => Box::new(ChannelNotificationSource(follow(
                client.clone(),
                peers.clone(),
                self.runtime.clone(),
            ))),
        }
    }
}

#[async_trait]
impl ElectionAdmin for RaftStore {
    fn guarantees(&self) -> StoreGuarantees {
        GUARANTEES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let known: Option<String> = self.read(RaftRead::Get(IDENTITY.into())).await?;
        let name = match known {
            Some(name) => name,
            None => self.write(RaftWrite::SetIdentity(format!("{:016x}", self.runtime.random()))).await?,
        };
        Ok(format!("raft {name}"))
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.read(RaftRead::Elections(namespace.cloned())).await
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.read(RaftRead::Election(key.clone())).await
    }

    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.read(RaftRead::TermHistory(key.clone(), limit)).await
    }

    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.write(RaftWrite::SetElectionPaused(key.clone(), pause.cloned())).await
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.read(RaftRead::Sessions(which.map(<[SessionId]>::to_vec))).await
    }

    async fn raft_status(&self) -> Result<Option<RaftStatus>, StoreError> {
        Ok(Some(self.status().await?))
    }

    async fn change_raft_members(&self, action: &RaftMemberAction) -> Result<(), StoreError> {
        match action {
            RaftMemberAction::Add { node_id: node, address } => self.add_member(*node, address).await,
            RaftMemberAction::Remove { node_id: node } => self.remove_member(*node).await,
            RaftMemberAction::Transfer { node_id: node } => self.transfer_leader(*node).await,
        }
    }

    async fn failed(&self) -> StoreError {
        match &self.role {
            RaftRole::Member(node) => node.until_stopped().await,
            RaftRole::Client { .. } => std::future::pending().await,
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        let status = self.status().await?;
        let leader = match status.leader {
            Some(leader) => Finding::new(
                "Raft leader",
                format!("node {leader}, term {}", status.term),
                FindingStatus::Ok,
                "",
            ),
            None => Finding::new(
                "Raft leader",
                "none",
                FindingStatus::Error,
                "no majority of the members is reachable; check that the members run",
            ),
        };
        let voters = status.members.iter().filter(|member| member.voter).count();
        let (finding, advice) = match voters {
            1 => (FindingStatus::Warning, "a single member tolerates no failure; three members tolerate one"),
            n if n % 2 == 0 => (
                FindingStatus::Warning,
                "an even number of voters tolerates no more failures than one voter fewer",
            ),
            _ => (FindingStatus::Ok, ""),
        };
        Ok(vec![leader, Finding::new("voting members", voters.to_string(), finding, advice)])
    }
}

#[async_trait]
impl AccessStore for RaftStore {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.read(RaftRead::Credentials).await
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.write(RaftWrite::PutCredential(Box::new(credential.clone()))).await
    }

    async fn append_audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        self.write(RaftWrite::AppendAudit(Box::new(entry.clone()))).await
    }

    async fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        self.read(RaftRead::AuditEntries(namespace.cloned(), before, limit)).await
    }

    async fn prune_access(&self, before_ms: i64) -> Result<(), StoreError> {
        self.write(RaftWrite::PruneAccess(before_ms)).await
    }
}

/// Cluster membership.
impl RaftStore {
    /// Return the state of the cluster as the contacted member sees it.
    pub async fn status(&self) -> Result<RaftStatus, StoreError> {
        match &self.role {
            RaftRole::Member(node) => Ok(node.status()),
            RaftRole::Client { .. } => self.send_to_any(&RaftRequest::Status).await,
        }
    }

    /// Add a member as a learner; it becomes a voter once it has caught up.
    pub async fn add_member(&self, node: u64, address: &str) -> Result<(), StoreError> {
        self.manage(RaftRequest::AddMember(node, address.into())).await
    }

    /// Remove a member.
    pub async fn remove_member(&self, node: u64) -> Result<(), StoreError> {
        self.manage(RaftRequest::RemoveMember(node)).await
    }

    /// Transfer Raft leadership to a member.
    pub async fn transfer_leader(&self, node: u64) -> Result<(), StoreError> {
        self.manage(RaftRequest::TransferLeader(node)).await
    }
}
