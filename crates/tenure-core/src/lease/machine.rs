//! The session and all the campaigns of one process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::command::{Answer, Command, CommandId, Event, Input, Loss, Stand};
use super::phase::{Campaign, Held, Phase};
use super::sightings::Sightings;
use super::timers::{Timer, Timers};
use crate::port::{
    Ask, AskKind, Candidacy, CandidateView, ElectionView, Joined, LeaseView, NewSession, Observation, Pulse,
    Release, Scope, SessionView, StoreError, Takeover, Via, Wake,
};
use crate::{ElectionKey, Entropy, Moment, SessionId, Timing, Token};

/// How often the end of a session is tried before it is left to expire.
const END_TRIES: u32 = 3;

/// What a machine is told about its process.
#[derive(Clone, Debug)]
pub struct Config {
    /// What people call the process.
    pub name: String,
    /// Its lease and beat.
    pub timing: Timing,
    /// How others learn of its death.
    pub takeover: Takeover,
}

/// The rules of one process: its session, and its part in any number of elections.
///
/// ```
/// use tenure_core::lease::{Command, Config, Input, Machine};
/// use tenure_core::{Moment, SplitMix};
///
/// let mut machine = Machine::new(Config { name: "a".into(), timing: Default::default(), takeover: Default::default() });
/// machine.handle(Moment::ZERO, Input::Start, &mut SplitMix::new(1));
/// let (_, command) = machine.poll_command().unwrap();
/// assert!(matches!(command, Command::Open(session) if session.name == "a"));
/// ```
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) config: Config,
    pub(super) session: Session,
    pub(super) campaigns: BTreeMap<ElectionKey, Campaign>,
    pub(super) sightings: Sightings,
    pub(super) timers: Timers,
    commands: VecDeque<(CommandId, Command)>,
    events: VecDeque<Event>,
    pending: BTreeMap<CommandId, Pending>,
    /// Counts inputs; orders observations against commands.
    step: u64,
    next_command: u64,
    looking: bool,
    /// Elections to look at as soon as no look is under way.
    pub(super) curious: BTreeSet<ElectionKey>,
    /// Sessions whose expiry was asked for, by the beat that stood still.
    expiring: BTreeSet<(SessionId, u64)>,
    /// Leases of this session that are being given back though no campaign releases them. They are never adopted: a
    /// release that is still under way would take them from under us.
    renounced: BTreeSet<(ElectionKey, u32, Token)>,
    watched: Vec<SessionId>,
}

#[derive(Clone, Debug)]
pub(super) enum Session {
    Closed,
    Opening,
    Live(Live),
    Ending { id: SessionId, tries: u32 },
    Ended,
}

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) id: SessionId,
    timeline: u32,
    /// Everything held is trusted before this moment, and not at it.
    deadline: Moment,
    in_doubt: bool,
    beating: bool,
    beat_again: bool,
}

#[derive(Clone, Debug)]
enum Pending {
    Open(SessionId),
    Beat(SessionId),
    End,
    Join(SessionId, ElectionKey),
    Leave(ElectionKey),
    Look {
        session: SessionId,
        scope: Scope,
        step: u64,
    },
    Take {
        session: SessionId,
        election: ElectionKey,
        slot: u32,
    },
    Release(ElectionKey, u32, Token),
    Expire(SessionId, u64),
    /// Its answer changes nothing.
    Nothing,
}

impl Machine {
    /// A machine that has not started.
    pub fn new(config: Config) -> Self {
        Machine {
            config,
            session: Session::Closed,
            campaigns: BTreeMap::new(),
            sightings: Sightings::default(),
            timers: Timers::default(),
            commands: VecDeque::new(),
            events: VecDeque::new(),
            pending: BTreeMap::new(),
            step: 0,
            next_command: 0,
            looking: false,
            curious: BTreeSet::new(),
            expiring: BTreeSet::new(),
            renounced: BTreeSet::new(),
            watched: Vec::new(),
        }
    }

    /// Takes in what happened. `now` must never go backwards.
    pub fn handle(&mut self, now: Moment, input: Input, entropy: &mut dyn Entropy) {
        self.step += 1;
        // Whatever came in, trust that has run out is gone before anything else is concluded.
        self.doubt_if_due(now);
        match input {
            Input::Start => self.open(entropy),
            Input::Campaign(stand) => self.campaign(stand),
            Input::Withdraw(key) => self.withdraw(&key, now, entropy),
            Input::Resign(key) => self.asked(&key, None, AskKind::Resign),
            Input::Finished(key) => self.finished(&key, now, entropy),
            Input::Answer { id, sent_at, answer } => self.answer(id, sent_at, answer, now, entropy),
            Input::Wake(wake) => self.wake(wake, now, entropy),
            Input::Tick => {}
            Input::Stop => self.stop(),
        }
        while let Some(timer) = self.timers.pop_due(now) {
            self.due(timer, now, entropy);
        }
        self.look_if_curious();
    }

