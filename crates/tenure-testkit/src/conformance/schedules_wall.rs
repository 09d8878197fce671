//! What the claims about schedules are said with: a calendar as one client works on it, and who leads.
//!
//! No store's clock can be set from here, so the timetables of these claims lie where no clock is: in the past, where everything is
//! over, and from [`FAR_MS`] on, where nothing is due. A leader decides as of any moment that it is told ([`Chief::plan`]).

use std::sync::Arc;

use tenure_core::port::{
    Backend, DueLook, DueSchedule, Fire, Fired, Firing, Hand, HandFired, HandOutcome, Json, ScheduleKey,
    ScheduleSet, ScheduleView, SetSchedule, StoreError, TaskId, TaskView, TickFilter, TickView, TopicKey,
    TopicSettings, Trouble, scheduler_election,
};
use tenure_core::schedule::{Definition, Load, Misfire, Overlap, Target, When, plan};
use tenure_core::{Name, Token};

use super::{Actor, Subject};

/// The first of January 2100: no clock is there yet.
pub const FAR_MS: i64 = 4_102_444_800_000;

/// The first of January 2020: every clock was there.
pub const PAST_MS: i64 = 1_577_836_800_000;

/// An hour.
pub const HOUR_MS: i64 = 3_600_000;

/// The schedules of a store, as one client works on them.
#[derive(Clone)]
pub struct Wall {
    /// The client.
    pub store: Arc<dyn Backend>,
}

impl Wall {
    /// Through a new client; with the topic `t`.
    pub async fn of(subject: &Subject) -> Wall {
        let wall = Wall { store: subject.client().await };
        wall.make_topic("t").await;
        wall
    }

    /// The same, through a new client.
    pub async fn again(&self, subject: &Subject) -> Wall {
        Wall { store: subject.client().await }
    }

    /// Makes a topic of the default namespace.
    pub async fn make_topic(&self, name: &str) -> TopicKey {
        let topic = TopicKey::new(Name::default_namespace(), name.parse().expect("a name"));
        let settings = TopicSettings { slots: 2, ..TopicSettings::default() };
        self.store.set_topic(&topic, &settings).await.expect("set_topic");
        topic
    }

    /// Defines a schedule.
    pub async fn set(&self, set: &SetSchedule) -> ScheduleSet {
        self.store.set_schedule(set).await.expect("set_schedule")
    }

    /// Makes a schedule of the default namespace, and shows it.
    pub async fn make(&self, definition: Definition) -> ScheduleView {
        let key = key(definition.name.as_str());
        let set = self.set(&setting(definition)).await;
        assert!(matches!(set, ScheduleSet::Created(_)), "{set:?}");
        self.view(&key).await
    }

    /// A schedule, as this client sees it.
    pub async fn view(&self, key: &ScheduleKey) -> ScheduleView {
        self.find(key).await.expect("there is such a schedule")
    }

    /// A schedule, if it is there.
    pub async fn find(&self, key: &ScheduleKey) -> Option<ScheduleView> {
        self.store.schedule(key).await.expect("schedule")
    }

    /// Its history, the newest first.
    pub async fn ticks(&self, key: &ScheduleKey) -> Vec<TickView> {
        let filter = TickFilter { key: key.clone(), before_ms: None, limit: 1_000 };
        self.store.ticks(&filter).await.expect("ticks")
    }

    /// Fires by hand.
    pub async fn hand(&self, hand: &Hand) -> Vec<HandFired> {
        self.store.fire_by_hand(hand).await.expect("fire_by_hand").expect("there is such a schedule")
    }

    /// A task, as this client sees it.
    pub async fn task(&self, id: TaskId) -> TaskView {
        self.task_of(&Name::default_namespace(), id).await
    }

    /// A task of any namespace.
    pub async fn task_of(&self, namespace: &Name, id: TaskId) -> TaskView {
        self.store.task(namespace, id).await.expect("task").expect("there is such a task")
    }

    /// How many tasks there are of the default namespace.
    pub async fn tasks(&self) -> u64 {
        let queues = self.store.queues(Some(&Name::default_namespace())).await.expect("queues");
        queues.iter().flat_map(|queue| queue.counts.values()).sum()
    }

    /// How many events there are in the topic `t`.
    pub async fn events(&self) -> u64 {
        let topic = TopicKey::new(Name::default_namespace(), "t".parse().expect("a name"));
        self.store.topic(&topic).await.expect("topic").map_or(0, |topic| topic.events)
    }

    /// What is due.
    pub async fn due(&self, limit: u32) -> DueLook {
        self.store.due(limit).await.expect("due")
    }
}

/// Who leads the scheduler's election.
pub struct Chief {
    /// Its session and client.
    pub actor: Actor,
    /// Its token.
    pub token: Token,
}

impl Chief {
    /// The first leader, through a new client.
    pub async fn of(subject: &Subject) -> Chief {
        Chief::named(subject, "chief").await
    }

    /// The first leader, called like this.
    pub async fn named(subject: &Subject, name: &str) -> Chief {
        let (actor, election) = (subject.actor(name).await, scheduler_election());
        actor.stand(&election).await;
        let token = actor.take(&election, 0).await;
        Chief { actor, token }
    }

