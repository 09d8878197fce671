//! One process: a machine, its clock, and the work it does while it leads.

use tenure_core::lease::{CommandId, Config, Input, Machine, Stand};
use tenure_core::port::Takeover;
use tenure_core::{ElectionKey, Entropy as _, Moment, SessionId, SplitMix, Timing, Token};

use super::Mistake;
use super::clock::Clock;
use super::network::Draw as _;
use super::resource::Place;

/// Later than everything.
pub(super) const NEVER: Moment = Moment::from_nanos(u64::MAX);

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Up,
    /// Stopped by a signal, or its machine is suspended: what arrives waits.
    Stopped,
    Down,
}

/// Which way a process is cut off from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    None,
    Requests,
    Answers,
}

/// Work under one term.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) place: Place,
    pub(super) token: Token,
    pub(super) session: SessionId,
    /// It is being brought to an end.
    pub(super) finishing: bool,
    pub(super) lost: bool,
}

/// Something for a process to take in.
#[derive(Clone, Debug)]
pub(super) enum Arrival {
    Input(Input),
    Answer { id: CommandId, sent_at: Moment, answer: tenure_core::lease::Answer },
    WorkDone(usize, Token),
    Rejoin(usize),
}

pub(super) struct Node {
    pub(super) machine: Machine,
    pub(super) clock: Clock,
    pub(super) entropy: SplitMix,
    pub(super) state: State,
    /// Counts starts: what was meant for an earlier one does not arrive.
    pub(super) epoch: u32,
    pub(super) inbox: Vec<Arrival>,
    /// What the queued tick is for, and the real time at which it comes.
    pub(super) tick_for: Moment,
    pub(super) tick_at: u64,
    /// How it wants to stand, by election.
    pub(super) stands: Vec<Option<Stand>>,
    /// How it will stand when it comes back.
    pub(super) returning: Vec<Option<Stand>>,
    pub(super) works: Vec<Option<Work>>,
    pub(super) watched: Vec<SessionId>,
    pub(super) cut: Cut,
    pub(super) ending: bool,
    /// A start is due.
    pub(super) starting: bool,
    /// Calls to the store since the last start, and when that was.
    pub(super) calls: u64,
    pub(super) started_at: u64,
    name: String,
    timing: Timing,
}

impl Node {
    pub(super) fn new(number: usize, timing: Timing, stands: Vec<Option<Stand>>, rng: &mut SplitMix) -> Self {
        let name = format!("n{number}");
        // Any two rates are within 1.2 of each other.
        let clock = Clock::new(rng.below(1 << 40), rng.between(920_000, 1_090_000));
        let (works, returning) = (vec![None; stands.len()], vec![None; stands.len()]);
        Node {
            machine: machine(&name, timing),
            clock,
            entropy: SplitMix::new(rng.next_u64()),
            state: State::Down,
            epoch: 0,
            inbox: Vec::new(),
            tick_for: NEVER,
            tick_at: u64::MAX,
            stands,
            returning,
            works,
            watched: Vec::new(),
            cut: Cut::None,
            ending: false,
            starting: true,
            calls: 0,
            started_at: 0,
            name,
            timing,
        }
    }

    /// As new, but for the clock.
    pub(super) fn reset(&mut self) {
        self.machine = machine(&self.name, self.timing);
        self.come_back();
        self.inbox.clear();
        self.watched.clear();
        self.works.iter_mut().for_each(|work| *work = None);
        (self.tick_for, self.tick_at) = (NEVER, u64::MAX);
        self.ending = false;
        self.starting = false;
        self.calls = 0;
        self.epoch += 1;
    }

    /// What it believes at this real time to lead in this election.
    pub(super) fn believes(
        &self,
        election: usize,
        key: &ElectionKey,
        now: u64,
        mistake: Option<Mistake>,
    ) -> Option<(Place, Token)> {
        let work = self.works[election].as_ref().filter(|_| self.state != State::Down)?;
        if mistake == Some(Mistake::TrustKeptAsAFlag) {
            return (!work.lost).then_some((work.place, work.token));
        }
        self.machine.leads(key, self.clock.at(now)).map(|token| (work.place, token))
    }

    /// A process that starts anew stands wherever it meant to.
    pub(super) fn come_back(&mut self) {
        for (stand, returning) in self.stands.iter_mut().zip(&mut self.returning) {
            *stand = stand.take().or(returning.take());
        }
    }

    /// Whether it is about to do something of its own accord.
    pub(super) fn is_restless(&self) -> bool {
        self.starting || self.ending || self.returning.iter().any(Option::is_some)
    }

    /// Whether it is up and stands in this election.
    pub(super) fn stands(&self, election: usize) -> bool {
        self.state == State::Up && !self.ending && self.stands[election].is_some()
    }

    /// Whether it is up and stands in this election as one that may lead.
    pub(super) fn may_lead(&self, election: usize) -> bool {
        let able = |s: &Stand| !s.observer && s.requires.iter().all(|need| s.capabilities.contains(need));
        self.stands(election) && self.stands[election].as_ref().is_some_and(able)
    }

    /// Whether its machine trusts its session at this real time.
    pub(super) fn trusts(&self, now: u64) -> Option<&SessionId> {
        let trusts = self.state != State::Down && self.clock.at(now) < self.machine.trusted_until();
        self.machine.session().filter(|_| trusts)
    }
}

fn machine(name: &str, timing: Timing) -> Machine {
    Machine::new(Config { name: name.into(), timing, takeover: Takeover::Lease })
}
