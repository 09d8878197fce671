//! Maintenance of queues, and the cost of their views.

use std::time::Duration;

use tenure_core::Name;
use tenure_core::port::{
    ClaimRequest, MaintenanceRequest, NewTask, NewWorker, QueueSettings, RateLimit, TaskAdmin, TaskState,
    TaskStore, broker_election,
};

use crate::claims::{claim_request, claimed, completed, queue, submission, tasks};
use crate::support::*;

async fn maintainer(store: &tenure::store::postgres::PostgresStore) -> MaintenanceRequest {
    let token = leading(store, "maintainer", &broker_election()).await;
    MaintenanceRequest { session: id("maintainer"), token, clock_ms: Some(i64::MAX), limit: 1000 }
}

fn keyed(kind: &str, limit: u32) -> NewTask {
    NewTask { concurrency_key: Some("k".into()), concurrency_limit: limit, ..NewTask::new(kind) }
}

/// Settling a claim skips the next task of its concurrency key if another transaction has locked that task.
/// Maintenance makes it ready later, even if the key has tasks in other queues.
#[tokio::test(flavor = "multi_thread")]
async fn maintenance_makes_skipped_blocked_tasks_ready() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let maintenance = maintainer(&store).await;
    store.submit(&submission("q", vec![keyed("a", 1), keyed("a", 1)])).await.unwrap();
    let first = claimed(&store, "q", claim_request("s", 2)).await.remove(0);
    assert_eq!(store.queue(&queue("q")).await.unwrap().unwrap().count(TaskState::Blocked), 1);
    // A task of a queue without workers, and one of another namespace.
    store.submit(&submission("elsewhere", vec![keyed("b", 1)])).await.unwrap();
    database.psql("SELECT tenure.submit('q', namespace => 'other', concurrency_key => 'k')").unwrap();
    let mut other = store.pool().begin().await.unwrap();
    let lock = "SELECT FROM tenure.tasks WHERE state = 'blocked' FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut *other).await.unwrap();
    store.settle(&[completed(&first)]).await.unwrap();
    other.commit().await.unwrap();
    assert_eq!(claimed(&store, "q", claim_request("s", 2)).await, []);
    store.maintain(&maintenance).await.unwrap();
    let second = claimed(&store, "q", claim_request("s", 2)).await;
    assert_eq!(second.len(), 1);
    // No more tasks than the limit allows.
    store.submit(&submission("q", vec![keyed("a", 1), keyed("a", 1)])).await.unwrap();
    assert_eq!(claimed(&store, "q", claim_request("s", 2)).await, []);
    store.maintain(&maintenance).await.unwrap();
    assert_eq!(store.queue(&queue("q")).await.unwrap().unwrap().count(TaskState::Blocked), 2);
    store.settle(&[completed(&second[0])]).await.unwrap();
    for _ in 0..3 {
        store.maintain(&maintenance).await.unwrap();
    }
    let view = store.queue(&queue("q")).await.unwrap().unwrap();
    assert_eq!((view.count(TaskState::Ready), view.count(TaskState::Blocked)), (1, 1));
}

