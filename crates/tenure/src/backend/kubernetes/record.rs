//! What Tenure notes of an election and of a session, in annotations of their Leases, as client-go has no fields for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure_core::port::{Ask, Candidacy, Pause, SessionView, Term, Via};
use tenure_core::{ElectionKey, SessionId, Token};

use super::object::Object;

/// The annotation of an election's Lease that says which election and slot it is.
pub(super) const OF: &str = "tenure.dev/election";
/// The annotation with a [`Record`].
pub(super) const RECORD: &str = "tenure.dev/record";
/// The annotation with a [`SessionRecord`].
pub(super) const SESSION_RECORD: &str = "tenure.dev/session";

/// What is noted of one slot of an election; of the election itself in its first slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    pub(super) slots: u32,
    /// How many slots there ever were.
    pub(super) rows: u32,
    pub(super) requires: Vec<String>,
    pub(super) paused: Option<Pause>,
    /// The session that holds it: as long as nobody else does, and it was not released.
    pub(super) holder: Option<Holder>,
    pub(super) last: Option<Last>,
    pub(super) asks: Vec<Ask>,
    pub(super) terms: Vec<Term>,
}

/// The Tenure session behind a `holderIdentity`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Holder {
    pub(super) identity: String,
    pub(super) token: Token,
    #[serde(flatten)]
    pub(super) session: SessionView,
}

/// How the term of a token came about; of a free Lease, how the next one will.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Last {
    pub(super) token: Token,
    pub(super) via: Via,
    pub(super) reserved: Option<SessionId>,
    pub(super) granted_at_ms: Option<i64>,
}

/// What is noted of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    #[serde(flatten)]
    pub(super) view: SessionView,
    /// What it writes as `holderIdentity`.
    pub(super) identity: String,
    /// When it was over, if it is; for people, and for whoever wants to use the object again.
    #[serde(default)]
    pub(super) over_at_ms: Option<i64>,
    #[serde(default)]
    pub(super) candidacies: Vec<Standing>,
    /// What it was granted and has not given back: a beat counts only if all of it is still its own.
    #[serde(default)]
    pub(super) holds: Vec<Hold>,
    /// The greatest tokens that it has seen where it stands: what is left of a Lease that was deleted.
    #[serde(default)]
    pub(super) seen: Vec<Seen>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Standing {
    pub(super) candidacy: Candidacy,
    pub(super) joined_at_ms: i64,
    /// How often it has joined: so that joining again is to be heard of.
    pub(super) times: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) election: ElectionKey,
    pub(super) slot: u32,
    pub(super) token: Token,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) election: ElectionKey,
    pub(super) slot: u32,
    pub(super) token: Token,
    /// The lease of its holder then.
    pub(super) lease_ms: u64,
}

impl SessionRecord {
    pub(super) fn of(object: &Object) -> Option<SessionRecord> {
        object.note(SESSION_RECORD)
    }

    /// Puts it into its object, for client-go's eyes too.
    pub(super) fn written(&self, mut object: Object, wall_ms: i64) -> Object {
        object.set_kind(super::object::SESSION);
        let now = object.next_time(wall_ms);
        object.set_time("renewTime", now);
        if self.view.live {
            object.set_spec("holderIdentity", self.identity.as_str());
            object.set_spec("leaseDurationSeconds", seconds(self.view.lease_ms));
        } else {
            object.set_spec("holderIdentity", "");
            object.set_spec("leaseDurationSeconds", 1);
        }
        object.set_note(SESSION_RECORD, self);
        object
    }

    /// Remembers tokens that were seen of the elections that it has to do with, and forgets the others.
    pub(super) fn remember(&mut self, seen: &BTreeMap<(ElectionKey, u32), (Token, u64)>) {
        let stands = |key: &ElectionKey| {
            self.candidacies.iter().any(|standing| standing.candidacy.election == *key)
                || self.holds.iter().any(|hold| hold.election == *key)
        };
        let mut all: BTreeMap<(ElectionKey, u32), (Token, u64)> = BTreeMap::new();
        let known = self.seen.iter().map(|s| ((s.election.clone(), s.slot), (s.token, s.lease_ms)));
        let held = self.holds.iter().map(|h| ((h.election.clone(), h.slot), (h.token, self.view.lease_ms)));
        for (at, (token, lease_ms)) in
            known.chain(held).chain(seen.clone()).filter(|((key, _), _)| stands(key))
        {
            let entry = all.entry(at).or_insert((token, lease_ms));
            *entry = (*entry).max((token, lease_ms));
        }
        let seen = all.into_iter().filter(|(_, (token, _))| *token > Token::ZERO);
        self.seen = seen
            .map(|((election, slot), (token, lease_ms))| Seen { election, slot, token, lease_ms })
            .collect();
    }
}

/// A lease in whole seconds, and never a shorter one.
pub(super) fn seconds(lease_ms: u64) -> u64 {
    lease_ms.div_ceil(1000).clamp(1, i32::MAX as u64)
}
