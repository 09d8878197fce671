//! Looking at the store, and what follows from what is seen.

use std::collections::BTreeSet;

use super::command::{Command, Event, Loss};
use super::machine::{Machine, Pending, Session};
use super::phase::{Campaign, Held, Phase};
use super::timers::Timer;
use crate::port::{
    AskKind, CandidateView, ElectionView, Expire, LeaseView, Observation, Release, Scope, SessionView,
    StoreError, Via,
};
use crate::{ElectionKey, Entropy, Moment, SessionId, Token};

/// The most elections that one look covers. What is answered must arrive within the time that an answer may take, however
/// many elections a process stands for; and all together must cost the store no more than a few.
const LOOK_MAX: usize = 500;

impl Machine {
    pub(super) fn look(&mut self, scope: Scope) {
        let Session::Live(live) = &self.session else { return };
        self.looking = true;
        let pending = Pending::Look { session: live.id.clone(), scope: scope.clone(), step: self.step };
        self.command(Command::Observe(live.id.clone(), scope), pending);
    }

    pub(super) fn look_if_curious(&mut self) {
        if !self.looking && !self.curious.is_empty() && matches!(self.session, Session::Live(_)) {
            let keys: Vec<_> = std::iter::from_fn(|| self.curious.pop_first()).take(LOOK_MAX).collect();
            self.look(Scope::Only(keys));
        }
    }

    /// Looks at all elections of some kind, or, if they are many, at the next ones.
    pub(super) fn look_around(&mut self, scope: Scope, of: impl Fn(&Campaign) -> bool) {
        let all = || self.campaigns.iter().filter(|(_, campaign)| of(campaign)).map(|(key, _)| key);
        if all().nth(LOOK_MAX).is_none() {
            return self.look(scope);
        }
        // A follower's looks and a leader's each go their own round, or one would skip what the other passed by.
        let round = usize::from(scope == Scope::Standing);
        let after = self.looked_until[round].clone();
        let next = all().filter(|key| after.as_ref().is_none_or(|after| *key > after)).take(LOOK_MAX);
        let keys: Vec<_> = next.cloned().collect();
        // The last ones lead back to the first.
        self.looked_until[round] = if keys.len() == LOOK_MAX { keys.last().cloned() } else { None };
        self.look(Scope::Only(keys));
    }

    pub(super) fn observed(
        &mut self,
        scope: &Scope,
        asked_at: u64,
        result: Result<Observation, StoreError>,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        self.looking = false;
        let complete = *scope == Scope::Standing;
        let observation = match result {
            Ok(observation) => observation,
            Err(error) => {
                let retry = now + entropy.jitter(self.config.timing.retry());
                self.timers.no_later_than(Timer::Look, retry);
                if complete {
                    self.timers.no_later_than(Timer::Tend, retry);
                }
                self.events.push_back(Event::Trouble(error));
                return;
            }
        };
        if matches!(&self.session, Session::Live(live) if live.epoch != observation.epoch) {
            return self.lose_session(Loss::EpochChanged, entropy);
        }
        self.eyes.note(&observation, now, complete);
        self.miss_absent(scope, &observation, asked_at);
        for (election, slot, token) in observation.strays {
            self.release_stray(election, slot, token, asked_at);
        }
        for view in observation.elections {
            let Some(campaign) = self.campaigns.get_mut(&view.key) else {
                self.leave_stray(view);
                continue;
            };
            // Asked for before our last command about it: it shows the past.
            if campaign.touched > asked_at
                || matches!(campaign.phase, Phase::Taking | Phase::Releasing { .. })
            {
                if campaign.phase == Phase::Following {
                    self.curious.insert(view.key);
                }
                continue;
            }
            self.seen(view, now, entropy);
        }
        self.watch_holders();
        self.timers.no_later_than(Timer::Look, now + entropy.jitter(self.config.timing.poll()));
    }

    /// What an observation should have shown and did not: we do not stand there, or (of a follower's look) hold something
    /// there that we do not know of.
    fn miss_absent(&mut self, scope: &Scope, observation: &Observation, asked_at: u64) {
        let shown: BTreeSet<&ElectionKey> = observation.elections.iter().map(|view| &view.key).collect();
        let expected: Vec<&ElectionKey> = match scope {
            Scope::Only(keys) => keys.iter().collect(),
            Scope::Contested | Scope::Standing | Scope::All => self.campaigns.keys().collect(),
        };
        let absent: Vec<(ElectionKey, bool)> = expected
            .into_iter()
            .filter(|key| !shown.contains(key))
            .filter_map(|key| self.campaigns.get_key_value(key))
            .filter(|(_, campaign)| campaign.standing && campaign.touched <= asked_at)
            .map(|(key, campaign)| (key.clone(), campaign.phase == Phase::Following))
            .collect();
        for (key, follows) in absent {
            match scope {
                Scope::Contested if follows => drop(self.curious.insert(key)),
                Scope::Contested => {}
                Scope::Only(_) | Scope::Standing | Scope::All => self.stand_again(&key),
            }
        }
    }

    /// The store does not have this candidate as it stands: a late leave or an earlier join overtook the last join.
    pub(super) fn stand_again(&mut self, key: &ElectionKey) {
        if let Some(campaign) = self.campaigns.get_mut(key).filter(|campaign| !campaign.withdrawing) {
            campaign.standing = false;
            self.join(key);
        }
    }

    pub(super) fn release_stray(&mut self, election: ElectionKey, slot: u32, token: Token, asked_at: u64) {
        let campaign = self.campaigns.get(&election);
        if campaign.is_none_or(|c| c.touched <= asked_at && c.phase == Phase::Following) {
            self.renounce(election, slot, token);
        }
    }

