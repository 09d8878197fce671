//! Schedules, on a clock that only tests move: forwards, and by an hour either way.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::port::{
    Cause, DueLook, Fire, Fired, Firing, Hand, HandOutcome, ScheduleKey, ScheduleSet, SetSchedule,
    TICKS_KEPT_MS, TickFilter, TickState, TickView, scheduler_election,
};
use crate::schedule::{Definition, Misfire, ON_TIME_MS, Overlap, Target, When, plan};

const HOUR: i64 = 3_600_000;

fn key() -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name("n"))
}

fn definition(when: &str) -> Definition {
    let target = Target::Task { queue: queue().name, task: Box::default() };
    Definition::new(key().name, when.parse::<When>().unwrap(), target)
}

fn setting(definition: Definition) -> SetSchedule {
    SetSchedule {
        namespace: key().namespace,
        definition,
        secret: None,
        expect: Default::default(),
        source: None,
        by: "ops".into(),
    }
}

impl Yard {
    /// A new leader of the scheduler's election, in place of the old one.
    fn elect_scheduler(&mut self, old: Option<&SessionId>) -> (SessionId, Token) {
        if let Some(old) = old {
            self.book.end(old, self.now);
        }
        let (session, election) = (self.session(), scheduler_election());
        self.book.join(&Candidacy::new(session.clone(), election.clone()), self.now);
        let token = self.book.election(&election).unwrap().leases[0].token;
        let take = Take {
            session: session.clone(),
            epoch: self.book.epoch(),
            election,
            slot: 0,
            token,
            holder: None,
            expire: None,
        };
        let token = self.book.take(&take, self.now).expect("nobody holds it");
        (session, token)
    }

    fn define(&mut self, definition: Definition) -> ScheduleSet {
        self.ledger.set_schedule(&setting(definition), self.now).unwrap()
    }

    fn fire(&mut self, leader: &(SessionId, Token), firings: Vec<Firing>) -> Option<Vec<Fired>> {
        let fire = Fire { session: leader.0.clone(), token: leader.1, firings };
        self.ledger.fire(&fire, &self.book, self.now).unwrap()
    }

    /// Looks, decides and fires, as a leader does.
    fn beat_scheduler(&mut self, leader: &(SessionId, Token)) {
        let look = self.ledger.due(100, self.now);
        let firings = look.schedules.iter().map(|due| plan(due, leader.1, look.store_ms)).collect();
        self.fire(leader, firings).expect("it leads");
    }

    fn ticks(&self) -> Vec<TickView> {
        self.ledger.ticks(&TickFilter { key: key(), before_ms: None, limit: u32::MAX })
    }

    fn prune_ticks(&mut self, leader: &(SessionId, Token), limit: u32) -> (u64, bool) {
        self.ledger.prune_ticks(&leader.0, leader.1, limit, &self.book, self.now)
    }
}

#[test]
fn old_ticks_are_forgotten_in_small_bites_by_the_leader_alone() {
    let mut yard = Yard::new();
    let leader = yard.elect_scheduler(None);
    let mut hourly = definition("every 1h");
    hourly.misfire = Misfire::FireAll { cap: 3 };
    yard.define(hourly);
    yard.now += 6 * HOUR;
    yard.beat_scheduler(&leader);
    assert_eq!(yard.ticks().len(), 4, "three, and a range");
    yard.now += TICKS_KEPT_MS;
    assert_eq!(yard.prune_ticks(&leader, 10), (0, false), "not yet");
    yard.now += 1;
    yard.beat_scheduler(&leader);
    let next = yard.elect_scheduler(Some(&leader.0));
    assert_eq!(yard.prune_ticks(&leader, 10), (0, false), "it does not lead");
    assert_eq!(yard.prune_ticks(&next, 3), (3, true));
    assert_eq!(yard.prune_ticks(&next, 3), (1, false));
    assert_eq!(yard.prune_ticks(&next, 3), (0, false));
    assert_eq!(yard.ticks().len(), 4, "the younger ones are kept");
}

