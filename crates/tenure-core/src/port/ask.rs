//! What may be asked of a leader, and how terms come about.

use serde::{Deserialize, Serialize};

use crate::{ElectionKey, SessionId, Token};

/// A request to the holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Which election.
    pub election: ElectionKey,
    /// Which of its slots.
    pub slot: u32,
    /// Which term: a request never reaches a later holder.
    pub token: Token,
    /// What is asked.
    pub kind: AskKind,
    /// Who asks, for people.
    pub by: String,
}

/// What may be asked of a leader. In each case it finishes, then releases.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase", tag = "kind", content = "to")]
pub enum AskKind {
    /// A candidate of higher priority would lead.
    Preempt(SessionId),
    /// An operator wants this candidate to lead.
    Transfer(SessionId),
    /// An operator wants somebody else to lead.
    Resign,
    /// An operator wants nobody to lead until the election is resumed.
    Pause,
}

impl AskKind {
    /// Who shall lead next, if that was said.
    pub fn successor(&self) -> Option<&SessionId> {
        match self {
            AskKind::Preempt(to) | AskKind::Transfer(to) => Some(to),
            AskKind::Resign | AskKind::Pause => None,
        }
    }

    /// How the next term will have come about.
    pub fn via(&self) -> Via {
        match self {
            AskKind::Preempt(_) => Via::Preempt,
            AskKind::Transfer(_) => Via::Transfer,
            AskKind::Resign => Via::Resign,
            AskKind::Pause => Via::Release,
        }
    }

    /// The word for it, in stores and for people.
    pub fn word(&self) -> &'static str {
        match self {
            AskKind::Preempt(_) => "preempt",
            AskKind::Transfer(_) => "transfer",
            AskKind::Resign => "resign",
            AskKind::Pause => "pause",
        }
    }
}

/// How a term came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// The lease was free: never held, or released.
    #[default]
    Release,
    /// The last holder died or fell silent.
    Takeover,
    /// A candidate of higher priority asked for it.
    Preempt,
    /// An operator moved it.
    Transfer,
    /// An operator made the last holder resign.
    Resign,
}

impl Via {
    /// Whether priority must not undo it: what an operator did stands until the next change.
    pub fn is_pinned(self) -> bool {
        matches!(self, Via::Transfer | Via::Resign)
    }

    /// The word for it, in stores and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Via::Release => "release",
            Via::Takeover => "takeover",
            Via::Preempt => "preempt",
            Via::Transfer => "transfer",
            Via::Resign => "resign",
        }
    }

    /// The value for a word of [`as_str`](Self::as_str); what is not known counts as a release.
    pub fn from_word(word: &str) -> Via {
        [Via::Takeover, Via::Preempt, Via::Transfer, Via::Resign]
            .into_iter()
            .find(|via| via.as_str() == word)
            .unwrap_or_default()
    }
}
