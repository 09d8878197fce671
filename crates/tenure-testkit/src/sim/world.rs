//! The world of one day: what is due when, and what becomes of it.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use tenure_core::lease::{Answer, Command, CommandId, Event, Input, Stand};
use tenure_core::port::{Trouble, Wake};
use tenure_core::{ElectionKey, Moment, Name, SplitMix};

use super::brief::{answer_in_brief, command_in_brief, event_in_brief, input_in_brief};
use super::failure::Diary;
use super::invariants::{self, Violation};
use super::network::{Draw as _, Weather};
use super::node::{Arrival, Cut, NEVER, Node, State, Work};
use super::resource::{Grant, Place, Resource};
use super::scenario::Plan;
use super::store::{Store, no_answer};
use super::{Mistake, Scenario, Stats};

pub(super) type Checked = Result<(), Violation>;

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) mistake: Option<Mistake>,
    pub(super) rng: SplitMix,
    /// Real time, in nanoseconds.
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<Due>>,
    queued: u64,
    pub(super) keys: Vec<ElectionKey>,
    pub(super) nodes: Vec<Node>,
    pub(super) store: Store,
    pub(super) store_up: bool,
    pub(super) promoted_at: Option<u64>,
    pub(super) resource: Resource,
    /// All grants ever made, in order.
    pub(super) grants: Vec<Grant>,
    /// The newest grant, by number, that has written to each place of the resource.
    pub(super) newest_writer: [usize; 8],
    pub(super) dead: Vec<tenure_core::SessionId>,
    pub(super) quiet: bool,
    pub(super) stats: Stats,
    pub(super) diary: Diary,
}

struct Due {
    at: u64,
    number: u64,
    what: What,
}

/// Something that is due.
pub(super) enum What {
    Tick { node: usize, at: u64 },
    Arrive { node: usize, epoch: u32, arrival: Box<Arrival> },
    Apply(Box<Request>),
    GuardedWrite(Box<Work>),
    Commit(Box<Work>),
    FencedWrite(Box<Work>),
    Start(usize),
    GoOn { node: usize, epoch: u32 },
    Mend(usize),
    StoreBack,
    Fault,
    Replicate,
}

/// A call on its way to the store.
pub(super) struct Request {
    node: usize,
    epoch: u32,
    id: CommandId,
    sent_at: Moment,
    /// When the process stops waiting for it.
    give_up_at: u64,
    gave_up: bool,
    command: Command,
}

