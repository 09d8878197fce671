//! Requirements of tasks: stored once for many tasks, without a lock between submissions and pruning.

use tenure::store::postgres::{PostgresStore, submit};
use tenure_core::port::{NewTask, TaskStore};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{claim_request, claimed, submission, tasks};
use crate::support::*;

fn kind(name: &str) -> Vec<NewTask> {
    vec![NewTask::new(name)]
}

fn requirements(database: &FreshDatabase) -> String {
    database.psql("SELECT count(*), count(retired_xid) FROM tenure.task_requirements").unwrap()
}

/// Runs a whole pass of pruning in steps of `max` tasks. Returns the number of steps.
fn prune(database: &FreshDatabase, max: u32) -> usize {
    let step = |chance| database.psql(&format!("SELECT tenure.prune_requirements({max}, {chance})")).unwrap();
    let mut steps = 1;
    let mut more = step(1) == "t";
    while more {
        more = step(0) == "t";
        steps += 1;
    }
    steps
}

/// Regression test: two open transactions that submitted the same new kind waited for each other, and with two kinds
/// in opposite order they deadlocked.
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
        // A submission that has to wait fails by the lock timeout.
        submit(&mut one, &submission("q", kind(&kinds[0]))).await.unwrap();
        submit(&mut other, &submission("q", kind(&kinds[1]))).await.unwrap();
        submit(&mut one, &submission("q", kind(&kinds[1]))).await.unwrap();
        submit(&mut other, &submission("q", kind(&kinds[0]))).await.unwrap();
        one.commit().await.unwrap();
        other.commit().await.unwrap();
    }
    let got = claimed(&store, "q", claim_request("s", 100)).await;
    assert_eq!(got.len(), 9, "workers match duplicates");
    // The first row of each stays. Duplicates are deleted when their tasks are gone.
    assert_eq!(requirements(&database), "9|0");
    prune(&database, 5);
    prune(&database, 5);
    assert_eq!(requirements(&database), "9|4");
    store.submit(&submission("q", kind("a of READ COMMITTED"))).await.unwrap();
    assert_eq!(requirements(&database), "9|4", "the first row is used");
    database.psql("DELETE FROM tenure.tasks").unwrap();
    prune(&database, 5);
    prune(&database, 5);
    assert_eq!(requirements(&database), "5|0");
}

async fn with_stale(count: u32, live: u32) -> (FreshDatabase, PostgresStore) {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(1))).await.unwrap();
    let rows = format!(
        "INSERT INTO tenure.task_requirements (queue_id, kind, required_tags, preferred_tags, allowed_workers, digest)
         SELECT 1, 'stale ' || n, '{{}}', '{{}}', '{{}}', sha256(convert_to(
                json_build_array('stale ' || n, '{{}}'::text[], '{{}}'::text[], '{{}}'::text[])::text, 'UTF8'))
         FROM generate_series(1, {count}) n;
         INSERT INTO tenure.tasks (submitted_at, effective_at, queue_id, requirements_id, state, finished_at, payload)
         SELECT now(), now(), 1, (SELECT min(id) FROM tenure.task_requirements), 'completed', now(), '{{}}' FROM generate_series(1, {live})"
    );
    database.psql(&rows).unwrap();
    (database, store)
}

/// Regression test: pruning compared each row with every task, under a lock that every submission shares. It took
/// minutes at a million tasks.
#[tokio::test(flavor = "multi_thread")]
async fn requirements_are_pruned_in_small_steps() {
    let (database, store) = with_stale(2_000, 3_000).await;
    let script = "SET jit = off; BEGIN; SELECT tenure.prune_requirements(500, 1);
                  SELECT concat_ws(' ', 'reads', pg_stat_get_xact_tuples_returned('tenure.tasks'::regclass),
                                   pg_stat_get_xact_tuples_returned('tenure.tasks_pkey'::regclass)); ROLLBACK";
    let answer = database.psql(script).unwrap();
    assert_eq!(answer.lines().last().unwrap(), "reads 0 500", "a step reads its part by the primary key");
    assert_eq!(prune(&database, 500), 7);
    assert_eq!(requirements(&database), "2001|2000");
    // A transaction that saw a retired row before uses it: the row is not deleted.
    let submitting = "BEGIN; SELECT tenure.submit('q', kind => 'stale 7')";
    let mut open = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT pg_current_xact_id()").execute(&mut *open).await.unwrap();
    sqlx::raw_sql("INSERT INTO tenure.tasks (submitted_at, effective_at, ready_at, queue_id, requirements_id, state, payload)
                   SELECT now(), now(), now(), 1, id, 'ready', '{}' FROM tenure.task_requirements WHERE kind = 'stale 9'")
        .execute(&mut *open)
        .await
        .unwrap();
    // A later transaction gets a new row.
    database.psql(&format!("{submitting}; COMMIT")).unwrap();
    for _ in 0..2 {
        prune(&database, 500);
        assert_eq!(requirements(&database), "2002|2000", "an older transaction is open");
    }
    open.commit().await.unwrap();
    prune(&database, 500);
    assert_eq!(requirements(&database), "3|0", "those of work, stale 7 and stale 9");
    let mut kinds: Vec<_> =
        claimed(&store, "q", claim_request("s", 10)).await.into_iter().map(|task| task.kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["stale 7", "stale 9", "work"]);
}

/// Measures large tables. `cargo test -p tenure --test postgres -- requirements::a_million --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute, and a gigabyte"]
async fn a_million_tasks_and_two_thousand_unused_requirements() {
    let (database, store) = with_stale(2_000, 1_000_000).await;
    for _ in 0..2 {
        let began = tenure::runtime::now();
        let steps = prune(&database, 5_000);
        println!(
            "a pass: {steps} steps, {:?} each",
            tenure::runtime::now().since(began) / u32::try_from(steps).unwrap()
        );
        store.submit(&submission("q", tasks(1))).await.unwrap();
    }
    assert_eq!(requirements(&database), "1|0");
}
