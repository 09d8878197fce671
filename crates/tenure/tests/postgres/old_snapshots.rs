//! A transaction with an old snapshot keeps all dead rows: no frequent call may scan them.
//!
//! Regression tests: with an open transaction and 100,000 dead rows, publishing took 21 times as long, committing offsets 12
//! times, and claiming due tasks 4 times. The tests count the pages that a call reads, which do not depend on the machine. To
//! measure times:
//!
//! ```sh
//! cargo test -p tenure --test postgres -- old_snapshots::a_hundred_thousand --ignored --nocapture
//! ```

use tenure::store::postgres::PostgresStore;
use tenure_core::port::{EventAdmin, TopicSettings};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{submission, tasks};
use crate::events::*;
use crate::support::*;
use tenure_core::port::TaskStore;

/// A frequent call: its name, statements that leave one dead row of its tables, and the call.
struct Case {
    name: &'static str,
    dead_row: &'static str,
    call: &'static str,
}

const WORKERS: &str = r#"'[{"name": "w", "task_kinds": [], "tags": [], "wanted": 1, "session": "s"}]'"#;

const CASES: &[Case] = &[
    Case {
        name: "publish",
        dead_row: "PERFORM tenure.register_topic_waiter(1); COMMIT; PERFORM tenure.notify_topic(1); COMMIT;",
        call: "tenure.publish_event('default', 't', 1, 'k', 'k', '{}', NULL, NULL, NULL)",
    },
    Case {
        name: "register a topic waiter",
        dead_row: "PERFORM tenure.register_topic_waiter(1); COMMIT; PERFORM tenure.notify_topic(1); COMMIT;",
        call: "tenure.register_topic_waiter(1)",
    },
    Case {
        name: "submit",
        dead_row: "PERFORM tenure.register_queue_waiter('default', 'q'); COMMIT; PERFORM tenure.notify_queue('default', 'q', true); COMMIT;",
        call: r#"tenure.submit_tasks('default', 'q', '[{"kind": "work", "required_tags": [], "preferred_tags": [], "allowed_workers": []}]',
                '[{"requirements_index": 0}]', '{1}', true)"#,
    },
    Case {
        name: "register a queue waiter",
        dead_row: "PERFORM tenure.register_queue_waiter('default', 'q'); COMMIT; PERFORM tenure.notify_queue('default', 'q', true); COMMIT;",
        call: "tenure.register_queue_waiter('default', 'q')",
    },
    Case {
        name: "commit an offset",
        dead_row: "PERFORM FROM tenure.partition_leases WHERE partition = 0 FOR UPDATE; PERFORM tenure.set_committed_offsets(1, '{0}', '{0}'); COMMIT;",
        call: "tenure.commit_offsets(1, '{0}', ARRAY[(SELECT token FROM tenure.partition_leases WHERE partition = 0)],
                ARRAY[(SELECT event_offset FROM tenure.commit_batches ORDER BY event_offset LIMIT 1)])",
    },
    Case {
        name: "commit a partition",
        dead_row: "PERFORM FROM tenure.partition_leases WHERE partition = 0 FOR UPDATE; PERFORM tenure.set_committed_offsets(1, '{0}', '{0}'); COMMIT;",
        call: "tenure.commit_partition(1, 0, (SELECT token FROM tenure.partition_leases WHERE partition = 0), (SELECT event_offset FROM
                tenure.commit_batches ORDER BY event_offset LIMIT 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    },
    Case {
        name: "claim",
        // With the claim cursors of a worker that has claimed before.
        dead_row: "UPDATE tenure.tasks SET state = 'ready', ready_at = now() WHERE id = 1000000 + n;
               UPDATE tenure.tasks SET state = 'claimed', session = 's' WHERE id = 1000000 + n;
               UPDATE tenure.tasks SET state = 'completed', session = NULL, finished_at = now() WHERE id = 1000000 + n; COMMIT;",
        call: "tenure.claim_tasks('default', 'q', 'direct', NULL, NULL, {WORKERS}, jsonb_build_object('due', tenure.to_unix_ms(now()) - 60000,
                (SELECT id FROM tenure.task_requirements)::text, ARRAY[tenure.to_unix_ms(now()) - 60000, 0]), false)",
    },
    Case {
        name: "complete",
        dead_row: "UPDATE tenure.tasks SET state = 'claimed', session = 's' WHERE id = 1000000 + n;
               UPDATE tenure.tasks SET state = 'completed', session = NULL, finished_at = now() WHERE id = 1000000 + n; COMMIT;",
        call: "tenure.complete_tasks('default', ARRAY[1::bigint], ARRAY[1::bigint], NULL)",
    },
];