impl World {
    pub(super) fn new(scenario: Scenario, seed: u64, mistake: Option<Mistake>, diary: bool) -> Self {
        // Neighbouring seeds of different scenarios share nothing.
        let mut rng = SplitMix::new(seed ^ ((scenario as u64) << 56));
        let plan = Plan::draw(scenario, &mut rng);
        let key =
            |n: usize| ElectionKey::new(Name::default_namespace(), format!("e{n}").parse().expect("a name"));
        let keys: Vec<_> = (0..plan.elections).map(key).collect();
        let mut world = World {
            mistake,
            now: 0,
            queue: BinaryHeap::new(),
            queued: 0,
            nodes: Vec::new(),
            store: Store::new(mistake),
            store_up: true,
            promoted_at: None,
            resource: Resource::default(),
            grants: Vec::new(),
            newest_writer: [0; 8],
            dead: Vec::new(),
            quiet: false,
            stats: Stats { days: 1, ..Stats::default() },
            diary: Diary::new(diary),
            plan,
            rng,
            keys,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        let rng = &mut self.rng;
        let slots: Vec<u32> = self.keys.iter().map(|_| [1, 1, 1, 2, 3][rng.below(5) as usize]).collect();
        let picky: Vec<bool> = self.keys.iter().map(|_| rng.chance(200)).collect();
        for number in 0..self.plan.nodes {
            let mut stands = Vec::new();
            for ((key, &slots), &picky) in self.keys.iter().zip(&slots).zip(&picky) {
                let mut stand = Stand::new(key.clone(), format!("n{number}"));
                stand.slots = slots;
                stand.priority = [0, 0, 0, 1, 5][rng.below(5) as usize];
                stand.observer = rng.chance(80);
                stand.requires = if picky { vec!["disk".into()] } else { Vec::new() };
                stand.capabilities = if rng.chance(700) { vec!["disk".into()] } else { Vec::new() };
                stands.push(rng.chance(920).then_some(stand));
            }
            self.nodes.push(Node::new(number, self.plan.timing, stands, rng));
        }
        for node in 0..self.nodes.len() {
            let at = self.rng.below(self.plan.lease);
            self.at(at, What::Start(node));
        }
        if self.plan.scenario != Scenario::Calm {
            self.at(self.plan.lease / 2, What::Fault);
        }
        if self.plan.scenario == Scenario::Promotion {
            self.at(self.plan.lease / 2, What::Replicate);
        }
    }

    /// Lives the day: the faults, then the quiet after them.
    pub(super) fn live(mut self) -> (Result<Stats, (Violation, Duration)>, Diary) {
        let result = self.faults_then_quiet();
        let at = Duration::from_nanos(self.now);
        self.stats.virtual_ms = at.as_millis() as u64;
        (result.map(|()| self.stats).map_err(|violation| (violation, at)), self.diary)
    }

    fn faults_then_quiet(&mut self) -> Checked {
        self.run_until(self.plan.chaos)?;
        self.end_of_faults()?;
        self.settle()
    }

    pub(super) fn run_until(&mut self, until: u64) -> Checked {
        while self.queue.peek().is_some_and(|Reverse(due)| due.at <= until) {
            let Some(Reverse(due)) = self.queue.pop() else { break };
            self.now = due.at;
            self.happen(due.what)?;
        }
        self.now = until;
        Ok(())
    }

    pub(super) fn at(&mut self, at: u64, what: What) {
        self.queued += 1;
        self.queue.push(Reverse(Due { at: at.max(self.now), number: self.queued, what }));
    }

    fn happen(&mut self, what: What) -> Checked {
        match what {
            What::Tick { node, at } => {
                let it = &mut self.nodes[node];
                if it.tick_at != at {
                    return Ok(());
                }
                it.tick_for = NEVER;
                if it.state == State::Up { self.feed(node, Input::Tick) } else { Ok(()) }
            }
            What::Arrive { node, epoch, arrival } => self.arrive(node, epoch, *arrival),
            What::Apply(request) => self.apply(*request),
            What::GuardedWrite(work) => self.guarded_write(*work),
            What::Commit(work) => self.commit(&work),
            What::FencedWrite(work) => self.fenced_write(&work),
            What::Start(node) => self.start(node),
            What::GoOn { node, epoch } => self.go_on(node, epoch),
            What::Mend(node) => {
                self.nodes[node].cut = Cut::None;
                Ok(())
            }
            What::StoreBack => {
                self.store_back();
                Ok(())
            }
            What::Fault => self.fault(),
            What::Replicate => {
                self.store.replicate();
                let next = self.now + self.rng.below(self.plan.lease);
                self.at(next, What::Replicate);
                Ok(())
            }
        }
    }

    // ---- processes

    fn arrive(&mut self, node: usize, epoch: u32, arrival: Arrival) -> Checked {
        let it = &mut self.nodes[node];
        match it.state {
            _ if it.epoch != epoch => Ok(()),
            State::Down => Ok(()),
            State::Stopped => {
                it.inbox.push(arrival);
                Ok(())
            }
            State::Up => self.take_in(node, arrival),
        }
    }

    pub(super) fn take_in(&mut self, node: usize, arrival: Arrival) -> Checked {
        match arrival {
            Arrival::Input(input) => self.feed(node, input),
            Arrival::Answer { id, sent_at, answer } => {
                let late = self.mistake == Some(Mistake::ClockReadAfterTheAnswer);
                let sent_at = if late { self.nodes[node].clock.at(self.now) } else { sent_at };
                self.feed(node, Input::Answer { id, sent_at, answer })
            }
            Arrival::WorkDone(election, token) => {
                let work = &mut self.nodes[node].works[election];
                if work.as_ref().is_none_or(|work| work.token != token) {
                    return Ok(());
                }
                *work = None;
                if self.mistake != Some(Mistake::ReleaseBeforeTheWorkEnded) {
                    self.feed(node, Input::Finished(self.keys[election].clone()))?;
                }
                self.end_if_idle(node)
            }
            Arrival::Rejoin(election) => {
                let it = &mut self.nodes[node];
                let Some(stand) = it.returning[election].take().filter(|_| !it.ending) else { return Ok(()) };
                it.stands[election] = Some(stand.clone());
                self.feed(node, Input::Campaign(stand))
            }
        }
    }

    pub(super) fn start(&mut self, node: usize) -> Checked {
        let it = &mut self.nodes[node];
        if it.state != State::Down {
            return Ok(());
        }
        it.reset();
        it.state = State::Up;
        it.started_at = self.now;
        self.stats.restarts += u64::from(it.epoch > 1);
        self.diary.note(self.now, || format!("n{node} starts"));
        self.feed(node, Input::Start)?;
        let stands: Vec<Stand> = self.nodes[node].stands.iter().flatten().cloned().collect();
        stands.into_iter().try_for_each(|stand| self.feed(node, Input::Campaign(stand)))
    }

    pub(super) fn go_on(&mut self, node: usize, epoch: u32) -> Checked {
        let it = &mut self.nodes[node];
        if it.state != State::Stopped || it.epoch != epoch {
            return Ok(());
        }
        it.state = State::Up;
        it.clock.go_on(self.now);
        let waiting = std::mem::take(&mut it.inbox);
        self.diary.note(self.now, || format!("n{node} goes on; {} messages waited", waiting.len()));
        // Which a runtime polls first, its timers or its sockets, is its own affair.
        if self.rng.chance(500) {
            self.feed(node, Input::Tick)?;
        }
        for arrival in waiting {
            self.arrive(node, epoch, arrival)?;
        }
        self.feed(node, Input::Tick)
    }

    /// Lets a machine take something in, and does what it says.
    pub(super) fn feed(&mut self, node: usize, input: Input) -> Checked {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.stats.steps += 1;
            let it = &mut self.nodes[node];
            let local = it.clock.at(self.now);
            self.diary.note(self.now, || format!("n{node} ← {}", input_in_brief(&input)));
            let mut one_for_all = SplitMix::new(42);
            let shared = self.mistake == Some(Mistake::HostnameAsSessionId) && input == Input::Start;
            it.machine.handle(local, input, if shared { &mut one_for_all } else { &mut it.entropy });
            while let Some(event) = self.nodes[node].machine.poll_event() {
                self.react(node, event, &mut inputs)?;
            }
            while let Some((id, command)) = self.nodes[node].machine.poll_command() {
                self.send(node, local, id, command)?;
            }
        }
        self.keep_ticking(node);
        self.write_as_leader(node);
        invariants::after_step(self, node)
    }

