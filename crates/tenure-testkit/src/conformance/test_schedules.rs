//! Fixtures for tests of schedules: schedules as one client uses them, and the scheduler's leader.
//!
//! Tests cannot set the clock of a store. Their timetables are therefore far from the current time: in the past, where
//! all ticks are over, or from [`FAR_MS`] on, where nothing is due. The leader decides as of any given instant
//! ([`TestScheduler::plan`]).

use std::sync::Arc;

use tenure_core::port::{
    DueResponse, DueSchedule, ErrorKind, FireOutcome, FireRequest, ManualFire, ManualFireOutcome,
    ManualFireResult, RawJson, ScheduleFiring, ScheduleKey, ScheduleView, SetScheduleOutcome,
    SetScheduleRequest, Store, StoreError, TaskId, TaskView, TickFilter, TickView, TopicKey, TopicSettings,
    scheduler_election,
};
use tenure_core::rules::schedule::{
    MisfirePolicy, OverlapPolicy, ScheduleDefinition, ScheduleExpression, ScheduleTarget, UnfinishedRuns,
    plan,
};
use tenure_core::{Name, Token};

use super::{StoreUnderTest, TestSession};

/// The first of January 2100, in the future of every clock.
pub const FAR_MS: i64 = 4_102_444_800_000;

/// The first of January 2020, in the past of every clock.
pub const PAST_MS: i64 = 1_577_836_800_000;

/// An hour.
pub const HOUR_MS: i64 = 3_600_000;

/// The schedules of a store as one client uses them.
#[derive(Clone)]
pub struct TestSchedules {
    /// The client.
    pub store: Arc<dyn Store>,
}

impl TestSchedules {
    /// Opens a new client and creates the topic `t`.
    pub async fn of(subject: &StoreUnderTest) -> TestSchedules {
        let test_schedules = TestSchedules { store: subject.client().await };
        test_schedules.make_topic("t").await;
        test_schedules
    }

    /// Opens another client of the same store.
    pub async fn reopen(&self, subject: &StoreUnderTest) -> TestSchedules {
        TestSchedules { store: subject.client().await }
    }

    /// Creates a topic of the default namespace.
    pub async fn make_topic(&self, name: &str) -> TopicKey {
        let topic = TopicKey::new(Name::default_namespace(), name.parse().expect("a name"));
        let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
        self.store.set_topic(&topic, &settings).await.expect("set_topic");
        topic
    }

    /// Sets a schedule.
    pub async fn set(&self, set: &SetScheduleRequest) -> SetScheduleOutcome {
        self.store.set_schedule(set).await.expect("set_schedule")
    }

    /// Creates a schedule of the default namespace and returns it.
    pub async fn make(&self, definition: ScheduleDefinition) -> ScheduleView {
        let key = key(definition.name.as_str());
        let set = self.set(&setting(definition)).await;
        assert!(matches!(set, SetScheduleOutcome::Created(_)), "{set:?}");
        self.view(&key).await
    }

    /// A schedule as this client sees it.
    pub async fn view(&self, key: &ScheduleKey) -> ScheduleView {
        self.find(key).await.expect("the schedule exists")
    }

    /// A schedule, if it exists.
    pub async fn find(&self, key: &ScheduleKey) -> Option<ScheduleView> {
        self.store.schedule(key).await.expect("schedule")
    }

    /// The tick history of a schedule, newest first.
    pub async fn ticks(&self, key: &ScheduleKey) -> Vec<TickView> {
        let filter = TickFilter { key: key.clone(), before_ms: None, limit: 1_000 };
        self.store.ticks(&filter).await.expect("ticks")
    }

    /// Fires manually.
    pub async fn fire_manually(&self, request: &ManualFire) -> Vec<ManualFireResult> {
        self.store.fire_manually(request).await.expect("fire manually").expect("the schedule exists")
    }

    /// A task as this client sees it.
    pub async fn task(&self, id: TaskId) -> TaskView {
        self.task_of(&Name::default_namespace(), id).await
    }

    /// A task of any namespace.
    pub async fn task_of(&self, namespace: &Name, id: TaskId) -> TaskView {
        self.store.task(namespace, id).await.expect("task").expect("the task exists")
    }

    /// Number of tasks of the default namespace.
    pub async fn tasks(&self) -> u64 {
        let queues = self.store.queues(Some(&Name::default_namespace())).await.expect("queues");
        queues.iter().flat_map(|queue| queue.counts.values()).sum()
    }

    /// Number of events in the topic `t`.
    pub async fn events(&self) -> u64 {
        let topic = TopicKey::new(Name::default_namespace(), "t".parse().expect("a name"));
        self.store.topic(&topic).await.expect("topic").map_or(0, |topic| topic.event_count)
    }

    /// Due schedules.
    pub async fn due(&self, limit: u32) -> DueResponse {
        self.store.due_schedules(limit).await.expect("due")
    }
}

/// The leader of the scheduler election.
pub struct TestScheduler {
    /// Its session and client.
    pub session: TestSession,
    /// Its token.
    pub token: Token,
}

impl TestScheduler {
    /// Elects the first leader, through a new client.
    pub async fn of(subject: &StoreUnderTest) -> TestScheduler {
        TestScheduler::named(subject, "chief").await
    }

    /// Elects the first leader under this name, through a new client.
    pub async fn named(subject: &StoreUnderTest, name: &str) -> TestScheduler {
        let (session, election) = (subject.session(name).await, scheduler_election());
        session.join(&election).await;
        let token = session.take(&election, 0).await;
        TestScheduler { session, token }
    }

