//! Test data: schedules in every state that a page can show.

use std::time::Duration;

use tenure::port::{
    FireOutcome, FireRequest, Pause, Precondition, ScheduleAdmin, ScheduleKey, ScheduleStore, ScheduleView,
    SetScheduleOutcome, SetScheduleRequest, TickFilter, TickView,
};
use tenure::{SessionId, Token};
use tenure_core::rules::schedule::{ScheduleDefinition, plan, postpone};

use crate::fixture::Fixture;
use crate::queue_data::queue;

pub(crate) fn schedule(text: &str) -> ScheduleKey {
    let key = queue(text);
    ScheduleKey::new(key.namespace, key.name)
}

/// The session and token of the scheduler, which the test controls.
pub(crate) type Leader = (SessionId, Token);

impl Fixture {
    /// Create a schedule from JSON; missing fields have default values.
    pub(crate) async fn schedule(&self, of: &str, json: &str) -> SetScheduleOutcome {
        let key = schedule(of);
        let mut value: serde_json::Value = serde_json::from_str(json).unwrap();
        value["name"] = key.name.as_str().into();
        let definition: ScheduleDefinition = serde_json::from_value(value).unwrap();
        let set = SetScheduleRequest {
            namespace: key.namespace,
            definition,
            secret: None,
            precondition: Precondition::Any,
            source: (of == "applied").then(|| "schedules.toml".into()),
            updated_by: "ada".into(),
        };
        self.store.set_schedule(&set).await.unwrap()
    }

    pub(crate) async fn planned(&self, of: &str) -> ScheduleView {
        self.store.schedule(&schedule(of)).await.unwrap().expect(of)
    }

    pub(crate) async fn ticks(&self, of: &str) -> Vec<TickView> {
        self.store.ticks(&TickFilter { key: schedule(of), before_ms: None, limit: 1000 }).await.unwrap()
    }

    /// Add the leader of the schedulers.
    pub(crate) async fn leader(&mut self) -> Leader {
        self.add_leader("tenure/scheduler", "tenure-a").await
    }

    /// Fire all due ticks, as the scheduler does.
    pub(crate) async fn fire(&self, leader: &Leader) {
        let due_list = self.store.due_schedules(1000).await.unwrap();
        let (session, token) = leader;
        let request = |firings| FireRequest { session: session.clone(), token: *token, firings };
        for due in &due_list.schedules {
            let fired =
                self.store.fire(&request(vec![plan(due, *token, due_list.store_now_at_ms)])).await.unwrap();
            if let [FireOutcome::Rejected(why)] = &fired.expect("the session leads")[..] {
                self.store.fire(&request(vec![postpone(due, why, due_list.store_now_at_ms)])).await.unwrap();
            }
        }
    }

    /// A server with schedules in every state.
    pub(crate) async fn with_schedules() -> Fixture {
        let mut fixture = Fixture::without_scheduler().await;
        let leader = fixture.leader().await;
        // Start at a tick, so that ticks that fire at once are on time.
        let began = Duration::from_millis(6 * 3_600_000 + fixture.store_ms().rem_euclid(300_000) as u64);
        fixture.set_back(began);
        fixture.topic("reports", 8).await;
        fixture.topic("gone", 8).await;
        fixture.schedule("nightly", r#"{"expression": "30 2 * * *", "time_zone": "Europe/Berlin", "misfire_policy": "within(2h)", "jitter_ms": 90000,
            "target": {"event": {"topic": "reports", "key": "all"}}, "payload": {"what": "<b>everything</b>", "of": [1, 2]}}"#).await;
        fixture.schedule("minutely", r#"{"expression": "every 10m", "misfire_policy": "fire_all(100)", "target": {"task": {"queue": "mail", "task": {"kind": "digest"}}}}"#).await;
        fixture.schedule("skipping", r#"{"expression": "*/15 * * * *", "time_zone": "America/New_York", "misfire_policy": "skip", "target": {"event": {"topic": "reports"}}}"#).await;
        fixture.schedule("overlapping", r#"{"expression": "every 30m", "misfire_policy": "fire_all(10)", "overlap_policy": "skip", "target": {"task": {"queue": "mail"}}}"#).await;
        fixture
            .schedule("stuck", r#"{"expression": "every 1h", "target": {"event": {"topic": "gone"}}}"#)
            .await;
        fixture.schedule("monthly", r#"{"expression": "0 9 1 * *", "time_zone": "Australia/Lord_Howe", "target": {"webhook": {"url": "https://example.org/hooks/monthly?key=hidden-in-here"}}}"#).await;
        fixture
            .schedule("leap", r#"{"expression": "0 0 29 2 *", "target": {"task": {"queue": "mail"}}}"#)
            .await;
        fixture.schedule("prod/accounting", r#"{"expression": "0 18 * * MON-FRI", "time_zone": "Europe/London", "target": {"task": {"queue": "books"}}}"#).await;
        fixture
            .schedule("applied", r#"{"expression": "@daily", "target": {"task": {"queue": "mail"}}}"#)
            .await;
        let over = fixture.store_ms() + 5 * 60_000;
        fixture
            .schedule(
                "over",
                &format!(
                    r#"{{"expression": "every 1m", "end_at_ms": {over}, "target": {{"task": {{"queue": "mail"}}}}}}"#
                ),
            )
            .await;
        // Ticks fire on time for an hour, then no scheduler runs for two hours, then ticks fire on time
        // again.
        for minutes in (0..60).step_by(5) {
            fixture.set_back(began - Duration::from_secs(minutes * 60));
            fixture.fire(&leader).await;
        }
        tenure::port::EventAdmin::delete_topic(&fixture.store, &crate::event_data::topic("gone"))
            .await
            .unwrap();
        for minutes in (180..=360u64).step_by(5) {
            fixture.set_back(began - Duration::from_secs(minutes * 60));
            fixture.fire(&leader).await;
        }
        fixture.set_back(Duration::ZERO);
        let pause = Pause {
            paused_by: "ada".into(),
            reason: "the <books> are closed".into(),
            paused_at_ms: fixture.store_ms() - 240_000,
        };
        fixture.store.set_schedule_paused(&schedule("prod/accounting"), Some(&pause)).await.unwrap();
        fixture
    }
}