#[test]
fn a_tick_that_was_forgotten_does_not_fire_again_by_hand() {
    let mut yard = Yard::new();
    let leader = yard.elect_scheduler(None);
    let mut hourly = definition("every 1h");
    hourly.misfire = Misfire::FireAll { cap: 3 };
    yard.define(hourly);
    let before = yard.now - yard.now % HOUR;
    yard.now += 6 * HOUR;
    yard.beat_scheduler(&leader);
    let fired: Vec<i64> = yard.ticks().iter().map(|tick| tick.at_ms).collect();
    yard.now += TICKS_KEPT_MS + 1;
    yard.beat_scheduler(&leader);
    yard.prune_ticks(&leader, 100);
    let newest = fired.into_iter().max().unwrap();
    let ticks = Some(vec![before, newest - HOUR, newest, newest + HOUR]);
    let hand = Hand { key: key(), ticks, payload: None, by: "ada".into(), dry_run: false };
    let told = yard.ledger.fire_by_hand(&hand, yard.now).unwrap().unwrap();
    let outcomes: Vec<_> = told.iter().map(|told| told.outcome).collect();
    assert_eq!(
        outcomes[..3],
        [HandOutcome::Forgotten; 3],
        "they may have fired, one did not, and nobody knows"
    );
    assert!(matches!(outcomes[3], HandOutcome::Fired { .. }), "it was skipped, and is known to have been");
}

#[test]
fn a_run_that_is_under_way_is_remembered_however_old() {
    let mut yard = Yard::new();
    let leader = yard.elect_scheduler(None);
    let mut daily = definition("every 1d");
    daily.overlap = Overlap::Skip;
    yard.define(daily);
    yard.now += 24 * HOUR;
    yard.beat_scheduler(&leader);
    let run = yard.ticks()[0].task.unwrap();
    yard.now += 2 * TICKS_KEPT_MS;
    assert_eq!(yard.prune_ticks(&leader, 10), (0, false));
    yard.beat_scheduler(&leader);
    assert_eq!(yard.ticks()[0].state, TickState::Overlapped, "it is under way still");
    yard.ledger.order(&key().namespace, &[run], Order::Cancel, yard.now);
    assert_eq!(yard.prune_ticks(&leader, 10), (1, false));
}

#[test]
fn a_clock_that_is_put_back_fires_nothing_twice() {
    let mut yard = Yard::new();
    let leader = yard.elect_scheduler(None);
    let mut minutely = definition("every 1m");
    minutely.misfire = Misfire::FireAll { cap: 1_000 };
    yard.define(minutely.clone());
    let began = yard.now;
    yard.now += HOUR;
    yard.beat_scheduler(&leader);
    let fired = yard.ticks().len();
    yard.now -= HOUR;
    yard.beat_scheduler(&leader);
    assert_eq!(yard.ticks().len(), fired, "silence until it is where it was");
    // Even if somebody changes its times meanwhile, and changes them back.
    let mut other = minutely.clone();
    other.when = "every 7m".parse().unwrap();
    yard.define(other);
    yard.define(minutely);
    yard.now = began + 2 * HOUR;
    yard.beat_scheduler(&leader);
    let at: BTreeSet<i64> = yard.ticks().iter().map(|tick| tick.at_ms).collect();
    assert_eq!((at.len(), yard.ticks().len()), (120, 120));
}

#[test]
fn a_tick_that_was_wanted_by_hand_does_not_fire_again_when_its_time_comes_anew() {
    let mut yard = Yard::new();
    let leader = yard.elect_scheduler(None);
    yard.now = 10 * HOUR;
    yard.define(definition("every 1h"));
    let wish =
        Hand { key: key(), ticks: Some(vec![7 * HOUR]), payload: None, by: "ops".into(), dry_run: false };
    yard.ledger.fire_by_hand(&wish, yard.now).unwrap();
    // The clock goes back, and new times are counted from there.
    yard.now = 6 * HOUR + 1;
    let mut anew = definition("0 * * * *");
    anew.misfire = Misfire::FireAll { cap: 100 };
    yard.define(anew);
    yard.now = 9 * HOUR + 1;
    yard.beat_scheduler(&leader);
    let causes: Vec<(i64, Cause)> = yard.ticks().iter().map(|tick| (tick.at_ms / HOUR, tick.cause)).collect();
    assert_eq!(causes, [(9, Cause::Clock), (8, Cause::Clock), (7, Cause::Backfill)]);
    assert_eq!(yard.ledger.schedule(&key()).unwrap().fired, 3);
}

