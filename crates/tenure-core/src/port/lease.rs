//! A lease, asked for and given back.

use serde::{Deserialize, Serialize};

use super::{Expire, Via};
use crate::{ElectionKey, SessionId, Token};

/// A request for a lease, by compare-and-swap on what was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// Who wants it. Refused if this session is not live.
    pub session: SessionId,
    /// The epoch in which this was seen. Refused if the store is on another: what was seen may be undone.
    pub epoch: u32,
    /// Which election.
    pub election: ElectionKey,
    /// Which slot.
    pub slot: u32,
    /// The token that was seen. Refused if another is there.
    pub token: Token,
    /// The holder that was seen. Refused if another is there, or if it lives and is not expired by `expire`.
    pub holder: Option<SessionId>,
    /// The session to expire first, in the same transaction.
    pub expire: Option<Expire>,
}

/// A lease to be given back, by compare-and-swap on `(session, token)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Who holds it.
    pub session: SessionId,
    /// Which election.
    pub election: ElectionKey,
    /// Which slot.
    pub slot: u32,
    /// Under which token. Nothing happens if it is not held under it.
    pub token: Token,
    /// Who shall have it next.
    pub successor: Option<SessionId>,
    /// How the next term will have come about.
    pub via: Via,
    /// Whether the candidate leaves the election too.
    pub leave: bool,
}

/// A lease that was granted elsewhere, to be held here under the same token: see [`Store::adopt`](super::Store::adopt).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adopt {
    /// Who holds it. Refused if this session is not live here.
    pub session: SessionId,
    /// Which election.
    pub election: ElectionKey,
    /// Which slot.
    pub slot: u32,
    /// Under which token. Refused unless it is greater than every one that was adopted from this elector before.
    pub token: Token,
    /// Who granted it: the [identity](super::Directory::identity) of a store. Tokens of different ones do not compare, so what was
    /// not adopted from this one must be free.
    pub by: String,
}
