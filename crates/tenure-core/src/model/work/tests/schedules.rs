//! Schedules on a manual clock that also steps by up to an hour.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::port::{
    DueResponse, FireOutcome, FireRequest, ManualFire, ManualFireOutcome, ScheduleFiring, ScheduleKey,
    SetScheduleOutcome, SetScheduleRequest, TICK_RETENTION_MS, TickCause, TickFilter, TickOutcome, TickView,
    scheduler_election,
};
use crate::rules::schedule::{
    MisfirePolicy, ON_TIME_MS, OverlapPolicy, ScheduleDefinition, ScheduleExpression, ScheduleTarget, plan,
};

const HOUR: i64 = 3_600_000;

fn key() -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name("n"))
}

fn definition(when: &str) -> ScheduleDefinition {
    let target = ScheduleTarget::Task { queue: queue().name, task: Box::default() };
    ScheduleDefinition::new(key().name, when.parse::<ScheduleExpression>().unwrap(), target)
}

fn setting(definition: ScheduleDefinition) -> SetScheduleRequest {
    SetScheduleRequest {
        namespace: key().namespace,
        definition,
        secret: None,
        precondition: Default::default(),
        source: None,
        updated_by: "ops".into(),
    }
}

impl TestQueue {
    /// Elects a new leader of the scheduler election.
    fn elect_scheduler(&mut self, old: Option<&SessionId>) -> (SessionId, Token) {
        if let Some(old) = old {
            self.elections.end_session(old, self.now);
        }
        let (session, election) = (self.session(), scheduler_election());
        self.elections.join_election(&Candidacy::new(session.clone(), election.clone()), self.now);
        let token = self.elections.election(&election).unwrap().leases[0].token;
        let take = TakeLeaseRequest {
            session: session.clone(),
            epoch: self.elections.epoch(),
            election,
            slot: 0,
            token,
            holder: None,
            expire: None,
        };
        let token = self.elections.take_lease(&take, self.now).expect("no session holds it");
        (session, token)
    }

    fn define(&mut self, definition: ScheduleDefinition) -> SetScheduleOutcome {
        self.work.set_schedule(&setting(definition), self.now).unwrap()
    }

    fn fire(
        &mut self,
        leader: &(SessionId, Token),
        firings: Vec<ScheduleFiring>,
    ) -> Option<Vec<FireOutcome>> {
        let fire = FireRequest { session: leader.0.clone(), token: leader.1, firings };
        self.work.fire(&fire, &self.elections, self.now).unwrap()
    }

    /// Reads, decides and fires, as the scheduler does.
    fn run_scheduler(&mut self, leader: &(SessionId, Token)) {
        let assignment = self.work.due_schedules(100, self.now);
        let firings =
            assignment.schedules.iter().map(|due| plan(due, leader.1, assignment.store_now_at_ms)).collect();
        self.fire(leader, firings).expect("it leads");
    }

    fn ticks(&self) -> Vec<TickView> {
        self.work.ticks(&TickFilter { key: key(), before_ms: None, limit: u32::MAX })
    }

    fn prune_ticks(&mut self, leader: &(SessionId, Token), limit: u32) -> (u64, bool) {
        self.work.prune_ticks(&leader.0, leader.1, limit, &self.elections, self.now)
    }
}

#[test]
fn old_ticks_are_pruned_in_parts_by_the_leader_only() {
    let mut fixture = TestQueue::new();
    let leader = fixture.elect_scheduler(None);
    let mut hourly = definition("every 1h");
    hourly.misfire_policy = MisfirePolicy::FireAll { cap: 3 };
    fixture.define(hourly);
    fixture.now += 6 * HOUR;
    fixture.run_scheduler(&leader);
    assert_eq!(fixture.ticks().len(), 4, "three ticks and a range");
    fixture.now += TICK_RETENTION_MS;
    assert_eq!(fixture.prune_ticks(&leader, 10), (0, false), "not yet");
    fixture.now += 1;
    fixture.run_scheduler(&leader);
    let next = fixture.elect_scheduler(Some(&leader.0));
    assert_eq!(fixture.prune_ticks(&leader, 10), (0, false), "it does not lead");
    assert_eq!(fixture.prune_ticks(&next, 3), (3, true));
    assert_eq!(fixture.prune_ticks(&next, 3), (1, false));
    assert_eq!(fixture.prune_ticks(&next, 3), (0, false));
    assert_eq!(fixture.ticks().len(), 4, "newer ones are kept");
}

