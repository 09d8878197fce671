//! The rules of the lease machine, one claim per test, on a manual clock.

mod candidacy;
mod handover;
mod preemption;
mod properties;
mod proxy_candidate;
mod trust;

use std::collections::VecDeque;
use std::time::Duration;

use super::{
    CandidateOptions, CommandId, LeaseEvent, LeaseInput, LeaseMachine, LeaseMachineConfig, StoreCommand,
    StoreResponse,
};
use crate::model::elections::Elections;
use crate::port::{
    ElectionView, ErrorKind, LeaderRequest, LeaderRequestKind, Notification, Pause, StoreError,
};
use crate::{BootInstant, ElectionKey, SessionId, SplitMix, Timing, Token};

/// Lease of all tests.
const LEASE: Duration = Duration::from_secs(10);
/// Heartbeat interval of all tests.
const BEAT: Duration = Duration::from_secs(2);

/// Several processes and one store. Calls take no time unless a test holds them back.
struct TestElections {
    now: BootInstant,
    elections: Elections,
    processes: Vec<TestProcess>,
    notifications_enabled: bool,
}

struct TestProcess {
    machine: LeaseMachine,
    entropy: SplitMix,
    /// Calls that have not reached the store.
    calls: VecDeque<Call>,
    /// All events of the machine.
    events: Vec<LeaseEvent>,
    /// State of the connection to the store.
    link: Link,
    /// Whether the process finishes its work at once when it is asked to finish or loses leadership.
    finishes_at_once: bool,
}

#[derive(Clone, Debug)]
struct Call {
    id: CommandId,
    sent_at: BootInstant,
    command: StoreCommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    /// Calls wait until the test delivers them.
    Held,
    /// Every call fails and has no effect.
    Down,
    /// The process has exited.
    Dead,
}

fn key() -> ElectionKey {
    ElectionKey::new(crate::Name::default_namespace(), "e".parse().unwrap())
}

fn options(id: &str) -> CandidateOptions {
    CandidateOptions::new(key(), id)
}

fn error() -> StoreError {
    StoreError::new(ErrorKind::Timeout, "no response")
}

impl TestElections {
    /// Started processes `a`, `b`, … without campaigns.
    fn of(count: usize) -> TestElections {
        let mut test = TestElections {
            now: BootInstant::from_nanos(1_000),
            elections: Elections::default(),
            processes: Vec::new(),
            notifications_enabled: true,
        };
        for n in 0..count {
            let config = LeaseMachineConfig {
                name: format!("p{n}"),
                timing: Timing::new(LEASE, None).unwrap(),
                takeover: Default::default(),
            };
            let process = TestProcess {
                machine: LeaseMachine::new(config),
                entropy: SplitMix::new(n as u64 + 1),
                calls: VecDeque::new(),
                events: Vec::new(),
                link: Link::Up,
                finishes_at_once: true,
            };
            test.processes.push(process);
            test.feed(n, LeaseInput::Start);
        }
        test.settle();
        test
    }

    /// Processes that campaign with default options, in this order.
    fn campaigning(count: usize) -> TestElections {
        let mut test = TestElections::of(count);
        for n in 0..count {
            test.feed(n, LeaseInput::Campaign(options(["a", "b", "c", "d"][n])));
            test.run(LEASE / 20);
        }
        test
    }

