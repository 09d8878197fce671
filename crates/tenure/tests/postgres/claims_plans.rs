//! What the planner may do, and what it must not.

use tenure_core::port::{Settled, TaskState, Tasks};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{claimed, completed, seat, submission, tasks};
use crate::support::*;

const MOODS: [&str; 2] = ["force_generic_plan", "force_custom_plan"];

/// A claim as it is in SQL.
fn claim(wanted: u32, floors: &str, whole: bool) -> String {
    format!(
        "tenure.claim('default', 'q', 'direct', NULL, NULL, \
         '[{{\"name\": \"w\", \"kinds\": [], \"tags\": [], \"wanted\": {wanted}, \"session\": \"s\"}}]', '{floors}', {whole})"
    )
}

/// How many tasks each of some claims in one session got.
fn counts(database: &FreshDatabase, mood: &str, wanted: u32, times: usize) -> Vec<u64> {
    let count = format!("SELECT count(*) FILTER (WHERE seat >= 0) FROM {};\n", claim(wanted, "{}", true));
    let answer = database.psql(&format!("SET plan_cache_mode = {mood};\n{}", count.repeat(times))).unwrap();
    answer.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// The planner may run a subquery of `IN` once for each row that it is compared with: under a limit, and locking what it finds,
/// it finds others each time.
#[tokio::test(flavor = "multi_thread")]
async fn no_claim_gets_more_than_it_asked_for() {
    for mood in MOODS {
        let (database, store) = fresh().await;
        opened(&store, "s").await;
        store.submit(&submission("q", tasks(100))).await.unwrap();
        // More than five times, after which the server would settle for one plan.
        assert_eq!(counts(&database, mood, 3, 10), [3; 10], "{mood}");
        assert_eq!(claimed_now(&database), 30);
        store.submit(&submission("q", tasks(3000))).await.unwrap();
        database.psql("ANALYZE tenure.tasks").unwrap();
        assert_eq!(counts(&database, mood, 3, 10), [3; 10], "{mood}, with statistics");
        assert_eq!(claimed_now(&database), 60);
    }
}

/// The known mistake, put back.
#[tokio::test(flavor = "multi_thread")]
async fn with_the_subquery_in_place_of_the_array_a_claim_gets_everything() {
    for mood in MOODS {
        let (database, store) = fresh().await;
        opened(&store, "s").await;
        store.submit(&submission("q", tasks(100))).await.unwrap();
        sabotage_function(
            &database,
            "tenure.claim",
            &[
                (
                    "WHERE t.ctid = ANY (picked)",
                    "WHERE t.state = 'ready' AND t.demand = demand_ids[1] AND t.id IN (
                         SELECT i.id FROM tenure.tasks i WHERE i.state = 'ready' AND i.demand = demand_ids[1]
                         ORDER BY i.effective_at, i.id LIMIT wanted FOR UPDATE SKIP LOCKED)",
                ),
                // Nothing that would keep the subquery's answer: no hash table, no material.
                (
                    "SET enable_mergejoin TO 'off'",
                    "SET enable_mergejoin TO 'off' SET enable_material TO 'off' SET enable_hashagg TO 'off'",
                ),
            ],
        );
        let got = counts(&database, mood, 3, 1);
        assert!(got[0] > 3, "{mood}: {got:?}: the control no longer controls anything");
    }
}

/// Puts a known mistake into a function of the database.
pub(crate) fn sabotage_function(database: &FreshDatabase, name: &str, changes: &[(&str, &str)]) {
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

/// What a statement read, in this order: rows of `tasks` by walking over the table, entries of the index of ready tasks, of the
/// primary key, of the index of claimed ones.
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

/// A table that was empty when the plan was made, and of which nothing is known since.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_statistics_gets_no_bad_plan() {
    for mood in MOODS {
        let (database, store) = fresh().await;
        opened(&store, "s").await;
        database.psql("ALTER TABLE tenure.tasks SET (autovacuum_enabled = off)").unwrap();
        store.submit(&submission("q", tasks(1))).await.unwrap();
        let submit = "SELECT count(*) FROM tenure.submit_all('default', 'q', \
                      '[{\"kind\": \"work\", \"requires\": [], \"prefers\": [], \"workers\": []}]', \
                      (SELECT json_agg(json_build_object('d', 0)) FROM generate_series(1, 3000)), \
                      array_fill('{}'::text, ARRAY[3000]), true)";
        let one = claim(1, "{}", true);
        let planned = format!("SET plan_cache_mode = {mood};\nSELECT count(*) FROM {one};\n{submit}");
        let read = reads(&database, &planned, &claim(100, "{}", true));
        assert!(read[0] == 0 && read[1] <= 250 && read[3] == 0, "{mood}: a claim of 100 read {read:?}");
        let picked = "(SELECT array_agg(t.id) FROM (SELECT id FROM tenure.tasks LIMIT 100) t)";
        let planned = format!(
            "SET plan_cache_mode = {mood};\nSELECT tenure.complete('default', '{{1}}', '{{1}}', NULL);\n{submit}"
        );
        let ids = format!("tenure.complete('default', {picked}, {picked}, NULL)");
        // Those that are picked for the test are read from the table.
        let read = reads(&database, &planned, &ids);
        assert!(
            read[0] <= 200 && read[2] <= 450 && read[3] == 0,
            "{mood}: a completion of 100 read {read:?}"
        );
    }
}

/// While a transaction is held open, nobody may clear away what was claimed: who looks from the beginning walks over all of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_cleared_away_is_passed_over() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(3000))).await.unwrap();
    let mut held_open = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SELECT txid_current()").execute(&mut *held_open).await.unwrap();
    let mut last = None;
    for _ in 0..20 {
        let got = claimed(&store, "q", seat("s", 100)).await;
        assert_eq!(got.len(), 100);
        let done: Vec<_> = got.iter().map(completed).collect();
        assert!(
            store.settle(&done).await.unwrap().iter().all(|it| *it == Settled::Now(TaskState::Completed))
        );
        last = got.last().map(|task| (task.enqueued_at_ms, task.id));
    }
    let (at, id) = last.unwrap();
    let demand = database.psql("SELECT id FROM tenure.demands").unwrap();
    let floors = format!("{{\"{demand}\": [{at}, {id}]}}");
    let from_the_floor = reads(&database, "SELECT 1", &claim(50, &floors, false));
    let from_the_start = reads(&database, "SELECT 1", &claim(50, &floors, true));
    assert!(from_the_floor[1] <= 60, "{from_the_floor:?}");
    assert!(
        from_the_start[1] >= 2000,
        "{from_the_start:?}: nothing was in the way, and the test tells nothing"
    );
    held_open.rollback().await.unwrap();
}

/// What stands before the floor is found as soon as there is nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_passed_over_for_good() {
    let (_database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(10))).await.unwrap();
    let first = claimed(&store, "q", seat("s", 5)).await;
    let release = crate::claims::settlement(&first[0], tenure_core::port::Outcome::Release);
    store.settle(&[release]).await.unwrap();
    let mut urgent = tasks(1);
    urgent[0].priority = 10;
    let urgent = store.submit(&submission("q", urgent)).await.unwrap()[0].id;
    let rest = claimed(&store, "q", seat("s", 100)).await;
    assert_eq!(rest.len(), 7);
    assert!(rest.iter().any(|task| task.id == urgent) && rest.iter().any(|task| task.id == first[0].id));
}
