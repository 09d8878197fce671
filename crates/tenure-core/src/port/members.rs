//! The members of a store that is a cluster of processes by itself.

use serde::{Deserialize, Serialize};

/// How the cluster stands, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Membership {
    /// Who says so.
    pub node: u64,
    /// Who leads the cluster; nobody while fewer than half of the members can be reached.
    pub leader: Option<u64>,
    /// In which term.
    pub term: u64,
    /// The index of the last entry.
    pub index: u64,
    /// All members.
    pub members: Vec<MemberView>,
}

/// A member, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemberView {
    /// Its number.
    pub node: u64,
    /// Where it is.
    pub place: String,
    /// Whether it votes; if not, it learns.
    pub votes: bool,
    /// How many entries it is behind, if the leader says so.
    pub behind: Option<u64>,
}

/// What may be done about the members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "order", rename_all = "lowercase", deny_unknown_fields)]
pub enum MemberOrder {
    /// Takes a member in: it learns first, and votes when it has caught up.
    Admit {
        /// Its number, never used before.
        node: u64,
        /// Where it is: `HOST:PORT`.
        place: String,
    },
    /// Lets a member go. It takes no part any more, and its number is not used again.
    Dismiss {
        /// Its number.
        node: u64,
    },
    /// Has another member lead the cluster. Elections do not notice, but for a moment's delay.
    Transfer {
        /// Its number.
        node: u64,
    },
}