    fn feed(&mut self, n: usize, input: LeaseInput) {
        let process = &mut self.processes[n];
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            process.machine.handle(self.now, input, &mut process.entropy);
            while let Some(event) = process.machine.poll_event() {
                if let LeaseEvent::Requested { election, .. } | LeaseEvent::Lost { election, .. } = &event
                    && process.finishes_at_once
                {
                    inputs.push_back(LeaseInput::Finished(election.clone()));
                }
                process.events.push(event);
            }
            while let Some((id, command)) = process.machine.poll_command() {
                if !matches!(command, StoreCommand::Watch(_)) {
                    process.calls.push_back(Call { id, sent_at: self.now, command });
                }
            }
        }
    }

    /// Delivers all calls and their follow-up calls until none is left.
    fn settle(&mut self) {
        for _ in 0..200 {
            let busy = |process: &TestProcess| {
                matches!(process.link, Link::Up | Link::Down) && !process.calls.is_empty()
            };
            let Some(n) = self.processes.iter().position(busy) else { return };
            let call = self.processes[n].calls.pop_front().unwrap();
            match self.processes[n].link {
                Link::Up => self.deliver(n, &call),
                _ => self.fail(n, &call),
            }
        }
        panic!("the calls do not end: {:?}", self.processes.iter().map(|p| &p.calls).collect::<Vec<_>>());
    }

    /// Applies a call to the store and passes the response to the process.
    fn deliver(&mut self, n: usize, call: &Call) {
        let answer = self.apply(&call.command);
        self.answer(n, call, answer);
    }

    fn answer(&mut self, n: usize, call: &Call, answer: StoreResponse) {
        self.feed(n, LeaseInput::Response { id: call.id, sent_at: call.sent_at, answer });
    }

    /// Passes an error to the process; the store does not receive the call.
    fn fail(&mut self, n: usize, call: &Call) {
        let answer = match &call.command {
            StoreCommand::Open(_) | StoreCommand::Heartbeat(_) => StoreResponse::Heartbeat(Err(error())),
            StoreCommand::Join(_) => StoreResponse::Joined(Err(error())),
            StoreCommand::Observe(..) => StoreResponse::Observed(Err(error())),
            StoreCommand::Take(_) => StoreResponse::Taken(Err(error())),
            StoreCommand::RequestLeader(_) => StoreResponse::LeaderRequested(Err(error())),
            _ => StoreResponse::Done(Err(error())),
        };
        self.answer(n, call, answer);
    }

    /// Applies the call to the store.
    fn apply(&mut self, command: &StoreCommand) -> StoreResponse {
        let elections = &mut self.elections;
        let answer = match command {
            StoreCommand::Open(session) => StoreResponse::Heartbeat(Ok(elections.open_session(session, 0))),
            StoreCommand::Heartbeat(id) => StoreResponse::Heartbeat(Ok(elections.heartbeat(id, 0))),
            StoreCommand::End(id) => {
                elections.end_session(id, 0);
                StoreResponse::Done(Ok(()))
            }
            StoreCommand::Join(candidacy) => StoreResponse::Joined(Ok(elections.join_election(candidacy, 0))),
            StoreCommand::Leave(id, key) => {
                elections.leave_election(id, key);
                StoreResponse::Done(Ok(()))
            }
            StoreCommand::Observe(id, scope) => StoreResponse::Observed(Ok(elections.observe(id, scope))),
            StoreCommand::Take(take) => StoreResponse::Taken(Ok(elections.take_lease(take, 0))),
            StoreCommand::Release(release) => {
                elections.release_lease(release, 0);
                StoreResponse::Done(Ok(()))
            }
            StoreCommand::Expire(expire) => {
                elections.expire_session(expire, 0);
                StoreResponse::Done(Ok(()))
            }
            StoreCommand::RequestLeader(ask) => {
                StoreResponse::LeaderRequested(Ok(elections.request_leader(ask)))
            }
            StoreCommand::Watch(_) => unreachable!("the command has no response"),
        };
        self.deliver_notifications();
        answer
    }

    fn deliver_notifications(&mut self) {
        for notification in self.elections.drain_notifications() {
            self.notify_all(&notification);
        }
    }

    fn notify_all(&mut self, notification: &Notification) {
        for n in 0..self.processes.len() {
            if self.notifications_enabled && matches!(self.processes[n].link, Link::Up | Link::Held) {
                self.feed(n, LeaseInput::Notification(notification.clone()));
            }
        }
    }

    /// Advances the clock from timer to timer.
    fn run(&mut self, d: Duration) {
        let end = self.now + d;
        self.settle();
        loop {
            let live = self.processes.iter().enumerate().filter(|(_, process)| process.link != Link::Dead);
            let next = live.filter_map(|(n, p)| Some((p.machine.poll_timeout()?, n))).min();
            let Some((at, n)) = next.filter(|(at, _)| *at <= end) else { break };
            self.now = self.now.max(at);
            self.feed(n, LeaseInput::Tick);
            self.settle();
        }
        self.now = end;
    }

    /// Removes the only delayed call of this kind from the queue and returns it.
    fn delayed_call(&mut self, n: usize, which: fn(&StoreCommand) -> bool) -> Call {
        let calls = &mut self.processes[n].calls;
        let at = calls.iter().position(|call| which(&call.command));
        let at = at.unwrap_or_else(|| panic!("no such call among {calls:?}"));
        calls.remove(at).unwrap()
    }

    fn leads(&self, n: usize) -> Option<Token> {
        self.processes[n].machine.leads(&key(), self.now)
    }

    /// Numbers of the leading processes.
    fn leaders(&self) -> Vec<usize> {
        let alive = |n: &usize| self.processes[*n].link != Link::Dead;
        (0..self.processes.len()).filter(alive).filter(|&n| self.leads(n).is_some()).collect()
    }

    fn session(&self, n: usize) -> SessionId {
        self.processes[n].machine.session().expect("a live session").clone()
    }

    fn view(&self) -> ElectionView {
        self.elections.election(&key()).expect("a candidate joined")
    }

    fn event_count(&self, n: usize, what: fn(&LeaseEvent) -> bool) -> usize {
        self.processes[n].events.iter().filter(|event| what(event)).count()
    }

    /// An operator's request to the leader of the first slot.
    fn ask(&mut self, kind: LeaderRequestKind) {
        let token = self.view().leases[0].token;
        assert!(self.elections.request_leader(&LeaderRequest {
            election: key(),
            slot: 0,
            token,
            kind,
            requested_by: "operator".into()
        }));
        self.deliver_notifications();
        self.settle();
    }

    fn pause(&mut self, paused: bool) {
        let pause = Pause { paused_by: "operator".into(), reason: String::new(), paused_at_ms: 0 };
        self.elections.set_election_paused(&key(), paused.then_some(&pause));
        self.deliver_notifications();
        self.settle();
    }
}