#[test]
fn a_pruned_tick_does_not_fire_manually() {
    let mut fixture = TestQueue::new();
    let leader = fixture.elect_scheduler(None);
    let mut hourly = definition("every 1h");
    hourly.misfire_policy = MisfirePolicy::FireAll { cap: 3 };
    fixture.define(hourly);
    let before = fixture.now - fixture.now % HOUR;
    fixture.now += 6 * HOUR;
    fixture.run_scheduler(&leader);
    let fired: Vec<i64> = fixture.ticks().iter().map(|tick| tick.tick_at_ms).collect();
    fixture.now += TICK_RETENTION_MS + 1;
    fixture.run_scheduler(&leader);
    fixture.prune_ticks(&leader, 100);
    let newest = fired.into_iter().max().unwrap();
    let ticks = Some(vec![before, newest - HOUR, newest, newest + HOUR]);
    let manual = ManualFire { key: key(), ticks, payload: None, requested_by: "ada".into(), dry_run: false };
    let results = fixture.work.fire_manually(&manual, fixture.now).unwrap().unwrap();
    let outcomes: Vec<_> = results.iter().map(|results| results.outcome).collect();
    assert_eq!(outcomes[..3], [ManualFireOutcome::Pruned; 3], "they may have fired; which ones is unknown");
    assert!(matches!(outcomes[3], ManualFireOutcome::Fired { .. }), "it was skipped, and that is recorded");
}

#[test]
fn an_unfinished_run_is_kept_however_old_it_is() {
    let mut fixture = TestQueue::new();
    let leader = fixture.elect_scheduler(None);
    let mut daily = definition("every 1d");
    daily.overlap_policy = OverlapPolicy::Skip;
    fixture.define(daily);
    fixture.now += 24 * HOUR;
    fixture.run_scheduler(&leader);
    let run = fixture.ticks()[0].task_id.unwrap();
    fixture.now += 2 * TICK_RETENTION_MS;
    assert_eq!(fixture.prune_ticks(&leader, 10), (0, false));
    fixture.run_scheduler(&leader);
    assert_eq!(fixture.ticks()[0].state, TickOutcome::Overlapped, "it is still unfinished");
    fixture.work.apply_task_action(&key().namespace, &[run], TaskAction::Cancel, fixture.now);
    assert_eq!(fixture.prune_ticks(&leader, 10), (1, false));
}

#[test]
fn a_clock_that_is_set_back_fires_nothing_twice() {
    let mut fixture = TestQueue::new();
    let leader = fixture.elect_scheduler(None);
    let mut minutely = definition("every 1m");
    minutely.misfire_policy = MisfirePolicy::FireAll { cap: 1_000 };
    fixture.define(minutely.clone());
    let began = fixture.now;
    fixture.now += HOUR;
    fixture.run_scheduler(&leader);
    let fired = fixture.ticks().len();
    fixture.now -= HOUR;
    fixture.run_scheduler(&leader);
    assert_eq!(fixture.ticks().len(), fired, "no tick until the clock is back where it was");
    // The firing is also stale if the expression was changed and changed back meanwhile.
    let mut other = minutely.clone();
    other.expression = "every 7m".parse().unwrap();
    fixture.define(other);
    fixture.define(minutely);
    fixture.now = began + 2 * HOUR;
    fixture.run_scheduler(&leader);
    let at: BTreeSet<i64> = fixture.ticks().iter().map(|tick| tick.tick_at_ms).collect();
    assert_eq!((at.len(), fixture.ticks().len()), (120, 120));
}

#[test]
fn a_manually_fired_tick_does_not_fire_again_after_a_clock_step() {
    let mut fixture = TestQueue::new();
    let leader = fixture.elect_scheduler(None);
    fixture.now = 10 * HOUR;
    fixture.define(definition("every 1h"));
    let manual = ManualFire {
        key: key(),
        ticks: Some(vec![7 * HOUR]),
        payload: None,
        requested_by: "ops".into(),
        dry_run: false,
    };
    fixture.work.fire_manually(&manual, fixture.now).unwrap();
    // The clock steps back, and the ticks of the new expression start from the earlier time.
    fixture.now = 6 * HOUR + 1;
    let mut replacement = definition("0 * * * *");
    replacement.misfire_policy = MisfirePolicy::FireAll { cap: 100 };
    fixture.define(replacement);
    fixture.now = 9 * HOUR + 1;
    fixture.run_scheduler(&leader);
    let causes: Vec<(i64, TickCause)> =
        fixture.ticks().iter().map(|tick| (tick.tick_at_ms / HOUR, tick.cause)).collect();
    assert_eq!(causes, [(9, TickCause::Schedule), (8, TickCause::Schedule), (7, TickCause::Backfill)]);
    assert_eq!(fixture.work.schedule(&key()).unwrap().fired_count, 3);
}

#[test]
fn debug_output_contains_no_secret() {
    let mut fixture = TestQueue::new();
    let set = SetScheduleRequest { secret: Some("whsec_hush".into()), ..setting(definition("every 1h")) };
    fixture.work.set_schedule(&set, fixture.now).unwrap();
    assert!(!format!("{:?}", fixture.work).contains("hush"));
}

