//! The machine's rules, one claim per test, on a clock that only tests move.

mod handover;
mod names_and_order;
mod onlooker;
mod overtaking;
mod standing;
mod trust;

use std::collections::VecDeque;
use std::time::Duration;

use super::{Answer, Command, CommandId, Config, Event, Input, Machine, Stand};
use crate::book::Book;
use crate::port::{Ask, AskKind, ElectionView, Pause, StoreError, Trouble, Wake};
use crate::{ElectionKey, Moment, SessionId, SplitMix, Timing, Token};

/// The lease of all tests.
const LEASE: Duration = Duration::from_secs(10);
/// The beat of all tests.
const BEAT: Duration = Duration::from_secs(2);

/// Some processes and one store. Calls take no time, unless a test holds them back.
struct Town {
    now: Moment,
    book: Book,
    peers: Vec<Peer>,
    hints: bool,
}

struct Peer {
    machine: Machine,
    entropy: SplitMix,
    /// Calls that have not reached the store.
    calls: VecDeque<Call>,
    /// Everything it said.
    events: Vec<Event>,
    /// What reaches the store, and what comes back.
    link: Link,
    /// Finishes its work as soon as it is asked to, or has lost.
    diligent: bool,
}

#[derive(Clone, Debug)]
struct Call {
    id: CommandId,
    sent_at: Moment,
    command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    /// Calls wait until the test delivers them.
    Held,
    /// Every call fails, and does not happen.
    Down,
    /// The process is gone.
    Dead,
}

fn key() -> ElectionKey {
    ElectionKey::new(crate::Name::default_namespace(), "e".parse().unwrap())
}

fn stand(id: &str) -> Stand {
    Stand::new(key(), id)
}

fn error() -> StoreError {
    StoreError::new(Trouble::Timeout, "no answer")
}

impl Town {
    /// Processes `a`, `b`, … that have started and stand nowhere.
    fn of(count: usize) -> Town {
        let mut town =
            Town { now: Moment::from_nanos(1_000), book: Book::default(), peers: Vec::new(), hints: true };
        for n in 0..count {
            let config = Config {
                name: format!("p{n}"),
                timing: Timing::new(LEASE, None).unwrap(),
                takeover: Default::default(),
            };
            let peer = Peer {
                machine: Machine::new(config),
                entropy: SplitMix::new(n as u64 + 1),
                calls: VecDeque::new(),
                events: Vec::new(),
                link: Link::Up,
                diligent: true,
            };
            town.peers.push(peer);
            town.feed(n, Input::Start);
        }
        town.settle();
        town
    }

    /// Processes that stand as ordinary candidates, in this order.
    fn standing(count: usize) -> Town {
        let mut town = Town::of(count);
        for n in 0..count {
            town.feed(n, Input::Campaign(stand(["a", "b", "c", "d"][n])));
            town.run(LEASE / 20);
        }
        town
    }

