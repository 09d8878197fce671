//! Schedules on real stores and the system clock: firing without faults, and a leader that crashes.

use std::time::Duration;

use tenure::port::*;
use tenure::rules::schedule::MisfirePolicy;
use tenure::store::migrations::SchemaMigrator;
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure::{ScheduleBuilder, Tenure};
use tenure_testkit::rig::fresh_database;

async fn open(url: &str, name: &str) -> Tenure {
    let lease = Duration::from_secs(1);
    Tenure::builder().url(url).name(name).lease(lease).open().await.expect("the store opens")
}

/// Two processes; the first one crashes. Every tick has one event, one task, and the token of the leader that
/// fired it.
async fn each_tick_fires_once_across_a_leader_change(url: &str) {
    let (a, b) = (open(url, "a").await, open(url, "b").await);
    let topic = a.topic("ticks").unwrap();
    a.store().set_topic(&topic, &TopicSettings { partitions: 1, ..TopicSettings::default() }).await.unwrap();
    let first = a.scheduler().start().await.unwrap();
    let all = MisfirePolicy::FireAll { cap: 10_000 };
    first
        .set(ScheduleBuilder::new("tasks", "every 100ms").misfire_policy(all).task("work", "tick"))
        .await
        .unwrap();
    first
        .set(ScheduleBuilder::new("events", "every 100ms").misfire_policy(all).event("ticks"))
        .await
        .unwrap();
    let second = b.scheduler().start().await.unwrap();
    until(|| async { b.schedules().show("tasks").await.unwrap().fired_count >= 3 }).await;
    drop((first, a));
    until(|| async { second.is_leader() }).await;
    let seen = b.schedules().show("events").await.unwrap().fired_count;
    until(|| async { b.schedules().show("events").await.unwrap().fired_count >= seen + 5 }).await;
    second.stop().await.unwrap();
    for name in ["tasks", "events"] {
        let view = b.schedules().show(name).await.unwrap();
        let mut ticks = b.schedules().ticks(name, 1_000).await.unwrap();
        ticks.reverse();
        assert_eq!((ticks.len() as u64, view.skipped_count, &view.last_error), (view.fired_count, 0, &None));
        assert!(
            ticks.windows(2).all(|two| two[1].tick_at_ms - two[0].tick_at_ms == 100),
            "{name}: a tick is missing"
        );
        assert!(ticks.iter().map(|tick| tick.token).is_sorted());
        assert!(ticks.iter().all(|tick| tick.token.is_some()));
        for tick in &ticks {
            match (tick.task_id, tick.event_id) {
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

/// Waits until a condition holds. The time limit depends on the machine, not on the test.
async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    for _ in 0..3_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition never held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_each_tick_fires_once_across_a_leader_change() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("tenure.db").display());
    each_tick_fires_once_across_a_leader_change(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_each_tick_fires_once_across_a_leader_change() {
    let database = fresh_database().unwrap();
    let store = PostgresStore::connect_unchecked(PostgresOptions::new(database.url())).await.unwrap();
    store.migrate().await.unwrap();
    each_tick_fires_once_across_a_leader_change(database.url()).await;
}