/// A random operation.
#[derive(Clone, Debug)]
enum PropertyStep {
    Pass(i64),
    /// The clock steps by up to an hour.
    Step(i64),
    Look,
    /// The last read schedules fire.
    Fire,
    /// Schedules that were read earlier fire, possibly a second time.
    FireOld(usize),
    Elect,
    Pause(bool),
    Payload(u8),
    Finish(usize),
}

fn any_step() -> impl Strategy<Value = PropertyStep> {
    prop_oneof![
        6 => (0..4 * HOUR).prop_map(PropertyStep::Pass),
        2 => (-HOUR..=HOUR).prop_map(PropertyStep::Step),
        8 => Just(PropertyStep::Look),
        8 => Just(PropertyStep::Fire),
        2 => any::<usize>().prop_map(PropertyStep::FireOld),
        1 => Just(PropertyStep::Elect),
        1 => any::<bool>().prop_map(PropertyStep::Pause),
        1 => any::<u8>().prop_map(PropertyStep::Payload),
        3 => any::<usize>().prop_map(PropertyStep::Finish),
    ]
}

fn any_policy() -> impl Strategy<Value = (i64, MisfirePolicy, OverlapPolicy)> {
    let misfire = prop_oneof![
        Just(MisfirePolicy::Skip),
        Just(MisfirePolicy::FireOnce),
        (1..20u32).prop_map(|cap| MisfirePolicy::FireAll { cap }),
        Just(MisfirePolicy::FireAll { cap: 10_000 }),
        (1..3 * HOUR.unsigned_abs()).prop_map(|grace_ms| MisfirePolicy::Within { grace_ms }),
    ];
    let overlap = prop_oneof![3 => Just(OverlapPolicy::Allow), 1 => Just(OverlapPolicy::Skip), 1 => Just(OverlapPolicy::Queue)];
    (prop_oneof![Just(60_000), Just(7 * 60_000), Just(HOUR), Just(90 * 60_000)], misfire, overlap)
}

/// The store and the independently computed expected ticks.
struct ExpectedTicks {
    fixture: TestQueue,
    leader: (SessionId, Token),
    observations: Vec<(DueResponse, (SessionId, Token))>,
    step: i64,
    misfire: MisfirePolicy,
    overlap: OverlapPolicy,
    first: i64,
    /// Expected next tick.
    next: i64,
    /// Ticks that fired or were overlapped.
    decided: BTreeSet<i64>,
    skipped: BTreeSet<i64>,
}

impl ExpectedTicks {
    fn new((step, misfire, overlap): (i64, MisfirePolicy, OverlapPolicy)) -> ExpectedTicks {
        let mut fixture = TestQueue::new();
        let leader = fixture.elect_scheduler(None);
        let mut of = definition(&format!("every {step}ms"));
        (of.misfire_policy, of.overlap_policy) = (misfire, overlap);
        fixture.define(of);
        let first = (fixture.now + step - 1) / step * step;
        let (observations, decided, skipped) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        ExpectedTicks {
            fixture,
            leader,
            observations,
            step,
            misfire,
            overlap,
            first,
            next: first,
            decided,
            skipped,
        }
    }

    fn happen(&mut self, step: PropertyStep) {
        match step {
            PropertyStep::Pass(ms) | PropertyStep::Step(ms) => self.fixture.now += ms,
            PropertyStep::Look => {
                let assignment = self.fixture.work.due_schedules(10, self.fixture.now);
                self.observations.push((assignment, self.leader.clone()));
            }
            PropertyStep::Fire => {
                if let Some((assignment, by)) = self.observations.last().cloned() {
                    self.fire(&assignment, &by);
                }
            }
            PropertyStep::FireOld(which) if !self.observations.is_empty() => {
                let (assignment, by) = self.observations[which % self.observations.len()].clone();
                self.fire(&assignment, &by);
                self.fire(&assignment, &by);
            }
            PropertyStep::FireOld(_) => {}
            PropertyStep::Elect => self.leader = self.fixture.elect_scheduler(Some(&self.leader.0.clone())),
            PropertyStep::Pause(pause) => {
                let pause = pause.then(|| crate::port::Pause {
                    paused_by: "ops".into(),
                    reason: String::new(),
                    paused_at_ms: 0,
                });
                self.fixture.work.set_schedule_paused(&key(), pause.as_ref());
            }
            PropertyStep::Payload(payload) => {
                let mut definition = self.fixture.work.schedule(&key()).unwrap().definition;
                definition.payload = payload.to_string().parse().unwrap();
                self.fixture.define(definition);
            }
            PropertyStep::Finish(which) => {
                let open = self.open();
                if let Some(run) = open.get(which % open.len().max(1)) {
                    self.fixture.work.apply_task_action(
                        &key().namespace,
                        &[*run],
                        TaskAction::Cancel,
                        self.fixture.now,
                    );
                }
            }
        }
    }