    /// The next call to make to the store.
    pub fn poll_command(&mut self) -> Option<(CommandId, Command)> {
        self.commands.pop_front()
    }

    /// The next thing to tell the process.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle`](Self::handle) with [`Input::Tick`], if nothing else happens before.
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Everything led is trusted before this moment. [`Moment::ZERO`]: nothing is.
    pub fn trusted_until(&self) -> Moment {
        match &self.session {
            Session::Live(live) => live.deadline,
            _ => Moment::ZERO,
        }
    }

    /// The token under which this process leads the election *now*: a comparison, not a flag.
    pub fn leads(&self, key: &ElectionKey, now: Moment) -> Option<Token> {
        match &self.campaigns.get(key)?.phase {
            Phase::Leading { term, .. } if now < self.trusted_until() => Some(term.token),
            _ => None,
        }
    }

    /// The live session.
    pub fn session(&self) -> Option<&SessionId> {
        match &self.session {
            Session::Live(live) => Some(&live.id),
            _ => None,
        }
    }

    /// The election as it was last seen.
    pub fn view(&self, key: &ElectionKey) -> Option<&ElectionView> {
        self.campaigns.get(key)?.view.as_ref()
    }

    // ---- the session

    fn open(&mut self, entropy: &mut dyn Entropy) {
        // A new identity for every try: one whose answer was lost is left to expire.
        let id = SessionId::generate(entropy);
        self.session = Session::Opening;
        let session = NewSession {
            id: id.clone(),
            name: self.config.name.clone(),
            lease: self.config.timing.lease(),
            takeover: self.config.takeover,
        };
        self.command(Command::Open(session), Pending::Open(id));
    }

