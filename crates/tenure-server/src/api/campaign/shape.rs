//! What a candidate says, and what it is told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure::port::{Ask, Candidacy};
use tenure::{ElectionKey, Name, SessionId, Timing, Token};
use utoipa::ToSchema;

use super::Beaten;
use super::wait::{Outcome, Standing};
use crate::api::shape::{Leader, leaders, millis};

/// A candidate, and for how long it waits.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"id": "web-1", "lease_ms": 30000, "priority": 50, "wait_ms": 3000}))]
pub(crate) struct Campaign {
    /// What people call the candidate.
    #[schema(max_length = 1024, example = "web-1")]
    pub(super) id: String,
    /// The session of an earlier answer. Without one, one is opened.
    pub(super) session: Option<SessionId>,
    /// The token under which it leads, if it does. What the session holds under another one is given back.
    pub(super) token: Option<Token>,
    /// How long it keeps what it holds while nothing is heard of it: 200 ms to a day. Of a session that is named, the same
    /// as when it was opened.
    #[schema(minimum = 200, maximum = 86400000, default = 30000)]
    pub(super) lease_ms: Option<u64>,
    /// Higher leads first, and asks a leader of lower priority to make way.
    #[serde(default)]
    priority: i32,
    /// How long to wait for the lease; a third of the lease at most, and 45 s, whatever is asked for.
    #[schema(default = 0)]
    pub(super) wait_ms: Option<u64>,
    /// Watches, and never leads.
    #[serde(default)]
    observer: bool,
    /// How many may lead at once.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100, default = 1)]
    slots: u32,
    /// What this candidate can do.
    #[serde(default)]
    capabilities: Vec<String>,
    /// What a leader of this election must be able to do.
    #[serde(default)]
    requires: Vec<String>,
    /// What people want to know about it: version, zone, address.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

fn one() -> u32 {
    1
}

impl Campaign {
    pub(super) fn candidacy(&self, session: SessionId, election: ElectionKey) -> Candidacy {
        Candidacy {
            session,
            election,
            id: self.id.clone(),
            priority: self.priority,
            observer: self.observer,
            capabilities: self.capabilities.clone(),
            requires: self.requires.clone(),
            slots: self.slots,
            metadata: self.metadata.clone(),
        }
    }
}

/// What came of a campaign.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Campaigned {
    /// Whether it leads: to be believed for `trust_ms` from before the request was sent, and not a moment longer.
    leading: bool,
    /// How it stands.
    standing: Standing,
    /// Its session: name it from now on.
    session: SessionId,
    /// The namespace.
    namespace: Name,
    /// The election.
    election: Name,
    /// Which slot it leads.
    slot: Option<u32>,
    /// The fencing token of its term: every write carries it.
    token: Option<Token>,
    /// The token as people write it.
    #[schema(example = "7")]
    term: Option<String>,
    /// For how long a leader may believe, counted from before it *sent* this request.
    #[schema(example = 6666)]
    trust_ms: u64,
    /// How often to renew.
    #[schema(example = 2000)]
    renew_every_ms: u64,
    /// How long the session keeps what it holds while nothing is heard of it.
    #[schema(example = 10000)]
    lease_ms: u64,
    /// A lease that its session holds and that this request did not name: of a campaign whose answer was lost. It is not to
    /// be believed, since something else may be under way for it: resign it, by this token, and campaign again.
    unnamed: Option<Unnamed>,
    /// The store's epoch. Where it grows, a standby was promoted, and what was granted before may be lost.
    epoch: u32,
    /// Who leads, if another does.
    leader: Option<Leader>,
    /// What is asked of this session: to finish, and resign.
    asks: Vec<Ask>,
}

/// A lease that was not named.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Unnamed {
    /// Which slot.
    slot: u32,
    /// Under which token.
    token: Token,
}

impl Campaigned {
    pub(super) fn new(candidacy: &Candidacy, timing: &Timing, outcome: Outcome, pulse: Beaten) -> Self {
        let Beaten { epoch, asks } = pulse;
        let held = outcome.held;
        let others = outcome.view.as_deref().map(|view| leaders(view)).unwrap_or_default();
        Campaigned {
            leading: held.is_some(),
            standing: outcome.standing,
            session: candidacy.session.clone(),
            namespace: candidacy.election.namespace.clone(),
            election: candidacy.election.name.clone(),
            slot: held.map(|(slot, _)| slot),
            token: held.map(|(_, token)| token),
            term: held.map(|(_, token)| token.to_string()),
            trust_ms: millis(timing.trust()),
            renew_every_ms: millis(timing.beat()),
            lease_ms: millis(timing.lease()),
            unnamed: outcome.unnamed.map(|(slot, token)| Unnamed { slot, token }),
            epoch,
            leader: others.into_iter().find(|leader| leader.session != candidacy.session),
            // Of a term that it does not know of, nothing can be asked.
            asks: asks
                .into_iter()
                .filter(|ask| held == Some((ask.slot, ask.token)) || ask.election != candidacy.election)
                .collect(),
        }
    }
}
