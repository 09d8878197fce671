//! The session: opened, beaten, doubted, lost, ended.

use super::command::{Command, Event, Loss};
use super::machine::{END_TRIES, Live, Machine, Pending, Session};
use super::phase::Phase;
use super::timers::Timer;
use crate::port::{NewSession, Pulse, StoreError};
use crate::{Entropy, Moment, SessionId};

impl Machine {
    pub(super) fn open(&mut self, entropy: &mut dyn Entropy) {
        // A new identity for every try: one whose answer was lost is left to expire.
        let id = SessionId::generate(entropy);
        self.session = Session::Opening;
        let session = NewSession {
            id: id.clone(),
            name: self.config.name.clone(),
            lease: self.config.timing.lease(),
            takeover: self.config.takeover,
            owner: None,
        };
        self.command(Command::Open(session), Pending::Open(id));
    }

    pub(super) fn opened(
        &mut self,
        id: SessionId,
        sent_at: Moment,
        pulse: Result<Pulse, StoreError>,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        if !matches!(self.session, Session::Opening) {
            return;
        }
        match pulse {
            Ok(Pulse::Alive { epoch, .. }) => {
                self.note_epoch(epoch, now);
                let deadline = sent_at + self.config.timing.trust();
                let live = Live {
                    id: id.clone(),
                    epoch,
                    deadline,
                    in_doubt: now >= deadline,
                    beating: false,
                    beat_again: false,
                };
                self.session = Session::Live(live);
                self.timers.set(Timer::Doubt, deadline);
                self.timers.set(Timer::Beat, sent_at + self.config.timing.beat());
                self.timers.set(Timer::Tend, now + entropy.jitter(self.config.timing.tend()));
                self.events.push_back(Event::Opened(id));
                let keys: Vec<_> = self.campaigns.keys().cloned().collect();
                keys.iter().for_each(|key| self.join(key));
            }
            Ok(Pulse::Gone) => self.reopen_later(now, entropy),
            Err(error) => {
                self.events.push_back(Event::Trouble(error));
                self.reopen_later(now, entropy);
            }
        }
    }

    pub(super) fn reopen_later(&mut self, now: Moment, entropy: &mut dyn Entropy) {
        self.session = Session::Closed;
        self.timers.set(Timer::Open, now + entropy.jitter(self.config.timing.retry()));
    }

    pub(super) fn beat(&mut self) {
        if let Session::Live(live) = &mut self.session {
            if live.beating {
                live.beat_again = true;
                return;
            }
            live.beating = true;
            let id = live.id.clone();
            self.command(Command::Beat(id.clone()), Pending::Beat(id));
        }
    }

    pub(super) fn beaten(
        &mut self,
        id: SessionId,
        sent_at: Moment,
        pulse: Result<Pulse, StoreError>,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        let timing = self.config.timing;
        let Session::Live(live) = &mut self.session else { return };
        if live.id != id {
            return;
        }
        live.beating = false;
        match pulse {
            Ok(Pulse::Alive { epoch, .. }) if epoch != live.epoch => {
                self.lose_session(Loss::EpochChanged, entropy);
            }
            Ok(Pulse::Alive { asks, .. }) => {
                // From before sending: the answer's delay must not lengthen trust.
                live.deadline = live.deadline.max(sent_at + timing.trust());
                let recovered = live.in_doubt && now < live.deadline;
                live.in_doubt &= !recovered;
                let next = if std::mem::take(&mut live.beat_again) { now } else { sent_at + timing.beat() };
                if !live.in_doubt {
                    self.timers.set(Timer::Doubt, live.deadline);
                }
                self.timers.set(Timer::Beat, next);
                for ask in asks {
                    self.asked(&ask.election, Some((ask.slot, ask.token)), ask.kind);
                }
                if recovered {
                    self.timers.set(Timer::Tend, now);
                }
            }
            Ok(Pulse::Gone) => self.lose_session(Loss::SessionGone, entropy),
            // Unknown: it never extends trust.
            Err(error) => {
                self.timers.set(Timer::Beat, now + entropy.jitter(timing.retry()));
                self.events.push_back(Event::Trouble(error));
            }
        }
    }

    pub(super) fn doubt_if_due(&mut self, now: Moment) {
        if let Session::Live(live) = &mut self.session
            && !live.in_doubt
            && now >= live.deadline
        {
            live.in_doubt = true;
            self.lose_all(Loss::Doubt);
        }
    }

    /// Everything led is lost. What the store may still have in our name is given back once the work has ended.
    pub(super) fn lose_all(&mut self, why: Loss) {
        for (key, campaign) in &mut self.campaigns {
            if let Phase::Leading { term, .. } = &campaign.phase {
                let (token, held) = (term.token, (why != Loss::SessionGone).then(|| term.clone()));
                self.events.push_back(Event::Lost { election: key.clone(), token, why });
                campaign.phase = Phase::Ending { held };
                campaign.touched = self.step;
            }
        }
    }

    /// The session is over; a new one is opened at once.
    pub(super) fn lose_session(&mut self, why: Loss, entropy: &mut dyn Entropy) {
        self.lose_all(why);
        self.session = Session::Closed;
        let gone = why == Loss::SessionGone;
        let keys: Vec<_> = self.campaigns.keys().cloned().collect();
        for key in keys {
            let Some(campaign) = self.campaigns.get_mut(&key) else { continue };
            campaign.standing = false;
            campaign.free.clear();
            campaign.touched = self.step;
            match &mut campaign.phase {
                Phase::Taking => campaign.phase = Phase::Following,
                // What an expired session held is free already.
                Phase::Ending { held } if gone => *held = None,
                Phase::Releasing { held, .. } if gone => {
                    let token = held.token;
                    self.released(&key, token);
                }
                Phase::Leaving => self.withdrawn(&key),
                _ => {}
            }
            if self.campaigns.get(&key).is_some_and(|c| c.withdrawing && c.phase == Phase::Following) {
                self.withdrawn(&key);
            }
        }
        self.timers.cancel(&Timer::Doubt);
        self.timers.cancel(&Timer::Beat);
        self.timers.cancel(&Timer::Look);
        self.timers.cancel(&Timer::Tend);
        self.looking = false;
        self.curious.clear();
        self.open(entropy);
    }

    pub(super) fn stop(&mut self) {
        self.timers.clear();
        self.curious.clear();
        match &self.session {
            Session::Live(live) => {
                let id = live.id.clone();
                self.session = Session::Ending { id: id.clone(), tries: 1 };
                self.command(Command::End(id), Pending::End);
            }
            _ => self.stopped(),
        }
    }

    pub(super) fn end_answered(
        &mut self,
        result: Result<(), StoreError>,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        match (&self.session, result) {
            (Session::Ending { tries, .. }, Err(_)) if *tries < END_TRIES => {
                self.timers.set(Timer::End, now + entropy.jitter(self.config.timing.retry()));
            }
            (Session::Ending { .. }, _) => self.stopped(),
            _ => {}
        }
    }

    pub(super) fn stopped(&mut self) {
        self.session = Session::Ended;
        self.events.push_back(Event::Stopped);
    }

    /// What was seen of the store belongs to an epoch. On a new one, beats may repeat and grants be lost: everything is
    /// watched anew, from now.
    fn note_epoch(&mut self, epoch: u32, now: Moment) {
        if !self.eyes.note_epoch(epoch, now) {
            return;
        }
        for campaign in self.campaigns.values_mut() {
            campaign.view = None;
            campaign.free.clear();
        }
    }
}