#[test]
fn a_secret_is_not_in_what_is_printed() {
    let mut yard = Yard::new();
    let set = SetSchedule { secret: Some("whsec_hush".into()), ..setting(definition("every 1h")) };
    yard.ledger.set_schedule(&set, yard.now).unwrap();
    assert!(!format!("{:?}", yard.ledger).contains("hush"));
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Deed {
    Pass(i64),
    /// The clock is set, by up to an hour either way.
    Step(i64),
    Look,
    /// What was seen last is fired, as of then.
    Fire,
    /// What was seen before, by who looked then; or the same once more.
    FireOld(usize),
    Elect,
    Pause(bool),
    Payload(u8),
    Finish(usize),
}

fn any_deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => (0..4 * HOUR).prop_map(Deed::Pass),
        2 => (-HOUR..=HOUR).prop_map(Deed::Step),
        8 => Just(Deed::Look),
        8 => Just(Deed::Fire),
        2 => any::<usize>().prop_map(Deed::FireOld),
        1 => Just(Deed::Elect),
        1 => any::<bool>().prop_map(Deed::Pause),
        1 => any::<u8>().prop_map(Deed::Payload),
        3 => any::<usize>().prop_map(Deed::Finish),
    ]
}

fn any_policy() -> impl Strategy<Value = (i64, Misfire, Overlap)> {
    let misfire = prop_oneof![
        Just(Misfire::Skip),
        Just(Misfire::FireOnce),
        (1..20u32).prop_map(|cap| Misfire::FireAll { cap }),
        Just(Misfire::FireAll { cap: 10_000 }),
        (1..3 * HOUR.unsigned_abs()).prop_map(|grace_ms| Misfire::Within { grace_ms }),
    ];
    let overlap = prop_oneof![3 => Just(Overlap::Allow), 1 => Just(Overlap::Skip), 1 => Just(Overlap::Queue)];
    (prop_oneof![Just(60_000), Just(7 * 60_000), Just(HOUR), Just(90 * 60_000)], misfire, overlap)
}

/// The yard, and what an honest book-keeper reckons on the fingers.
struct Audit {
    yard: Yard,
    leader: (SessionId, Token),
    looks: Vec<(DueLook, (SessionId, Token))>,
    step: i64,
    misfire: Misfire,
    overlap: Overlap,
    first: i64,
    /// The next tick, by the reckoning.
    next: i64,
    /// Ticks that fired, or did nothing as another run was under way.
    decided: BTreeSet<i64>,
    skipped: BTreeSet<i64>,
}

impl Audit {
    fn new((step, misfire, overlap): (i64, Misfire, Overlap)) -> Audit {
        let mut yard = Yard::new();
        let leader = yard.elect_scheduler(None);
        let mut of = definition(&format!("every {step}ms"));
        (of.misfire, of.overlap) = (misfire, overlap);
        yard.define(of);
        let first = (yard.now + step - 1) / step * step;
        let (looks, decided, skipped) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        Audit { yard, leader, looks, step, misfire, overlap, first, next: first, decided, skipped }
    }

    fn happen(&mut self, deed: Deed) {
        match deed {
            Deed::Pass(ms) | Deed::Step(ms) => self.yard.now += ms,
            Deed::Look => {
                let look = self.yard.ledger.due(10, self.yard.now);
                self.looks.push((look, self.leader.clone()));
            }
            Deed::Fire => {
                if let Some((look, by)) = self.looks.last().cloned() {
                    self.fire(&look, &by);
                }
            }
            Deed::FireOld(which) if !self.looks.is_empty() => {
                let (look, by) = self.looks[which % self.looks.len()].clone();
                self.fire(&look, &by);
                self.fire(&look, &by);
            }
            Deed::FireOld(_) => {}
            Deed::Elect => self.leader = self.yard.elect_scheduler(Some(&self.leader.0.clone())),
            Deed::Pause(pause) => {
                let pause =
                    pause.then(|| crate::port::Pause { by: "ops".into(), reason: String::new(), at_ms: 0 });
                self.yard.ledger.set_schedule_paused(&key(), pause.as_ref());
            }
            Deed::Payload(payload) => {
                let mut definition = self.yard.ledger.schedule(&key()).unwrap().definition;
                definition.payload = payload.to_string().parse().unwrap();
                self.yard.define(definition);
            }
            Deed::Finish(which) => {
                let open = self.open();
                if let Some(run) = open.get(which % open.len().max(1)) {
                    self.yard.ledger.order(&key().namespace, &[*run], Order::Cancel, self.yard.now);
                }
            }
        }
    }