    /// Elects another leader, which takes over the lease.
    pub async fn after(&self, subject: &StoreUnderTest) -> TestScheduler {
        let (session, election) = (subject.session("other").await, scheduler_election());
        session.join(&election).await;
        let bid = session.takeover_request(&election, 0).await;
        let token = session.store.take_lease(&bid).await.expect("take").expect("the lease is taken over");
        TestScheduler { session, token }
    }

    /// A fire request.
    pub fn firing(&self, firings: Vec<ScheduleFiring>) -> FireRequest {
        FireRequest { session: self.session.id.clone(), token: self.token, firings }
    }

    /// Sends a fire request and returns the outcome of each firing.
    pub async fn fire(&self, firings: Vec<ScheduleFiring>) -> Vec<FireOutcome> {
        let count = firings.len();
        let fired = self.session.store.fire(&self.firing(firings)).await.expect("fire").expect("it leads");
        assert_eq!(fired.len(), count, "one result per firing");
        fired
    }

    /// Fires one schedule. Panics unless the firing is applied.
    pub async fn fire_one(&self, firing: ScheduleFiring) {
        assert_eq!(self.fire(vec![firing]).await, [FireOutcome::Fired]);
    }

    /// The leader's decision about a schedule as of an instant, without unfinished runs.
    pub fn plan(&self, view: &ScheduleView, now_ms: i64) -> ScheduleFiring {
        plan(&observed(view), self.token, now_ms)
    }

    /// Decides about a schedule as of an instant and fires it.
    pub async fn run(&self, view: &ScheduleView, now_ms: i64) {
        self.fire_one(self.plan(view, now_ms)).await;
    }

    /// Does the same as [`run`](Self::run), and makes the schedule due again.
    pub async fn run_and_stay_due(&self, view: &ScheduleView, now_ms: i64) {
        self.fire_one(ScheduleFiring { due_at_ms: Some(1), ..self.plan(view, now_ms) }).await;
    }
}

/// A due schedule as the scheduler sees it, without unfinished runs.
pub fn observed(view: &ScheduleView) -> DueSchedule {
    DueSchedule {
        key: view.key(),
        version: view.version,
        definition: view.definition.clone(),
        tick_state: view.tick_state.expect("a tick is left"),
        unfinished_runs: UnfinishedRuns::default(),
        consecutive_failures: 0,
    }
}

/// A schedule of the default namespace.
pub fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

/// A target that submits a task to the queue `q`.
pub fn task() -> ScheduleTarget {
    ScheduleTarget::Task { queue: "q".parse().expect("a name"), task: Box::default() }
}

/// A target that publishes an event to a topic.
pub fn event(topic: &str) -> ScheduleTarget {
    ScheduleTarget::Event { topic: topic.parse().expect("a name"), key: None }
}

/// A schedule with ticks from 2100 on, of which every missed one fires.
pub fn far(name: &str, when: &str, target: ScheduleTarget) -> ScheduleDefinition {
    let mut definition = ScheduleDefinition::new(name.parse().expect("a name"), times(when), target);
    (definition.start_at_ms, definition.misfire_policy) =
        (Some(FAR_MS), MisfirePolicy::FireAll { cap: 10_000 });
    definition
}

/// A schedule with a tick every hour from 2100 on.
pub fn hourly(name: &str, target: ScheduleTarget) -> ScheduleDefinition {
    far(name, "every 1h", target)
}

/// A schedule with a tick every hour and this overlap policy.
pub fn exclusive(name: &str, overlap: OverlapPolicy) -> ScheduleDefinition {
    let mut definition = hourly(name, task());
    definition.overlap_policy = overlap;
    definition
}

/// A schedule with a tick every hour of the first of January 2020: 24 ticks, all in the past.
pub fn over(name: &str, target: ScheduleTarget) -> ScheduleDefinition {
    let mut definition = far(name, "every 1h", target);
    (definition.start_at_ms, definition.end_at_ms) = (Some(PAST_MS), Some(PAST_MS + 24 * HOUR_MS));
    definition
}

/// Parses an expression.
pub fn times(when: &str) -> ScheduleExpression {
    when.parse().expect("times")
}

/// A request to set a schedule of the default namespace.
pub fn setting(definition: ScheduleDefinition) -> SetScheduleRequest {
    SetScheduleRequest {
        namespace: Name::default_namespace(),
        definition,
        secret: None,
        precondition: Default::default(),
        source: None,
        updated_by: "o'ps".into(),
    }
}

/// A request to fire one tick now.
pub fn now(key: &ScheduleKey) -> ManualFire {
    ManualFire { key: key.clone(), ticks: None, payload: None, requested_by: "o'ps".into(), dry_run: false }
}

/// A request to fire past ticks.
pub fn then(key: &ScheduleKey, ticks: &[i64]) -> ManualFire {
    ManualFire { ticks: Some(ticks.to_vec()), ..now(key) }
}

/// JSON from its text.
pub fn json(text: &str) -> RawJson {
    text.parse().expect("JSON")
}

/// The outcomes as words.
pub fn outcomes(fired: &[ManualFireResult]) -> Vec<&'static str> {
    let word = |fired: &ManualFireResult| match fired.outcome {
        ManualFireOutcome::Fired { .. } => "fired",
        ManualFireOutcome::AlreadyFired => "already",
        ManualFireOutcome::InFuture => "ahead",
        ManualFireOutcome::NotATick => "no tick",
        ManualFireOutcome::Pruned => "forgotten",
    };
    fired.iter().map(word).collect()
}

/// The task of a fired tick.
pub fn task_of(fired: &ManualFireResult) -> TaskId {
    match fired.outcome {
        ManualFireOutcome::Fired { task_id: Some(task), .. } => task,
        outcome => panic!("no task: {outcome:?}"),
    }
}

/// The message of a rejection.
pub fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    let error = result.expect_err("it is rejected");
    assert_eq!(error.kind, ErrorKind::Request, "{error}");
    error.message
}
