//! What tasks require of workers, kept once for many tasks: without a lock between those who submit and those who prune.

use tenure::backend::postgres::{Postgres, submit};
use tenure_core::port::{NewTask, Tasks};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{claimed, seat, submission, tasks};
use crate::support::*;

fn kind(name: &str) -> Vec<NewTask> {
    vec![NewTask::new(name)]
}

fn demands(database: &FreshDatabase) -> String {
    database.psql("SELECT count(*), count(retired) FROM tenure.demands").unwrap()
}

/// A whole sweep, in steps of so many tasks. How many steps that took.
fn sweep(database: &FreshDatabase, most: u32) -> usize {
    let step = |chance| database.psql(&format!("SELECT tenure.sweep_demands({most}, {chance})")).unwrap();
    let mut steps = 1;
    let mut more = step(1) == "t";
    while more {
        more = step(0) == "t";
        steps += 1;
    }
    steps
}

/// Two open transactions that submitted the same new kind waited for each other, and with two kinds the other way round they
/// deadlocked.
#[tokio::test(flavor = "multi_thread")]
async fn two_open_transactions_submit_the_same_new_kinds() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(1))).await.unwrap();
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        let kinds = [format!("a of {level}"), format!("b of {level}")];
        let begin = format!(
            "SET TRANSACTION ISOLATION LEVEL {level}; SET LOCAL lock_timeout = 1; SELECT 1 FROM tenure.queues"
        );
        let (mut one, mut other) = (store.pool().begin().await.unwrap(), store.pool().begin().await.unwrap());
        for tx in [&mut one, &mut other] {
            sqlx::raw_sql(sqlx::AssertSqlSafe(begin.clone())).execute(&mut **tx).await.unwrap();
        }
        // Whoever has to wait fails, by the lock timeout.
        submit(&mut one, &submission("q", kind(&kinds[0]))).await.unwrap();
        submit(&mut other, &submission("q", kind(&kinds[1]))).await.unwrap();
        submit(&mut one, &submission("q", kind(&kinds[1]))).await.unwrap();
        submit(&mut other, &submission("q", kind(&kinds[0]))).await.unwrap();
        one.commit().await.unwrap();
        other.commit().await.unwrap();
    }
    let got = claimed(&store, "q", seat("s", 100)).await;
    assert_eq!(got.len(), 9, "workers match both");
    // The first of each stays, and those that are there twice go when their tasks are gone.
    assert_eq!(demands(&database), "9|0");
    sweep(&database, 5);
    sweep(&database, 5);
    assert_eq!(demands(&database), "9|4");
    store.submit(&submission("q", kind("a of READ COMMITTED"))).await.unwrap();
    assert_eq!(demands(&database), "9|4", "the first is used");
    database.psql("DELETE FROM tenure.tasks").unwrap();
    sweep(&database, 5);
    sweep(&database, 5);
    assert_eq!(demands(&database), "5|0");
}

async fn with_stale(count: u32, live: u32) -> (FreshDatabase, Postgres) {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(1))).await.unwrap();
    let rows = format!(
        "INSERT INTO tenure.demands (queue, kind, requires, prefers, workers, digest)
         SELECT 1, 'stale ' || n, '{{}}', '{{}}', '{{}}', sha256(convert_to(
                json_build_array('stale ' || n, '{{}}'::text[], '{{}}'::text[], '{{}}'::text[])::text, 'UTF8'))
         FROM generate_series(1, {count}) n;
         INSERT INTO tenure.tasks (enqueued_at, effective_at, queue, demand, state, finished_at, payload)
         SELECT now(), now(), 1, (SELECT min(id) FROM tenure.demands), 'completed', now(), '{{}}' FROM generate_series(1, {live})"
    );
    database.psql(&rows).unwrap();
    (database, store)
}

/// The pruning of demands compared each with every task, under a lock that every submission shares: minutes, at a million tasks.
#[tokio::test(flavor = "multi_thread")]
async fn demands_are_swept_in_small_steps() {
    let (database, store) = with_stale(2_000, 3_000).await;
    let script = "SET jit = off; BEGIN; SELECT tenure.sweep_demands(500, 1);
                  SELECT concat_ws(' ', 'reads', pg_stat_get_xact_tuples_returned('tenure.tasks'::regclass),
                                   pg_stat_get_xact_tuples_returned('tenure.tasks_pkey'::regclass)); ROLLBACK";
    let answer = database.psql(script).unwrap();
    assert_eq!(answer.lines().last().unwrap(), "reads 0 500", "a step reads its share, by the primary key");
    assert_eq!(sweep(&database, 500), 7);
    assert_eq!(demands(&database), "2001|2000");
    // One that was about to be deleted is wanted again, by who saw it before: it is not deleted.
    let submitting = "BEGIN; SELECT tenure.submit('q', kind => 'stale 7')";
    let mut open = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT pg_current_xact_id()").execute(&mut *open).await.unwrap();
    sqlx::raw_sql("INSERT INTO tenure.tasks (enqueued_at, effective_at, ready_at, queue, demand, state, payload)
                   SELECT now(), now(), now(), 1, id, 'ready', '{}' FROM tenure.demands WHERE kind = 'stale 9'")
        .execute(&mut *open)
        .await
        .unwrap();
    // And by who comes later: it gets another row.
    database.psql(&format!("{submitting}; COMMIT")).unwrap();
    for _ in 0..2 {
        sweep(&database, 500);
        assert_eq!(demands(&database), "2002|2000", "a transaction from before is open");
    }
    open.commit().await.unwrap();
    sweep(&database, 500);
    assert_eq!(demands(&database), "3|0", "that of the tasks, of stale 7 and of stale 9");
    let mut kinds: Vec<_> =
        claimed(&store, "q", seat("s", 10)).await.into_iter().map(|task| task.kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["stale 7", "stale 9", "work"]);
}

/// The figures of the issue. `cargo test -p tenure --test postgres -- claims_demands::a_million --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute, and a gigabyte"]
async fn a_million_tasks_and_two_thousand_stale_demands() {
    let (database, store) = with_stale(2_000, 1_000_000).await;
    for _ in 0..2 {
        let began = tenure::runtime::now();
        let steps = sweep(&database, 5_000);
        println!(
            "a sweep: {steps} steps, {:?} each",
            tenure::runtime::now().since(began) / u32::try_from(steps).unwrap()
        );
        store.submit(&submission("q", tasks(1))).await.unwrap();
    }
    assert_eq!(demands(&database), "1|0");
}