    fn feed(&mut self, n: usize, input: Input) {
        let peer = &mut self.peers[n];
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            peer.machine.handle(self.now, input, &mut peer.entropy);
            while let Some(event) = peer.machine.poll_event() {
                if let Event::Asked { election, .. } | Event::Lost { election, .. } = &event
                    && peer.diligent
                {
                    inputs.push_back(Input::Finished(election.clone()));
                }
                peer.events.push(event);
            }
            while let Some((id, command)) = peer.machine.poll_command() {
                if !matches!(command, Command::Watch(_)) {
                    peer.calls.push_back(Call { id, sent_at: self.now, command });
                }
            }
        }
    }

    /// Delivers all calls, and the calls that come of them, until nobody has anything to say.
    fn settle(&mut self) {
        for _ in 0..200 {
            let busy = |peer: &Peer| matches!(peer.link, Link::Up | Link::Down) && !peer.calls.is_empty();
            let Some(n) = self.peers.iter().position(busy) else { return };
            let call = self.peers[n].calls.pop_front().unwrap();
            match self.peers[n].link {
                Link::Up => self.deliver(n, &call),
                _ => self.fail(n, &call),
            }
        }
        panic!("they talk without end: {:?}", self.peers.iter().map(|p| &p.calls).collect::<Vec<_>>());
    }

    /// The store does it and the answer arrives.
    fn deliver(&mut self, n: usize, call: &Call) {
        let answer = self.apply(&call.command);
        self.answer(n, call, answer);
    }

    fn answer(&mut self, n: usize, call: &Call, answer: Answer) {
        self.feed(n, Input::Answer { id: call.id, sent_at: call.sent_at, answer });
    }

    /// The call counts as failed.
    fn fail(&mut self, n: usize, call: &Call) {
        let answer = match &call.command {
            Command::Open(_) | Command::Beat(_) => Answer::Pulse(Err(error())),
            Command::Join(_) => Answer::Joined(Err(error())),
            Command::Observe(..) => Answer::Observed(Err(error())),
            Command::Take(_) => Answer::Taken(Err(error())),
            Command::Ask(_) => Answer::Asked(Err(error())),
            _ => Answer::Done(Err(error())),
        };
        self.answer(n, call, answer);
    }

    /// The store does it.
    fn apply(&mut self, command: &Command) -> Answer {
        let book = &mut self.book;
        let answer = match command {
            Command::Open(session) => Answer::Pulse(Ok(book.open(session, 0))),
            Command::Beat(id) => Answer::Pulse(Ok(book.beat(id, 0))),
            Command::End(id) => {
                book.end(id, 0);
                Answer::Done(Ok(()))
            }
            Command::Join(candidacy) => Answer::Joined(Ok(book.join(candidacy, 0))),
            Command::Leave(id, key) => {
                book.leave(id, key);
                Answer::Done(Ok(()))
            }
            Command::Observe(id, scope) => Answer::Observed(Ok(book.observe(id, scope))),
            Command::Take(take) => Answer::Taken(Ok(book.take(take, 0))),
            Command::Release(release) => {
                book.release(release, 0);
                Answer::Done(Ok(()))
            }
            Command::Expire(expire) => {
                book.expire(expire, 0);
                Answer::Done(Ok(()))
            }
            Command::Ask(ask) => Answer::Asked(Ok(book.ask(ask))),
            Command::Watch(_) => unreachable!("it has no answer"),
        };
        self.pass_on_hints();
        answer
    }

    fn pass_on_hints(&mut self) {
        for wake in self.book.drain_wakes() {
            self.hint(&wake);
        }
    }

    fn hint(&mut self, wake: &Wake) {
        for n in 0..self.peers.len() {
            if self.hints && matches!(self.peers[n].link, Link::Up | Link::Held) {
                self.feed(n, Input::Wake(wake.clone()));
            }
        }
    }

    /// Lets time pass, from timer to timer.
    fn run(&mut self, d: Duration) {
        let end = self.now + d;
        self.settle();
        loop {
            let live = self.peers.iter().enumerate().filter(|(_, peer)| peer.link != Link::Dead);
            let next = live.filter_map(|(n, p)| Some((p.machine.poll_timeout()?, n))).min();
            let Some((at, n)) = next.filter(|(at, _)| *at <= end) else { break };
            self.now = self.now.max(at);
            self.feed(n, Input::Tick);
            self.settle();
        }
        self.now = end;
    }

    /// Takes the one held-back call of this kind out of the queue.
    fn held(&mut self, n: usize, which: fn(&Command) -> bool) -> Call {
        let calls = &mut self.peers[n].calls;
        let at = calls.iter().position(|call| which(&call.command));
        let at = at.unwrap_or_else(|| panic!("no such call among {calls:?}"));
        calls.remove(at).unwrap()
    }

    fn leads(&self, n: usize) -> Option<Token> {
        self.peers[n].machine.leads(&key(), self.now)
    }

    /// Who leads, by number.
    fn leaders(&self) -> Vec<usize> {
        let alive = |n: &usize| self.peers[*n].link != Link::Dead;
        (0..self.peers.len()).filter(alive).filter(|&n| self.leads(n).is_some()).collect()
    }

    fn session(&self, n: usize) -> SessionId {
        self.peers[n].machine.session().expect("a live session").clone()
    }

    fn view(&self) -> ElectionView {
        self.book.election(&key()).expect("somebody stood")
    }

    fn heard(&self, n: usize, what: fn(&Event) -> bool) -> usize {
        self.peers[n].events.iter().filter(|event| what(event)).count()
    }

    /// An operator asks the holder of the first slot.
    fn ask(&mut self, kind: AskKind) {
        let token = self.view().leases[0].token;
        assert!(self.book.ask(&Ask { election: key(), slot: 0, token, kind, by: "operator".into() }));
        self.pass_on_hints();
        self.settle();
    }

    fn pause(&mut self, paused: bool) {
        let pause = Pause { by: "operator".into(), reason: String::new(), at_ms: 0 };
        self.book.set_paused(&key(), paused.then_some(&pause));
        self.pass_on_hints();
        self.settle();
    }
}
