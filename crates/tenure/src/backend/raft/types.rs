//! What is agreed on: changes, and what comes of them.

use std::io::Cursor;

use openraft::BasicNode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::port::{
    Ask, Candidacy, Credential, Deed, Expire, NewSession, Pause, Release, Scope, StoreError, Take, Trouble,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};

use super::hosted::OnHost;

/// Where the small table has the cluster's name.
pub(super) const IDENTITY: &str = "tenure/identity";

/// A member's number.
pub(super) type NodeId = u64;

openraft::declare_raft_types!(
    /// What is agreed on, and by whom.
    pub(super) Types:
        D = Entry,
        R = Outcome,
        NodeId = NodeId,
        Node = BasicNode,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = OnHost,
);

pub(super) type Raft = openraft::Raft<Types>;

/// A change, and what the wall clock of whoever wanted it showed; for people.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) change: Change,
    pub(super) wall_ms: i64,
}

/// A change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    Open(NewSession),
    Beat(SessionId),
    End(SessionId),
    Join(Candidacy),
    Leave(SessionId, ElectionKey),
    Take(Take),
    Release(Release),
    Expire(Expire),
    Ask(Ask),
    SetPaused(ElectionKey, Option<Pause>),
    PutCredential(Box<Credential>),
    Record(Box<Deed>),
    Forget(i64),
    Put(Put),
    /// A member says which folder it keeps its log in: of another one, or of an older copy of it, it must not take part.
    Register(NodeId, Folder),
    /// What the cluster is called from the first time that this is said: one that is made anew has another name.
    Identify(String),
}

/// Where a member keeps its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Folder {
    /// What was drawn when it was made.
    pub(super) made: String,
    /// How often the member was started in it.
    pub(super) started: u64,
}

/// A value to be kept; with a holder's token, only while it holds the lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Put {
    pub(super) key: String,
    /// `None`: to be forgotten.
    pub(super) value: Option<String>,
    /// Drawn for this one: what is asked for again, because its answer was lost, is not written again over what came in between.
    #[serde(default)]
    pub(super) once: u64,
    pub(super) under: Option<(ElectionKey, u32, Token)>,
}

/// A look.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Look {
    Observe(SessionId, Scope),
    Elections(Option<Name>),
    Election(ElectionKey),
    History(ElectionKey, u32),
    Sessions(Option<Vec<SessionId>>),
    Credentials,
    Deeds(Option<Name>, Option<i64>, u32),
    Get(String),
}

/// What is said by who does not lead.
const NOT_LEADING: &str = "the leader of the cluster has just changed; ask again";

/// What came of a change or look: what the port says, in JSON, or why not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outcome(Result<Value, (Trouble, String)>);

impl Outcome {
    pub(super) fn of(value: &impl Serialize) -> Outcome {
        // The types of the port are plain; writing them can not fail.
        Outcome(Ok(serde_json::to_value(value).unwrap_or(Value::Null)))
    }

    pub(super) fn refused(error: StoreError) -> Outcome {
        Outcome(Err((error.kind, error.message)))
    }

    /// Whoever was asked does not lead: nothing was done, and somebody else will.
    pub(super) fn not_leading() -> Outcome {
        Outcome(Err((Trouble::Unavailable, NOT_LEADING.into())))
    }

    pub(super) fn is_not_leading(&self) -> bool {
        matches!(&self.0, Err((Trouble::Unavailable, message)) if message == NOT_LEADING)
    }

    /// Whether whoever was asked could do nothing about it now.
    pub(super) fn is_unavailable(&self) -> bool {
        matches!(&self.0, Err((Trouble::Unavailable, _)))
    }

    pub(super) fn nothing() -> Outcome {
        Outcome(Ok(Value::Null))
    }

    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T, StoreError> {
        let value = self.0.map_err(|(kind, message)| StoreError::new(kind, message))?;
        serde_json::from_value(value).map_err(|error| {
            let message = format!("a member answered in a form that this program does not understand: {error}; is it of another version?");
            StoreError::new(Trouble::Unfit, message)
        })
    }
}