/// The server's clock was an hour ahead and was corrected: the rate limit does not block for an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_continues_after_the_clock_was_set_back() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let rate = Some(RateLimit { count: 1, per_ms: 50 });
    store.set_queue(&queue("q"), &QueueSettings { rate, ..QueueSettings::default() }).await.unwrap();
    store.submit(&submission("q", tasks(2))).await.unwrap();
    assert_eq!(claimed(&store, "q", claim_request("s", 1)).await.len(), 1);
    database
        .psql(
            "UPDATE tenure.queue_counters SET rate_credit = 0, rate_refilled_at = now() + interval '1 hour'",
        )
        .unwrap();
    // If no task is ever claimed, the timeout of the test run ends this loop.
    while claimed(&store, "q", claim_request("s", 1)).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_not_seen_for_a_day_are_deleted_unless_approved() {
    let (database, store) = fresh().await;
    let (maintenance, namespace) = (maintainer(&store).await, Name::default_namespace());
    for (name, session) in
        [("approved", None), ("gone", None), ("lives", Some("living")), ("over", Some("over"))]
    {
        if let Some(session) = session {
            opened(&store, session).await;
        }
        let worker = serde_json::json!({ "name": name, "session": session });
        let worker: NewWorker = serde_json::from_value(worker).unwrap();
        store.register_worker(&namespace, &worker).await.unwrap();
    }
    tenure_core::port::ElectionStore::end_session(&store, &id("over")).await.unwrap();
    assert!(store.set_worker_approval(&namespace, "approved", Some("ada")).await.unwrap());
    let known = async || {
        let workers = store.workers(None).await.unwrap();
        workers.into_iter().map(|it| it.worker.name).collect::<Vec<_>>()
    };
    store.maintain(&maintenance).await.unwrap();
    assert_eq!(known().await, ["approved", "gone", "lives", "over"]);
    for table in ["workers SET last_seen_at = last_seen_at", "sessions SET heartbeat_at = heartbeat_at"] {
        database.psql(&format!("UPDATE tenure.{table} - interval '25 hours'")).unwrap();
    }
    store.maintain(&MaintenanceRequest { clock_ms: None, ..maintenance.clone() }).await.unwrap();
    assert_eq!(known().await.len(), 4, "without an estimate of the clock");
    store.maintain(&maintenance).await.unwrap();
    assert_eq!(known().await, ["approved", "lives"]);
}

/// The views of a queue read only the tasks that they count, from indexes, and never scan the table.
#[tokio::test(flavor = "multi_thread")]
async fn views_do_not_scan_the_tasks() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("big", tasks(2000))).await.unwrap();
    let done: Vec<_> = claimed(&store, "big", claim_request("s", 1000)).await.iter().map(completed).collect();
    store.settle(&done).await.unwrap();
    let mut few = tasks(2);
    few.extend([keyed("work", 1), keyed("work", 1)]);
    store.submit(&submission("q", few)).await.unwrap();
    assert_eq!(claimed(&store, "q", ClaimRequest { limit: 9, ..claim_request("s", 9) }).await.len(), 3);
    store
        .register_worker(
            &Name::default_namespace(),
            &serde_json::from_str(r#"{"name":"worker of s"}"#).unwrap(),
        )
        .await
        .unwrap();
    let workers = store.workers(None).await.unwrap();
    assert_eq!((workers.len(), workers[0].claimed_count), (1, 3));
    let view = store.queue(&queue("q")).await.unwrap().unwrap();
    let counts: Vec<_> = view.counts.iter().filter(|(_, n)| **n > 0).map(|(state, n)| (*state, *n)).collect();
    assert_eq!(counts, [(TaskState::Blocked, 1), (TaskState::Claimed, 3)]);
    let all = store.queues(None).await.unwrap();
    let big = all.iter().find(|view| view.key == queue("big")).unwrap();
    assert_eq!((big.count(TaskState::Ready), big.count(TaskState::Completed)), (1000, 1000));
    let views = [
        ("SELECT tenure.queue_json(q, 0) FROM tenure.queues q WHERE q.name = 'q'", 50),
        // Dead entries stay in the index while any transaction of the cluster may need them.
        ("SELECT * FROM tenure.count_claims()", 1100),
        ("SELECT tenure.queue_json(q, 0) FROM tenure.queues q", 4200),
    ];
    for statistics in ["ANALYZE tenure.tasks", "SELECT 1"] {
        for (view, max) in views {
            let read = "SELECT concat_ws(' ', 'reads', pg_stat_get_xact_tuples_returned('tenure.tasks'::regclass), \
                        (SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid)) FROM pg_index i \
                         WHERE i.indrelid = 'tenure.tasks'::regclass))";
            let answer =
                database.psql(&format!("{statistics};\nBEGIN;\n{view};\n{read};\nROLLBACK;")).unwrap();
            let line = answer.lines().find_map(|line| line.strip_prefix("reads ")).expect(&answer);
            let read: Vec<i64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            assert!(read[0] == 0 && read[1] <= max, "{view}: {read:?}");
        }
    }
}