    fn keep_ticking(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        let Some(wanted) = it.machine.poll_timeout().filter(|_| it.state == State::Up) else { return };
        if wanted >= it.tick_for {
            return;
        }
        // Timers fire a little late, and sometimes much.
        let late = if self.rng.chance(20) { self.plan.lease / 20 } else { 300_000 };
        let at = it.clock.real(wanted).max(self.now) + if self.quiet { 0 } else { self.rng.below(late) };
        (it.tick_for, it.tick_at) = (wanted, at);
        self.at(at, What::Tick { node, at });
    }

    fn react(&mut self, node: usize, event: Event, inputs: &mut VecDeque<Input>) -> Checked {
        let number = |key: &ElectionKey| self.keys.iter().position(|k| k == key);
        if !matches!(event, Event::Seen(_) | Event::Trouble(_)) {
            self.diary.note(self.now, || format!("n{node} ! {}", event_in_brief(&event)));
        }
        match event {
            Event::Elected { election, slot, token } => {
                let Some(number) = number(&election) else { return Ok(()) };
                self.stats.elected += 1;
                let it = &mut self.nodes[node];
                let Some(session) = it.machine.session().cloned() else { return Ok(()) };
                invariants::terms_do_not_overlap::check(it.works[number].as_ref(), node, token)?;
                let place = Place { election: number, slot };
                it.works[number] = Some(Work { place, token, session, finishing: false, lost: false });
                // An elector that was told to go while it was being elected.
                if it.stands[number].is_none() || it.ending {
                    self.finish(node, number, inputs);
                }
            }
            Event::Lost { election, token, .. } => {
                self.stats.lost += 1;
                let Some(number) = number(&election) else { return Ok(()) };
                if let Some(work) = self.nodes[node].works[number].as_mut().filter(|w| w.token == token) {
                    work.lost = true;
                }
                self.finish(node, number, inputs);
            }
            Event::Asked { election, .. } => {
                self.stats.asked += 1;
                if let Some(number) = number(&election) {
                    self.finish(node, number, inputs);
                }
            }
            Event::Released { .. } => self.stats.released += 1,
            Event::Stopped => {
                self.nodes[node].state = State::Down;
                (self.nodes[node].ending, self.nodes[node].starting) = (false, true);
                let back = self.now + self.rng.below(self.plan.lease);
                self.at(back, What::Start(node));
            }
            _ => {}
        }
        Ok(())
    }

