//! One election of many: joined, taken, led, finished, released, left.

use super::command::{Command, Event, Stand};
use super::machine::{Machine, Pending, Session};
use super::phase::{Campaign, Held, Phase};
use super::timers::Timer;
use crate::port::{AskKind, Candidacy, Joined, Release, StoreError, Via};
use crate::{ElectionKey, Entropy, Moment, SessionId, Token};

impl Machine {
    pub(super) fn campaign(&mut self, stand: Stand) {
        let key = stand.election.clone();
        match self.campaigns.get_mut(&key) {
            // On its way out. It comes back when it is gone: until then it may hold a lease that is being released.
            Some(campaign) if campaign.withdrawing => campaign.again = Some(stand),
            Some(campaign) => (campaign.stand, campaign.standing) = (stand, false),
            None => {
                self.campaigns.insert(key.clone(), Campaign::new(stand, self.step));
            }
        }
        self.join(&key);
    }

    pub(super) fn join(&mut self, key: &ElectionKey) {
        let (Session::Live(live), Some(campaign)) = (&self.session, self.campaigns.get_mut(key)) else {
            return;
        };
        if campaign.standing || campaign.withdrawing {
            return;
        }
        let stand = &campaign.stand;
        let candidacy = Candidacy {
            session: live.id.clone(),
            election: key.clone(),
            id: stand.id.clone(),
            priority: stand.priority,
            observer: stand.observer,
            capabilities: stand.capabilities.clone(),
            requires: stand.requires.clone(),
            slots: stand.slots,
            metadata: stand.metadata.clone(),
        };
        let pending = Pending::Join(live.id.clone(), key.clone());
        self.command(Command::Join(candidacy), pending);
    }

    pub(super) fn joined(
        &mut self,
        session: SessionId,
        key: ElectionKey,
        result: Result<Joined, StoreError>,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        if self.session() != Some(&session) {
            return;
        }
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        campaign.touched = self.step;
        match result {
            Ok(Joined::Standing) => {
                campaign.standing = true;
                self.events.push_back(Event::Standing(key.clone()));
                self.curious.insert(key);
            }
            Ok(Joined::SlotsDiffer { slots }) => {
                // What it still holds or does in it is brought to an end first.
                campaign.withdrawing = true;
                if campaign.phase == Phase::Following {
                    self.campaigns.remove(&key);
                }
                self.events.push_back(Event::Rejected { election: key, slots });
            }
            // The next beat tells.
            Ok(Joined::Gone) => self.timers.set(Timer::Beat, now),
            Err(error) => {
                self.timers.set(Timer::Election(key), now + entropy.jitter(self.config.timing.retry()));
                self.events.push_back(Event::Trouble(error));
            }
        }
    }