    fn opened(
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
            Ok(Pulse::Alive { timeline, .. }) => {
                let deadline = sent_at + self.config.timing.trust();
                let live = Live {
                    id: id.clone(),
                    timeline,
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

    fn reopen_later(&mut self, now: Moment, entropy: &mut dyn Entropy) {
        self.session = Session::Closed;
        self.timers.set(Timer::Open, now + entropy.jitter(self.config.timing.retry()));
    }

    fn beat(&mut self) {
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

    fn beaten(
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
            Ok(Pulse::Alive { timeline, .. }) if timeline != live.timeline => {
                self.lose_session(Loss::TimelineChanged, entropy);
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

    fn doubt_if_due(&mut self, now: Moment) {
        if let Session::Live(live) = &mut self.session
            && !live.in_doubt
            && now >= live.deadline
        {
            live.in_doubt = true;
            self.lose_all(Loss::Doubt);
        }
    }

    /// Everything led is lost. What the store may still have in our name is given back once the work has ended.
    fn lose_all(&mut self, why: Loss) {
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
    fn lose_session(&mut self, why: Loss, entropy: &mut dyn Entropy) {
        self.lose_all(why);
        self.session = Session::Closed;
        self.renounced.clear();
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

    fn stop(&mut self) {
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

    fn end_answered(&mut self, result: Result<(), StoreError>, now: Moment, entropy: &mut dyn Entropy) {
        match (&self.session, result) {
            (Session::Ending { tries, .. }, Err(_)) if *tries < END_TRIES => {
                self.timers.set(Timer::End, now + entropy.jitter(self.config.timing.retry()));
            }
            (Session::Ending { .. }, _) => self.stopped(),
            _ => {}
        }
    }

    fn stopped(&mut self) {
        self.session = Session::Ended;
        self.events.push_back(Event::Stopped);
    }

    // ---- elections

    fn campaign(&mut self, stand: Stand) {
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

    fn join(&mut self, key: &ElectionKey) {
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

    fn joined(
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

    fn withdraw(&mut self, key: &ElectionKey, now: Moment, entropy: &mut dyn Entropy) {
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.withdrawing = true;
        campaign.again = None;
        if campaign.phase == Phase::Following {
            self.leave(key, now, entropy);
        }
    }

    /// Holding nothing, tells the store that the candidate goes.
    fn leave(&mut self, key: &ElectionKey, now: Moment, entropy: &mut dyn Entropy) {
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

    fn leaves(&self, key: &ElectionKey) -> bool {
        self.campaigns.get(key).is_some_and(|campaign| campaign.phase == Phase::Leaving)
    }

    fn withdrawn(&mut self, key: &ElectionKey) {
        if let Some(campaign) = self.campaigns.remove(key) {
            self.timers.cancel(&Timer::Election(key.clone()));
            self.events.push_back(Event::Withdrawn(key.clone()));
            campaign.again.into_iter().for_each(|stand| self.campaign(stand));
        }
    }

    /// Something is asked of the leader: by the store for one term, or by the process itself.
    fn asked(&mut self, key: &ElectionKey, term_asked: Option<(u32, Token)>, kind: AskKind) {
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

    fn finished(&mut self, key: &ElectionKey, now: Moment, entropy: &mut dyn Entropy) {
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
    fn follow(&mut self, key: &ElectionKey) {
        self.curious.insert(key.clone());
        self.join(key);
    }

    fn release(&mut self, key: &ElectionKey) {
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

    fn release_answered(
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

    fn released(&mut self, key: &ElectionKey, token: Token) {
        let me = self.session().cloned();
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.phase = Phase::Following;
        campaign.touched = self.step;
        campaign.released_by = me;
        self.events.push_back(Event::Released { election: key.clone(), token });
    }

    fn taken(
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
    fn granted(&mut self, key: &ElectionKey, term: Held, now: Moment) {
        let trusted = now < self.trusted_until();
        let Some(campaign) = self.campaigns.get_mut(key) else { return };
        campaign.touched = self.step;
        campaign.free.clear();
        campaign.released_by = None;
        if campaign.withdrawing || !trusted {
            campaign.phase = Phase::Releasing { held: term, successor: None, via: Via::Release };
            self.release(key);
        } else {
            let (slot, token) = (term.slot, term.token);
            campaign.phase = Phase::Leading { term, asked: None };
            self.events.push_back(Event::Elected { election: key.clone(), slot, token });
        }
    }

    // ---- looking

    fn look(&mut self, scope: Scope) {
        let Session::Live(live) = &self.session else { return };
        self.looking = true;
        let pending = Pending::Look { session: live.id.clone(), scope: scope.clone(), step: self.step };
        self.command(Command::Observe(live.id.clone(), scope), pending);
    }

    fn look_if_curious(&mut self) {
        if !self.looking && !self.curious.is_empty() && matches!(self.session, Session::Live(_)) {
            let keys = std::mem::take(&mut self.curious).into_iter().collect();
            self.look(Scope::Only(keys));
        }
    }

    fn observed(
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
        self.sightings.note(&observation, now, complete);
        if complete {
            self.forget_given_back(&observation);
        }
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
        let mut absent = Vec::new();
        for (key, campaign) in &self.campaigns {
            let shown = observation.elections.iter().any(|view| view.key == *key);
            if shown || !campaign.standing || campaign.touched > asked_at {
                continue;
            }
            match scope {
                Scope::Contested if campaign.phase == Phase::Following => {
                    self.curious.insert(key.clone());
                }
                Scope::Contested => {}
                Scope::Only(keys) if !keys.contains(key) => {}
                Scope::Only(_) | Scope::Standing => absent.push(key.clone()),
            }
        }
        absent.iter().for_each(|key| self.stand_again(key));
    }

    /// The store does not have this candidate as it stands: a late leave or an earlier join overtook the last join.
    fn stand_again(&mut self, key: &ElectionKey) {
        if let Some(campaign) = self.campaigns.get_mut(key).filter(|campaign| !campaign.withdrawing) {
            campaign.standing = false;
            self.join(key);
        }
    }

    fn release_stray(&mut self, election: ElectionKey, slot: u32, token: Token, asked_at: u64) {
        let campaign = self.campaigns.get(&election);
        if campaign.is_none_or(|c| c.touched <= asked_at && c.phase == Phase::Following) {
            self.renounce(election, slot, token);
        }
    }

    /// Gives back a lease of ours under which nothing runs.
    fn renounce(&mut self, election: ElectionKey, slot: u32, token: Token) {
        let Session::Live(live) = &self.session else { return };
        let session = live.id.clone();
        self.renounced.insert((election.clone(), slot, token));
        let release =
            Release { session, election, slot, token, successor: None, via: Via::Release, leave: false };
        self.command(Command::Release(release), Pending::Nothing);
    }

    /// Forgets renounced leases that are no longer ours.
    fn forget_given_back(&mut self, all: &Observation) {
        let Session::Live(live) = &self.session else { return };
        self.renounced.retain(|lease| {
            let (election, slot, token) = lease;
            let view = all.elections.iter().find(|view| view.key == *election);
            all.strays.contains(lease)
                || view.is_some_and(|v| v.held_by(&live.id).any(|l| l == (*slot, *token)))
        });
    }

    /// A join overtook the leave that was to undo it: the store has a candidate that nobody stands for.
    fn leave_stray(&mut self, view: ElectionView) {
        let Session::Live(live) = &self.session else { return };
        if view.candidate(&live.id).is_some() {
            self.command(Command::Leave(live.id.clone(), view.key), Pending::Nothing);
        }
    }

    /// Takes in a fresh view of one election.
    fn seen(&mut self, view: ElectionView, now: Moment, entropy: &mut dyn Entropy) {
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
            Phase::Following => {
                let given_back =
                    |&&(slot, token): &&(u32, Token)| self.renounced.contains(&(key.clone(), slot, token));
                let adopted = mine.iter().find(|lease| !given_back(lease)).copied();
                match adopted.zip(me) {
                    // A take whose answer was lost did happen.
                    Some(((slot, token), session)) => {
                        self.granted(&key, Held { slot, token, session }, now);
                        if paused {
                            self.asked(&key, None, AskKind::Pause);
                        }
                    }
                    None => self.consider(&key, now, entropy),
                }
                self.renounce_all_but(adopted, mine, &key);
            }
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
                self.renounce_all_but(Some(term), mine, &key);
            }
            _ => {}
        }
    }

    /// A late take may have brought a second slot of the same election: one is enough.
    fn renounce_all_but(&mut self, keep: Option<(u32, Token)>, mine: Vec<(u32, Token)>, key: &ElectionKey) {
        for (slot, token) in mine.into_iter().filter(|&lease| Some(lease) != keep) {
            self.renounce(key.clone(), slot, token);
        }
    }

    /// Expires sessions that have been silent for far longer than their lease, candidates and holders alike.
    fn clear_away_stale(&mut self, view: &ElectionView, now: Moment) {
        let holders = view.leases.iter().filter_map(|lease| lease.holder.as_ref());
        let stale: Vec<_> = holders
            .chain(view.candidates.iter().map(|candidate| &candidate.session))
            .filter(|session| session.live && self.sightings.is_stale(session, now))
            .map(|session| (session.id.clone(), session.beat))
            .collect();
        for (session, beat) in stale {
            if self.session() != Some(&session) && self.expiring.insert((session.clone(), beat)) {
                let expire = crate::port::Expire { session: session.clone(), beat: Some(beat) };
                self.command(Command::Expire(expire), Pending::Expire(session, beat));
            }
        }
    }

    fn watch_holders(&mut self) {
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

    // ---- hints and timers

    fn wake(&mut self, wake: Wake, now: Moment, entropy: &mut dyn Entropy) {
        match wake {
            Wake::Released { election, slot, token, by, successor, via } => {
                let me = self.session().cloned();
                let Some(campaign) = self.campaigns.get_mut(&election) else { return };
                if Some(&by) == me.as_ref() || campaign.phase != Phase::Following {
                    return;
                }
                // Believed only so far as to try a compare-and-swap on it.
                let lease = campaign.view.as_mut().and_then(|v| v.leases.iter_mut().find(|l| l.slot == slot));
                if let Some(lease) = lease.filter(|lease| lease.token == token) {
                    (lease.holder, lease.reserved, lease.via) = (None, successor, via);
                    campaign.released_by = Some(by);
                    self.consider(&election, now, entropy);
                }
                self.curious.insert(election);
            }
            Wake::Changed(election) => {
                if self.campaigns.contains_key(&election) {
                    self.curious.insert(election);
                }
            }
            Wake::Asked(session) => {
                if self.session() == Some(&session) {
                    self.beat();
                }
            }
            // All that it held is free already.
            Wake::Ended(session) => self.holder_gone(&session, now, entropy, |campaign| {
                let leases = campaign.view.iter_mut().flat_map(|view| view.leases.iter_mut());
                for lease in leases.filter(|l| l.holder.as_ref().is_some_and(|h| h.id == session)) {
                    lease.holder = None;
                }
                campaign.released_by = Some(session.clone());
            }),
            Wake::Died(session) => {
                self.sightings.died(session.clone());
                self.holder_gone(&session, now, entropy, |_| {});
            }
            Wake::Severed(session) => {
                if self.session() == Some(&session) {
                    self.lose_session(Loss::Severed, entropy);
                }
            }
            Wake::Resync => self.timers.no_later_than(Timer::Tend, now),
        }
    }

    fn holder_gone(
        &mut self,
        session: &SessionId,
        now: Moment,
        entropy: &mut dyn Entropy,
        mark: impl Fn(&mut Campaign),
    ) {
        let mut affected = Vec::new();
        for (key, campaign) in &mut self.campaigns {
            if campaign.view.iter().any(|view| view.held_by(session).next().is_some()) {
                mark(campaign);
                affected.push(key.clone());
            }
        }
        for key in affected {
            self.consider(&key, now, entropy);
            self.curious.insert(key);
        }
    }

    fn due(&mut self, timer: Timer, now: Moment, entropy: &mut dyn Entropy) {
        let timing = self.config.timing;
        match timer {
            // Dealt with at the start of every step.
            Timer::Doubt => {}
            Timer::Open => self.open(entropy),
            Timer::Beat => self.beat(),
            Timer::Look => {
                let follows = |c: &Campaign| c.phase == Phase::Following;
                if self.looking {
                    self.timers.set(Timer::Look, now + entropy.jitter(timing.poll()));
                } else if self.campaigns.values().any(follows) {
                    self.look(Scope::Contested);
                }
            }
            Timer::Tend => {
                self.timers.set(Timer::Tend, now + entropy.jitter(timing.tend()));
                if self.looking {
                    self.timers.set(Timer::Tend, now + entropy.jitter(timing.retry()));
                } else {
                    self.look(Scope::Standing);
                }
            }
            Timer::End => {
                if let Session::Ending { id, tries } = &mut self.session {
                    *tries += 1;
                    let id = id.clone();
                    self.command(Command::End(id), Pending::End);
                }
            }
            Timer::Election(key) => match self.campaigns.get(&key).map(|c| (&c.phase, c.standing)) {
                Some((Phase::Releasing { .. }, _)) => self.release(&key),
                Some((Phase::Leaving, _)) => self.leave(&key, now, entropy),
                Some((_, false)) => self.join(&key),
                Some((Phase::Following, true)) => self.consider(&key, now, entropy),
                _ => {}
            },
        }
    }

    fn answer(
        &mut self,
        id: CommandId,
        sent_at: Moment,
        answer: Answer,
        now: Moment,
        entropy: &mut dyn Entropy,
    ) {
        let Some(pending) = self.pending.remove(&id) else { return };
        match (pending, answer) {
            (Pending::Open(id), Answer::Pulse(pulse)) => self.opened(id, sent_at, pulse, now, entropy),
            (Pending::Beat(id), Answer::Pulse(pulse)) => self.beaten(id, sent_at, pulse, now, entropy),
            (Pending::End, Answer::Done(result)) => self.end_answered(result, now, entropy),
            (Pending::Join(id, key), Answer::Joined(result)) => self.joined(id, key, result, now, entropy),
            (Pending::Leave(key), Answer::Done(Ok(()))) if self.leaves(&key) => self.withdrawn(&key),
            (Pending::Look { session, scope, step }, Answer::Observed(result))
                if self.session() == Some(&session) =>
            {
                self.observed(&scope, step, result, now, entropy);
            }
            (Pending::Take { session, election, slot }, Answer::Taken(result)) => {
                self.taken(session, election, slot, result, now, entropy);
            }
            (Pending::Release(key, slot, token), Answer::Done(result)) => {
                self.release_answered(key, (slot, token), result, now, entropy);
            }
            (Pending::Expire(session, beat), Answer::Done(_)) => {
                self.expiring.remove(&(session, beat));
            }
            _ => {}
        }
    }

    fn command(&mut self, command: Command, pending: Pending) {
        let id = CommandId(self.next_command);
        self.next_command += 1;
        if !matches!(command, Command::Watch(_)) {
            self.pending.insert(id, pending);
        }
        self.commands.push_back((id, command));
    }

    pub(super) fn send_take(&mut self, take: crate::port::Take) {
        let (session, election, slot) = (take.session.clone(), take.election.clone(), take.slot);
        if let Some(campaign) = self.campaigns.get_mut(&election) {
            campaign.phase = Phase::Taking;
            campaign.touched = self.step;
        }
        self.command(Command::Take(take), Pending::Take { session, election, slot });
    }

    pub(super) fn send_ask(&mut self, ask: Ask) {
        self.command(Command::Ask(ask), Pending::Nothing);
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
