//! Schedules in every state that a page can show.

use std::time::Duration;

use tenure::port::{
    Calendar, Expect, Fire, Fired, Pause, ScheduleKey, ScheduleSet, ScheduleView, Scheduling, SetSchedule,
    TickFilter, TickView,
};
use tenure::{SessionId, Token};
use tenure_core::schedule::{Definition, plan, put_off};

use crate::work::queue;
use crate::world::World;

pub(crate) fn schedule(text: &str) -> ScheduleKey {
    let key = queue(text);
    ScheduleKey::new(key.namespace, key.name)
}

/// Who fires what is due, by hand of the test.
pub(crate) type Leader = (SessionId, Token);

impl World {
    /// Defines a schedule: what is not said is as usual.
    pub(crate) async fn schedule(&self, of: &str, json: &str) -> ScheduleSet {
        let key = schedule(of);
        let mut value: serde_json::Value = serde_json::from_str(json).unwrap();
        value["name"] = key.name.as_str().into();
        let definition: Definition = serde_json::from_value(value).unwrap();
        let set = SetSchedule {
            namespace: key.namespace,
            definition,
            secret: None,
            expect: Expect::Any,
            source: (of == "applied").then(|| "schedules.toml".into()),
            by: "ada".into(),
        };
        self.store.set_schedule(&set).await.unwrap()
    }

    pub(crate) async fn planned(&self, of: &str) -> ScheduleView {
        self.store.schedule(&schedule(of)).await.unwrap().expect(of)
    }

    pub(crate) async fn ticks(&self, of: &str) -> Vec<TickView> {
        self.store.ticks(&TickFilter { key: schedule(of), before_ms: None, limit: 1000 }).await.unwrap()
    }

    /// Somebody who leads the election of schedulers.
    pub(crate) async fn leader(&mut self) -> Leader {
        self.leads("tenure/scheduler", "tenure-a").await
    }

    /// What the leader does whenever something is due.
    pub(crate) async fn fire(&self, leader: &Leader) {
        let look = self.store.due(1000).await.unwrap();
        let (session, token) = leader;
        let ask = |firings| Fire { session: session.clone(), token: *token, firings };
        for due in &look.schedules {
            let fired = self.store.fire(&ask(vec![plan(due, *token, look.store_ms)])).await.unwrap();
            if let [Fired::Refused(why)] = &fired.expect("it leads")[..] {
                self.store.fire(&ask(vec![put_off(due, why, look.store_ms)])).await.unwrap();
            }
        }
    }

    /// Schedules, and what has become of them, in every state.
    pub(crate) async fn scheduled() -> World {
        let mut world = World::quiet().await;
        let leader = world.leader().await;
        // From the tick of a clock on, so that what is fired at once is on time whenever this runs.
        let began = Duration::from_millis(6 * 3_600_000 + world.store_ms().rem_euclid(300_000) as u64);
        world.set_back(began);
        world.topic("reports", 8).await;
        world.topic("gone", 8).await;
        world.schedule("nightly", r#"{"when": "30 2 * * *", "zone": "Europe/Berlin", "misfire": "within(2h)", "jitter_ms": 90000,
            "target": {"event": {"topic": "reports", "key": "all"}}, "payload": {"what": "<b>everything</b>", "of": [1, 2]}}"#).await;
        world.schedule("minutely", r#"{"when": "every 10m", "misfire": "fire_all(100)", "target": {"task": {"queue": "mail", "task": {"kind": "digest"}}}}"#).await;
        world.schedule("skipping", r#"{"when": "*/15 * * * *", "zone": "America/New_York", "misfire": "skip", "target": {"event": {"topic": "reports"}}}"#).await;
        world.schedule("overlapping", r#"{"when": "every 30m", "misfire": "fire_all(10)", "overlap": "skip", "target": {"task": {"queue": "mail"}}}"#).await;
        world.schedule("stuck", r#"{"when": "every 1h", "target": {"event": {"topic": "gone"}}}"#).await;
        world.schedule("monthly", r#"{"when": "0 9 1 * *", "zone": "Australia/Lord_Howe", "target": {"call": {"url": "https://example.org/hooks/monthly?key=hidden-in-here"}}}"#).await;
        world.schedule("leap", r#"{"when": "0 0 29 2 *", "target": {"task": {"queue": "mail"}}}"#).await;
        world.schedule("prod/ledger", r#"{"when": "0 18 * * MON-FRI", "zone": "Europe/London", "target": {"task": {"queue": "books"}}}"#).await;
        world.schedule("applied", r#"{"when": "@daily", "target": {"task": {"queue": "mail"}}}"#).await;
        let over = world.store_ms() + 5 * 60_000;
        world
            .schedule(
                "over",
                &format!(
                    r#"{{"when": "every 1m", "end_ms": {over}, "target": {{"task": {{"queue": "mail"}}}}}}"#
                ),
            )
            .await;
        // On time for an hour, away for two, and on time again.
        for minutes in (0..60).step_by(5) {
            world.set_back(began - Duration::from_secs(minutes * 60));
            world.fire(&leader).await;
        }
        tenure::port::Bureau::delete_topic(&world.store, &crate::stream::topic("gone")).await.unwrap();
        for minutes in (180..=360u64).step_by(5) {
            world.set_back(began - Duration::from_secs(minutes * 60));
            world.fire(&leader).await;
        }
        world.set_back(Duration::ZERO);
        let pause = Pause {
            by: "ada".into(),
            reason: "the <books> are closed".into(),
            at_ms: world.store_ms() - 240_000,
        };
        world.store.set_schedule_paused(&schedule("prod/ledger"), Some(&pause)).await.unwrap();
        world
    }
}