    pub(super) fn withdraw(&mut self, key: &ElectionKey, now: Moment, entropy: &mut dyn Entropy) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.withdrawing = true;
        campaign.again = None;
        if campaign.phase == Phase::Following {
            self.leave(key, now, entropy);
        }
    }

    /// Holding nothing, tells the store that the candidate goes.
    pub(super) fn leave(&mut self, key: &ElectionKey, now: Moment, entropy: &mut dyn Entropy) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        let Session::Live(live) = &self.session else {
            self.withdrawn(key);
            return;
        };
        campaign.phase = Phase::Leaving;
        campaign.touched = self.step;
        let command = Command::Leave(live.id.clone(), key.clone());
        self.command(command, Pending::Leave(key.clone()));
        // A leave whose answer is lost is repeated.
        let again = now + self.config.timing.request_timeout() + entropy.jitter(self.config.timing.retry());
        self.timers.set(Timer::Election(key.clone()), again);
    }

    pub(super) fn leaves(&self, key: &ElectionKey) -> bool {
        self.campaigns.get(key).is_some_and(|campaign| campaign.phase == Phase::Leaving)
    }

    pub(super) fn withdrawn(&mut self, key: &ElectionKey) {
        if let Some(campaign) = self.campaigns.remove(key) {
            self.timers.cancel(&Timer::Election(key.clone()));
            self.events.push_back(Event::Withdrawn(key.clone()));
            campaign.again.into_iter().for_each(|stand| self.campaign(stand));
        }
    }

    /// Something is asked of the leader: by the store for one term, or by the process itself.
    pub(super) fn asked(&mut self, key: &ElectionKey, term_asked: Option<(u32, Token)>, kind: AskKind) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        let Phase::Leading { term, asked } = &mut campaign.phase else { return };
        if term_asked.is_some_and(|asked| asked != (term.slot, term.token)) || asked.as_ref() == Some(&kind) {
            return;
        }
        // An operator's word replaces a candidate's, never the other way round.
        if asked.is_some() && matches!(kind, AskKind::Preempt(_)) {
            return;
        }
        *asked = Some(kind.clone());
        self.events.push_back(Event::Asked { election: key.clone(), kind });
    }

    pub(super) fn finished(&mut self, key: &ElectionKey, now: Moment, entropy: &mut dyn Entropy) {
        let timing = self.config.timing;
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        match std::mem::replace(&mut campaign.phase, Phase::Following) {
            Phase::Leading { term, asked } => {
                let kind = asked.unwrap_or(AskKind::Resign);
                // Who steps down lets the others go first.
                campaign.hold_off = now + timing.reserve() + timing.rank_step() * 2;
                let (successor, via) = (kind.successor().cloned(), kind.via());
                let via = if campaign.withdrawing && via == Via::Resign { Via::Release } else { via };
                campaign.phase = Phase::Releasing { held: term, successor, via };
                self.release(key);
            }
            Phase::Ending { held: Some(held) } => {
                campaign.phase = Phase::Releasing { held, successor: None, via: Via::Release };
                self.release(key);
            }
            Phase::Ending { held: None } if campaign.withdrawing => self.leave(key, now, entropy),
            Phase::Ending { held: None } => self.follow(key),
            other => campaign.phase = other,
        }
    }

    /// Holding nothing any more, looks who leads; a session opened meanwhile may have failed to join.
    pub(super) fn follow(&mut self, key: &ElectionKey) {
        self.curious.insert(key.clone());
        self.join(key);
    }

    pub(super) fn release(&mut self, key: &ElectionKey) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        let Phase::Releasing { held, successor, via } = &campaign.phase else { return };
        campaign.touched = self.step;
        let release = Release {
            session: held.session.clone(),
            election: key.clone(),
            slot: held.slot,
            token: held.token,
            successor: successor.clone(),
            via: *via,
            leave: campaign.withdrawing,
        };
        let pending = Pending::Release(key.clone(), release.slot, release.token);
        self.command(Command::Release(release), pending);
    }

    pub(super) fn release_answered(
        &mut self,
        key: ElectionKey,
        (slot, token): (u32, Token),
        result: Result<(), StoreError>,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        campaign.touched = self.step;
        // The answer to an earlier term's release says nothing about this one's.
        let of_it = |held: &Held| (held.slot, held.token) == (slot, token);
        if !matches!(&campaign.phase, Phase::Releasing { held, .. } if of_it(held)) {
            return;
        }
        match result {
            Ok(()) => {
                self.released(&key, token);
                if self.campaigns.get(&key).is_some_and(|c| c.withdrawing) {
                    self.leave(&key, now, entropy);
                } else {
                    self.follow(&key);
                }
            }
            Err(error) => {
                self.timers.set(Timer::Election(key), now + entropy.jitter(self.config.timing.retry()));
                self.events.push_back(Event::Trouble(error));
            }
        }
    }

    pub(super) fn released(&mut self, key: &ElectionKey, token: Token) {
        let me = self.session().cloned();
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.phase = Phase::Following;
        campaign.touched = self.step;
        campaign.released_by = me;
        self.events.push_back(Event::Released { election: key.clone(), token });
    }

    pub(super) fn taken(
        &mut self,
        session: SessionId,
        key: ElectionKey,
        slot: u32,
        result: Result<Option<Token>, StoreError>,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        let timing = self.config.timing;
        if self.session() != Some(&session) {
            return;
        }
        let Some(campaign) = self.campaigns.get_mut(&key) else { return };
        if campaign.phase != Phase::Taking {
            return;
        }
        campaign.phase = Phase::Following;
        campaign.touched = self.step;
        match result {
            Ok(Some(token)) => return self.granted(&key, Held { slot, token, session }, now),
            Ok(None) => campaign.hold_off = now + entropy.jitter(timing.rank_step()),
            // Unknown: a look will tell whether it was granted.
            Err(error) => {
                campaign.hold_off = now + entropy.jitter(timing.retry());
                self.events.push_back(Event::Trouble(error));
            }
        }
        if self.campaigns.get(&key).is_some_and(|c| c.withdrawing) {
            self.leave(&key, now, entropy);
        } else {
            self.curious.insert(key);
        }
    }

    /// The store granted the lease to our live session.
    pub(super) fn granted(&mut self, key: &ElectionKey, term: Held, now: Moment) {
        let trusted = now < self.trusted_until();
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.touched = self.step;
        campaign.free.clear();
        campaign.released_by = None;
        if campaign.withdrawing || !trusted {
            self.give_back(key, term);
        } else {
            let (slot, token) = (term.slot, term.token);
            campaign.phase = Phase::Leading { term, asked: None };
            self.events.push_back(Event::Elected { election: key.clone(), slot, token });
        }
    }

    /// Gives back a lease under which nothing runs, until the store confirms it.
    pub(super) fn give_back(&mut self, key: &ElectionKey, held: Held) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.phase = Phase::Releasing { held, successor: None, via: Via::Release };
        self.release(key);
    }
}