    /// Fires the schedules that were read. If a firing is applied, it must match the policy.
    fn fire(&mut self, assignment: &DueResponse, by: &(SessionId, Token)) {
        let firings: Vec<ScheduleFiring> =
            assignment.schedules.iter().map(|due| plan(due, by.1, assignment.store_now_at_ms)).collect();
        let fired = self.fixture.fire(by, firings.clone());
        assert_eq!(fired.is_some(), *by == self.leader, "only the leader fires");
        for (firing, fired) in firings.iter().zip(fired.unwrap_or_default()) {
            match fired {
                FireOutcome::Fired => self.count(firing, assignment.store_now_at_ms),
                FireOutcome::Stale => {}
                FireOutcome::Rejected(why) => panic!("{why}"),
            }
        }
    }

    fn count(&mut self, firing: &ScheduleFiring, now: i64) {
        let due: Vec<i64> = (0..).map(|n| self.next + n * self.step).take_while(|at| *at <= now).collect();
        let late = |at: &i64| (now - at).unsigned_abs();
        let last = |most: usize| due[due.len().saturating_sub(most)..].to_vec();
        let expected: Vec<i64> = match self.misfire {
            MisfirePolicy::Skip => last(1).into_iter().filter(|at| late(at) <= ON_TIME_MS).collect(),
            MisfirePolicy::FireOnce => last(1),
            MisfirePolicy::FireAll { cap } => last(cap as usize),
            MisfirePolicy::Within { grace_ms } => {
                due.iter().copied().filter(|at| late(at) <= grace_ms).collect()
            }
        };
        let fires: Vec<i64> = firing.ticks.iter().map(|tick| tick.tick_at_ms).collect();
        assert_eq!(fires, expected, "{:?} at {now}", self.misfire);
        self.next += self.step * i64::try_from(due.len()).unwrap();
        self.skipped.extend(due.iter().filter(|at| !expected.contains(at)));
        self.decided.extend(expected);
    }

    /// The unfinished runs.
    fn open(&self) -> Vec<TaskId> {
        let ticks = self.fixture.ticks();
        let runs = ticks.iter().filter_map(|tick| tick.task_id);
        runs.filter(|run| self.fixture.work.is_unfinished(*run)).collect()
    }

    /// Every tick from the first to the next was decided once, with all its effects.
    fn check(&self) {
        let (mut decided, mut skipped, mut tasks) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        for tick in self.fixture.ticks() {
            match tick.state {
                TickOutcome::Skipped => {
                    let ticks =
                        (tick.first_tick_at_ms.unwrap()..=tick.tick_at_ms).step_by(self.step as usize);
                    let before = skipped.len();
                    skipped.extend(ticks);
                    assert_eq!(skipped.len() - before, tick.tick_count as usize, "no tick is in two ranges");
                }
                state => {
                    assert!(decided.insert(tick.tick_at_ms), "twice");
                    assert_eq!(tick.task_id.is_some(), state == TickOutcome::Fired);
                    tasks.extend(tick.task_id.map(|task| (task, tick.tick_at_ms)));
                }
            }
        }
        assert_eq!((&decided, &skipped), (&self.decided, &self.skipped));
        let all: BTreeSet<i64> = (self.first..self.next).step_by(self.step as usize).collect();
        assert!(decided.is_disjoint(&skipped));
        assert_eq!(decided.union(&skipped).copied().collect::<BTreeSet<i64>>(), all, "no tick is missing");
        let view = self.fixture.work.schedule(&key()).unwrap();
        assert_eq!(view.tick_state.unwrap().next_tick_at_ms, self.next);
        assert_eq!((view.fired_count, view.skipped_count), (tasks.len() as u64, skipped.len() as u64));
        assert_eq!(view.overlapped_count, (decided.len() - tasks.len()) as u64);
        assert_eq!(self.fixture.work.tasks.len(), tasks.len(), "one task per fired tick, and no other");
        if self.overlap == OverlapPolicy::Skip {
            assert!(self.open().len() <= 1, "{:?}", self.open());
        }
        if self.overlap == OverlapPolicy::Allow {
            assert_eq!(view.overlapped_count, 0);
        }
        if self.misfire == (MisfirePolicy::FireAll { cap: 10_000 }) {
            assert_eq!(view.skipped_count, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Holds for arbitrary clock steps, leader changes and late decisions.
    #[test]
    fn every_tick_is_decided_once(
        policy in any_policy(),
        actions in prop::collection::vec(any_step(), 1..60),
    ) {
        let mut expected = ExpectedTicks::new(policy);
        for step in actions {
            expected.happen(step);
            expected.check();
        }
    }
}
