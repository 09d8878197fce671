//! Schedules in memory and schedules in the store, call by call.
//!
//! A seed makes a sequence of calls; each goes to the store and to a [`Memory`], and the answers must be equal but for wall times,
//! numbers and tokens: a task or event is known by the tick that it names. The clock by which a leader decides is made up, goes
//! from 2100 on, and is put back now and then; leaders come and go. What a call left behind is compared too. `TENURE_SEED` chooses
//! another seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use tenure::backend::memory::Memory;
use tenure_core::port::{
    Backend, Cause, DueSchedule, Expect, Fire, Fired, Firing, Hand, HandFired, HandOutcome, Order,
    ScheduleFilter, ScheduleKey, ScheduleView, SetSchedule, StoreError, TaskId, TickFilter, TickView,
    TopicKey, TopicSettings, scheduler_election,
};
use tenure_core::schedule::{Definition, Misfire, Overlap, TICK_HEADER, Target, plan, put_off};
use tenure_core::{Entropy, SplitMix, Token};

use super::floor::pause;
use super::schedules_wall::{FAR_MS, HOUR_MS, event, far, json, key, now, seen, setting, task, then};
use super::{Actor, Subject, seeded};

/// How many calls a sequence has.
const CALLS: u32 = 240;

/// See the module.
pub async fn random_schedules_go_as_they_go_in_memory(subject: &Subject) {
    let (seed, dice) = seeded(0x7e_0006);
    let memory: Arc<dyn Backend> = Arc::new(Memory::new());
    let sides = [Side::of(subject.client().await).await, Side::of(memory).await];
    let mut pair = Pair { sides, dice, now_ms: FAR_MS - 2 * HOUR_MS, seed, call: 0 };
    for topic in ["t", "u"] {
        pair.make_topic(topic).await;
    }
    while pair.call < CALLS {
        pair.call += 1;
        pair.step().await;
        if pair.call.is_multiple_of(6) || pair.call == CALLS {
            pair.compare().await;
        }
    }
}

/// One of the two stores, and who leads there.
struct Side {
    store: Arc<dyn Backend>,
    leader: (Actor, Token),
}

/// A tick, but for what hangs on the clock and on numbers.
type Told = (i64, &'static str, &'static str, (u64, Option<i64>), (bool, bool), Option<String>, Option<bool>);

impl Side {
    async fn of(store: Arc<dyn Backend>) -> Side {
        let leader = Actor::open(store.clone(), "leader").await;
        leader.stand(&scheduler_election()).await;
        let token = leader.take(&scheduler_election(), 0).await;
        Side { store, leader: (leader, token) }
    }

    async fn views(&self) -> Vec<ScheduleView> {
        self.store.schedules(&ScheduleFilter::default()).await.expect("schedules")
    }

    async fn view(&self, key: &ScheduleKey) -> Option<ScheduleView> {
        self.store.schedule(key).await.expect("schedule")
    }

    /// All that can fire, as a leader sees it: what fired once is due from then on, and shows what is under way.
    async fn due(&self) -> BTreeMap<ScheduleKey, DueSchedule> {
        let views = self.views().await;
        let alive = views.iter().filter(|view| view.progress.is_some() && view.paused.is_none());
        let mut due: BTreeMap<_, _> = alive.map(|view| (view.key(), seen(view))).collect();
        let look = self.store.due(1_000).await.expect("due");
        assert!(look.schedules.iter().all(|it| due.contains_key(&it.key)), "what is due can fire");
        due.extend(look.schedules.into_iter().map(|it| (it.key.clone(), it)));
        due
    }

    async fn ticks(&self, key: &ScheduleKey) -> Vec<TickView> {
        let filter = TickFilter { key: key.clone(), before_ms: None, limit: 60 };
        self.store.ticks(&filter).await.expect("ticks")
    }