    /// Another, who takes the lease over from this one.
    pub async fn after(&self, subject: &Subject) -> Chief {
        let (actor, election) = (subject.actor("other").await, scheduler_election());
        actor.stand(&election).await;
        let bid = actor.overbid(&election, 0).await;
        let token = actor.store.take(&bid).await.expect("take").expect("it is taken over");
        Chief { actor, token }
    }

    /// What it would say to fire.
    pub fn firing(&self, firings: Vec<Firing>) -> Fire {
        Fire { session: self.actor.id.clone(), token: self.token, firings }
    }

    /// Fires.
    pub async fn fire(&self, firings: Vec<Firing>) -> Vec<Fired> {
        let count = firings.len();
        let fired = self.actor.store.fire(&self.firing(firings)).await.expect("fire").expect("it leads");
        assert_eq!(fired.len(), count, "one result for each");
        fired
    }

    /// Fires one, which must count.
    pub async fn fire_one(&self, firing: Firing) {
        assert_eq!(self.fire(vec![firing]).await, [Fired::Yes]);
    }

    /// What it decides about a schedule as of a moment, with nothing under way.
    pub fn plan(&self, view: &ScheduleView, now_ms: i64) -> Firing {
        plan(&seen(view), self.token, now_ms)
    }

    /// Decides so, and fires.
    pub async fn run(&self, view: &ScheduleView, now_ms: i64) {
        self.fire_one(self.plan(view, now_ms)).await;
    }

    /// The same, and it is due from now on.
    pub async fn run_and_come_back(&self, view: &ScheduleView, now_ms: i64) {
        self.fire_one(Firing { due_ms: Some(1), ..self.plan(view, now_ms) }).await;
    }
}

/// A schedule as a leader would see it that is due, with nothing under way.
pub fn seen(view: &ScheduleView) -> DueSchedule {
    DueSchedule {
        key: view.key(),
        version: view.version,
        definition: view.definition.clone(),
        progress: view.progress.expect("a tick is left"),
        load: Load::default(),
        strikes: 0,
    }
}

/// A schedule of the default namespace.
pub fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

/// A task in the queue `q`.
pub fn task() -> Target {
    Target::Task { queue: "q".parse().expect("a name"), task: Box::default() }
}

/// An event of a topic.
pub fn event(topic: &str) -> Target {
    Target::Event { topic: topic.parse().expect("a name"), key: None }
}

/// These times, from 2100 on; every tick that is missed fires.
pub fn far(name: &str, when: &str, target: Target) -> Definition {
    let mut definition = Definition::new(name.parse().expect("a name"), times(when), target);
    (definition.start_ms, definition.misfire) = (Some(FAR_MS), Misfire::FireAll { cap: 10_000 });
    definition
}

/// Every hour from 2100 on.
pub fn hourly(name: &str, target: Target) -> Definition {
    far(name, "every 1h", target)
}

/// The same, and runs do not overlap like that.
pub fn exclusive(name: &str, overlap: Overlap) -> Definition {
    let mut definition = hourly(name, task());
    definition.overlap = overlap;
    definition
}

/// Every hour of the first of January 2020: 24 ticks, and all of them over.
pub fn over(name: &str, target: Target) -> Definition {
    let mut definition = far(name, "every 1h", target);
    (definition.start_ms, definition.end_ms) = (Some(PAST_MS), Some(PAST_MS + 24 * HOUR_MS));
    definition
}

/// Times as people write them.
pub fn times(when: &str) -> When {
    when.parse().expect("times")
}

/// A wish to define a schedule of the default namespace.
pub fn setting(definition: Definition) -> SetSchedule {
    SetSchedule {
        namespace: Name::default_namespace(),
        definition,
        secret: None,
        expect: Default::default(),
        source: None,
        by: "o'ps".into(),
    }
}

/// A wish to fire once now.
pub fn now(key: &ScheduleKey) -> Hand {
    Hand { key: key.clone(), ticks: None, payload: None, by: "o'ps".into(), dry_run: false }
}

/// A wish to fire past ticks.
pub fn then(key: &ScheduleKey, ticks: &[i64]) -> Hand {
    Hand { ticks: Some(ticks.to_vec()), ..now(key) }
}

/// JSON as it is written.
pub fn json(text: &str) -> Json {
    text.parse().expect("JSON")
}

/// What came of them, as words.
pub fn outcomes(fired: &[HandFired]) -> Vec<&'static str> {
    let word = |fired: &HandFired| match fired.outcome {
        HandOutcome::Fired { .. } => "fired",
        HandOutcome::Already => "already",
        HandOutcome::Ahead => "ahead",
        HandOutcome::NoTick => "no tick",
        HandOutcome::Forgotten => "forgotten",
    };
    fired.iter().map(word).collect()
}

/// The task that came of one.
pub fn task_of(fired: &HandFired) -> TaskId {
    match fired.outcome {
        HandOutcome::Fired { task: Some(task), .. } => task,
        outcome => panic!("no task: {outcome:?}"),
    }
}

/// What was said of what is refused.
pub fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind, Trouble::Request, "{error}");
    error.message
}
