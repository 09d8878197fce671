//! What holds whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::claim::{Demand, effective_at};
use crate::port::{Mode, RateLimit};

/// Something that happens.
#[derive(Clone, Debug)]
enum Deed {
    Submit { count: usize, shape: u8 },
    Claim { limit: u32, tags: u8, session: bool },
    Settle { which: usize, how: u8 },
    SettleOld { which: usize },
    Order { which: u64, retry: bool },
    Pass(i64),
    Tend { limit: u32 },
    EndSession,
    Elect,
    Mode(bool),
}

fn any_deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => (1..5usize, any::<u8>()).prop_map(|(count, shape)| Deed::Submit { count, shape }),
        6 => (0..6u32, any::<u8>(), any::<bool>())
            .prop_map(|(limit, tags, session)| Deed::Claim { limit, tags, session }),
        5 => (any::<usize>(), any::<u8>()).prop_map(|(which, how)| Deed::Settle { which, how }),
        1 => any::<usize>().prop_map(|which| Deed::SettleOld { which }),
        2 => (1..40u64, any::<bool>()).prop_map(|(which, retry)| Deed::Order { which, retry }),
        3 => (0..3_000i64).prop_map(Deed::Pass),
        2 => (1..5u32).prop_map(|limit| Deed::Tend { limit }),
        1 => Just(Deed::EndSession),
        1 => Just(Deed::Elect),
        1 => any::<bool>().prop_map(Deed::Mode),
    ]
}

/// The yard, and what an honest book-keeper would have written down.
struct Audit {
    yard: Yard,
    session: SessionId,
    exclusive: bool,
    submitted: u64,
    forgotten: u64,
    /// Claims as workers believe them, until they say so or are told otherwise.
    believed: Vec<ClaimedTask>,
    over: Vec<ClaimedTask>,
    tokens: BTreeMap<TaskId, Token>,
    turns: u64,
}

impl Audit {
    fn new() -> Audit {
        let mut yard = Yard::new();
        let session = yard.session();
        let (believed, over) = (Vec::new(), Vec::new());
        let tokens = BTreeMap::new();
        let mut audit = Audit {
            yard,
            session,
            exclusive: false,
            submitted: 0,
            forgotten: 0,
            believed,
            over,
            tokens,
            turns: 0,
        };
        audit.set_mode(false);
        audit
    }

    fn set_mode(&mut self, exclusive: bool) {
        self.exclusive = exclusive;
        let mode = if exclusive { Mode::Exclusive } else { Mode::Distributed };
        let rate = Some(RateLimit { count: 20, per_ms: 1_000 });
        let (keep_ms, keep_dead_ms, prefer_ms) = (4_000, 8_000, 500);
        let max_claimed = Some(10);
        let settings =
            QueueSettings { mode, rate, max_claimed, prefer_ms, keep_ms, keep_dead_ms, ..Default::default() };
        self.yard.set(settings);
    }

    fn shaped(&self, shape: u8, place: usize) -> NewTask {
        let bit = |n: u8| shape & (1 << n) != 0;
        let known: Vec<TaskId> = self.yard.ledger.tasks.keys().copied().collect();
        let parents = match known.get(shape as usize % known.len().max(1)) {
            Some(id) if bit(0) && !lost(self.yard.state(*id)) => vec![Parent::Task(*id)],
            _ if bit(1) && place > 0 => vec![Parent::Index(place as u32 - 1)],
            _ => vec![],
        };
        NewTask {
            priority: i32::from(shape % 3),
            requires: if bit(2) { words(&["a"]) } else { vec![] },
            prefers: if bit(3) { words(&["b"]) } else { vec![] },
            run_at_ms: bit(4).then_some(self.yard.now + 700),
            max_wait_ms: bit(5).then_some(2_000),
            max_run_ms: bit(3).then_some(900),
            max_attempts: 1 + u32::from(shape % 3),
            key: bit(6).then(|| format!("k{}", shape % 5)),
            concurrency_key: bit(7).then(|| format!("c{}", shape % 2)),
            concurrency_limit: 1 + u32::from(shape % 2),
            parents,
            ..task()
        }
    }

