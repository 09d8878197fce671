//! Replicated writes, linearizable reads and their responses.

use std::io::Cursor;

use openraft::BasicNode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::port::{
    AuditEntry, Candidacy, Credential, ErrorKind, ExpireSessionRequest, LeaderRequest, ObserveScope,
    OpenSessionRequest, Pause, ReleaseLeaseRequest, StoreError, TakeLeaseRequest,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};

use super::sim_runtime::SimRuntime;

/// Key of the cluster identity in the key-value table.
pub(super) const IDENTITY: &str = "tenure/identity";

/// Node id of a member.
pub(super) type NodeId = u64;

openraft::declare_raft_types!(
    /// Type parameters of openraft.
    pub(super) Types:
        D = TimedWrite,
        R = RaftResponse,
        NodeId = NodeId,
        Node = BasicNode,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = SimRuntime,
);

pub(super) type Raft = openraft::Raft<Types>;

/// A replicated write with the wall clock of its sender. The wall clock is for display only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TimedWrite {
    pub(super) change: RaftWrite,
    pub(super) wall_ms: i64,
}

/// A replicated write.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RaftWrite {
    OpenSession(OpenSessionRequest),
    Heartbeat(SessionId),
    EndSession(SessionId),
    JoinElection(Candidacy),
    LeaveElection(SessionId, ElectionKey),
    TakeLease(TakeLeaseRequest),
    ReleaseLease(ReleaseLeaseRequest),
    ExpireSession(ExpireSessionRequest),
    RequestLeader(LeaderRequest),
    SetElectionPaused(ElectionKey, Option<Pause>),
    PutCredential(Box<Credential>),
    AppendAudit(Box<AuditEntry>),
    PruneAccess(i64),
    Put(PutValue),
    /// Records the log directory of a member. A member with another directory, or with an older copy, must not take
    /// part.
    Register(NodeId, LogDirectoryId),
    /// Sets the cluster identity if it is not set yet. A cluster that is created again has another identity.
    SetIdentity(String),
}

/// Identity of a member's log directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogDirectoryId {
    /// Random value chosen when the directory was created.
    pub(super) id: String,
    /// Number of starts of the member in this directory.
    pub(super) started: u64,
}

/// A write to the key-value table; with a token, only while the lease is held under that token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PutValue {
    pub(super) key: String,
    /// `None` deletes the value.
    pub(super) value: Option<String>,
    /// Random id of this write. A retry after a lost reply does not overwrite a later write.
    #[serde(default)]
    pub(super) write_id: u64,
    pub(super) lease: Option<(ElectionKey, u32, Token)>,
}

/// A linearizable read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RaftRead {
    Observe(SessionId, ObserveScope),
    Elections(Option<Name>),
    Election(ElectionKey),
    TermHistory(ElectionKey, u32),
    Sessions(Option<Vec<SessionId>>),
    Credentials,
    AuditEntries(Option<Name>, Option<i64>, u32),
    Get(String),
}

/// Error message of a member that is not the Raft leader.
const NOT_LEADING: &str = "the Raft leader has just changed; retry";

/// Response to a write or read: the value as JSON, or the error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RaftResponse(Result<Value, (ErrorKind, String)>);

impl RaftResponse {
    pub(super) fn ok(value: &impl Serialize) -> RaftResponse {
        // The port types are plain data; serialization cannot fail.
        RaftResponse(Ok(serde_json::to_value(value).unwrap_or(Value::Null)))
    }

    pub(super) fn error(error: StoreError) -> RaftResponse {
        RaftResponse(Err((error.kind, error.message)))
    }

    /// The member is not the Raft leader. It did nothing; the caller retries with the leader.
    pub(super) fn not_leading() -> RaftResponse {
        RaftResponse(Err((ErrorKind::Unavailable, NOT_LEADING.into())))
    }

    pub(super) fn is_not_leading(&self) -> bool {
        matches!(&self.0, Err((ErrorKind::Unavailable, message)) if message == NOT_LEADING)
    }

    /// Whether the member could not serve the request for now.
    pub(super) fn is_unavailable(&self) -> bool {
        matches!(&self.0, Err((ErrorKind::Unavailable, _)))
    }

    pub(super) fn empty() -> RaftResponse {
        RaftResponse(Ok(Value::Null))
    }

    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T, StoreError> {
        let value = self.0.map_err(|(kind, message)| StoreError::new(kind, message))?;
        serde_json::from_value(value).map_err(|error| {
            let message = format!("cannot decode the response of a Raft member: {error}; check that all members run the same version");
            StoreError::new(ErrorKind::Misconfigured, message)
        })
    }
}
