//! What Tenure notes of an election and of a session, in annotations of their Leases, as client-go has no fields for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure_core::port::{Ask, Candidacy, Pause, SessionView, Term, Via};
use tenure_core::{ElectionKey, SessionId, Token};

use super::names::about;
use super::object::{NONE, Object, SESSION, SEVERAL};

/// The annotation of an election's Lease that says which election and slot it is.
pub(super) const OF: &str = "tenure.dev/election";
/// The annotation with a [`Record`].
pub(super) const RECORD: &str = "tenure.dev/record";
/// The annotation with a [`SessionRecord`].
pub(super) const SESSION_RECORD: &str = "tenure.dev/session";

/// How many bytes a session's record may have: annotations of an object may have 256 KiB, and others annotate too.
const ROOM: usize = 224 << 10;
/// What a note of a token has besides the name of its election.
const NOTE: usize = 100;

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
        // Who watched it hears that it is over.
        let about = object.about().filter(|_| !self.view.live).map_or_else(|| self.about(), str::to_owned);
        object.set_kind(SESSION, &about);
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

    /// It stands, or stands again.
    pub(super) fn stand(&mut self, candidacy: &Candidacy, joined_at_ms: i64) {
        let of_it = |standing: &&mut Standing| standing.candidacy.election == candidacy.election;
        match self.candidacies.iter_mut().find(of_it) {
            Some(standing) => {
                standing.candidacy = candidacy.clone();
                standing.times += 1;
            }
            None => self.candidacies.push(Standing { candidacy: candidacy.clone(), joined_at_ms, times: 0 }),
        }
    }

    /// The elections that it has to do with, for its label.
    fn about(&self) -> String {
        let stood = self.candidacies.iter().map(|standing| &standing.candidacy.election);
        let held = self.holds.iter().map(|hold| &hold.election);
        let mut all = stood.chain(held).chain(self.seen.iter().map(|seen| &seen.election));
        match all.next() {
            None => NONE.into(),
            Some(first) if all.all(|key| key == first) => about(first),
            Some(_) => SEVERAL.into(),
        }
    }

    /// Whether a Lease has room for what this session stands for, and what it will have to note of that.
    pub(super) fn fits(&self) -> bool {
        let bare = SessionRecord { holds: Vec::new(), seen: Vec::new(), ..self.clone() };
        let length = |value: &str| serde_json::to_string(value).map_or(0, |text| text.len());
        let notes = bare.candidacies.iter().map(|Standing { candidacy, .. }| {
            let key = &candidacy.election;
            let note = length(key.namespace.as_str()) + length(key.name.as_str()) + NOTE;
            note * (candidacy.slots as usize + 1)
        });
        let notes: usize = notes.sum();
        serde_json::to_string(&bare).is_ok_and(|text| text.len() + notes <= ROOM)
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

/// A lease in whole seconds, and never a shorter one. client-go compares renewals by the second, so the last one may have been a second after
/// the last that it saw: its patience must cover that second and what we trust, two thirds of the lease, by a clock that runs 1.2 times as fast.
pub(super) fn seconds(lease_ms: u64) -> u64 {
    let seen_late_ms = lease_ms.saturating_mul(2) / 3 + 1000;
    let patience_ms = lease_ms.max(seen_late_ms.saturating_mul(6) / 5);
    patience_ms.div_ceil(1000).clamp(1, i32::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_go_waits_for_the_second_that_it_may_have_missed() {
        let of = [0, 1, 500, 1000, 2000, 3000, 5000, 6000, 6001, 10_000, 15_000].map(seconds);
        assert_eq!(of, [2, 2, 2, 2, 3, 4, 6, 6, 7, 10, 15]);
    }
}
