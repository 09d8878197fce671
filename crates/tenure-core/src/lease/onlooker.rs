//! Elections seen by somebody who stands in none of them, on behalf of those who do and cannot watch for themselves.

use std::collections::BTreeMap;

use super::consider::{note_free, turn};
use super::eyes::Eyes;
use super::phase::FreeSlot;
use crate::election::{may_lead, to_preempt};
use crate::port::{Ask, AskKind, CandidateView, ElectionView, LeaseView, Observation, SessionView, Take};
use crate::{ElectionKey, Entropy, Moment, SessionId, Timing, Token};

/// Watches elections for candidates that come and go with requests: a server's part for those who speak plain HTTP.
///
/// It decides by the same rules as a [`Machine`](super::Machine), on its own clock: nothing is taken from a holder that it
/// has not itself seen silent for a whole lease. What it knows may be lost at any time; another onlooker then watches
/// anew, and only patience is lost with it.
///
/// It never says that a candidate *is to be believed*: that is the candidate's own reckoning, from before it sent the beat
/// that counted.
///
/// ```
/// use tenure_core::book::Book;
/// use tenure_core::lease::{Onlooker, Turn};
/// use tenure_core::port::{Candidacy, NewSession, Scope};
/// use tenure_core::{ElectionKey, Moment, Name, SessionId, SplitMix};
///
/// let (mut book, mut entropy) = (Book::default(), SplitMix::new(1));
/// let me = SessionId::generate(&mut entropy);
/// let lease = std::time::Duration::from_secs(10);
/// book.open(&NewSession { id: me.clone(), name: "curl".into(), lease, takeover: Default::default(), owner: None }, 0);
/// let key = ElectionKey::new(Name::default_namespace(), "nightly".parse().unwrap());
/// book.join(&Candidacy::new(me.clone(), key), 0);
///
/// let mut onlooker = Onlooker::default();
/// let seen = book.observe(&me, &Scope::All);
/// onlooker.saw(&seen, Moment::ZERO, true);
/// let turn = onlooker.turn(&seen.elections[0], &me, Moment::ZERO, &mut entropy);
/// let Turn::Take(take) = turn else { panic!("nobody else wants it") };
/// assert!(book.take(&take, 0).is_some());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Onlooker {
    eyes: Eyes,
    free: BTreeMap<ElectionKey, Vec<FreeSlot>>,
    /// Which term was asked to make way, and when.
    asked: BTreeMap<ElectionKey, (Token, Moment)>,
}

/// What a candidate is to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Its session holds this lease.
    Holds {
        /// Which slot.
        slot: u32,
        /// Under which token.
        token: Token,
    },
    /// Take this.
    Take(Take),
    /// Wait, for something to change or for this moment; and ask this of a holder, if anything.
    Wait {
        /// When to look again, if nothing changes before.
        until: Option<Moment>,
        /// The holder of lower priority is to make way.
        ask: Option<Ask>,
    },
    /// It cannot lead as things are.
    Barred(Bar),
}

/// Why a candidate cannot lead as things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bar {
    /// It does not stand, or its session is over.
    NotStanding,
    /// An operator has paused the election.
    Paused,
    /// It is an observer.
    Observer,
    /// It lacks something that a leader must be able to do.
    Incapable,
}

impl Onlooker {
    /// Takes in what was seen, by a look that returned `now`. `complete`: it was a look at everything, and whoever is not in it
    /// is nobody.
    pub fn saw(&mut self, observation: &Observation, now: Moment, complete: bool) {
        self.eyes.note(observation, now, complete);
        if complete {
            let there = |key: &ElectionKey| observation.elections.iter().any(|view| view.key == *key);
            self.free.retain(|key, _| there(key));
            self.asked.retain(|key, _| there(key));
        }
    }

    /// Takes in what others asked to see, by a look that returned `now`. It costs little, however many are known.
    pub fn glimpsed(&mut self, observation: &Observation, now: Moment) {
        self.eyes.glimpse(observation, now);
    }

    /// Whether the beat of this session, as it was just read in this epoch, was seen to stand still for its lease.
    pub fn is_silent(&self, session: &SessionView, epoch: u32, now: Moment) -> bool {
        self.eyes.epoch() == epoch && self.eyes.sightings.is_silent(session, now)
    }

    /// The store knows for certain that this session's process is gone.
    pub fn died(&mut self, session: SessionId) {
        self.eyes.sightings.died(session);
    }

    /// What the candidate of this session is to do about an election as it was just seen.
    pub fn turn(
        &mut self,
        view: &ElectionView,
        session: &SessionId,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) -> Turn {
        if let Some((slot, token)) = view.held_by(session).next() {
            return Turn::Holds { slot, token };
        }
        let Some(me) = view.candidate(session).filter(|me| me.session.live) else {
            return Turn::Barred(Bar::NotStanding);
        };
        if me.observer {
            return Turn::Barred(Bar::Observer);
        }
        if !may_lead(me, &view.requires) {
            return Turn::Barred(Bar::Incapable);
        }
        if view.paused.is_some() {
            return Turn::Barred(Bar::Paused);
        }
        let own = me.session.lease();
        // A lease out of range was refused when the session was opened.
        let timing = Timing::new(own, None).unwrap_or_default();
        let is_open = |lease: &&LeaseView| self.eyes.is_open(view, lease, own, now);
        let open: Vec<&LeaseView> = view.leases.iter().filter(is_open).collect();
        let free = self.free.entry(view.key.clone()).or_default();
        note_free(free, &open, now, entropy);
        let rank = self.eyes.rank(view, me, None, now);
        match turn(&timing, free, &open, session, rank) {
            Some((lease, at)) if now >= at => Turn::Take(self.eyes.bid(view, lease, session)),
            Some((_, at)) => Turn::Wait { until: Some(at), ask: None },
            None => {
                let ask = if rank == 0 { self.preempt(view, me, &timing, now) } else { None };
                Turn::Wait { until: self.eyes.opens_at(view, own, now), ask }
            }
        }
    }

    /// The worst leader of lower priority is asked to make way, once per term and again after a lease.
    fn preempt(
        &mut self,
        view: &ElectionView,
        me: &CandidateView,
        timing: &Timing,
        now: Moment,
    ) -> Option<Ask> {
        let lease = to_preempt(view, me)?;
        let asked = self.asked.get(&view.key);
        if asked.is_some_and(|(token, at)| *token == lease.token && now.since(*at) < timing.lease()) {
            return None;
        }
        self.asked.insert(view.key.clone(), (lease.token, now));
        Some(Ask {
            election: view.key.clone(),
            slot: lease.slot,
            token: lease.token,
            kind: AskKind::Preempt(me.session.id.clone()),
            by: me.id.clone(),
        })
    }
}
