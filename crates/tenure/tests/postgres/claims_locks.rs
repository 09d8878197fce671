//! What somebody else's open transaction, or a clock that steps, must not do to claims.

use std::time::Duration;

use tenure::backend::postgres::Postgres;
use tenure_core::Token;
use tenure_core::port::{
    Authority, ClaimAnswer, ClaimAsk, Desk, Mode, NewTask, Parent, QueueSettings, RateLimit, Store, TaskId,
    TaskState, Tasks, Tend,
};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{claimed, completed, queue, seat, submission, tasks};
use crate::support::*;

/// Makes `s` the leader of tenure/claims, under token 7.
fn enthrone(database: &FreshDatabase) {
    database
        .psql(
            "INSERT INTO tenure.leases (namespace, name, slot, token, session) VALUES ('tenure', 'claims', 0, 7, 's')
             ON CONFLICT (namespace, name, slot) DO UPDATE SET token = 7, session = 's'",
        )
        .unwrap();
}

async fn tend(store: &Postgres) -> u64 {
    let tend = Tend { session: id("s"), token: Token::from_u64(7), clock_ms: None, limit: 100 };
    let tended = store.tend(&tend).await.unwrap();
    assert!(tended.leads);
    tended.returned
}

async fn locked(store: &Postgres, task: TaskId) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut lock = store.pool().begin().await.unwrap();
    let select = format!("SELECT FROM tenure.tasks WHERE id = {task} FOR UPDATE");
    sqlx::raw_sql(sqlx::AssertSqlSafe(select)).execute(&mut *lock).await.unwrap();
    lock
}

async fn state(store: &Postgres, task: TaskId) -> TaskState {
    store.task(&queue("q").namespace, task).await.unwrap().unwrap().state
}

/// The leader passes by nothing that it could hand out, of whatever demand, because somebody has it locked.
#[tokio::test(flavor = "multi_thread")]
async fn strict_order_waits_for_what_is_locked() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    enthrone(&database);
    let exclusive = QueueSettings { mode: Mode::Exclusive, ..QueueSettings::default() };
    store.set_queue(&queue("q"), &exclusive).await.unwrap();
    let task = |kind: &str, priority| NewTask { priority, ..NewTask::new(kind) };
    let new = vec![task("a", 3), task("b", 2), task("a", 1)];
    let ids: Vec<TaskId> =
        store.submit(&submission("q", new)).await.unwrap().iter().map(|it| it.id).collect();
    let authority = Authority::Leader { session: id("s"), token: Token::from_u64(7) };
    let ask =
        |limit| ClaimAsk { queue: queue("q"), authority: authority.clone(), seats: vec![seat("s", limit)] };
    let got = async |limit| {
        let ClaimAnswer::Served { tasks, next_in } = store.claim(&ask(limit)).await.unwrap() else {
            panic!()
        };
        let turns: Vec<_> = tasks[0].iter().map(|it| (it.id, it.turn.unwrap())).collect();
        (turns, next_in.is_some())
    };
    let lock = locked(&store, ids[0]).await;
    assert_eq!(got(1).await, (vec![], true), "nothing goes before the first");
    lock.rollback().await.unwrap();
    let lock = locked(&store, ids[1]).await;
    assert_eq!(got(3).await, (vec![(ids[0], 1)], true), "what stands before it goes");
    lock.rollback().await.unwrap();
    assert_eq!(got(2).await.0, [(ids[1], 2), (ids[2], 3)]);
}

/// A child that is locked keeps its parent, and nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_goes_on_around_what_is_locked() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    opened(&store, "d").await;
    enthrone(&database);
    let last = NewTask { max_attempts: 1, ..NewTask::new("work") };
    let child = NewTask { parents: vec![Parent::Index(0)], ..NewTask::new("work") };
    let new = vec![last, child, NewTask::new("work")];
    let ids: Vec<TaskId> =
        store.submit(&submission("q", new)).await.unwrap().iter().map(|it| it.id).collect();
    assert_eq!(claimed(&store, "q", seat("d", 9)).await.len(), 2);
    store.end(&id("d")).await.unwrap();
    let lock = locked(&store, ids[1]).await;
    assert_eq!(tend(&store).await, 1);
    assert_eq!(state(&store, ids[2]).await, TaskState::Ready);
    assert_eq!(state(&store, ids[0]).await, TaskState::Claimed);
    lock.rollback().await.unwrap();
    assert_eq!(tend(&store).await, 1);
    assert_eq!(state(&store, ids[0]).await, TaskState::Dead);
    assert_eq!(state(&store, ids[1]).await, TaskState::Dead);
}

/// Somebody had it locked when it should have been let in, and another with its key stands there that nobody wants.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_locked_when_its_key_became_free_is_let_in_later() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    enthrone(&database);
    let keyed = || NewTask { concurrency_key: Some("k".into()), ..NewTask::new("work") };
    let unwanted = NewTask { requires: vec!["nobody".into()], ..keyed() };
    let new = vec![keyed(), keyed(), unwanted];
    let ids: Vec<TaskId> =
        store.submit(&submission("q", new)).await.unwrap().iter().map(|it| it.id).collect();
    let first = claimed(&store, "q", seat("s", 9)).await;
    assert_eq!(first.len(), 1);
    assert_eq!(state(&store, ids[1]).await, TaskState::Held);
    let lock = locked(&store, ids[1]).await;
    store.settle(&[completed(&first[0])]).await.unwrap();
    lock.rollback().await.unwrap();
    assert_eq!(state(&store, ids[1]).await, TaskState::Held, "nobody let it in");
    tend(&store).await;
    assert_eq!(state(&store, ids[1]).await, TaskState::Ready);
}

/// The bucket fills from now on, not from when the clock is again where it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_survives_a_clock_that_is_put_back() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let rate = Some(RateLimit { count: 1, per_ms: 50 });
    store.set_queue(&queue("q"), &QueueSettings { rate, ..QueueSettings::default() }).await.unwrap();
    store.submit(&submission("q", tasks(2))).await.unwrap();
    assert_eq!(claimed(&store, "q", seat("s", 2)).await.len(), 1);
    database.psql("UPDATE tenure.turnstiles SET parts = 0, filled_at = now() + interval '1 hour'").unwrap();
    for _ in 0..1000 {
        if !claimed(&store, "q", seat("s", 1)).await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the queue stands still");
}
