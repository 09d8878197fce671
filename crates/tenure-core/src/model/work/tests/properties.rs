//! Invariants of the work model under random operations.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::port::{AssignmentMode, RateLimit};
use crate::rules::work::{Requirements, effective_at};

/// A random operation.
#[derive(Clone, Debug)]
enum PropertyStep {
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

fn any_step() -> impl Strategy<Value = PropertyStep> {
    prop_oneof![
        4 => (1..5usize, any::<u8>()).prop_map(|(count, shape)| PropertyStep::Submit { count, shape }),
        6 => (0..6u32, any::<u8>(), any::<bool>())
            .prop_map(|(limit, tags, session)| PropertyStep::Claim { limit, tags, session }),
        5 => (any::<usize>(), any::<u8>()).prop_map(|(which, how)| PropertyStep::Settle { which, how }),
        1 => any::<usize>().prop_map(|which| PropertyStep::SettleOld { which }),
        2 => (1..40u64, any::<bool>()).prop_map(|(which, retry)| PropertyStep::Order { which, retry }),
        3 => (0..3_000i64).prop_map(PropertyStep::Pass),
        2 => (1..5u32).prop_map(|limit| PropertyStep::Tend { limit }),
        1 => Just(PropertyStep::EndSession),
        1 => Just(PropertyStep::Elect),
        1 => any::<bool>().prop_map(PropertyStep::Mode),
    ]
}

/// The store and the independently computed expected state.
struct ExpectedWork {
    fixture: TestQueue,
    session: SessionId,
    exclusive: bool,
    submitted: u64,
    pruned: u64,
    /// Claims as the workers know them, until they settle or lose them.
    known_claims: Vec<ClaimedTask>,
    over: Vec<ClaimedTask>,
    tokens: BTreeMap<TaskId, Token>,
    claim_seqs: u64,
}

impl ExpectedWork {
    fn new() -> ExpectedWork {
        let mut fixture = TestQueue::new();
        let session = fixture.session();
        let (known_claims, over) = (Vec::new(), Vec::new());
        let tokens = BTreeMap::new();
        let mut expected = ExpectedWork {
            fixture,
            session,
            exclusive: false,
            submitted: 0,
            pruned: 0,
            known_claims,
            over,
            tokens,
            claim_seqs: 0,
        };
        expected.set_mode(false);
        expected
    }

    fn set_mode(&mut self, exclusive: bool) {
        self.exclusive = exclusive;
        let mode = if exclusive { AssignmentMode::Exclusive } else { AssignmentMode::Distributed };
        let rate = Some(RateLimit { count: 20, per_ms: 1_000 });
        let (keep_ms, keep_dead_ms, prefer_ms) = (4_000, 8_000, 500);
        let max_claimed = Some(10);
        let settings = QueueSettings {
            mode,
            rate,
            max_claimed,
            preference_window_ms: prefer_ms,
            retention_ms: keep_ms,
            dead_retention_ms: keep_dead_ms,
            ..Default::default()
        };
        self.fixture.set(settings);
    }

    fn shaped(&self, shape: u8, place: usize) -> NewTask {
        let bit = |n: u8| shape & (1 << n) != 0;
        let known: Vec<TaskId> = self.fixture.work.tasks.keys().copied().collect();
        let parents = match known.get(shape as usize % known.len().max(1)) {
            Some(id) if bit(0) && !lost(self.fixture.state(*id)) => vec![ParentRef::Task(*id)],
            _ if bit(1) && place > 0 => vec![ParentRef::Index(place as u32 - 1)],
            _ => vec![],
        };
        NewTask {
            priority: i32::from(shape % 3),
            required_tags: if bit(2) { words(&["a"]) } else { vec![] },
            preferred_tags: if bit(3) { words(&["b"]) } else { vec![] },
            run_at_ms: bit(4).then_some(self.fixture.now + 700),
            max_wait_ms: bit(5).then_some(2_000),
            max_run_ms: bit(3).then_some(900),
            max_attempts: 1 + u32::from(shape % 3),
            idempotency_key: bit(6).then(|| format!("k{}", shape % 5)),
            concurrency_key: bit(7).then(|| format!("c{}", shape % 2)),
            concurrency_limit: 1 + u32::from(shape % 2),
            parents,
            ..task()
        }
    }