    /// Brings the work of a term to an end, which takes a while.
    pub(super) fn finish(&mut self, node: usize, election: usize, inputs: &mut VecDeque<Input>) {
        let it = &mut self.nodes[node];
        let Some(work) = it.works[election].as_mut().filter(|work| !work.finishing) else { return };
        work.finishing = true;
        let (token, epoch) = (work.token, it.epoch);
        if self.mistake == Some(Mistake::ReleaseBeforeTheWorkEnded) {
            inputs.push_back(Input::Finished(self.keys[election].clone()));
        }
        let takes = [0, 1_000_000, self.plan.lease / 4][self.rng.below(3) as usize];
        let arrival = Box::new(Arrival::WorkDone(election, token));
        let at = self.now + self.rng.below(takes.max(1));
        self.at(at, What::Arrive { node, epoch, arrival });
    }

    /// An orderly end: first the work, then the session.
    pub(super) fn end_if_idle(&mut self, node: usize) -> Checked {
        let it = &self.nodes[node];
        if it.ending && it.works.iter().all(Option::is_none) {
            self.feed(node, Input::Stop)?;
        }
        Ok(())
    }

    // ---- the network

    fn send(&mut self, node: usize, sent_at: Moment, id: CommandId, command: Command) -> Checked {
        invariants::a_released_lease_was_not_in_use::check(self, node, &command)?;
        let it = &mut self.nodes[node];
        if let Command::Watch(sessions) = command {
            it.watched = sessions;
            let dead: Vec<_> = self.dead.iter().filter(|id| it.watched.contains(id)).cloned().collect();
            for session in dead {
                self.hint(node, &Wake::Died(session));
            }
            return Ok(());
        }
        self.stats.commands += 1;
        it.calls += 1;
        let cut = it.cut;
        let give_up_at = it.clock.real(sent_at + self.plan.timing.request_timeout());
        let arrives = self.now + self.plan.weather.delay(&mut self.rng, &self.plan.timing);
        let lost = cut == Cut::Requests || self.rng.chance(self.plan.weather.request_lost);
        let epoch = it.epoch;
        self.diary.note(self.now, || {
            let fate = if lost { " (lost)" } else { "" };
            format!("n{node} → {}{fate}", command_in_brief(&command))
        });
        let mut request = Request { node, epoch, id, sent_at, give_up_at, gave_up: false, command };
        if lost || arrives >= give_up_at {
            self.give_up(&mut request);
        }
        if lost {
            self.stats.requests_lost += 1;
        } else {
            self.at(arrives, What::Apply(Box::new(request)));
        }
        Ok(())
    }

    /// The process will stop waiting for this call; it may still be done.
    fn give_up(&mut self, request: &mut Request) {
        if let Some(answer) = no_answer(&request.command, Trouble::Timeout).filter(|_| !request.gave_up) {
            request.gave_up = true;
            self.answer_at(request.give_up_at, request, answer);
        }
    }

    fn answer_at(&mut self, at: u64, request: &Request, answer: Answer) {
        let &Request { node, epoch, id, sent_at, .. } = request;
        let arrival = Box::new(Arrival::Answer { id, sent_at, answer });
        self.at(at, What::Arrive { node, epoch, arrival });
    }

    fn apply(&mut self, mut request: Request) -> Checked {
        if !self.store_up {
            // Refused at once, or nobody answers.
            let refused = self.rng.chance(500) && !request.gave_up;
            if let Some(answer) = no_answer(&request.command, Trouble::Unreachable).filter(|_| refused) {
                request.gave_up = true;
                self.answer_at(self.now, &request, answer);
            }
            self.give_up(&mut request);
            return Ok(());
        }
        self.stats.applied_late += u64::from(request.gave_up);
        self.diary.note(self.now, || {
            let late = if request.gave_up { " (after its time-out)" } else { "" };
            format!("store does n{}'s {}{late}", request.node, command_in_brief(&request.command))
        });
        let wall_ms = (self.now / 1_000_000) as i64;
        let Some(answer) = self.store.call(&request.command, wall_ms) else { return Ok(()) };
        self.diary.note(self.now, || format!("store says {}", answer_in_brief(&answer)));
        self.note_grant(&request, &answer)?;
        invariants::a_trusted_session_lives::after_expiry(self, &request.command)?;
        self.pass_on_hints();
        if request.gave_up {
            return Ok(());
        }
        let weather = &self.plan.weather;
        let back_at = self.now + weather.delay(&mut self.rng, &self.plan.timing);
        let cut = self.nodes[request.node].cut == Cut::Answers;
        if cut || self.rng.chance(self.plan.weather.answer_lost) {
            self.stats.answers_lost += 1;
            self.give_up(&mut request);
        } else if back_at >= request.give_up_at {
            self.give_up(&mut request);
        } else {
            self.answer_at(back_at, &request, answer);
        }
        Ok(())
    }

