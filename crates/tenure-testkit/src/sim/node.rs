//! A simulated process: its lease machine, its clock and its work as a leader.

use tenure_core::port::TakeoverMode;
use tenure_core::rules::lease::{CandidateOptions, CommandId, LeaseInput, LeaseMachine, LeaseMachineConfig};
use tenure_core::{BootInstant, ElectionKey, Entropy as _, SessionId, SplitMix, Timing, Token};

use super::InjectedBug;
use super::clock::SimClock;
use super::network::RandomExt as _;
use super::resource::SlotId;

/// Later than every instant.
pub(super) const NEVER: BootInstant = BootInstant::from_nanos(u64::MAX);

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessState {
    Up,
    /// Suspended by a signal or with its machine; inputs wait.
    Stopped,
    Down,
}

/// Direction in which a process is cut off from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkCut {
    None,
    Requests,
    Answers,
}

/// Work of one term.
#[derive(Clone, Debug)]
pub(super) struct SimWork {
    pub(super) place: SlotId,
    pub(super) token: Token,
    pub(super) session: SessionId,
    /// The work is being ended.
    pub(super) finishing: bool,
    pub(super) lost: bool,
}

/// An input for a process.
#[derive(Clone, Debug)]
pub(super) enum NodeInput {
    Input(LeaseInput),
    Answer { id: CommandId, sent_at: BootInstant, answer: tenure_core::rules::lease::StoreResponse },
    WorkDone(usize, Token),
    Rejoin(usize),
}

pub(super) struct SimProcess {
    pub(super) machine: LeaseMachine,
    pub(super) clock: SimClock,
    pub(super) entropy: SplitMix,
    pub(super) state: ProcessState,
    /// Number of starts: inputs for an earlier start are dropped.
    pub(super) epoch: u32,
    pub(super) inbox: Vec<NodeInput>,
    /// The instant for which a tick is scheduled, and the real time of that tick.
    pub(super) tick_for: BootInstant,
    pub(super) tick_at: u64,
    /// Campaign options per election.
    pub(super) stands: Vec<Option<CandidateOptions>>,
    /// Campaign options after the next rejoin.
    pub(super) returning: Vec<Option<CandidateOptions>>,
    pub(super) works: Vec<Option<SimWork>>,
    pub(super) watched: Vec<SessionId>,
    pub(super) cut: LinkCut,
    pub(super) ending: bool,
    /// Whether a start is scheduled.
    pub(super) starting: bool,
    /// Number of store calls since the last start, and the time of that start.
    pub(super) calls: u64,
    pub(super) started_at: u64,
    name: String,
    timing: Timing,
}

impl SimProcess {
    pub(super) fn new(
        number: usize,
        timing: Timing,
        stands: Vec<Option<CandidateOptions>>,
        rng: &mut SplitMix,
    ) -> Self {
        let name = format!("n{number}");
        // Any two rates differ by a factor of less than 1.2.
        let clock = SimClock::new(rng.below(1 << 40), rng.between(920_000, 1_090_000));
        let (works, returning) = (vec![None; stands.len()], vec![None; stands.len()]);
        SimProcess {
            machine: machine(&name, timing),
            clock,
            entropy: SplitMix::new(rng.next_u64()),
            state: ProcessState::Down,
            epoch: 0,
            inbox: Vec::new(),
            tick_for: NEVER,
            tick_at: u64::MAX,
            stands,
            returning,
            works,
            watched: Vec::new(),
            cut: LinkCut::None,
            ending: false,
            starting: true,
            calls: 0,
            started_at: 0,
            name,
            timing,
        }
    }

    /// Resets everything except the clock.
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

    /// The lease that it trusts in this election at this real time.
    pub(super) fn trusts_leadership(
        &self,
        election: usize,
        key: &ElectionKey,
        now: u64,
        bug: Option<InjectedBug>,
    ) -> Option<(SlotId, Token)> {
        let work = self.works[election].as_ref().filter(|_| self.state != ProcessState::Down)?;
        if bug == Some(InjectedBug::TrustWithoutDeadline) {
            return (!work.lost).then_some((work.place, work.token));
        }
        self.machine.leads(key, self.clock.at(now)).map(|token| (work.place, token))
    }

    /// Campaigns again in all elections after a restart.
    pub(super) fn come_back(&mut self) {
        for (stand, returning) in self.stands.iter_mut().zip(&mut self.returning) {
            *stand = stand.take().or(returning.take());
        }
    }

    /// Whether it has scheduled an action of its own.
    pub(super) fn is_restless(&self) -> bool {
        self.starting || self.ending || self.returning.iter().any(Option::is_some)
    }

    /// Whether it runs and is a candidate in this election.
    pub(super) fn stands(&self, election: usize) -> bool {
        self.state == ProcessState::Up && !self.ending && self.stands[election].is_some()
    }

    /// Whether it runs and is an eligible candidate in this election.
    pub(super) fn may_lead(&self, election: usize) -> bool {
        let able = |s: &CandidateOptions| {
            !s.observer && s.required_capabilities.iter().all(|need| s.capabilities.contains(need))
        };
        self.stands(election) && self.stands[election].as_ref().is_some_and(able)
    }

    /// The session that its machine trusts at this real time.
    pub(super) fn trusts(&self, now: u64) -> Option<&SessionId> {
        let trusts = self.state != ProcessState::Down && self.clock.at(now) < self.machine.trusted_until();
        self.machine.session().filter(|_| trusts)
    }
}

fn machine(name: &str, timing: Timing) -> LeaseMachine {
    LeaseMachine::new(LeaseMachineConfig { name: name.into(), timing, takeover: TakeoverMode::Lease })
}