    fn act(&mut self, step: &PropertyStep) {
        match *step {
            PropertyStep::Submit { count, shape } => {
                let tasks = (0..count).map(|i| self.shaped(shape.wrapping_mul(i as u8 + 1), i)).collect();
                // A task with a dead parent, or a cycle through a key, is rejected.
                let got = self.fixture.try_submit(tasks).unwrap_or_default();
                self.submitted += got.iter().filter(|it| it.created).count() as u64;
            }
            PropertyStep::Claim { limit, tags, session } => self.claim(limit, tags, session),
            PropertyStep::Settle { which, how } if !self.known_claims.is_empty() => {
                let claim = self.known_claims.swap_remove(which % self.known_claims.len());
                self.settle(claim, how);
            }
            PropertyStep::SettleOld { which } if !self.over.is_empty() => {
                let claim = self.over[which % self.over.len()].clone();
                let again = self.fixture.fail(&claim, true, 0);
                assert_eq!(again, SettleResult::ClaimLost, "a settlement of a lost claim has no effect");
            }
            PropertyStep::Order { which, retry } => {
                let order = if retry { TaskAction::Retry } else { TaskAction::Cancel };
                self.fixture.apply_action(&[TaskId(which)], order);
            }
            PropertyStep::Pass(ms) => self.fixture.now += ms,
            PropertyStep::Tend { limit } => {
                let response = self.fixture.maintain_by(Some(i64::MAX), limit);
                assert!(response.is_leader);
                self.pruned += response.pruned;
            }
            PropertyStep::EndSession => {
                self.fixture.elections.end_session(&self.session, self.fixture.now);
                self.session = self.fixture.session();
            }
            PropertyStep::Elect => self.fixture.elect_leader(),
            PropertyStep::Mode(exclusive) => self.set_mode(exclusive),
            PropertyStep::Settle { .. } | PropertyStep::SettleOld { .. } => {}
        }
    }

    fn claim(&mut self, limit: u32, tags: u8, session: bool) {
        let all = ["a", "b"].iter().zip(0..).filter(|(_, n)| tags & (1 << n) != 0);
        let worker = worker("w", &all.map(|(tag, _)| *tag).collect::<Vec<_>>());
        let (session, hold_ms) =
            if session { (Some(self.session.clone()), None) } else { (None, Some(1_500)) };
        let held_before: BTreeSet<TaskId> = self.fixture.work.claimed.clone();
        let authority = if self.exclusive { self.fixture.leader() } else { ClaimAuthority::Direct };
        let claim_request =
            ClaimRequest { worker: worker.clone(), limit, session, claim_timeout_ms: hold_ms };
        let ClaimBatchResponse::Served { tasks, .. } =
            self.fixture.claim_batch(authority, vec![claim_request])
        else {
            panic!("refused")
        };
        assert!(tasks[0].len() <= limit as usize, "never more than requested");
        let locations: Vec<_> =
            tasks[0].iter().map(|it| (effective_at(it.submitted_at_ms, it.priority), it.id)).collect();
        assert!(locations.is_sorted(), "in queue order");
        for claim in &tasks[0] {
            assert!(!held_before.contains(&claim.id), "no task is claimed twice");
            let last = self.tokens.insert(claim.id, claim.token);
            assert!(last.is_none_or(|last| last < claim.token), "tokens only grow");
            let view = self.fixture.view(claim.id);
            let requirements = Requirements {
                kind: view.kind,
                required_tags: view.required_tags,
                preferred_tags: view.preferred_tags,
                allowed_workers: view.allowed_workers,
            };
            assert!(requirements.may_match(&worker), "the worker matches");
            assert!(claim.attempt <= claim.max_attempts);
            assert_eq!(claim.claim_seq.is_some(), self.exclusive);
            if let Some(claim_seq) = claim.claim_seq {
                assert_eq!(claim_seq, self.claim_seqs + 1, "claim sequences have no gap");
                self.claim_seqs = claim_seq;
            }
        }
        self.known_claims.extend(tasks.into_iter().flatten());
    }

    fn settle(&mut self, claim: ClaimedTask, how: u8) {
        let holds = self
            .fixture
            .work
            .tasks
            .get(&claim.id)
            .is_some_and(|it| it.state == TaskState::Claimed && it.token == claim.token);
        let settled = match how % 4 {
            0 | 1 => self.fixture.complete(&claim),
            2 => self.fixture.fail(&claim, how & 8 != 0, u64::from(how)),
            _ => self.fixture.settle(&claim, ClaimOutcome::Release),
        };
        assert_eq!(
            settled != SettleResult::ClaimLost,
            holds,
            "it is applied exactly while the claim is held"
        );
        self.over.push(claim);
    }