    async fn told(&self, key: &ScheduleKey, view: &ScheduleView, tick: &TickView) -> Told {
        let by_hand = tick.cause == Cause::Trigger;
        let (mut named, mut is_over) = (None, None);
        if let Some(id) = tick.task {
            let task = self.store.task(&key.namespace, id).await.expect("task").expect("it is there");
            let name = format!("{} {} {}", task.queue, task.key.unwrap_or_default(), task.payload.as_str());
            (named, is_over) = (Some(name), Some(task.state.is_final()));
        }
        if let (Some(id), Target::Event { topic, .. }) = (tick.event, &view.definition.target) {
            let topic = TopicKey::new(key.namespace.clone(), topic.clone());
            // Of another topic before, or of one that was made anew.
            if let Some(event) = self.store.event(&topic, id).await.expect("event") {
                assert_eq!(event.leader_token, tick.token);
                named = Some(format!("{topic} {} {:?}", event.headers[TICK_HEADER], event.payload));
            }
        }
        (
            if by_hand { 0 } else { tick.at_ms },
            tick.state.as_str(),
            tick.cause.as_str(),
            (tick.count, tick.first_ms),
            (tick.token.is_some(), tick.event.is_some()),
            named.filter(|_| !by_hand),
            is_over,
        )
    }

    /// The tasks of a schedule that are not over, by what they are known by.
    async fn open(&self, key: &ScheduleKey) -> BTreeMap<(i64, bool), TaskId> {
        let mut open = BTreeMap::new();
        for (n, tick) in (0..).zip(self.ticks(key).await) {
            let Some(id) = tick.task else { continue };
            let task = self.store.task(&key.namespace, id).await.expect("task").expect("it is there");
            if !task.state.is_final() {
                let by_hand = tick.cause == Cause::Trigger;
                open.insert((if by_hand { n } else { tick.at_ms }, by_hand), id);
            }
        }
        open
    }
}

fn kind_of(error: StoreError) -> impl PartialEq + Debug {
    error.kind
}

struct Pair {
    sides: [Side; 2],
    dice: SplitMix,
    now_ms: i64,
    seed: u64,
    call: u32,
}

impl Pair {
    async fn step(&mut self) {
        match self.roll(100) {
            0..26 => self.set().await,
            26..60 => self.fire().await,
            60..66 => self.put_off().await,
            66..74 => self.pause().await,
            74..77 => self.delete().await,
            77..87 => self.hand().await,
            87..94 => self.finish().await,
            94..97 => self.topic().await,
            _ => self.take_over().await,
        }
    }

    fn same<T: PartialEq + Debug>(&self, what: &str, answers: Vec<T>) {
        let [store, memory] = <[T; 2]>::try_from(answers).unwrap_or_else(|_| unreachable!("two sides"));
        assert_eq!(
            store, memory,
            "left the store, right the memory: {what}, call {}, TENURE_SEED={}",
            self.call, self.seed
        );
    }

    async fn make_topic(&mut self, name: &str) {
        let topic = TopicKey::new(key("n").namespace, name.parse().expect("a name"));
        for side in &self.sides {
            let settings = TopicSettings { slots: 2, ..TopicSettings::default() };
            side.store.set_topic(&topic, &settings).await.expect("set_topic");
        }
    }

