//! What the role that only publishes can do to others: nothing.

use tenure::backend::postgres::{Postgres, PostgresOptions, publish};
use tenure_core::event::slot_of;
use tenure_core::port::{Bureau, Events, Payload, TopicSettings};
use tenure_testkit::rig::{FreshDatabase, fresh_database};

use crate::events::*;
use crate::support::*;

/// A database with roles and a topic `t` of so many slots, and a store on it as a server has it.
async fn with_publisher(slots: u32) -> (FreshDatabase, Postgres) {
    let database = fresh_database().unwrap();
    database.psql(&tenure::backend::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store = Postgres::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    let settings = TopicSettings { slots, ..TopicSettings::default() };
    store.set_topic(&topic("t"), &settings).await.unwrap();
    (database, store)
}

/// An attacker with the role `tenure_publisher` inserted units with forged offsets, and three honest events were never delivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_has_no_rights_but_to_publish() {
    let (database, store) = with_publisher(2).await;
    let attacks = [
        "INSERT INTO tenure.event_units VALUES (1000000, 1, 1, 1, now(), 1, 0, 1, 1)",
        "INSERT INTO tenure.events (batch, id, topic, slot, bytes, leads, kind, payload) VALUES (1, 1, 1, 0, 1, true, '', '{')",
        "SELECT nextval('tenure.event_numbers')",
        "SELECT * FROM tenure.publish_all('default', 't', '{1}', '{a}', NULL, '{1}', NULL, NULL, NULL, NULL, true)",
        "SELECT * FROM tenure.publish_one('default', 't', 1, 'a', NULL, '{', NULL, NULL, NULL)",
        "SELECT * FROM tenure.publish_own('default', 't', '{1}', '{a}', NULL, '{1}', NULL, NULL, NULL)",
        "SELECT tenure.place(1)",
        "SELECT tenure.place_units(1, '{1}', '{0}', '{1}', '{1}', '{1}', '{1}')",
        "SELECT tenure.begin_numbers()",
        "SELECT tenure.ring_topic(1)",
        "SELECT FROM tenure.topics FOR UPDATE",
        "DELETE FROM tenure.event_waiters",
    ];
    for sql in attacks {
        let refused = database.psql_as("tenure_publisher", sql).expect_err(sql).to_string();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
    }
    let tables = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace
                  AND c.relkind IN ('r', 'p', 'v') AND (has_any_column_privilege('tenure_publisher', c.oid,
                  'SELECT, INSERT, UPDATE') OR has_table_privilege('tenure_publisher', c.oid, 'DELETE, TRUNCATE, TRIGGER'))";
    assert_eq!(database.psql(tables).unwrap(), "", "it has rights on tables");
    let unpinned =
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
                    AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}'))";
    assert_eq!(
        database.psql(unpinned).unwrap(),
        "",
        "it runs as its owner, on the search path of the caller"
    );
    for role in ["tenure_reader", "pg_monitor"] {
        let runs = format!(
            "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
             AND has_function_privilege('{role}', p.oid, 'EXECUTE')"
        );
        assert_eq!(database.psql(&runs).unwrap(), "", "{role}");
    }
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let writer = Postgres::connect_unchecked(PostgresOptions::new(database.url_as("tenure_publisher")));
    let mut tx = writer.await.unwrap().pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 2), keyed("l", 3)]).await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 4)]).await.unwrap();
    tx.commit().await.unwrap();
    let read = all(&store, 2).await;
    assert!(read.iter().all(|event| event.slot == slot_of(event.key.as_deref().unwrap(), 2)));
    let mut seen = payloads(&read);
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4]);
}

/// The batch of a transaction is kept in a setting, which every client can set: with the number of somebody else's batch in it, that
/// batch was placed a second time.
#[tokio::test(flavor = "multi_thread")]
async fn a_setting_forges_no_batch() {
    let (database, store) = with_publisher(1).await;
    let ours = store.publish(&topic("t"), &[keyed("k", 1), keyed("k", 2)]).await.unwrap()[0].id;
    let mut expected = vec![1, 2];
    let set = |batch: String| {
        format!("SELECT set_config('tenure.batch', pg_current_xact_id() || ':{batch}', true);")
    };
    let publish = |n: u64| format!("SELECT tenure.publish('t', '{n}', key => 'k');");
    let own = "SELECT set_config('tenure.batch', pg_current_xact_id() || ':' || (SELECT tenure.publish('t', '98', key => 'k')) || '+',
               true);";
    let scripts = [
        // Somebody else's batch, before and between.
        format!("{}{}{}", set(format!("{ours}+")), publish(3), publish(4)),
        format!("{}{}{}", publish(5), set(format!("{ours}+")), publish(6)),
        format!("{}{}", publish(7), set(ours.to_string())),
        format!("{}{}{}", set("+".into()), publish(8), set("9999999999999999999999+".into())),
        // The one that the next honest event will have.
        format!("{}{}{}", set(format!("{}+", ours.0 + 40)), publish(9), publish(10)),
        // One's own, when it is placed already; and one that is said to be placed, and is not.
        format!("{own} SET CONSTRAINTS ALL IMMEDIATE; {own} {}", publish(11)),
        format!(
            "{} SELECT set_config('tenure.placed', '1', true), set_config('tenure.batch', '', true);",
            publish(12)
        ),
    ];
    for script in scripts {
        database.psql_as("tenure_publisher", &format!("BEGIN; {script} COMMIT;")).unwrap();
    }
    for n in 20..60 {
        store.publish(&topic("t"), &[keyed("k", n)]).await.unwrap();
        expected.push(n);
    }
    expected.extend(3..=12);
    expected.extend([98, 98]);
    expected.sort_unstable();
    let read = all(&store, 1).await;
    let mut seen = payloads(&read);
    seen.sort_unstable();
    assert_eq!(seen, expected, "each once");
}