    /// Checks the invariants.
    fn check(&self) {
        let work = &self.fixture.work;
        let queue = work.queue(&queue(), self.fixture.now).unwrap();
        let counted: u64 = queue.counts.values().sum();
        assert_eq!(self.submitted, counted + self.pruned, "no task is lost or duplicated");
        let mut claimed_by_key: BTreeMap<&str, u64> = BTreeMap::new();
        for task in work.tasks.values() {
            let lists = &work.queues[&task.queue];
            let listed = lists
                .ready
                .get(&task.requirements)
                .is_some_and(|locations| locations.contains(&task.place()));
            assert_eq!(listed, task.state == TaskState::Ready);
            assert_eq!(work.claimed.contains(&task.id), task.state == TaskState::Claimed);
            assert_eq!(task.finished_at.is_some(), task.state.is_final());
            let parents = work.open_parents(task);
            assert_eq!(task.state == TaskState::Waiting, !task.state.is_final() && !parents.is_empty());
            let hopeless = parents.iter().any(|id| lost(work.tasks[id].state));
            assert!(task.state.is_final() || !hopeless, "a waiting task has an open parent");
            if let (Some(key), TaskState::Claimed) = (&task.new.concurrency_key, task.state) {
                *claimed_by_key.entry(key).or_default() += 1;
            }
        }
        for task in work.tasks.values() {
            let Some(key) = &task.new.concurrency_key else { continue };
            let claimed = claimed_by_key.get(key.as_str()).copied().unwrap_or(0);
            assert!(claimed <= 2, "never more than the limit");
            if task.state == TaskState::Blocked && claimed == 0 {
                let unblock_first = |it: &&super::super::task::TaskRecord| {
                    it.state == TaskState::Ready && it.new.concurrency_key.as_ref() == Some(key)
                };
                assert!(work.tasks.values().any(|it| unblock_first(&it)), "no task stays blocked forever");
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
    fn no_task_is_lost_duplicated_or_stuck(actions in prop::collection::vec(any_step(), 1..120)) {
        let mut expected = ExpectedWork::new();
        for step in &actions {
            expected.act(step);
            expected.check();
        }
        // Finally, every task that can finish finishes.
        expected.set_mode(false);
        expected.act(&PropertyStep::EndSession);
        for _ in 0..100 {
            expected.fixture.now += 1_000;
            expected.act(&PropertyStep::Tend { limit: 1_000 });
            expected.known_claims.clear();
            expected.claim(10, 3, false);
            for claim in std::mem::take(&mut expected.known_claims) {
                expected.settle(claim, 0);
            }
            expected.check();
        }
        expected.fixture.now += 10_000;
        for _ in 0..100 {
            expected.act(&PropertyStep::Tend { limit: 1_000 });
        }
        prop_assert_eq!(expected.submitted, expected.pruned);
        prop_assert!(expected.fixture.work.key_states.is_empty() && expected.fixture.work.keys.is_empty());
    }

    /// A task of priority p overtakes exactly the tasks submitted up to p minutes before it.
    #[test]
    fn a_point_of_priority_overtakes_a_minute(ages in prop::collection::vec((0..600_000i64, 0..10i32), 1..12)) {
        let mut fixture = TestQueue::new();
        let mut ages = ages;
        ages.sort_by_key(|(age, _)| -age);
        let mut tasks = Vec::new();
        for (age, priority) in &ages {
            fixture.now = START - age;
            tasks.push((fixture.submit_one(NewTask { priority: *priority, ..task() }), -age, *priority));
        }
        fixture.now = START;
        let got = fixture.claimed_ids(100);
        let place = |id| got.iter().position(|it| *it == id).unwrap();
        for (i, (first, at, low)) in tasks.iter().enumerate() {
            for (second, later, high) in &tasks[i + 1..] {
                let overtakes = later - at < i64::from(high - low) * 60_000;
                prop_assert_eq!(place(*second) < place(*first), overtakes);
            }
        }
    }

    /// Two workers together get exactly the tasks they match, each task once.
    #[test]
    fn every_ready_task_goes_to_a_matching_worker(shapes in prop::collection::vec(0..4u8, 0..30)) {
        let mut fixture = TestQueue::new();
        let tags = |shape: u8| match shape { 0 => vec![], 1 => words(&["a"]), 2 => words(&["b"]), _ => words(&["a", "b"]) };
        let tasks: Vec<NewTask> = shapes.iter().map(|s| NewTask { required_tags: tags(*s), ..task() }).collect();
        let ids = fixture.submit(tasks);
        let claim_requests = ["a", "b"].map(|tag| ClaimRequest { worker: worker(tag, &[tag]), ..claim_request(100) });
        let ClaimBatchResponse::Served { tasks, .. } = fixture.claim_batch(ClaimAuthority::Direct, claim_requests.to_vec()) else { panic!("refused") };
        let expected = |fits: fn(u8) -> bool| -> Vec<TaskId> {
            ids.iter().zip(&shapes).filter(|(_, s)| fits(**s)).map(|(id, _)| *id).collect()
        };
        let got = |n: usize| tasks[n].iter().map(|it| it.id).collect::<Vec<_>>();
        prop_assert_eq!(got(0), expected(|s| s < 2));
        prop_assert_eq!(got(1), expected(|s| s == 2));
    }
}
