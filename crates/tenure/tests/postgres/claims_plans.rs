//! Query plans of claims and completions.

use tenure_core::port::{SettleResult, TaskState, TaskStore};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{claim_request, claimed, completed, submission, tasks};
use crate::support::*;

const PLAN_MODES: [&str; 2] = ["force_generic_plan", "force_custom_plan"];

/// A claim in SQL.
fn claim(wanted: u32, cursors: &str, full_scan: bool) -> String {
    format!(
        "tenure.claim_tasks('default', 'q', 'direct', NULL, NULL, \
         '[{{\"name\": \"w\", \"task_kinds\": [], \"tags\": [], \"wanted\": {wanted}, \"session\": \"s\"}}]', '{cursors}', {full_scan})"
    )
}

/// The number of tasks of each of some claims in one session.
fn counts(database: &FreshDatabase, plan_mode: &str, wanted: u32, times: usize) -> Vec<u64> {
    let count =
        format!("SELECT count(*) FILTER (WHERE request_index >= 0) FROM {};\n", claim(wanted, "{}", true));
    let answer =
        database.psql(&format!("SET plan_cache_mode = {plan_mode};\n{}", count.repeat(times))).unwrap();
    answer.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// The planner may run a subquery of `IN` once for each row. With LIMIT and SKIP LOCKED, each run finds other rows,
/// and the claim exceeds its limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_never_gets_more_than_its_limit() {
    for plan_mode in PLAN_MODES {
        let (database, store) = fresh().await;
        opened(&store, "s").await;
        store.submit(&submission("q", tasks(100))).await.unwrap();
        // Claim more than five times: after five executions the server may choose a generic plan.
        assert_eq!(counts(&database, plan_mode, 3, 10), [3; 10], "{plan_mode}");
        assert_eq!(claimed_now(&database), 30);
        store.submit(&submission("q", tasks(3000))).await.unwrap();
        database.psql("ANALYZE tenure.tasks").unwrap();
        assert_eq!(counts(&database, plan_mode, 3, 10), [3; 10], "{plan_mode}, with statistics");
        assert_eq!(claimed_now(&database), 60);
    }
}

/// Negative control for the test above.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_a_subquery_instead_of_the_array_gets_too_much() {
    for plan_mode in PLAN_MODES {
        let (database, store) = fresh().await;
        opened(&store, "s").await;
        store.submit(&submission("q", tasks(100))).await.unwrap();
        inject_function_bug(
            &database,
            "tenure.claim_tasks",
            &[
                (
                    "WHERE t.ctid = ANY (picked)",
                    "WHERE t.state = 'ready' AND t.requirements_id = requirements_ids[1] AND t.id IN (
                         SELECT i.id FROM tenure.tasks i WHERE i.state = 'ready' AND i.requirements_id = requirements_ids[1]
                         ORDER BY i.effective_at, i.id LIMIT wanted FOR UPDATE SKIP LOCKED)",
                ),
                // Disable the plan nodes that would store the result of the subquery and so hide the bug.
                (
                    "SET enable_mergejoin TO 'off'",
                    "SET enable_mergejoin TO 'off' SET enable_material TO 'off' SET enable_hashagg TO 'off'",
                ),
            ],
        );
        let got = counts(&database, plan_mode, 3, 1);
        assert!(got[0] > 3, "{plan_mode}: {got:?}: the control has no effect");
    }
}

/// Injects a known bug into a function of the database.
pub(crate) fn inject_function_bug(database: &FreshDatabase, name: &str, changes: &[(&str, &str)]) {
    let mut body = database.psql(&format!("SELECT pg_get_functiondef('{name}'::regproc)")).unwrap();
    for (from, to) in changes {
        assert!(body.contains(from), "{name} does not contain {from:?}");
        body = body.replace(from, to);
    }
    database.psql(&body).unwrap();
}

fn claimed_now(database: &FreshDatabase) -> u64 {
    database
        .psql("SELECT count(*) FROM tenure.tasks WHERE state = 'claimed'")
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// Rows that a statement read: of `tasks` by a sequential scan, and entries of the index of ready tasks, the primary key and
/// the index of claimed tasks.
fn reads(database: &FreshDatabase, before: &str, statement: &str) -> Vec<i64> {
    let sum = ["tasks", "tasks_ready", "tasks_pkey", "tasks_claimed"]
        .map(|name| format!("pg_stat_get_xact_tuples_returned('tenure.{name}'::regclass)"))
        .join(", ");
    let script = format!(
        "{before};\nBEGIN;\nSELECT count(*) FROM {statement};\nSELECT concat_ws(' ', 'reads', {sum});\nROLLBACK;"
    );
    let answer = database.psql(&script).unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix("reads ")).expect(&answer);
    line.split(' ').map(|n| n.parse().unwrap()).collect()
}