/// The library's own function was trusted to have checked what it publishes; text that is not JSON stopped everybody who read it.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_library_would_not_send_is_refused() {
    let (database, store) = with_publisher(1).await;
    for (arguments, said) in [
        ("'{a}', '{k}', '{not json}', NULL, NULL, NULL, NULL", "invalid input syntax for type json"),
        ("'{a}', '{k}', NULL, NULL, NULL, NULL, NULL", "either a payload or a body"),
        ("'{a}', '{k}', '{1}', '{x}', NULL, NULL, NULL", "either a payload or a body"),
        ("'{a}', '{\"\"}', '{1}', NULL, NULL, NULL, NULL", "is empty"),
        ("'{NULL}', '{k}', '{1}', NULL, NULL, NULL, NULL", "is null"),
        ("'{a}', '{k}', '{1}', NULL, NULL, NULL, '{-1}'", "leader token '-1'"),
        ("'{a}', '{k}', '{1}', NULL, '{\"{\\\"a\\\": 1}\"}', NULL, NULL", "object of at most 64 texts"),
        ("'{a}', '{k}', '{1}', NULL, '{[]}', NULL, NULL", "cannot deconstruct an array"),
        ("'{a,b}', '{k}', '{1,2}', NULL, NULL, NULL, NULL", "not as many"),
        ("'{a}', '{k}', ARRAY[to_json(repeat('x', 1048576))::text], NULL, NULL, NULL, NULL", "1048578 bytes"),
        ("array_fill('a'::text, ARRAY[10001]), NULL, NULL, NULL, NULL, NULL, NULL", "at most 10000"),
    ] {
        let sql = format!("SELECT * FROM tenure.publish_in('default', 't', {arguments})");
        let error = database.psql_as("tenure_publisher", &sql).expect_err(&sql).to_string();
        assert!(error.contains(said), "{sql}: {error}");
    }
    assert_eq!(all(&store, 1).await, []);
}

/// A row whose payload is not JSON, written past all functions, made every read of its partition fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_can_not_be_read_blocks_nobody() {
    let (database, store) = with_topic(1).await;
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let malformed = "WITH e AS (
            INSERT INTO tenure.events (batch, id, topic, slot, bytes, leads, leader_token, key, kind, headers, payload)
            SELECT n, n, 1, 0, 1, false, -7, 'k', '', '[1]', '{not json' FROM nextval('tenure.event_numbers') n RETURNING id)
        INSERT INTO tenure.event_units (position, batch, first_id, last_id, at, topic, slot, events, bytes)
        SELECT nextval('tenure.event_numbers'), id, id, id, now(), 1, 0, 1, 1 FROM e";
    database.psql(malformed).unwrap();
    store.publish(&topic("t"), &[keyed("k", 2)]).await.unwrap();
    let read = all(&store, 1).await;
    assert_eq!(read.len(), 3);
    assert_eq!(
        read[1].payload,
        Payload::Bytes(b"{not json".to_vec()),
        "a handler that wants JSON fails on it"
    );
    assert!(read[1].headers.is_empty() && read[1].leader_token.is_none());
    assert!(store.event(&topic("t"), read[1].id).await.unwrap().is_some());
}

/// Any role that may connect could hold the advisory locks of partitions, of queues and of submissions, and stop everybody.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_connect_can_hold_up_nobody() {
    let (database, store) = with_publisher(2).await;
    opened(&store, "s").await;
    let task = crate::claims::submission("q", crate::claims::tasks(2));
    tenure_core::port::Tasks::submit(&store, &task).await.unwrap();
    database
        .psql(
            "DO $$ BEGIN CREATE ROLE tenure_nobody LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        )
        .unwrap();
    let nobody = sqlx::PgPool::connect(&database.url_as("tenure_nobody")).await.unwrap();
    let mut attack = nobody.begin().await.unwrap();
    let locks = "SELECT count(pg_advisory_xact_lock(8369, n)), count(pg_advisory_xact_lock(8370, n)) FROM generate_series(0, 9) n;
                 SELECT count(pg_advisory_xact_lock(8372, n)) FROM generate_series(0, 4095) n;
                 SELECT pg_advisory_xact_lock(hashtextextended('default/key', 8371))";
    sqlx::raw_sql(locks).execute(&mut *attack).await.unwrap();
    for sql in [
        "BEGIN; LOCK TABLE tenure.claim_gate IN ACCESS SHARE MODE",
        "SELECT FROM tenure.event_slots FOR KEY SHARE",
    ] {
        let refused = database.psql_as("tenure_nobody", sql).expect_err(sql).to_string();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
        let sql = sql.replace("ACCESS SHARE", "ROW SHARE");
        let refused = database.psql_as("tenure_reader", &sql).expect_err(&sql).to_string();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
    }
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    database.psql_as("tenure_publisher", "SELECT tenure.publish('t', '2', key => 'k')").unwrap();
    let mut keyed_task = tenure_core::port::NewTask::new("work");
    keyed_task.concurrency_key = Some("key".into());
    let task = crate::claims::submission("q", vec![keyed_task]);
    tenure_core::port::Tasks::submit(&store, &task).await.unwrap();
    let got = crate::claims::claimed(&store, "q", crate::claims::seat("s", 9)).await;
    assert_eq!(got.len(), 3);
    let done: Vec<_> = got.iter().map(crate::claims::completed).collect();
    tenure_core::port::Tasks::settle(&store, &done).await.unwrap();
    assert_eq!(payloads(&all(&store, 2).await), [1, 2]);
    attack.rollback().await.unwrap();
}
