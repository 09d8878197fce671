//! Records in annotations of Leases, for state without a client-go field.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure_core::port::{Candidacy, LeaderRequest, Pause, SessionView, StartReason, Term};
use tenure_core::{ElectionKey, SessionId, Token};

use super::names::election_label;
use super::object::{LeaseObject, NONE, SESSION, SEVERAL};

/// Annotation of an election's Lease with namespace, election and slot.
pub(super) const OF: &str = "tenure.dev/election";
/// Annotation with a [`SlotRecord`].
pub(super) const RECORD: &str = "tenure.dev/record";
/// Annotation with a [`SessionRecord`].
pub(super) const SESSION_RECORD: &str = "tenure.dev/session";

/// Maximum size of a session record. The annotations of an object are limited to 256 KiB, and other programs annotate
/// too.
const RECORD_MAX: usize = 224 << 10;
/// Size of a token note without the name of its election.
const TOKEN_NOTE_SIZE: usize = 100;

/// Record of one slot; the first slot also has the record of the election.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SlotRecord {
    pub(super) slots: u32,
    /// Highest number of slots the election ever had.
    pub(super) max_slots: u32,
    pub(super) required_capabilities: Vec<String>,
    pub(super) paused: Option<Pause>,
    /// Session of the holder, until another holder takes the Lease or it is released.
    pub(super) holder: Option<Holder>,
    pub(super) last_term: Option<LastTermRecord>,
    pub(super) leader_requests: Vec<LeaderRequest>,
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

/// Start reason of the term of a token; for a free Lease, of the next term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LastTermRecord {
    pub(super) token: Token,
    pub(super) start_reason: StartReason,
    pub(super) reserved_for: Option<SessionId>,
    pub(super) granted_at_ms: Option<i64>,
}

