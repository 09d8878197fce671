//! How long each other session's heartbeat has been unchanged, on our own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::port::{ElectionsObservation, SessionView};
use crate::timing::silence_limit;
use crate::{BootInstant, SessionId};

/// Observed heartbeats of other sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeartbeatTable {
    heartbeats_seen: BTreeMap<SessionId, HeartbeatEntry>,
    /// Sessions that the store knows to be dead.
    dead: BTreeSet<SessionId>,
}

/// A heartbeat count, since when it is unchanged, and when it was last observed.
#[derive(Clone, Copy, Debug)]
struct HeartbeatEntry {
    heartbeat_count: u64,
    since: BootInstant,
    last: BootInstant,
}

/// How long a session is remembered after its last observation, unless a complete observation shows that it has ended.
/// Removing a session too early only delays a takeover.
const REMEMBERED: Duration = Duration::from_secs(3600);

impl HeartbeatTable {
    /// Records the heartbeats of an observation that returned at `now`. The store may have read them at any time before
    /// its response, so only the time of the return is certainly later than the heartbeats.
    pub(super) fn note(&mut self, observation: &ElectionsObservation, now: BootInstant, complete: bool) {
        if complete {
            self.note_sessions(sessions(observation), now);
        } else {
            self.note_partial(observation, now);
            self.heartbeats_seen.retain(|_, observed| now.since(observed.last) < REMEMBERED);
        }
    }

    /// Records the heartbeats of these sessions and removes all others.
    pub(crate) fn note_sessions<'a>(
        &mut self,
        sessions: impl IntoIterator<Item = &'a SessionView> + Clone,
        now: BootInstant,
    ) {
        self.note_some_sessions(sessions.clone(), now);
        let observed: BTreeSet<&SessionId> = sessions.into_iter().map(|session| &session.id).collect();
        self.heartbeats_seen.retain(|id, _| observed.contains(id));
        self.dead.retain(|id| observed.contains(id));
    }

    /// Records heartbeats as [`note`](Self::note) does, without removing any session.
    pub(super) fn note_partial(&mut self, observation: &ElectionsObservation, now: BootInstant) {
        self.note_some_sessions(sessions(observation), now);
    }

    fn note_some_sessions<'a>(
        &mut self,
        sessions: impl IntoIterator<Item = &'a SessionView>,
        now: BootInstant,
    ) {
        for session in sessions {
            let new = HeartbeatEntry { heartbeat_count: session.heartbeat_count, since: now, last: now };
            let entry = self.heartbeats_seen.entry(session.id.clone()).or_insert(new);
            if entry.heartbeat_count != session.heartbeat_count {
                *entry = new;
            }
            entry.last = now;
        }
    }

    /// Records that the session's process has exited, as reported by the store.
    pub(crate) fn died(&mut self, session: SessionId) {
        self.dead.insert(session);
    }

    pub(crate) fn is_dead(&self, session: &SessionId) -> bool {
        self.dead.contains(session)
    }

    /// The instant from which this session may be expired if its heartbeat stays unchanged.
    pub(crate) fn silent_at(&self, session: &SessionView) -> Option<BootInstant> {
        let observed = self.heartbeats_seen.get(&session.id)?;
        (observed.heartbeat_count == session.heartbeat_count)
            .then(|| observed.since + silence_limit(session.lease()))
    }

    /// Whether this session may be expired.
    pub(crate) fn is_silent(&self, session: &SessionView, now: BootInstant) -> bool {
        self.is_dead(&session.id) || self.silent_at(session).is_some_and(|at| now >= at)
    }

    /// Whether this session has been silent for twice the required time and should be removed.
    pub(super) fn is_stale(&self, session: &SessionView, now: BootInstant) -> bool {
        let again = silence_limit(session.lease());
        self.is_dead(&session.id) || self.silent_at(session).is_some_and(|at| now >= at + again)
    }
}

/// All sessions of an observation; some occur more than once.
fn sessions(observation: &ElectionsObservation) -> impl Iterator<Item = &SessionView> + Clone {
    observation.elections.iter().flat_map(|view| {
        let holders = view.leases.iter().filter_map(|lease| lease.holder.as_ref());
        holders.chain(view.candidates.iter().map(|candidate| &candidate.session))
    })
}