    fn act(&mut self, deed: &Deed) {
        match *deed {
            Deed::Submit { count, shape } => {
                let tasks = (0..count).map(|i| self.shaped(shape.wrapping_mul(i as u8 + 1), i)).collect();
                // What has a lost parent through a key is refused; so is a circle through one.
                let got = self.yard.try_submit(tasks).unwrap_or_default();
                self.submitted += got.iter().filter(|it| it.new).count() as u64;
            }
            Deed::Claim { limit, tags, session } => self.claim(limit, tags, session),
            Deed::Settle { which, how } if !self.believed.is_empty() => {
                let claim = self.believed.swap_remove(which % self.believed.len());
                self.settle(claim, how);
            }
            Deed::SettleOld { which } if !self.over.is_empty() => {
                let claim = self.over[which % self.over.len()].clone();
                let again = self.yard.fail(&claim, true, 0);
                assert_eq!(again, Settled::Lost, "who has lost a claim can say nothing more");
            }
            Deed::Order { which, retry } => {
                let order = if retry { Order::Retry } else { Order::Cancel };
                self.yard.order(&[TaskId(which)], order);
            }
            Deed::Pass(ms) => self.yard.now += ms,
            Deed::Tend { limit } => {
                let tended = self.yard.tend_by(Some(i64::MAX), limit);
                assert!(tended.leads);
                self.forgotten += tended.forgotten;
            }
            Deed::EndSession => {
                self.yard.book.end(&self.session, self.yard.now);
                self.session = self.yard.session();
            }
            Deed::Elect => self.yard.elect(),
            Deed::Mode(exclusive) => self.set_mode(exclusive),
            Deed::Settle { .. } | Deed::SettleOld { .. } => {}
        }
    }

    fn claim(&mut self, limit: u32, tags: u8, session: bool) {
        let all = ["a", "b"].iter().zip(0..).filter(|(_, n)| tags & (1 << n) != 0);
        let worker = worker("w", &all.map(|(tag, _)| *tag).collect::<Vec<_>>());
        let (session, hold_ms) =
            if session { (Some(self.session.clone()), None) } else { (None, Some(1_500)) };
        let held_before: BTreeSet<TaskId> = self.yard.ledger.claimed.clone();
        let authority = if self.exclusive { self.yard.leader() } else { Authority::Direct };
        let seat = Seat { worker: worker.clone(), limit, session, hold_ms };
        let ClaimAnswer::Served { tasks, .. } = self.yard.ask(authority, vec![seat]) else {
            panic!("refused")
        };
        assert!(tasks[0].len() <= limit as usize, "never more than was asked for");
        let places: Vec<_> =
            tasks[0].iter().map(|it| (effective_at(it.enqueued_at_ms, it.priority), it.id)).collect();
        assert!(places.is_sorted(), "in the order of the queue");
        for claim in &tasks[0] {
            assert!(!held_before.contains(&claim.id), "no task is claimed twice");
            let last = self.tokens.insert(claim.id, claim.token);
            assert!(last.is_none_or(|last| last < claim.token), "tokens only grow");
            let view = self.yard.view(claim.id);
            let demand = Demand {
                kind: view.kind,
                requires: view.requires,
                prefers: view.prefers,
                workers: view.workers,
            };
            assert!(demand.suits(&worker), "it fits");
            assert!(claim.attempt <= claim.max_attempts);
            assert_eq!(claim.turn.is_some(), self.exclusive);
            if let Some(turn) = claim.turn {
                assert_eq!(turn, self.turns + 1, "turns leave no gap");
                self.turns = turn;
            }
        }
        self.believed.extend(tasks.into_iter().flatten());
    }

    fn settle(&mut self, claim: ClaimedTask, how: u8) {
        let holds = self
            .yard
            .ledger
            .tasks
            .get(&claim.id)
            .is_some_and(|it| it.state == TaskState::Claimed && it.token == claim.token);
        let settled = match how % 4 {
            0 | 1 => self.yard.complete(&claim),
            2 => self.yard.fail(&claim, how & 8 != 0, u64::from(how)),
            _ => self.yard.settle(&claim, Outcome::Release),
        };
        assert_eq!(settled != Settled::Lost, holds, "it counts exactly while it is held");
        self.over.push(claim);
    }