/// Plans that were made on an empty table without statistics still read few rows of a large one.
#[tokio::test(flavor = "multi_thread")]
async fn plans_are_good_without_statistics() {
    for plan_mode in PLAN_MODES {
        let (database, store) = fresh().await;
        opened(&store, "s").await;
        database.psql("ALTER TABLE tenure.tasks SET (autovacuum_enabled = off)").unwrap();
        store.submit(&submission("q", tasks(1))).await.unwrap();
        let submit = "SELECT count(*) FROM tenure.submit_tasks('default', 'q', \
                      '[{\"kind\": \"work\", \"required_tags\": [], \"preferred_tags\": [], \"allowed_workers\": []}]', \
                      (SELECT json_agg(json_build_object('requirements_index', 0)) FROM generate_series(1, 3000)), \
                      array_fill('{}'::text, ARRAY[3000]), true)";
        let one = claim(1, "{}", true);
        let planned = format!("SET plan_cache_mode = {plan_mode};\nSELECT count(*) FROM {one};\n{submit}");
        let read = reads(&database, &planned, &claim(100, "{}", true));
        assert!(read[0] == 0 && read[1] <= 250 && read[3] == 0, "{plan_mode}: a claim of 100 read {read:?}");
        let picked = "(SELECT array_agg(t.id) FROM (SELECT id FROM tenure.tasks LIMIT 100) t)";
        let planned = format!(
            "SET plan_cache_mode = {plan_mode};\nSELECT tenure.complete_tasks('default', '{{1}}', '{{1}}', NULL);\n{submit}"
        );
        let ids = format!("tenure.complete_tasks('default', {picked}, {picked}, NULL)");
        // The limits include the rows that the test itself reads to choose the ids.
        let read = reads(&database, &planned, &ids);
        assert!(
            read[0] <= 200 && read[2] <= 450 && read[3] == 0,
            "{plan_mode}: a completion of 100 read {read:?}"
        );
    }
}

/// While a transaction is open, vacuum cannot remove the index entries of claimed tasks. A full scan reads all of
/// them; a claim from the cursor does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_from_the_cursor_skips_dead_entries() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(3000))).await.unwrap();
    let mut open_transaction = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT txid_current()").execute(&mut *open_transaction).await.unwrap();
    let mut last = None;
    for _ in 0..20 {
        let got = claimed(&store, "q", claim_request("s", 100)).await;
        assert_eq!(got.len(), 100);
        let done: Vec<_> = got.iter().map(completed).collect();
        assert!(
            store
                .settle(&done)
                .await
                .unwrap()
                .iter()
                .all(|it| *it == SettleResult::Applied(TaskState::Completed))
        );
        last = got.last().map(|task| (task.submitted_at_ms, task.id));
    }
    let (at, id) = last.unwrap();
    let requirements = database.psql("SELECT id FROM tenure.task_requirements").unwrap();
    let cursors = format!("{{\"{requirements}\": [{at}, {id}]}}");
    let from_the_cursor = reads(&database, "SELECT 1", &claim(50, &cursors, false));
    let from_the_start = reads(&database, "SELECT 1", &claim(50, &cursors, true));
    assert!(from_the_cursor[1] <= 60, "{from_the_cursor:?}");
    assert!(
        from_the_start[1] >= 2000,
        "{from_the_start:?}: there were no dead entries, so the test proves nothing"
    );
    open_transaction.rollback().await.unwrap();
}

/// A claim finds tasks before the cursor when there are no others.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_before_the_cursor_are_found() {
    let (_database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(10))).await.unwrap();
    let first = claimed(&store, "q", claim_request("s", 5)).await;
    let release = crate::claims::settlement(&first[0], tenure_core::port::ClaimOutcome::Release);
    store.settle(&[release]).await.unwrap();
    let mut urgent = tasks(1);
    urgent[0].priority = 10;
    let urgent = store.submit(&submission("q", urgent)).await.unwrap()[0].id;
    let rest = claimed(&store, "q", claim_request("s", 100)).await;
    assert_eq!(rest.len(), 7);
    assert!(rest.iter().any(|task| task.id == urgent) && rest.iter().any(|task| task.id == first[0].id));
}