    /// Gives back a lease of ours under which nothing runs.
    pub(super) fn renounce(&mut self, election: ElectionKey, slot: u32, token: Token) {
        let Session::Live(live) = &self.session else { return };
        let session = live.id.clone();
        let release =
            Release { session, election, slot, token, successor: None, via: Via::Release, leave: false };
        self.command(Command::Release(release), Pending::Nothing);
    }

    /// A join overtook the leave that was to undo it: the store has a candidate that nobody stands for.
    pub(super) fn leave_stray(&mut self, view: ElectionView) {
        let Session::Live(live) = &self.session else { return };
        if view.candidate(&live.id).is_some() {
            self.command(Command::Leave(live.id.clone(), view.key), Pending::Nothing);
        }
    }

    /// Takes in a fresh view of one election.
    pub(super) fn seen(&mut self, view: ElectionView, now: Moment, entropy: &mut dyn Entropy) {
        let key = view.key.clone();
        self.clear_away_stale(&view, now);
        let me = self.session().cloned();
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        let changed = campaign.view.as_ref().is_none_or(|old| !alike(old, &view));
        if changed {
            self.events.push_back(Event::Seen(view.clone()));
        }
        let paused = view.paused.is_some();
        let as_it_stands =
            me.as_ref().and_then(|me| view.candidate(me)).is_some_and(|c| campaign.stands_as(c));
        let stand_again = campaign.standing && !as_it_stands;
        let mine: Vec<(u32, Token)> = me.iter().flat_map(|me| view.held_by(me)).collect();
        campaign.view = Some(view);
        if stand_again {
            self.stand_again(&key);
        }
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        match &campaign.phase {
            Phase::Following => match mine.split_first().zip(me) {
                // A take whose answer was lost did happen. It is given back and not led under: somewhere a release of
                // it may still be under way, and would take it from under us.
                Some(((&(slot, token), others), session)) => {
                    self.give_back(&key, Held { slot, token, session });
                    others.iter().for_each(|&(slot, token)| self.renounce(key.clone(), slot, token));
                }
                None => self.consider(&key, now, entropy),
            },
            Phase::Leading { term, .. } => {
                let term = (term.slot, term.token);
                if !mine.contains(&term) {
                    campaign.phase = Phase::Ending { held: None };
                    campaign.touched = self.step;
                    self.events.push_back(Event::Lost { election: key, token: term.1, why: Loss::Overruled });
                    // Or was the session expired? The next beat tells.
                    self.timers.set(Timer::Beat, now);
                    return;
                }
                if paused {
                    self.asked(&key, None, AskKind::Pause);
                }
                // A late take may have brought a second slot: one is enough.
                for (slot, token) in mine.into_iter().filter(|&lease| lease != term) {
                    self.renounce(key.clone(), slot, token);
                }
            }
            _ => {}
        }
    }

    /// Expires sessions that have been silent for far longer than their lease, candidates and holders alike.
    pub(super) fn clear_away_stale(&mut self, view: &ElectionView, now: Moment) {
        let holders = view.leases.iter().filter_map(|lease| lease.holder.as_ref());
        let stale: Vec<_> = holders
            .chain(view.candidates.iter().map(|candidate| &candidate.session))
            .filter(|session| session.live && self.eyes.sightings.is_stale(session, now))
            .map(|session| (session.id.clone(), session.beat))
            .collect();
        for (session, beat) in stale {
            if self.session() != Some(&session) && self.expiring.insert((session.clone(), beat)) {
                let expire = Expire { session: session.clone(), epoch: self.epoch(), beat: Some(beat) };
                self.command(Command::Expire(expire), Pending::Expire(session, beat));
            }
        }
    }

    pub(super) fn watch_holders(&mut self) {
        let me = self.session().cloned();
        let holders: BTreeSet<SessionId> = self
            .campaigns
            .values()
            .filter(|campaign| !matches!(campaign.phase, Phase::Leading { .. }))
            .flat_map(|campaign| campaign.view.iter().flat_map(|view| view.holders()))
            .map(|(_, holder)| holder.id.clone())
            .filter(|id| Some(id) != me.as_ref())
            .collect();
        let holders: Vec<_> = holders.into_iter().collect();
        if holders != self.watched {
            self.watched.clone_from(&holders);
            self.command(Command::Watch(holders), Pending::Nothing);
        }
    }
}

/// Whether two views differ in nothing but beats.
fn alike(a: &ElectionView, b: &ElectionView) -> bool {
    let session = |a: &SessionView, b: &SessionView| {
        (&a.id, &a.name, a.lease_ms, a.live) == (&b.id, &b.name, b.lease_ms, b.live)
    };
    let holder = |a: &LeaseView, b: &LeaseView| match (&a.holder, &b.holder) {
        (Some(a), Some(b)) => session(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    let lease = |(a, b): (&LeaseView, &LeaseView)| {
        let term = |l: &LeaseView| (l.slot, l.token, l.via, l.granted_at_ms);
        term(a) == term(b) && a.reserved == b.reserved && holder(a, b)
    };
    let candidate = |(a, b): (&CandidateView, &CandidateView)| {
        let how = |c: &CandidateView| (c.priority, c.observer, c.joined_at_ms);
        how(a) == how(b)
            && (&a.id, &a.capabilities, &a.metadata) == (&b.id, &b.capabilities, &b.metadata)
            && session(&a.session, &b.session)
    };
    (&a.key, a.slots, &a.requires, &a.paused) == (&b.key, b.slots, &b.requires, &b.paused)
        && (a.leases.len(), a.candidates.len()) == (b.leases.len(), b.candidates.len())
        && a.leases.iter().zip(&b.leases).all(lease)
        && a.candidates.iter().zip(&b.candidates).all(candidate)
}
