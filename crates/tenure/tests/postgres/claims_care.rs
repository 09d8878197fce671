//! What the keeper mends, and what it costs to look.

use std::time::Duration;

use tenure_core::Name;
use tenure_core::port::{
    Desk, NewTask, NewWorker, QueueSettings, RateLimit, Seat, TaskState, Tasks, Tend, claims_election,
};

use crate::claims::{claimed, completed, queue, seat, submission, tasks};
use crate::support::*;

async fn keeper(store: &tenure::backend::postgres::Postgres) -> Tend {
    let token = leading(store, "keeper", &claims_election()).await;
    Tend { session: id("keeper"), token, clock_ms: Some(i64::MAX), limit: 1000 }
}

fn keyed(kind: &str, limit: u32) -> NewTask {
    NewTask { concurrency_key: Some("k".into()), concurrency_limit: limit, ..NewTask::new(kind) }
}

/// Whoever ends a claim passes over the one it should let in while somebody else's transaction has that; the keeper comes to it,
/// although others of that key stand about.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_not_let_in_is_let_in_by_the_keeper() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let tend = keeper(&store).await;
    store.submit(&submission("q", vec![keyed("a", 1), keyed("a", 1)])).await.unwrap();
    let first = claimed(&store, "q", seat("s", 2)).await.remove(0);
    assert_eq!(store.queue(&queue("q")).await.unwrap().unwrap().count(TaskState::Held), 1);
    // One that nobody comes for, and one of another namespace.
    store.submit(&submission("elsewhere", vec![keyed("b", 1)])).await.unwrap();
    database.psql("SELECT tenure.submit('q', namespace => 'other', concurrency_key => 'k')").unwrap();
    let mut theirs = store.pool().begin().await.unwrap();
    let lock = "SELECT FROM tenure.tasks WHERE state = 'held' FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut *theirs).await.unwrap();
    store.settle(&[completed(&first)]).await.unwrap();
    theirs.commit().await.unwrap();
    assert_eq!(claimed(&store, "q", seat("s", 2)).await, []);
    store.tend(&tend).await.unwrap();
    let second = claimed(&store, "q", seat("s", 2)).await;
    assert_eq!(second.len(), 1);
    // Nobody more than fit.
    store.submit(&submission("q", vec![keyed("a", 1), keyed("a", 1)])).await.unwrap();
    assert_eq!(claimed(&store, "q", seat("s", 2)).await, []);
    store.tend(&tend).await.unwrap();
    assert_eq!(store.queue(&queue("q")).await.unwrap().unwrap().count(TaskState::Held), 2);
    store.settle(&[completed(&second[0])]).await.unwrap();
    for _ in 0..3 {
        store.tend(&tend).await.unwrap();
    }
    let view = store.queue(&queue("q")).await.unwrap().unwrap();
    assert_eq!((view.count(TaskState::Ready), view.count(TaskState::Held)), (1, 1));
}