    async fn topic(&mut self) {
        let topic = TopicKey::new(key("n").namespace, "u".parse().expect("a name"));
        if self.chance(50) {
            return self.make_topic("u").await;
        }
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.delete_topic(&topic).await.map_err(kind_of));
        }
        self.same("delete_topic", answers);
    }

    fn definition(&mut self) -> Definition {
        let name = format!("n{}", self.roll(5));
        let when = ["every 1h", "every 90m", "0 */3 * * *", "30 2 * * MON-FRI"][self.below(4)];
        let target = match self.roll(4) {
            0 => event("t"),
            1 => event("u"),
            2 => Target::Task { queue: "r".parse().expect("a name"), task: Box::default() },
            _ => task(),
        };
        let mut definition = far(&name, when, target);
        definition.zone = ["UTC", "Europe/Berlin"][self.below(2)].parse().expect("a zone");
        definition.misfire = match self.roll(4) {
            0 => Misfire::Skip,
            1 => Misfire::FireOnce,
            2 => Misfire::FireAll { cap: 3 },
            _ => Misfire::Within { grace_ms: 10_800_000 },
        };
        definition.overlap = [Overlap::Allow, Overlap::Skip, Overlap::Queue][self.below(3)];
        definition.jitter_ms = if self.chance(30) { 600_000 } else { 0 };
        definition.end_ms = self.chance(10).then_some(FAR_MS + 48 * HOUR_MS);
        definition.payload = json(&self.roll(3).to_string());
        definition
    }

    async fn set(&mut self) {
        let definition = self.definition();
        let off = match self.roll(8) {
            0 => Some(1),
            1 => Some(0),
            _ => None,
        };
        let set = SetSchedule {
            expect: if self.chance(8) { Expect::New } else { Expect::Any },
            secret: self.chance(10).then(|| format!("s{}", self.roll(2))),
            source: self.chance(20).then(|| "file".into()),
            ..setting(definition)
        };
        let key = key(set.definition.name.as_str());
        let mut answers = Vec::new();
        for side in &self.sides {
            let version = side.view(&key).await.map_or(0, |view| view.version);
            let expect = off.map_or(set.expect, |off| Expect::Version(version + off));
            let set = SetSchedule { expect, ..set.clone() };
            answers.push(side.store.set_schedule(&set).await.map_err(kind_of));
        }
        self.same(&format!("{set:?}"), answers);
    }

    /// Time goes on, or is put back, and the leader fires some of what it could.
    async fn fire(&mut self) {
        let step = i64::try_from(self.roll(8 * 60)).expect("small") * 60_000;
        self.now_ms = if self.chance(8) { self.now_ms - HOUR_MS } else { self.now_ms + step };
        let names: BTreeSet<ScheduleKey> =
            (0..5).filter(|_| self.chance(60)).map(|n| key(&format!("n{n}"))).collect();
        let (stale, moved, back) = (self.chance(8), self.chance(4), self.chance(6));
        let (mut seen, mut answers) = (Vec::new(), Vec::new());
        for side in &mut self.sides {
            let mut due = side.due().await;
            due.retain(|key, _| names.contains(key));
            let firing = |(n, due): (i64, &DueSchedule)| {
                let firing = plan(due, side.leader.1, self.now_ms);
                Firing {
                    version: firing.version + u64::from(stale && n == 0),
                    next_at_ms: firing.next_at_ms + i64::from(moved && n == 1),
                    // Put back, as by a clock and a new definition; and due from now on, while a tick is left.
                    progress: if back && n == 2 { Some(due.progress) } else { firing.progress },
                    due_ms: firing.progress.map(|_| n + 1).or((back && n == 2).then_some(3)),
                    ..firing
                }
            };
            let firings: Vec<Firing> = (0..).zip(due.values()).map(firing).collect();
            let fire = Fire { session: side.leader.0.id.clone(), token: side.leader.1, firings };
            let fired = side.store.fire(&fire).await.expect("fire").expect("it leads");
            seen.push(due);
            answers.push(fired.into_iter().map(without_words).collect::<Vec<_>>());
        }
        self.same("what is due", seen);
        self.same(&format!("firing {names:?} at {}", self.now_ms), answers);
    }

    async fn put_off(&mut self) {
        let key = self.name();
        let mut answers = Vec::new();
        for side in &self.sides {
            let due = side.due().await.remove(&key);
            let firings =
                due.iter().map(|due| Firing { due_ms: Some(9), ..put_off(due, "why", 0) }).collect();
            let fire = Fire { session: side.leader.0.id.clone(), token: side.leader.1, firings };
            answers.push(side.store.fire(&fire).await.expect("fire"));
        }
        self.same(&format!("putting off {key}"), answers);
    }

    async fn pause(&mut self) {
        let (key, pause) = (self.name(), self.chance(45).then(pause));
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.set_schedule_paused(&key, pause.as_ref()).await.expect("paused"));
        }
        self.same(&format!("{pause:?} of {key}"), answers);
    }

    async fn delete(&mut self) {
        let (key, wrong) = (self.name(), self.chance(40));
        let mut answers = Vec::new();
        for side in &self.sides {
            let deleted = side.store.delete_schedule(&key, wrong.then_some(1_000)).await;
            answers.push(deleted.expect("delete_schedule"));
        }
        self.same(&format!("deleting {key}"), answers);
    }

    async fn hand(&mut self) {
        let key = self.name();
        let hours = self.now_ms.div_euclid(HOUR_MS);
        let hand = if self.chance(40) {
            now(&key)
        } else {
            let mut hour = || (hours - i64::try_from(self.roll(30)).expect("small")) * HOUR_MS;
            let ticks: BTreeSet<i64> = (0..6).map(|_| hour()).collect();
            then(&key, &ticks.into_iter().collect::<Vec<_>>())
        };
        let hand = Hand { payload: self.chance(30).then(|| json("\"by hand\"")), ..hand };
        for dry_run in [true, false] {
            let hand = Hand { dry_run, ..hand.clone() };
            let mut answers = Vec::new();
            for side in &self.sides {
                let told = |fired: &HandFired| {
                    let at_ms = if hand.ticks.is_none() { 0 } else { fired.at_ms };
                    (at_ms, without_numbers(fired.outcome))
                };
                // Whether a target would refuse is not asked when nothing is to happen.
                let fired = side.store.fire_by_hand(&hand).await.map_err(kind_of);
                answers
                    .push(fired.map(|fired| fired.map(|fired| fired.iter().map(told).collect::<Vec<_>>())));
            }
            if !dry_run || answers.iter().all(Result::is_ok) {
                self.same(&format!("{hand:?}"), answers);
            }
        }
    }

    /// A run of a schedule is over.
    async fn finish(&mut self) {
        let (key, nth) = (self.name(), self.below(4));
        let mut answers = Vec::new();
        for side in &self.sides {
            let open = side.open(&key).await;
            let chosen = open.iter().nth(nth).map(|(name, id)| (*name, *id));
            if let Some((_, id)) = chosen {
                let ended = side.store.order(&key.namespace, &[id], Order::Cancel).await.expect("order");
                assert_eq!(ended, [id]);
            }
            answers.push((open.keys().copied().collect::<Vec<_>>(), chosen.map(|(name, _)| name)));
        }
        self.same(&format!("the open runs of {key}"), answers);
    }

    /// Another leads; the one before fires nothing any more.
    async fn take_over(&mut self) {
        for side in &mut self.sides {
            let next = Actor::open(side.store.clone(), "next").await;
            next.stand(&scheduler_election()).await;
            let bid = next.overbid(&scheduler_election(), 0).await;
            let token = side.store.take(&bid).await.expect("take").expect("it is taken over");
            let (former, before) = std::mem::replace(&mut side.leader, (next, token));
            assert!(token > before);
            let due = side.due().await;
            let firings = due.values().map(|due| plan(due, before, self.now_ms + 9 * HOUR_MS)).collect();
            let fire = Fire { session: former.id, token: before, firings };
            assert_eq!(side.store.fire(&fire).await, Ok(None), "call {}", self.call);
        }
    }

    async fn compare(&self) {
        let mut answers = Vec::new();
        for side in &self.sides {
            let mut all = Vec::new();
            for view in side.views().await {
                let mut ticks = Vec::new();
                for tick in side.ticks(&view.key()).await {
                    ticks.push(side.told(&view.key(), &view, &tick).await);
                }
                all.push((without_times(view), ticks));
            }
            let stats = side.store.schedule_stats().await.expect("schedule_stats");
            let stats: Vec<_> = stats
                .iter()
                .map(|it| (it.schedules, it.paused, it.troubled, it.overdue, it.last_fired_ms.is_some()))
                .collect();
            answers.push((all, stats, side.due().await));
        }
        self.same("what is there", answers);
    }

    fn name(&mut self) -> ScheduleKey {
        key(&format!("n{}", self.roll(5)))
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.dice.next_u64() % below
    }

    fn below(&mut self, below: usize) -> usize {
        usize::try_from(self.roll(below as u64)).expect("small")
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

/// What people read of a refusal is a store's own affair.
fn without_words(fired: Fired) -> Fired {
    match fired {
        Fired::Refused(_) => Fired::Refused(String::new()),
        other => other,
    }
}

fn without_numbers(outcome: HandOutcome) -> impl PartialEq + Debug {
    match outcome {
        HandOutcome::Fired { event, task } => format!("fired {} {}", event.is_some(), task.is_some()),
        other => format!("{other:?}"),
    }
}

fn without_times(view: ScheduleView) -> impl PartialEq + Debug {
    let paused = view.paused.clone().map(|pause| (pause.by, pause.reason));
    let last_fired_ms = view.last_fired_ms.map(|_| 0);
    let view = ScheduleView { paused: None, last_fired_ms, created_ms: 0, updated_ms: 0, ..view };
    (view, paused)
}
