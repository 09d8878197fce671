//! Requests to a leader, and start reasons of terms.

use serde::{Deserialize, Serialize};

use crate::{ElectionKey, SessionId, Token};

/// A request to the holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LeaderRequest {
    /// Election of the lease.
    pub election: ElectionKey,
    /// Slot number.
    pub slot: u32,
    /// Token of the term. The request never reaches a later leader.
    pub token: Token,
    /// What the leader is asked to do.
    pub kind: LeaderRequestKind,
    /// Principal that makes the request; for display.
    pub requested_by: String,
}

/// Reasons to ask a leader to stop. In every case the leader finishes its work and releases the lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "kind", content = "to")]
pub enum LeaderRequestKind {
    /// A candidate with a higher priority wants to lead.
    Preempt(SessionId),
    /// An operator transfers leadership to this candidate.
    Transfer(SessionId),
    /// An operator wants any other candidate to lead.
    Resign,
    /// An operator paused the election.
    Pause,
}

impl LeaderRequestKind {
    /// Session that leads next, if the request names one.
    pub fn successor(&self) -> Option<&SessionId> {
        match self {
            LeaderRequestKind::Preempt(to) | LeaderRequestKind::Transfer(to) => Some(to),
            LeaderRequestKind::Resign | LeaderRequestKind::Pause => None,
        }
    }

    /// Start reason of the next term.
    pub fn start_reason(&self) -> StartReason {
        match self {
            LeaderRequestKind::Preempt(_) => StartReason::Preempt,
            LeaderRequestKind::Transfer(_) => StartReason::Transfer,
            LeaderRequestKind::Resign => StartReason::Resign,
            LeaderRequestKind::Pause => StartReason::Release,
        }
    }

    /// Name of the variant, as stored and displayed.
    pub fn as_str(&self) -> &'static str {
        match self {
            LeaderRequestKind::Preempt(_) => "preempt",
            LeaderRequestKind::Transfer(_) => "transfer",
            LeaderRequestKind::Resign => "resign",
            LeaderRequestKind::Pause => "pause",
        }
    }
}

/// How a term started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StartReason {
    /// The lease was free: never held, or released.
    #[default]
    Release,
    /// The previous leader died or was silent for a whole lease.
    Takeover,
    /// A candidate with a higher priority requested the lease.
    Preempt,
    /// An operator transferred leadership.
    Transfer,
    /// An operator made the previous leader resign.
    Resign,
}

impl StartReason {
    /// Whether an operator chose the leader. A candidate with a higher priority does not preempt such a leader.
    pub fn is_operator_choice(self) -> bool {
        matches!(self, StartReason::Transfer | StartReason::Resign)
    }

    /// Name of the variant, as stored and displayed.
    pub fn as_str(self) -> &'static str {
        match self {
            StartReason::Release => "release",
            StartReason::Takeover => "takeover",
            StartReason::Preempt => "preempt",
            StartReason::Transfer => "transfer",
            StartReason::Resign => "resign",
        }
    }

    /// Parses a name from [`as_str`](Self::as_str). An unknown name counts as a release.
    pub fn from_name(word: &str) -> StartReason {
        [StartReason::Takeover, StartReason::Preempt, StartReason::Transfer, StartReason::Resign]
            .into_iter()
            .find(|via| via.as_str() == word)
            .unwrap_or_default()
    }
}