    /// Fires what was seen; if it counts, it must be what the policy says.
    fn fire(&mut self, look: &DueLook, by: &(SessionId, Token)) {
        let firings: Vec<Firing> = look.schedules.iter().map(|due| plan(due, by.1, look.store_ms)).collect();
        let fired = self.yard.fire(by, firings.clone());
        assert_eq!(fired.is_some(), *by == self.leader, "who leads fires, and nobody else");
        for (firing, fired) in firings.iter().zip(fired.unwrap_or_default()) {
            match fired {
                Fired::Yes => self.count(firing, look.store_ms),
                Fired::Stale => {}
                Fired::Refused(why) => panic!("{why}"),
            }
        }
    }

    fn count(&mut self, firing: &Firing, now: i64) {
        let due: Vec<i64> = (0..).map(|n| self.next + n * self.step).take_while(|at| *at <= now).collect();
        let late = |at: &i64| (now - at).unsigned_abs();
        let last = |most: usize| due[due.len().saturating_sub(most)..].to_vec();
        let expected: Vec<i64> = match self.misfire {
            Misfire::Skip => last(1).into_iter().filter(|at| late(at) <= ON_TIME_MS).collect(),
            Misfire::FireOnce => last(1),
            Misfire::FireAll { cap } => last(cap as usize),
            Misfire::Within { grace_ms } => due.iter().copied().filter(|at| late(at) <= grace_ms).collect(),
        };
        let fires: Vec<i64> = firing.ticks.iter().map(|tick| tick.at_ms).collect();
        assert_eq!(fires, expected, "{:?} at {now}", self.misfire);
        self.next += self.step * i64::try_from(due.len()).unwrap();
        self.skipped.extend(due.iter().filter(|at| !expected.contains(at)));
        self.decided.extend(expected);
    }

    /// The runs that are not over.
    fn open(&self) -> Vec<TaskId> {
        let ticks = self.yard.ticks();
        let runs = ticks.iter().filter_map(|tick| tick.task);
        runs.filter(|run| self.yard.ledger.is_under_way(*run)).collect()
    }

    /// Every tick from the first to the next was decided about, once, and all that follows from it is there.
    fn check(&self) {
        let (mut decided, mut skipped, mut tasks) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        for tick in self.yard.ticks() {
            match tick.state {
                TickState::Skipped => {
                    let ticks = (tick.first_ms.unwrap()..=tick.at_ms).step_by(self.step as usize);
                    let before = skipped.len();
                    skipped.extend(ticks);
                    assert_eq!(skipped.len() - before, tick.count as usize, "none is in two ranges");
                }
                state => {
                    assert!(decided.insert(tick.at_ms), "twice");
                    assert_eq!(tick.task.is_some(), state == TickState::Fired);
                    tasks.extend(tick.task.map(|task| (task, tick.at_ms)));
                }
            }
        }
        assert_eq!((&decided, &skipped), (&self.decided, &self.skipped));
        let all: BTreeSet<i64> = (self.first..self.next).step_by(self.step as usize).collect();
        assert!(decided.is_disjoint(&skipped));
        assert_eq!(decided.union(&skipped).copied().collect::<BTreeSet<i64>>(), all, "none missed");
        let view = self.yard.ledger.schedule(&key()).unwrap();
        assert_eq!(view.progress.unwrap().next_at_ms, self.next);
        assert_eq!((view.fired, view.skipped), (tasks.len() as u64, skipped.len() as u64));
        assert_eq!(view.overlapped, (decided.len() - tasks.len()) as u64);
        assert_eq!(self.yard.ledger.tasks.len(), tasks.len(), "a task for each that fired, and no other");
        if self.overlap == Overlap::Skip {
            assert!(self.open().len() <= 1, "{:?}", self.open());
        }
        if self.overlap == Overlap::Allow {
            assert_eq!(view.overlapped, 0);
        }
        if self.misfire == (Misfire::FireAll { cap: 10_000 }) {
            assert_eq!(view.skipped, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever the clock does, whoever leads, and however late a decision arrives.
    #[test]
    fn every_tick_is_decided_about_once(
        policy in any_policy(),
        deeds in prop::collection::vec(any_deed(), 1..60),
    ) {
        let mut audit = Audit::new(policy);
        for deed in deeds {
            audit.happen(deed);
            audit.check();
        }
    }
}
