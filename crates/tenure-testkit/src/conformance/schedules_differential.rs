//! Comparison of schedules in a store with the model, call by call.
//!
//! A seed determines a sequence of calls. Each goes to the store and to a memory store, and the responses must be
//! equal except for wall-clock times, ids and tokens: a task or event is identified by its tick. The scheduler uses a
//! simulated clock that starts in 2100 and is sometimes set back; leaders change. The resulting state is compared
//! too. `TENURE_SEED` selects another seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use tenure::store::memory::MemoryStore;
use tenure_core::port::{
    DueSchedule, FireOutcome, FireRequest, ManualFire, ManualFireOutcome, ManualFireResult, Precondition,
    ScheduleFilter, ScheduleFiring, ScheduleKey, ScheduleView, SetScheduleRequest, Store, StoreError,
    TaskAction, TaskId, TickCause, TickFilter, TickView, TopicKey, TopicSettings, scheduler_election,
};
use tenure_core::rules::schedule::{
    MisfirePolicy, OverlapPolicy, ScheduleDefinition, ScheduleTarget, TICK_HEADER, plan, postpone,
};
use tenure_core::{Entropy, SplitMix, Token};

use super::test_queue::pause;
use super::test_schedules::{FAR_MS, HOUR_MS, event, far, json, key, now, observed, setting, task, then};
use super::{StoreUnderTest, TestSession, seeded};

/// Number of calls.
const CALLS: u32 = 240;