    fn note_grant(&mut self, request: &Request, answer: &Answer) -> Checked {
        let (Command::Take(take), Answer::Taken(Ok(Some(token)))) = (&request.command, answer) else {
            return Ok(());
        };
        let Some(election) = self.keys.iter().position(|key| *key == take.election) else { return Ok(()) };
        self.stats.takeovers += u64::from(take.expire.is_some());
        self.stats.granted_late += u64::from(request.gave_up);
        let place = Place { election, slot: take.slot };
        invariants::tokens_only_grow::check(&self.grants, place, *token)?;
        self.grants.push(Grant { place, token: *token, session: take.session.clone() });
        Ok(())
    }

    pub(super) fn pass_on_hints(&mut self) {
        for wake in self.store.book.drain_wakes() {
            for node in 0..self.nodes.len() {
                self.hint(node, &wake);
            }
        }
    }

    pub(super) fn hint(&mut self, node: usize, wake: &Wake) {
        let weather = &self.plan.weather;
        let it = &self.nodes[node];
        let of_another = matches!(wake, Wake::Asked(session) if it.machine.session() != Some(session));
        if it.state == State::Down || of_another {
            return;
        }
        if it.cut != Cut::None || self.rng.chance(weather.hint_lost) {
            self.stats.hints_lost += 1;
            return;
        }
        let epoch = it.epoch;
        for _ in 0..1 + u64::from(self.rng.chance(weather.hint_doubled)) {
            let at = self.now + self.plan.weather.delay(&mut self.rng, &self.plan.timing);
            let arrival = Box::new(Arrival::Input(Input::Wake(wake.clone())));
            self.at(at, What::Arrive { node, epoch, arrival });
        }
    }

    // ---- the work of leaders

    fn write_as_leader(&mut self, node: usize) {
        for election in 0..self.keys.len() {
            let believes = self.nodes[node].believes(election, &self.keys[election], self.now, self.mistake);
            if believes.is_none() || !self.rng.chance(400) {
                continue;
            }
            let Some(work) = self.nodes[node].works[election].clone() else { continue };
            let delay = self.plan.weather.delay(&mut self.rng, &self.plan.timing);
            let what = if self.rng.chance(500) { What::GuardedWrite } else { What::FencedWrite };
            self.at(self.now + delay, what(Box::new(work)));
        }
    }

    fn guarded_write(&mut self, work: Work) -> Checked {
        let key = &self.keys[work.place.election];
        if !self.store_up || !self.store.holds(key, work.place.slot, work.token, &work.session) {
            self.stats.guarded_refused += 1;
            return Ok(());
        }
        if self.mistake == Some(Mistake::GuardTakesNoLock) {
            let later = self.now + self.plan.weather.delay(&mut self.rng, &self.plan.timing);
            self.at(later, What::Commit(Box::new(work)));
            return Ok(());
        }
        self.commit(&work)
    }

    fn commit(&mut self, work: &Work) -> Checked {
        self.stats.guarded_writes += 1;
        invariants::guarded_writes_only_by_the_holder::check(self, work)
    }

    fn fenced_write(&mut self, work: &Work) -> Checked {
        if !self.resource.write(work.place, work.token) {
            self.stats.stale_refused += 1;
            return Ok(());
        }
        self.stats.fenced_writes += 1;
        invariants::no_stale_write_accepted::check(self, work)
    }

    /// From now on there are no faults, and what was long under way arrives soon.
    pub(super) fn calm_down(&mut self) {
        self.quiet = true;
        self.plan.weather = Weather::calm();
        let soon = self.now + self.plan.lease / 10;
        let mut queue = std::mem::take(&mut self.queue).into_vec();
        for Reverse(due) in &mut queue {
            if matches!(due.what, What::Apply(_) | What::GuardedWrite(_) | What::FencedWrite(_)) {
                due.at = due.at.min(soon);
            }
        }
        self.queue = queue.into();
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