    /// What must be true at any time.
    fn check(&self) {
        let ledger = &self.yard.ledger;
        let queue = ledger.queue(&queue(), self.yard.now).unwrap();
        let counted: u64 = queue.counts.values().sum();
        assert_eq!(self.submitted, counted + self.forgotten, "nothing is lost, nothing doubled");
        let mut claimed_by_key: BTreeMap<&str, u64> = BTreeMap::new();
        for task in ledger.tasks.values() {
            let lists = &ledger.queues[&task.queue];
            let listed = lists.ready.get(&task.demand).is_some_and(|places| places.contains(&task.place()));
            assert_eq!(listed, task.state == TaskState::Ready);
            assert_eq!(ledger.claimed.contains(&task.id), task.state == TaskState::Claimed);
            assert_eq!(task.finished_at.is_some(), task.state.is_final());
            let parents = ledger.open_parents(task);
            assert_eq!(task.state == TaskState::Waiting, !task.state.is_final() && !parents.is_empty());
            let hopeless = parents.iter().any(|id| lost(ledger.tasks[id].state));
            assert!(task.state.is_final() || !hopeless, "who waits has something to wait for");
            if let (Some(key), TaskState::Claimed) = (&task.new.concurrency_key, task.state) {
                *claimed_by_key.entry(key).or_default() += 1;
            }
        }
        for task in ledger.tasks.values() {
            let Some(key) = &task.new.concurrency_key else { continue };
            let claimed = claimed_by_key.get(key.as_str()).copied().unwrap_or(0);
            assert!(claimed <= 2, "never more than the limit");
            if task.state == TaskState::Held && claimed == 0 {
                let let_in = |it: &&super::super::task::Task| {
                    it.state == TaskState::Ready && it.new.concurrency_key.as_ref() == Some(key)
                };
                assert!(ledger.tasks.values().any(|it| let_in(&it)), "nobody is held back for ever");
            }
        }
        assert!(queue.count(TaskState::Claimed) <= 10);
    }
}

fn lost(state: TaskState) -> bool {
    matches!(state, TaskState::Dead | TaskState::Cancelled)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_doubled_or_stuck(deeds in prop::collection::vec(any_deed(), 1..120)) {
        let mut audit = Audit::new();
        for deed in &deeds {
            audit.act(deed);
            audit.check();
        }
        // And when all is over: what can end, ends.
        audit.set_mode(false);
        audit.act(&Deed::EndSession);
        for _ in 0..100 {
            audit.yard.now += 1_000;
            audit.act(&Deed::Tend { limit: 1_000 });
            audit.believed.clear();
            audit.claim(10, 3, false);
            for claim in std::mem::take(&mut audit.believed) {
                audit.settle(claim, 0);
            }
            audit.check();
        }
        audit.yard.now += 10_000;
        for _ in 0..100 {
            audit.act(&Deed::Tend { limit: 1_000 });
        }
        prop_assert_eq!(audit.submitted, audit.forgotten);
        prop_assert!(audit.yard.ledger.crowds.is_empty() && audit.yard.ledger.keys.is_empty());
    }

    /// A task of priority p overtakes exactly those submitted up to p minutes before it.
    #[test]
    fn a_point_of_priority_overtakes_a_minute(ages in prop::collection::vec((0..600_000i64, 0..10i32), 1..12)) {
        let mut yard = Yard::new();
        let mut ages = ages;
        ages.sort_by_key(|(age, _)| -age);
        let mut tasks = Vec::new();
        for (age, priority) in &ages {
            yard.now = START - age;
            tasks.push((yard.submit_one(NewTask { priority: *priority, ..task() }), -age, *priority));
        }
        yard.now = START;
        let got = yard.claimed_ids(100);
        let place = |id| got.iter().position(|it| *it == id).unwrap();
        for (i, (first, at, low)) in tasks.iter().enumerate() {
            for (second, later, high) in &tasks[i + 1..] {
                let overtakes = later - at < i64::from(high - low) * 60_000;
                prop_assert_eq!(place(*second) < place(*first), overtakes);
            }
        }
    }

    /// Two workers get together exactly what fits them, each task once.
    #[test]
    fn every_ready_task_goes_to_somebody_it_fits(shapes in prop::collection::vec(0..4u8, 0..30)) {
        let mut yard = Yard::new();
        let tags = |shape: u8| match shape { 0 => vec![], 1 => words(&["a"]), 2 => words(&["b"]), _ => words(&["a", "b"]) };
        let tasks: Vec<NewTask> = shapes.iter().map(|s| NewTask { requires: tags(*s), ..task() }).collect();
        let ids = yard.submit(tasks);
        let seats = ["a", "b"].map(|tag| Seat { worker: worker(tag, &[tag]), ..seat(100) });
        let ClaimAnswer::Served { tasks, .. } = yard.ask(Authority::Direct, seats.to_vec()) else { panic!("refused") };
        let expected = |fits: fn(u8) -> bool| -> Vec<TaskId> {
            ids.iter().zip(&shapes).filter(|(_, s)| fits(**s)).map(|(id, _)| *id).collect()
        };
        let got = |n: usize| tasks[n].iter().map(|it| it.id).collect::<Vec<_>>();
        prop_assert_eq!(got(0), expected(|s| s < 2));
        prop_assert_eq!(got(1), expected(|s| s == 2));
    }
}
