//! Claims next to open transactions of other clients, and with a clock that steps.

use std::time::Duration;

use tenure::store::postgres::PostgresStore;
use tenure_core::Token;
use tenure_core::port::{
    AssignmentMode, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ElectionStore, MaintenanceRequest,
    NewTask, ParentRef, QueueSettings, RateLimit, TaskAdmin, TaskId, TaskState, TaskStore,
};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{claim_request, claimed, completed, queue, submission, tasks};
use crate::support::*;

/// Makes `s` the leader of tenure/broker under token 7.
fn make_broker(database: &FreshDatabase) {
    database
        .psql(
            "INSERT INTO tenure.leases (namespace, election, slot, token, session) VALUES ('tenure', 'broker', 0, 7, 's')
             ON CONFLICT (namespace, election, slot) DO UPDATE SET token = 7, session = 's'",
        )
        .unwrap();
}

async fn maintain(store: &PostgresStore) -> u64 {
    let request =
        MaintenanceRequest { session: id("s"), token: Token::from_u64(7), clock_ms: None, limit: 100 };
    let response = store.maintain(&request).await.unwrap();
    assert!(response.is_leader);
    response.recovered
}

async fn locked(store: &PostgresStore, task: TaskId) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let mut lock = store.pool().begin().await.unwrap();
    let select = format!("SELECT FROM tenure.tasks WHERE id = {task} FOR UPDATE");
    sqlx::raw_sql(sqlx::AssertSqlSafe(select)).execute(&mut *lock).await.unwrap();
    lock
}

async fn state(store: &PostgresStore, task: TaskId) -> TaskState {
    store.task(&queue("q").namespace, task).await.unwrap().unwrap().state
}

/// The broker waits for a task that another transaction has locked, and assigns no later task before it.
#[tokio::test(flavor = "multi_thread")]
async fn strict_order_waits_for_locked_tasks() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    make_broker(&database);
    let exclusive = QueueSettings { mode: AssignmentMode::Exclusive, ..QueueSettings::default() };
    store.set_queue(&queue("q"), &exclusive).await.unwrap();
    let task = |kind: &str, priority| NewTask { priority, ..NewTask::new(kind) };
    let new = vec![task("a", 3), task("b", 2), task("a", 1)];
    let ids: Vec<TaskId> =
        store.submit(&submission("q", new)).await.unwrap().iter().map(|it| it.id).collect();
    let authority = ClaimAuthority::Leader { session: id("s"), token: Token::from_u64(7) };
    let batch = |limit| ClaimBatchRequest {
        queue: queue("q"),
        authority: authority.clone(),
        requests: vec![claim_request("s", limit)],
    };
    let got = async |limit| {
        let ClaimBatchResponse::Served { tasks, next_in } = store.claim(&batch(limit)).await.unwrap() else {
            panic!()
        };
        let claims: Vec<_> = tasks[0].iter().map(|it| (it.id, it.claim_seq.unwrap())).collect();
        (claims, next_in.is_some())
    };
    let lock = locked(&store, ids[0]).await;
    assert_eq!(got(1).await, (vec![], true), "no task before the first one");
    lock.rollback().await.unwrap();
    let lock = locked(&store, ids[1]).await;
    assert_eq!(got(3).await, (vec![(ids[0], 1)], true), "tasks before the locked one are assigned");
    lock.rollback().await.unwrap();
    assert_eq!(got(2).await.0, [(ids[1], 2), (ids[2], 3)]);
}

/// If a child is locked, maintenance postpones only the recovery of its parent and still recovers other tasks.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_skips_locked_tasks() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    opened(&store, "d").await;
    make_broker(&database);
    let last = NewTask { max_attempts: 1, ..NewTask::new("work") };
    let child = NewTask { parents: vec![ParentRef::Index(0)], ..NewTask::new("work") };
    let new = vec![last, child, NewTask::new("work")];
    let ids: Vec<TaskId> =
        store.submit(&submission("q", new)).await.unwrap().iter().map(|it| it.id).collect();
    assert_eq!(claimed(&store, "q", claim_request("d", 9)).await.len(), 2);
    store.end_session(&id("d")).await.unwrap();
    let lock = locked(&store, ids[1]).await;
    assert_eq!(maintain(&store).await, 1);
    assert_eq!(state(&store, ids[2]).await, TaskState::Ready);
    assert_eq!(state(&store, ids[0]).await, TaskState::Claimed);
    lock.rollback().await.unwrap();
    assert_eq!(maintain(&store).await, 1);
    assert_eq!(state(&store, ids[0]).await, TaskState::Dead);
    assert_eq!(state(&store, ids[1]).await, TaskState::Dead);
}

/// Settling a claim skips a blocked task that another transaction has locked. Maintenance makes it ready later, even
/// if the settlement unblocked another task with that key, which no worker can claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_was_locked_when_its_key_became_free_is_unblocked_later() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    make_broker(&database);
    let keyed = || NewTask { concurrency_key: Some("k".into()), ..NewTask::new("work") };
    let unwanted = NewTask { required_tags: vec!["missing".into()], ..keyed() };
    let new = vec![keyed(), keyed(), unwanted];
    let ids: Vec<TaskId> =
        store.submit(&submission("q", new)).await.unwrap().iter().map(|it| it.id).collect();
    let first = claimed(&store, "q", claim_request("s", 9)).await;
    assert_eq!(first.len(), 1);
    assert_eq!(state(&store, ids[1]).await, TaskState::Blocked);
    let lock = locked(&store, ids[1]).await;
    store.settle(&[completed(&first[0])]).await.unwrap();
    lock.rollback().await.unwrap();
    assert_eq!(state(&store, ids[1]).await, TaskState::Blocked, "it was skipped");
    maintain(&store).await;
    assert_eq!(state(&store, ids[1]).await, TaskState::Ready);
}

/// After the clock was set back, credit accrues at once, not only when the clock reaches its former time again.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_works_after_the_clock_was_set_back() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let rate = Some(RateLimit { count: 1, per_ms: 50 });
    store.set_queue(&queue("q"), &QueueSettings { rate, ..QueueSettings::default() }).await.unwrap();
    store.submit(&submission("q", tasks(2))).await.unwrap();
    assert_eq!(claimed(&store, "q", claim_request("s", 2)).await.len(), 1);
    database
        .psql(
            "UPDATE tenure.queue_counters SET rate_credit = 0, rate_refilled_at = now() + interval '1 hour'",
        )
        .unwrap();
    for _ in 0..1000 {
        if !claimed(&store, "q", claim_request("s", 1)).await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no task is claimed any more");
}