/// Record of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    #[serde(flatten)]
    pub(super) view: SessionView,
    /// Its `holderIdentity`.
    pub(super) identity: String,
    /// End of the session on the wall clock; for display and for the reuse of the object.
    #[serde(default)]
    pub(super) ended_at_ms: Option<i64>,
    #[serde(default)]
    pub(super) candidacies: Vec<CandidacyRecord>,
    /// Granted leases that were not released: a heartbeat succeeds only if the session still holds all of them.
    #[serde(default)]
    pub(super) held_leases: Vec<HeldLeaseRecord>,
    /// Highest tokens seen in the elections of this session; they survive the deletion of a Lease.
    #[serde(default)]
    pub(super) highest_tokens: Vec<HighestTokenRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CandidacyRecord {
    pub(super) candidacy: Candidacy,
    pub(super) joined_at_ms: i64,
    /// Number of joins, so that joining again causes a notification.
    pub(super) join_count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldLeaseRecord {
    pub(super) election: ElectionKey,
    pub(super) slot: u32,
    pub(super) token: Token,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HighestTokenRecord {
    pub(super) election: ElectionKey,
    pub(super) slot: u32,
    pub(super) token: Token,
    /// Lease duration of the holder at that time.
    pub(super) lease_ms: u64,
}

impl SessionRecord {
    pub(super) fn of(object: &LeaseObject) -> Option<SessionRecord> {
        object.note(SESSION_RECORD)
    }

    /// Write the record to its object, with a `spec` that client-go understands.
    pub(super) fn written(&self, mut object: LeaseObject, wall_ms: i64) -> LeaseObject {
        // An ended session keeps its election label, so that watchers see its end.
        let election_label = object
            .election_label()
            .filter(|_| !self.view.live)
            .map_or_else(|| self.election_label(), str::to_owned);
        object.set_kind(SESSION, &election_label);
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

    /// Add or update a candidacy.
    pub(super) fn add_candidacy(&mut self, candidacy: &Candidacy, joined_at_ms: i64) {
        let of_it = |candidacy_record: &&mut CandidacyRecord| {
            candidacy_record.candidacy.election == candidacy.election
        };
        match self.candidacies.iter_mut().find(of_it) {
            Some(candidacy_record) => {
                candidacy_record.candidacy = candidacy.clone();
                candidacy_record.join_count += 1;
            }
            None => self.candidacies.push(CandidacyRecord {
                candidacy: candidacy.clone(),
                joined_at_ms,
                join_count: 0,
            }),
        }
    }

    /// Value of the election label.
    fn election_label(&self) -> String {
        let joined = self.candidacies.iter().map(|candidacy_record| &candidacy_record.candidacy.election);
        let held = self.held_leases.iter().map(|lease| &lease.election);
        let mut all = joined.chain(held).chain(self.highest_tokens.iter().map(|highest| &highest.election));
        match all.next() {
            None => NONE.into(),
            Some(first) if all.all(|key| key == first) => election_label(first),
            Some(_) => SEVERAL.into(),
        }
    }

    /// Whether the annotation has room for the candidacies and their future token notes.
    pub(super) fn fits(&self) -> bool {
        let minimal = SessionRecord { held_leases: Vec::new(), highest_tokens: Vec::new(), ..self.clone() };
        let length = |value: &str| serde_json::to_string(value).map_or(0, |text| text.len());
        let note_sizes = minimal.candidacies.iter().map(|CandidacyRecord { candidacy, .. }| {
            let key = &candidacy.election;
            let note = length(key.namespace.as_str()) + length(key.name.as_str()) + TOKEN_NOTE_SIZE;
            note * (candidacy.slots as usize + 1)
        });
        let notes_size: usize = note_sizes.sum();
        serde_json::to_string(&minimal).is_ok_and(|text| text.len() + notes_size <= RECORD_MAX)
    }

    /// Store the tokens seen in the elections of this session; drop others.
    pub(super) fn remember(&mut self, observed: &BTreeMap<(ElectionKey, u32), (Token, u64)>) {
        let is_used = |key: &ElectionKey| {
            self.candidacies.iter().any(|candidacy_record| candidacy_record.candidacy.election == *key)
                || self.held_leases.iter().any(|lease| lease.election == *key)
        };
        let mut all: BTreeMap<(ElectionKey, u32), (Token, u64)> = BTreeMap::new();
        let known = self.highest_tokens.iter().map(|s| ((s.election.clone(), s.slot), (s.token, s.lease_ms)));
        let held =
            self.held_leases.iter().map(|h| ((h.election.clone(), h.slot), (h.token, self.view.lease_ms)));
        for (at, (token, lease_ms)) in
            known.chain(held).chain(observed.clone()).filter(|((key, _), _)| is_used(key))
        {
            let entry = all.entry(at).or_insert((token, lease_ms));
            *entry = (*entry).max((token, lease_ms));
        }
        let highest_tokens = all.into_iter().filter(|(_, (token, _))| *token > Token::ZERO);
        self.highest_tokens = highest_tokens
            .map(|((election, slot), (token, lease_ms))| HighestTokenRecord {
                election,
                slot,
                token,
                lease_ms,
            })
            .collect();
    }
}

/// Lease duration in whole seconds, never shorter than the exact one. client-go compares renewal times by the second,
/// so the last renewal may be one second later than the last one it saw. Its lease duration must cover that second and
/// the trusted time, two thirds of the lease, on a clock that runs 1.2 times as fast.
pub(super) fn seconds(lease_ms: u64) -> u64 {
    let latest_renewal_ms = lease_ms.saturating_mul(2) / 3 + 1000;
    let wait_ms = lease_ms.max(latest_renewal_ms.saturating_mul(6) / 5);
    wait_ms.div_ceil(1000).clamp(1, i32::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_duration_covers_client_go_rounding() {
        let of = [0, 1, 500, 1000, 2000, 3000, 5000, 6000, 6001, 10_000, 15_000].map(seconds);
        assert_eq!(of, [2, 2, 2, 2, 3, 4, 6, 6, 7, 10, 15]);
    }
}
