//! Members of a Raft cluster that serves as the store.

use serde::{Deserialize, Serialize};

/// Status of a Raft cluster as one member sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RaftStatus {
    /// Node id of the member that reports this status.
    pub reported_by: u64,
    /// Node id of the Raft leader. `None` while no majority of the members can be reached.
    pub leader: Option<u64>,
    /// Current Raft term.
    pub term: u64,
    /// Index of the last log entry.
    pub index: u64,
    /// All members.
    pub members: Vec<RaftMember>,
}

/// A member of a Raft cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RaftMember {
    /// Node id.
    pub node_id: u64,
    /// Network address.
    pub address: String,
    /// Whether the member votes; otherwise it is a learner.
    pub voter: bool,
    /// Number of log entries by which the member lags behind. Known by the leader only.
    pub lag_entries: Option<u64>,
}

/// An operator's change of the Raft members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum RaftMemberAction {
    /// Adds a member. It starts as a learner and votes once it has caught up.
    Add {
        /// Node id, never used before.
        node_id: u64,
        /// Network address, `HOST:PORT`.
        address: String,
    },
    /// Removes a member. Its node id must not be used again.
    Remove {
        /// Node id.
        node_id: u64,
    },
    /// Transfers Raft leadership to another member. Elections continue after a short delay.
    Transfer {
        /// Node id.
        node_id: u64,
    },
}
