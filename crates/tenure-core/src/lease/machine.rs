//! The session and all the campaigns of one process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::command::{Answer, Command, CommandId, Event, Input, Loss};
use super::eyes::Eyes;
use super::phase::{Campaign, Phase};
use super::timers::{Timer, Timers};
use crate::port::{Ask, AskKind, ElectionView, Scope, Takeover, Wake};
use crate::{ElectionKey, Entropy, Moment, SessionId, Timing, Token};

/// How often the end of a session is tried before it is left to expire.
pub(super) const END_TRIES: u32 = 3;

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
    pub(super) eyes: Eyes,
    pub(super) timers: Timers,
    pub(super) commands: VecDeque<(CommandId, Command)>,
    pub(super) events: VecDeque<Event>,
    pub(super) pending: BTreeMap<CommandId, Pending>,
    /// Counts inputs; orders observations against commands.
    pub(super) step: u64,
    pub(super) next_command: u64,
    pub(super) looking: bool,
    /// Where the last look around ended, if it did not cover all: a follower's, a leader's.
    pub(super) looked_until: [Option<ElectionKey>; 2],
    /// Elections to look at as soon as no look is under way.
    pub(super) curious: BTreeSet<ElectionKey>,
    /// Sessions whose expiry was asked for, by the beat that stood still.
    pub(super) expiring: BTreeSet<(SessionId, u64)>,
    pub(super) watched: Vec<SessionId>,
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
    pub(super) epoch: u32,
    /// Everything held is trusted before this moment, and not at it.
    pub(super) deadline: Moment,
    pub(super) in_doubt: bool,
    pub(super) beating: bool,
    pub(super) beat_again: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Pending {
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
            eyes: Eyes::default(),
            timers: Timers::default(),
            commands: VecDeque::new(),
            events: VecDeque::new(),
            pending: BTreeMap::new(),
            step: 0,
            next_command: 0,
            looking: false,
            looked_until: [None, None],
            curious: BTreeSet::new(),
            expiring: BTreeSet::new(),
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
                self.look_unless_taking(election);
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
            // About work, not about leases.
            Wake::Work(_)
            | Wake::Recalled(_)
            | Wake::Pool(_)
            | Wake::Events(_)
            | Wake::Group(_)
            | Wake::Schedules => {}
            // All that it held is free already.
            Wake::Ended(session) => self.holder_gone(&session, now, entropy, |campaign| {
                let leases = campaign.view.iter_mut().flat_map(|view| view.leases.iter_mut());
                for lease in leases.filter(|l| l.holder.as_ref().is_some_and(|h| h.id == session)) {
                    lease.holder = None;
                }
                campaign.released_by = Some(session.clone());
            }),
            Wake::Died(session) => {
                self.eyes.sightings.died(session.clone());
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
            self.look_unless_taking(key);
        }
    }

    /// A look beside a take would show the past by the time the take is answered.
    fn look_unless_taking(&mut self, key: ElectionKey) {
        if self.campaigns.get(&key).is_some_and(|campaign| campaign.phase != Phase::Taking) {
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
                    self.look_around(Scope::Contested, follows);
                }
            }
            Timer::Tend => {
                self.timers.set(Timer::Tend, now + entropy.jitter(timing.tend()));
                if self.looking {
                    self.timers.set(Timer::Tend, now + entropy.jitter(timing.retry()));
                } else {
                    self.look_around(Scope::Standing, |_| true);
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

    pub(super) fn command(&mut self, command: Command, pending: Pending) {
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