/// As when the server's clock was an hour ahead, and was put right.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_put_back_does_not_stop_a_rate() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let rate = Some(RateLimit { count: 1, per_ms: 50 });
    store.set_queue(&queue("q"), &QueueSettings { rate, ..QueueSettings::default() }).await.unwrap();
    store.submit(&submission("q", tasks(2))).await.unwrap();
    assert_eq!(claimed(&store, "q", seat("s", 1)).await.len(), 1);
    database.psql("UPDATE tenure.turnstiles SET parts = 0, filled_at = now() + interval '1 hour'").unwrap();
    // Only a hang makes this fail.
    while claimed(&store, "q", seat("s", 1)).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_nobody_sees_for_a_day_is_forgotten_unless_it_is_approved() {
    let (database, store) = fresh().await;
    let (tend, space) = (keeper(&store).await, Name::default_namespace());
    for (name, session) in
        [("approved", None), ("gone", None), ("lives", Some("living")), ("over", Some("over"))]
    {
        if let Some(session) = session {
            opened(&store, session).await;
        }
        let worker = serde_json::json!({ "name": name, "session": session });
        let worker: NewWorker = serde_json::from_value(worker).unwrap();
        store.register(&space, &worker).await.unwrap();
    }
    tenure_core::port::Store::end(&store, &id("over")).await.unwrap();
    assert!(store.approve(&space, "approved", Some("ada")).await.unwrap());
    let known = async || {
        let workers = store.workers(None).await.unwrap();
        workers.into_iter().map(|it| it.worker.name).collect::<Vec<_>>()
    };
    store.tend(&tend).await.unwrap();
    assert_eq!(known().await, ["approved", "gone", "lives", "over"]);
    for table in ["workers SET seen_at = seen_at", "sessions SET beat_at = beat_at"] {
        database.psql(&format!("UPDATE tenure.{table} - interval '25 hours'")).unwrap();
    }
    store.tend(&Tend { clock_ms: None, ..tend.clone() }).await.unwrap();
    assert_eq!(known().await.len(), 4, "without a reckoning of the clock");
    store.tend(&tend).await.unwrap();
    assert_eq!(known().await, ["approved", "lives"]);
}

/// Of thousands of tasks, a look at a queue reads those that are counted, from their indexes, and never walks over the table.
#[tokio::test(flavor = "multi_thread")]
async fn looking_does_not_walk_over_the_tasks() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("big", tasks(2000))).await.unwrap();
    let done: Vec<_> = claimed(&store, "big", seat("s", 1000)).await.iter().map(completed).collect();
    store.settle(&done).await.unwrap();
    let mut few = tasks(2);
    few.extend([keyed("work", 1), keyed("work", 1)]);
    store.submit(&submission("q", few)).await.unwrap();
    assert_eq!(claimed(&store, "q", Seat { limit: 9, ..seat("s", 9) }).await.len(), 3);
    store
        .register(&Name::default_namespace(), &serde_json::from_str(r#"{"name":"worker of s"}"#).unwrap())
        .await
        .unwrap();
    let workers = store.workers(None).await.unwrap();
    assert_eq!((workers.len(), workers[0].claimed), (1, 3));
    let view = store.queue(&queue("q")).await.unwrap().unwrap();
    let counts: Vec<_> = view.counts.iter().filter(|(_, n)| **n > 0).map(|(state, n)| (*state, *n)).collect();
    assert_eq!(counts, [(TaskState::Held, 1), (TaskState::Claimed, 3)]);
    let all = store.queues(None).await.unwrap();
    let big = all.iter().find(|view| view.key == queue("big")).unwrap();
    assert_eq!((big.count(TaskState::Ready), big.count(TaskState::Completed)), (1000, 1000));
    let looks = [
        ("SELECT tenure.queue_view(q, 0) FROM tenure.queues q WHERE q.name = 'q'", 50),
        // Those that were ready or claimed once stay in the index for as long as anybody in the cluster may look for them.
        ("SELECT * FROM tenure.claims_now()", 1100),
        ("SELECT tenure.queue_view(q, 0) FROM tenure.queues q", 4200),
    ];
    for mood in ["ANALYZE tenure.tasks", "SELECT 1"] {
        for (look, most) in looks {
            let read = "SELECT concat_ws(' ', 'reads', pg_stat_get_xact_tuples_returned('tenure.tasks'::regclass), \
                        (SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid)) FROM pg_index i \
                         WHERE i.indrelid = 'tenure.tasks'::regclass))";
            let answer = database.psql(&format!("{mood};\nBEGIN;\n{look};\n{read};\nROLLBACK;")).unwrap();
            let line = answer.lines().find_map(|line| line.strip_prefix("reads ")).expect(&answer);
            let read: Vec<i64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            assert!(read[0] == 0 && read[1] <= most, "{look}: {read:?}");
        }
    }
}
