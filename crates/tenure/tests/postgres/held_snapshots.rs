//! An old snapshot keeps every dead row: no hot path may walk over them.
//!
//! While somebody held a transaction open and 100,000 rows had died, publishing took 21 times as long, committing offsets 12 times, and
//! claiming due tasks 4 times. What is counted here are the pages that a call touches, which do not depend on the machine. For the times:
//!
//! ```sh
//! cargo test -p tenure --test postgres -- held_snapshots::a_hundred_thousand --ignored --nocapture
//! ```

use tenure::backend::postgres::Postgres;
use tenure_core::port::{Bureau, TopicSettings};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{submission, tasks};
use crate::events::*;
use crate::support::*;
use tenure_core::port::Tasks;

/// A path: its name, how one row of its kind dies, and a call.
struct Path {
    name: &'static str,
    dies: &'static str,
    call: &'static str,
}

const SEATS: &str = r#"'[{"name": "w", "kinds": [], "tags": [], "wanted": 1, "session": "s"}]'"#;

const PATHS: &[Path] = &[
    Path {
        name: "publish",
        dies: "PERFORM tenure.wait_for_events(1); COMMIT; PERFORM tenure.ring_topic(1); COMMIT;",
        call: "tenure.publish_one('default', 't', 1, 'k', 'k', '{}', NULL, NULL, NULL)",
    },
    Path {
        name: "wait for events",
        dies: "PERFORM tenure.wait_for_events(1); COMMIT; PERFORM tenure.ring_topic(1); COMMIT;",
        call: "tenure.wait_for_events(1)",
    },
    Path {
        name: "submit",
        dies: "PERFORM tenure.wait_for_work('default', 'q'); COMMIT; PERFORM tenure.ring('default', 'q', true); COMMIT;",
        call: r#"tenure.submit_all('default', 'q', '[{"kind": "work", "requires": [], "prefers": [], "workers": []}]',
                '[{"d": 0}]', '{1}', true)"#,
    },
    Path {
        name: "wait for work",
        dies: "PERFORM tenure.wait_for_work('default', 'q'); COMMIT; PERFORM tenure.ring('default', 'q', true); COMMIT;",
        call: "tenure.wait_for_work('default', 'q')",
    },
    Path {
        name: "commit an offset",
        dies: "PERFORM FROM tenure.event_shares WHERE slot = 0 FOR UPDATE; PERFORM tenure.set_offsets(1, '{0}', '{0}'); COMMIT;",
        call: "tenure.commit_positions(1, '{0}', ARRAY[(SELECT token FROM tenure.event_shares WHERE slot = 0)],
                ARRAY[(SELECT position FROM tenure.event_units ORDER BY position LIMIT 1)])",
    },
    Path {
        name: "commit a share",
        dies: "PERFORM FROM tenure.event_shares WHERE slot = 0 FOR UPDATE; PERFORM tenure.set_offsets(1, '{0}', '{0}'); COMMIT;",
        call: "tenure.commit_share(1, 0, (SELECT token FROM tenure.event_shares WHERE slot = 0), (SELECT position FROM
                tenure.event_units ORDER BY position LIMIT 1), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    },
    Path {
        name: "claim",
        // As workers do it, who remember how far they have come.
        dies: "UPDATE tenure.tasks SET state = 'ready', ready_at = now() WHERE id = 1000000 + n;
               UPDATE tenure.tasks SET state = 'claimed', session = 's' WHERE id = 1000000 + n;
               UPDATE tenure.tasks SET state = 'completed', session = NULL, finished_at = now() WHERE id = 1000000 + n; COMMIT;",
        call: "tenure.claim('default', 'q', 'direct', NULL, NULL, {SEATS}, jsonb_build_object('due', tenure.ms(now()) - 60000,
                (SELECT id FROM tenure.demands)::text, ARRAY[tenure.ms(now()) - 60000, 0]), false)",
    },
    Path {
        name: "complete",
        dies: "UPDATE tenure.tasks SET state = 'claimed', session = 's' WHERE id = 1000000 + n;
               UPDATE tenure.tasks SET state = 'completed', session = NULL, finished_at = now() WHERE id = 1000000 + n; COMMIT;",
        call: "tenure.complete('default', ARRAY[1::bigint], ARRAY[1::bigint], NULL)",
    },
];

/// A database in which each path has something to do, and where `count` tasks are due that somebody else's clock has passed by.
async fn prepared(count: u32) -> (FreshDatabase, Postgres) {
    let (database, store) = fresh().await;
    store.set_topic(&topic("t"), &TopicSettings { slots: 1, ..TopicSettings::default() }).await.unwrap();
    member(&store, "s", &[0]).await;
    store.submit(&submission("q", tasks(20))).await.unwrap();
    let one = "PERFORM tenure.publish_one('default', 't', 1, 'k', 'k', '{}', NULL, NULL, NULL);";
    database.psql(&format!("DO $$ BEGIN {one} {one} END $$")).unwrap();
    let due = format!(
        "INSERT INTO tenure.tasks (id, enqueued_at, effective_at, queue, demand, state, run_at, payload)
         SELECT 1000000 + n, now() - interval '1 hour', now() - interval '1 hour', 1, (SELECT id FROM tenure.demands), 'scheduled',
                now() - interval '1 hour', '{{}}' FROM generate_series(1, {count}) n"
    );
    database.psql(&due).unwrap();
    (database, store)
}

/// The pages that a call touches, when it is planned and warm; and its time in ms, the best of some.
fn cost(database: &FreshDatabase, call: &str) -> (f64, f64) {
    let call = call.replace("{SEATS}", SEATS);
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

/// Of each path: the cost of a call without dead rows, and with so many of its own kind.
async fn costs(count: u32) -> Vec<(&'static str, (f64, f64), (f64, f64))> {
    let mut costs = Vec::new();
    for path in PATHS {
        let (clean, _store) = prepared(0).await;
        let without = cost(&clean, path.call);
        let (database, store) = prepared(count).await;
        let mut held = store.pool().begin().await.unwrap();
        let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM tenure.topics";
        sqlx::raw_sql(snapshot).execute(&mut *held).await.unwrap();
        let dies = format!(
            "SET synchronous_commit = off; DO $$ BEGIN FOR n IN 1..{count} LOOP {} END LOOP; END $$",
            path.dies
        );
        database.psql(&dies).unwrap();
        costs.push((path.name, without, cost(&database, path.call)));
        held.rollback().await.unwrap();
    }
    costs
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hot_path_walks_over_dead_rows() {
    for (name, without, with) in costs(8_000).await {
        // An index of that many entries may be a level deeper.
        assert!(with.0 <= without.0 * 1.5 + 10.0, "{name}: {} pages without, {} with", without.0, with.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: prints times, and how they compare"]
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
