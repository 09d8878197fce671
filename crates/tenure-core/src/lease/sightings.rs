//! How long each other session's beat has been seen to stand still, on our own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::port::{Observation, SessionView};
use crate::timing::patience;
use crate::{Moment, SessionId};

/// What we know of other sessions' lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sightings {
    beats: BTreeMap<SessionId, Seen>,
    /// Sessions that the store knows for certain to be dead.
    dead: BTreeSet<SessionId>,
}

/// A beat, since when it stands still, and when it was seen last.
#[derive(Clone, Copy, Debug)]
struct Seen {
    beat: u64,
    since: Moment,
    last: Moment,
}

/// How long somebody is remembered who is seen no more, where no look shows everybody. To forget them costs patience, should
/// they be seen again, and nothing else.
const REMEMBERED: Duration = Duration::from_secs(3600);

impl Sightings {
    /// Notes the beats of an observation that returned `now`: a read may have waited long for its answer, and only its
    /// return is certainly later than the beat it shows.
    pub(super) fn note(&mut self, observation: &Observation, now: Moment, complete: bool) {
        if complete {
            self.note_sessions(sessions(observation), now);
        } else {
            self.glimpse(observation, now);
            self.beats.retain(|_, seen| now.since(seen.last) < REMEMBERED);
        }
    }

    /// Notes the beats of these sessions, and forgets everybody else.
    pub(crate) fn note_sessions<'a>(
        &mut self,
        sessions: impl IntoIterator<Item = &'a SessionView> + Clone,
        now: Moment,
    ) {
        self.glimpse_sessions(sessions.clone(), now);
        let seen: BTreeSet<&SessionId> = sessions.into_iter().map(|session| &session.id).collect();
        self.beats.retain(|id, _| seen.contains(id));
        self.dead.retain(|id| seen.contains(id));
    }

    /// As [`note`](Self::note), without forgetting anybody.
    pub(super) fn glimpse(&mut self, observation: &Observation, now: Moment) {
        self.glimpse_sessions(sessions(observation), now);
    }

    fn glimpse_sessions<'a>(&mut self, sessions: impl IntoIterator<Item = &'a SessionView>, now: Moment) {
        for session in sessions {
            let new = Seen { beat: session.beat, since: now, last: now };
            let entry = self.beats.entry(session.id.clone()).or_insert(new);
            if entry.beat != session.beat {
                *entry = new;
            }
            entry.last = now;
        }
    }

    /// The store says that this session's process is gone.
    pub(crate) fn died(&mut self, session: SessionId) {
        self.dead.insert(session);
    }

    pub(crate) fn is_dead(&self, session: &SessionId) -> bool {
        self.dead.contains(session)
    }

    /// The moment from which this session may be expired, if nothing is heard of it until then.
    pub(crate) fn silent_at(&self, session: &SessionView) -> Option<Moment> {
        let seen = self.beats.get(&session.id)?;
        (seen.beat == session.beat).then(|| seen.since + patience(session.lease()))
    }

    /// Whether this session may be expired.
    pub(crate) fn is_silent(&self, session: &SessionView, now: Moment) -> bool {
        self.is_dead(&session.id) || self.silent_at(session).is_some_and(|at| now >= at)
    }

    /// Whether this session has been silent for twice as long as would do: time to clear it away.
    pub(super) fn is_stale(&self, session: &SessionView, now: Moment) -> bool {
        let again = patience(session.lease());
        self.is_dead(&session.id) || self.silent_at(session).is_some_and(|at| now >= at + again)
    }
}

/// All sessions of an observation, some of them more than once.
fn sessions(observation: &Observation) -> impl Iterator<Item = &SessionView> + Clone {
    observation.elections.iter().flat_map(|view| {
        let holders = view.leases.iter().filter_map(|lease| lease.holder.as_ref());
        holders.chain(view.candidates.iter().map(|candidate| &candidate.session))
    })
}