/// See the module documentation.
pub async fn random_schedule_calls_match_the_model(subject: &StoreUnderTest) {
    let (seed, rng) = seeded(0x7e_0006);
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let sides = [ScheduleSide::of(subject.client().await).await, ScheduleSide::of(memory).await];
    let mut pair = ScheduleDifferential { sides, rng, now_ms: FAR_MS - 2 * HOUR_MS, seed, call: 0 };
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

/// One of the two stores and its leader.
struct ScheduleSide {
    store: Arc<dyn Store>,
    leader: (TestSession, Token),
}

/// A tick without clock-dependent fields and ids.
type ComparableTick =
    (i64, &'static str, &'static str, (u64, Option<i64>), (bool, bool), Option<String>, Option<bool>);

impl ScheduleSide {
    async fn of(store: Arc<dyn Store>) -> ScheduleSide {
        let leader = TestSession::open(store.clone(), "leader").await;
        leader.join(&scheduler_election()).await;
        let token = leader.take(&scheduler_election(), 0).await;
        ScheduleSide { store, leader: (leader, token) }
    }

    async fn views(&self) -> Vec<ScheduleView> {
        self.store.schedules(&ScheduleFilter::default()).await.expect("schedules")
    }

    async fn view(&self, key: &ScheduleKey) -> Option<ScheduleView> {
        self.store.schedule(key).await.expect("schedule")
    }

    /// All schedules that can fire, as the scheduler sees them. A schedule stays due after it has fired, so that its
    /// unfinished runs are visible.
    async fn due(&self) -> BTreeMap<ScheduleKey, DueSchedule> {
        let views = self.views().await;
        let alive = views.iter().filter(|view| view.tick_state.is_some() && view.paused.is_none());
        let mut due: BTreeMap<_, _> = alive.map(|view| (view.key(), observed(view))).collect();
        let look = self.store.due_schedules(1_000).await.expect("due");
        assert!(look.schedules.iter().all(|it| due.contains_key(&it.key)), "a due schedule can fire");
        due.extend(look.schedules.into_iter().map(|it| (it.key.clone(), it)));
        due
    }

    async fn ticks(&self, key: &ScheduleKey) -> Vec<TickView> {
        let filter = TickFilter { key: key.clone(), before_ms: None, limit: 60 };
        self.store.ticks(&filter).await.expect("ticks")
    }

    async fn reported(&self, key: &ScheduleKey, view: &ScheduleView, tick: &TickView) -> ComparableTick {
        let is_triggered = tick.cause == TickCause::Trigger;
        let (mut named, mut is_over) = (None, None);
        if let Some(id) = tick.task_id {
            let task = self.store.task(&key.namespace, id).await.expect("task").expect("it exists");
            let name = format!(
                "{} {} {}",
                task.queue,
                task.idempotency_key.unwrap_or_default(),
                task.payload.as_str()
            );
            (named, is_over) = (Some(name), Some(task.state.is_final()));
        }
        if let (Some(id), ScheduleTarget::Event { topic, .. }) = (tick.event_id, &view.definition.target) {
            let topic = TopicKey::new(key.namespace.clone(), topic.clone());
            // The event is missing if the schedule had another topic before, or if the topic was created again.
            if let Some(event) = self.store.event(&topic, id).await.expect("event") {
                assert_eq!(event.leader_token, tick.token);
                named = Some(format!("{topic} {} {:?}", event.headers[TICK_HEADER], event.payload));
            }
        }
        (
            if is_triggered { 0 } else { tick.tick_at_ms },
            tick.state.as_str(),
            tick.cause.as_str(),
            (tick.tick_count, tick.first_tick_at_ms),
            (tick.token.is_some(), tick.event_id.is_some()),
            named.filter(|_| !is_triggered),
            is_over,
        )
    }

    /// Unfinished tasks of a schedule, by tick instant or, for a triggered tick, by position in the tick history.
    async fn open(&self, key: &ScheduleKey) -> BTreeMap<(i64, bool), TaskId> {
        let mut open = BTreeMap::new();
        for (n, tick) in (0..).zip(self.ticks(key).await) {
            let Some(id) = tick.task_id else { continue };
            let task = self.store.task(&key.namespace, id).await.expect("task").expect("it exists");
            if !task.state.is_final() {
                let is_triggered = tick.cause == TickCause::Trigger;
                open.insert((if is_triggered { n } else { tick.tick_at_ms }, is_triggered), id);
            }
        }
        open
    }
}

fn kind_of(error: StoreError) -> impl PartialEq + Debug {
    error.kind
}

struct ScheduleDifferential {
    sides: [ScheduleSide; 2],
    rng: SplitMix,
    now_ms: i64,
    seed: u64,
    call: u32,
}

impl ScheduleDifferential {
    async fn step(&mut self) {
        match self.roll(100) {
            0..26 => self.set().await,
            26..60 => self.fire().await,
            60..66 => self.postpone_one().await,
            66..74 => self.pause().await,
            74..77 => self.delete().await,
            77..87 => self.manual_fire().await,
            87..94 => self.finish().await,
            94..97 => self.topic().await,
            _ => self.take_over().await,
        }
    }

    fn same<T: PartialEq + Debug>(&self, what: &str, responses: Vec<T>) {
        let [store, memory] = <[T; 2]>::try_from(responses).unwrap_or_else(|_| unreachable!("two sides"));
        assert_eq!(
            store, memory,
            "left: store, right: model: {what}, call {}, TENURE_SEED={}",
            self.call, self.seed
        );
    }

    async fn make_topic(&mut self, name: &str) {
        let topic = TopicKey::new(key("n").namespace, name.parse().expect("a name"));
        for side in &self.sides {
            let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
            side.store.set_topic(&topic, &settings).await.expect("set_topic");
        }
    }

    async fn topic(&mut self) {
        let topic = TopicKey::new(key("n").namespace, "u".parse().expect("a name"));
        if self.chance(50) {
            return self.make_topic("u").await;
        }
        let mut responses = Vec::new();
        for side in &self.sides {
            responses.push(side.store.delete_topic(&topic).await.map_err(kind_of));
        }
        self.same("delete_topic", responses);
    }

    fn definition(&mut self) -> ScheduleDefinition {
        let name = format!("n{}", self.roll(5));
        let when = ["every 1h", "every 90m", "0 */3 * * *", "30 2 * * MON-FRI"][self.below(4)];
        let target = match self.roll(4) {
            0 => event("t"),
            1 => event("u"),
            2 => ScheduleTarget::Task { queue: "r".parse().expect("a name"), task: Box::default() },
            _ => task(),
        };
        let mut definition = far(&name, when, target);
        definition.time_zone = ["UTC", "Europe/Berlin"][self.below(2)].parse().expect("a zone");
        definition.misfire_policy = match self.roll(4) {
            0 => MisfirePolicy::Skip,
            1 => MisfirePolicy::FireOnce,
            2 => MisfirePolicy::FireAll { cap: 3 },
            _ => MisfirePolicy::Within { grace_ms: 10_800_000 },
        };
        definition.overlap_policy =
            [OverlapPolicy::Allow, OverlapPolicy::Skip, OverlapPolicy::Queue][self.below(3)];
        definition.jitter_ms = if self.chance(30) { 600_000 } else { 0 };
        definition.end_at_ms = self.chance(10).then_some(FAR_MS + 48 * HOUR_MS);
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
        let set = SetScheduleRequest {
            precondition: if self.chance(8) { Precondition::New } else { Precondition::Any },
            secret: self.chance(10).then(|| format!("s{}", self.roll(2))),
            source: self.chance(20).then(|| "file".into()),
            ..setting(definition)
        };
        let key = key(set.definition.name.as_str());
        let mut responses = Vec::new();
        for side in &self.sides {
            let version = side.view(&key).await.map_or(0, |view| view.version);
            let expect = off.map_or(set.precondition, |off| Precondition::Version(version + off));
            let set = SetScheduleRequest { precondition: expect, ..set.clone() };
            responses.push(side.store.set_schedule(&set).await.map_err(kind_of));
        }
        self.same(&format!("{set:?}"), responses);
    }

    /// Advances the clock or sets it back, and fires some schedules.
    async fn fire(&mut self) {
        let step = i64::try_from(self.roll(8 * 60)).expect("small") * 60_000;
        self.now_ms = if self.chance(8) { self.now_ms - HOUR_MS } else { self.now_ms + step };
        let names: BTreeSet<ScheduleKey> =
            (0..5).filter(|_| self.chance(60)).map(|n| key(&format!("n{n}"))).collect();
        let (stale, moved, back) = (self.chance(8), self.chance(4), self.chance(6));
        let (mut observed, mut responses) = (Vec::new(), Vec::new());
        for side in &mut self.sides {
            let mut due = side.due().await;
            due.retain(|key, _| names.contains(key));
            let firing = |(n, due): (i64, &DueSchedule)| {
                let firing = plan(due, side.leader.1, self.now_ms);
                ScheduleFiring {
                    version: firing.version + u64::from(stale && n == 0),
                    next_tick_at_ms: firing.next_tick_at_ms + i64::from(moved && n == 1),
                    // Sometimes set the next tick back, as a clock step and a new definition do. Keep the schedule
                    // due while a tick is left.
                    tick_state: if back && n == 2 { Some(due.tick_state) } else { firing.tick_state },
                    due_at_ms: firing.tick_state.map(|_| n + 1).or((back && n == 2).then_some(3)),
                    ..firing
                }
            };
            let firings: Vec<ScheduleFiring> = (0..).zip(due.values()).map(firing).collect();
            let fire = FireRequest { session: side.leader.0.id.clone(), token: side.leader.1, firings };
            let fired = side.store.fire(&fire).await.expect("fire").expect("it leads");
            observed.push(due);
            responses.push(fired.into_iter().map(without_words).collect::<Vec<_>>());
        }
        self.same("due schedules", observed);
        self.same(&format!("firing {names:?} at {}", self.now_ms), responses);
    }

    async fn postpone_one(&mut self) {
        let key = self.name();
        let mut responses = Vec::new();
        for side in &self.sides {
            let due = side.due().await.remove(&key);
            let firings = due
                .iter()
                .map(|due| ScheduleFiring { due_at_ms: Some(9), ..postpone(due, "why", 0) })
                .collect();
            let fire = FireRequest { session: side.leader.0.id.clone(), token: side.leader.1, firings };
            responses.push(side.store.fire(&fire).await.expect("fire"));
        }
        self.same(&format!("postponing {key}"), responses);
    }

    async fn pause(&mut self) {
        let (key, pause) = (self.name(), self.chance(45).then(pause));
        let mut responses = Vec::new();
        for side in &self.sides {
            responses.push(side.store.set_schedule_paused(&key, pause.as_ref()).await.expect("paused"));
        }
        self.same(&format!("{pause:?} of {key}"), responses);
    }

    async fn delete(&mut self) {
        let (key, wrong) = (self.name(), self.chance(40));
        let mut responses = Vec::new();
        for side in &self.sides {
            let deleted = side.store.delete_schedule(&key, wrong.then_some(1_000)).await;
            responses.push(deleted.expect("delete_schedule"));
        }
        self.same(&format!("deleting {key}"), responses);
    }

    async fn manual_fire(&mut self) {
        let key = self.name();
        let hours = self.now_ms.div_euclid(HOUR_MS);
        let manual_fire = if self.chance(40) {
            now(&key)
        } else {
            let mut hour = || (hours - i64::try_from(self.roll(30)).expect("small")) * HOUR_MS;
            let ticks: BTreeSet<i64> = (0..6).map(|_| hour()).collect();
            then(&key, &ticks.into_iter().collect::<Vec<_>>())
        };
        let manual_fire = ManualFire { payload: self.chance(30).then(|| json("\"manual\"")), ..manual_fire };
        for dry_run in [true, false] {
            let manual_fire = ManualFire { dry_run, ..manual_fire.clone() };
            let mut responses = Vec::new();
            for side in &self.sides {
                let reported = |fired: &ManualFireResult| {
                    let at_ms = if manual_fire.ticks.is_none() { 0 } else { fired.tick_at_ms };
                    (at_ms, without_numbers(fired.outcome))
                };
                // A dry run does not check whether the target would reject the tick.
                let fired = side.store.fire_manually(&manual_fire).await.map_err(kind_of);
                responses.push(
                    fired.map(|fired| fired.map(|fired| fired.iter().map(reported).collect::<Vec<_>>())),
                );
            }
            if !dry_run || responses.iter().all(Result::is_ok) {
                self.same(&format!("{manual_fire:?}"), responses);
            }
        }
    }

    /// Finishes a run of a schedule.
    async fn finish(&mut self) {
        let (key, nth) = (self.name(), self.below(4));
        let mut responses = Vec::new();
        for side in &self.sides {
            let open = side.open(&key).await;
            let chosen = open.iter().nth(nth).map(|(name, id)| (*name, *id));
            if let Some((_, id)) = chosen {
                let ended = side
                    .store
                    .apply_task_action(&key.namespace, &[id], TaskAction::Cancel)
                    .await
                    .expect("order");
                assert_eq!(ended, [id]);
            }
            responses.push((open.keys().copied().collect::<Vec<_>>(), chosen.map(|(name, _)| name)));
        }
        self.same(&format!("the unfinished runs of {key}"), responses);
    }

    /// Another process becomes leader; the store rejects firings of the previous one.
    async fn take_over(&mut self) {
        for side in &mut self.sides {
            let next = TestSession::open(side.store.clone(), "next").await;
            next.join(&scheduler_election()).await;
            let bid = next.takeover_request(&scheduler_election(), 0).await;
            let token = side.store.take_lease(&bid).await.expect("take").expect("the lease is taken over");
            let (former, before) = std::mem::replace(&mut side.leader, (next, token));
            assert!(token > before);
            let due = side.due().await;
            let firings = due.values().map(|due| plan(due, before, self.now_ms + 9 * HOUR_MS)).collect();
            let fire = FireRequest { session: former.id, token: before, firings };
            assert_eq!(side.store.fire(&fire).await, Ok(None), "call {}", self.call);
        }
    }

    async fn compare(&self) {
        let mut responses = Vec::new();
        for side in &self.sides {
            let mut all = Vec::new();
            for view in side.views().await {
                let mut ticks = Vec::new();
                for tick in side.ticks(&view.key()).await {
                    ticks.push(side.reported(&view.key(), &view, &tick).await);
                }
                all.push((without_times(view), ticks));
            }
            let stats = side.store.schedule_stats().await.expect("schedule_stats");
            let stats: Vec<_> = stats
                .iter()
                .map(|it| {
                    (
                        it.schedule_count,
                        it.paused_count,
                        it.failing_count,
                        it.overdue_count,
                        it.last_fired_at_ms.is_some(),
                    )
                })
                .collect();
            responses.push((all, stats, side.due().await));
        }
        self.same("the state", responses);
    }

    fn name(&mut self) -> ScheduleKey {
        key(&format!("n{}", self.roll(5)))
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    fn below(&mut self, below: usize) -> usize {
        usize::try_from(self.roll(below as u64)).expect("small")
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

/// Removes the text of a rejection, which stores may choose freely.
fn without_words(fired: FireOutcome) -> FireOutcome {
    match fired {
        FireOutcome::Rejected(_) => FireOutcome::Rejected(String::new()),
        other => other,
    }
}

fn without_numbers(outcome: ManualFireOutcome) -> impl PartialEq + Debug {
    match outcome {
        ManualFireOutcome::Fired { event_id: event, task_id: task } => {
            format!("fired {} {}", event.is_some(), task.is_some())
        }
        other => format!("{other:?}"),
    }
}

fn without_times(view: ScheduleView) -> impl PartialEq + Debug {
    let paused = view.paused.clone().map(|pause| (pause.paused_by, pause.reason));
    let last_fired_ms = view.last_fired_at_ms.map(|_| 0);
    let view = ScheduleView {
        paused: None,
        last_fired_at_ms: last_fired_ms,
        created_at_ms: 0,
        updated_at_ms: 0,
        ..view
    };
    (view, paused)
}