/// A database with data for each call, and with `count` scheduled tasks that are due.
async fn prepared(count: u32) -> (FreshDatabase, PostgresStore) {
    let (database, store) = fresh().await;
    store.set_topic(&topic("t"), &TopicSettings { partitions: 1, ..TopicSettings::default() }).await.unwrap();
    member(&store, "s", &[0]).await;
    store.submit(&submission("q", tasks(20))).await.unwrap();
    let one = "PERFORM tenure.publish_event('default', 't', 1, 'k', 'k', '{}', NULL, NULL, NULL);";
    database.psql(&format!("DO $$ BEGIN {one} {one} END $$")).unwrap();
    let due = format!(
        "INSERT INTO tenure.tasks (id, submitted_at, effective_at, queue_id, requirements_id, state, run_at, payload)
         SELECT 1000000 + n, now() - interval '1 hour', now() - interval '1 hour', 1, (SELECT id FROM tenure.task_requirements), 'scheduled',
                now() - interval '1 hour', '{{}}' FROM generate_series(1, {count}) n"
    );
    database.psql(&due).unwrap();
    (database, store)
}

/// The number of pages that a call reads once it is planned and cached, and its minimum time in ms.
fn cost(database: &FreshDatabase, call: &str) -> (f64, f64) {
    let call = call.replace("{WORKERS}", WORKERS);
    let script = format!(
        "SET plan_cache_mode = force_generic_plan; SET jit = off;
         CREATE FUNCTION pg_temp.cost(OUT pages integer, OUT ms double precision) LANGUAGE plpgsql AS $f$
         DECLARE plan json;
         BEGIN
             FOR n IN 1..8 LOOP
                 EXECUTE $e$EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT {call}$e$ INTO plan;
                 pages := (plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::integer + (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::integer;
                 ms := least(ms, (plan -> 0 ->> 'Execution Time')::double precision);
             END LOOP;
         END $f$;
         SELECT pages, ms FROM pg_temp.cost()"
    );
    let answer = database.psql(&script).unwrap();
    let (pages, ms) = answer.lines().last().and_then(|line| line.split_once('|')).expect(&answer);
    (pages.parse().unwrap(), ms.parse().unwrap())
}

/// For each case: the cost of the call without dead rows, and with this number of them.
async fn costs(count: u32) -> Vec<(&'static str, (f64, f64), (f64, f64))> {
    let mut costs = Vec::new();
    for case in CASES {
        let (clean, _store) = prepared(0).await;
        let without = cost(&clean, case.call);
        let (database, store) = prepared(count).await;
        let mut open = store.pool().begin().await.unwrap();
        let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM tenure.topics";
        sqlx::raw_sql(snapshot).execute(&mut *open).await.unwrap();
        let dead_rows = format!(
            "SET synchronous_commit = off; DO $$ BEGIN FOR n IN 1..{count} LOOP {} END LOOP; END $$",
            case.dead_row
        );
        database.psql(&dead_rows).unwrap();
        costs.push((case.name, without, cost(&database, case.call)));
        open.rollback().await.unwrap();
    }
    costs
}

#[tokio::test(flavor = "multi_thread")]
async fn no_frequent_call_scans_dead_rows() {
    for (name, without, with) in costs(8_000).await {
        // An index with that many entries may have one more level.
        assert!(with.0 <= without.0 * 1.5 + 10.0, "{name}: {} pages without, {} with", without.0, with.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes and prints times"]
async fn a_hundred_thousand_dead_rows() {
    for (name, without, with) in costs(100_000).await {
        println!(
            "{name}: {} pages and {:.3} ms without, {} pages and {:.3} ms with: {:.2} times",
            without.0,
            without.1,
            with.0,
            with.1,
            with.1 / without.1
        );
    }
}
