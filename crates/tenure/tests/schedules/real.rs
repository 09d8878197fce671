//! On real stores and the machine's own clock: the straight path, and a leader that is gone from one moment to the next.

use std::time::Duration;

use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::port::*;
use tenure::schedule::Misfire;
use tenure::{ScheduleBuilder, Tenure};
use tenure_testkit::rig::fresh_database;

async fn open(url: &str, name: &str) -> Tenure {
    let lease = Duration::from_secs(1);
    Tenure::builder().url(url).name(name).lease(lease).open().await.expect("the store opens")
}

/// Two processes; the first is dropped without a word. Every tick has one event, one task, and the token of who fired it.
async fn fires_once_each_across_a_change_of_leader(url: &str) {
    let (a, b) = (open(url, "a").await, open(url, "b").await);
    let topic = a.topic("ticks").unwrap();
    a.store().set_topic(&topic, &TopicSettings { slots: 1, ..TopicSettings::default() }).await.unwrap();
    let first = a.scheduler().start().await.unwrap();
    let all = Misfire::FireAll { cap: 10_000 };
    first.set(ScheduleBuilder::new("tasks", "every 100ms").misfire(all).task("work", "tick")).await.unwrap();
    first.set(ScheduleBuilder::new("events", "every 100ms").misfire(all).event("ticks")).await.unwrap();
    let second = b.scheduler().start().await.unwrap();
    until(|| async { b.schedules().show("tasks").await.unwrap().fired >= 3 }).await;
    drop((first, a));
    until(|| async { second.fires() }).await;
    let seen = b.schedules().show("events").await.unwrap().fired;
    until(|| async { b.schedules().show("events").await.unwrap().fired >= seen + 5 }).await;
    second.stop().await.unwrap();
    for name in ["tasks", "events"] {
        let view = b.schedules().show(name).await.unwrap();
        let mut ticks = b.schedules().ticks(name, 1_000).await.unwrap();
        ticks.reverse();
        assert_eq!((ticks.len() as u64, view.skipped, &view.trouble), (view.fired, 0, &None));
        assert!(ticks.windows(2).all(|two| two[1].at_ms - two[0].at_ms == 100), "{name}: a tick is missing");
        assert!(ticks.iter().map(|tick| tick.token).is_sorted());
        assert!(ticks.iter().all(|tick| tick.token.is_some()));
        for tick in &ticks {
            match (tick.task, tick.event) {
                (Some(task), None) => {
                    let task = b.store().task(&view.namespace, task).await.unwrap().unwrap();
                    assert_eq!(task.leader_token, tick.token);
                }
                (None, Some(event)) => {
                    let event = b.store().event(&topic, event).await.unwrap().unwrap();
                    assert_eq!(event.leader_token, tick.token);
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    b.close().await.unwrap();
}

/// Waits until something is so. How long is a matter of the machine, not of the test.
async fn until<F: Future<Output = bool>>(mut so: impl FnMut() -> F) {
    for _ in 0..3_000 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never was so");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_each_tick_fires_once_across_a_change_of_leader() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("tenure.db").display());
    fires_once_each_across_a_change_of_leader(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_each_tick_fires_once_across_a_change_of_leader() {
    let database = fresh_database().unwrap();
    let store = Postgres::connect_unchecked(PostgresOptions::new(database.url())).await.unwrap();
    store.migrate().await.unwrap();
    fires_once_each_across_a_change_of_leader(database.url()).await;
}
