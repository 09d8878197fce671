//! What is to be looked at next.

use std::collections::BTreeSet;

use tenure::port::Wake;
use tenure::{ElectionKey, SessionId};

use super::Seen;

/// What is to be looked at next: hints and requests, gathered while a look is under way.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Everything.
    pub(super) all: bool,
    /// These.
    pub(super) elections: BTreeSet<ElectionKey>,
    /// Sessions that the store says are dead.
    pub(super) died: Vec<SessionId>,
    /// The round in which it will be looked at.
    pub(super) round: u64,
}

impl Wanted {
    /// As it begins.
    pub(super) fn everything() -> Wanted {
        Wanted { all: true, round: 1, ..Wanted::default() }
    }

    /// Whether there is nothing to look at.
    pub(super) fn is_empty(&self) -> bool {
        !self.all && self.elections.is_empty() && self.died.is_empty()
    }

    /// Hands over what is wanted; what is wanted from now on belongs to the next round.
    pub(super) fn take(&mut self) -> Wanted {
        let next = Wanted { round: self.round + 1, ..Wanted::default() };
        std::mem::replace(self, next)
    }

    /// What a hint makes worth a look.
    pub(super) fn hear(&mut self, wake: Wake, seen: &Seen) {
        match wake {
            Wake::Released { election, .. } | Wake::Changed(election) => {
                self.elections.insert(election);
            }
            Wake::Ended(session) => self.elections.extend(seen.where_stands(&session)),
            Wake::Died(session) => {
                self.elections.extend(seen.where_stands(&session));
                self.died.push(session);
            }
            Wake::Resync => self.all = true,
            Wake::Asked(_)
            | Wake::Severed(_)
            | Wake::Work(_)
            | Wake::Recalled(_)
            | Wake::Pool(_)
            | Wake::Events(_)
            | Wake::Group(_)
            | Wake::Schedules => {}
        }
    }
}

impl Seen {
    /// The elections in which a session stands or leads.
    pub(super) fn where_stands(&self, session: &SessionId) -> impl Iterator<Item = ElectionKey> {
        let there = |entry: &super::Entry| {
            entry.candidate(session).is_some() || entry.held_by(session).next().is_some()
        };
        self.elections.iter().filter(move |(_, entry)| there(entry)).map(|(key, _)| key.clone())
    }
}
