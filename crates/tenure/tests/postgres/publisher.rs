//! The role `tenure_publisher` cannot harm others.

use tenure::store::postgres::{PostgresOptions, PostgresStore, publish};
use tenure_core::port::{EventAdmin, EventStore, Payload, TopicSettings};
use tenure_core::rules::event::partition_for_key;
use tenure_testkit::rig::{FreshDatabase, fresh_database};

use crate::events::*;
use crate::support::*;

/// A database with roles and a topic `t`, and a store as tenure_runtime.
async fn with_publisher(partitions: u32) -> (FreshDatabase, PostgresStore) {
    let database = fresh_database().unwrap();
    database.psql(&tenure::store::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store =
        PostgresStore::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    let settings = TopicSettings { partitions, ..TopicSettings::default() };
    store.set_topic(&topic("t"), &settings).await.unwrap();
    (database, store)
}

/// Regression test: an attacker with the role `tenure_publisher` inserted commit batches with forged offsets, and three events
/// were never delivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_can_only_publish() {
    let (database, store) = with_publisher(2).await;
    let attacks = [
        "INSERT INTO tenure.commit_batches VALUES (1000000, 1, 1, 1, now(), 1, 0, 1, 1)",
        "INSERT INTO tenure.events (transaction_id, id, topic_id, partition, payload_bytes, assigns_offsets, type, payload) VALUES (1, 1, 1, 0, 1, true, '', '{')",
        "SELECT nextval('tenure.event_sequence')",
        "SELECT * FROM tenure.publish_events('default', 't', '{1}', '{a}', NULL, '{1}', NULL, NULL, NULL, NULL, true)",
        "SELECT * FROM tenure.publish_event('default', 't', 1, 'a', NULL, '{', NULL, NULL, NULL)",
        "SELECT * FROM tenure.publish_events_immediately('default', 't', '{1}', '{a}', NULL, '{1}', NULL, NULL, NULL)",
        "SELECT tenure.assign_offsets(1)",
        "SELECT tenure.write_commit_batches(1, '{1}', '{0}', '{1}', '{1}', '{1}', '{1}')",
        "SELECT tenure.start_event_sequence()",
        "SELECT tenure.notify_topic(1)",
        "SELECT FROM tenure.topics FOR UPDATE",
        "DELETE FROM tenure.topic_waiters",
    ];
    for sql in attacks {
        let refused = database.psql_as("tenure_publisher", sql).expect_err(sql).to_string();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
    }
    let tables = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace
                  AND c.relkind IN ('r', 'p', 'v') AND (has_any_column_privilege('tenure_publisher', c.oid,
                  'SELECT, INSERT, UPDATE') OR has_table_privilege('tenure_publisher', c.oid, 'DELETE, TRUNCATE, TRIGGER'))";
    assert_eq!(database.psql(tables).unwrap(), "", "the publisher has rights on tables");
    let without_search_path =
        "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
                    AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}'))";
    assert_eq!(
        database.psql(without_search_path).unwrap(),
        "",
        "a SECURITY DEFINER function uses the search path of its caller"
    );
    for role in ["tenure_reader", "pg_monitor"] {
        let runs = format!(
            "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
             AND has_function_privilege('{role}', p.oid, 'EXECUTE')"
        );
        assert_eq!(database.psql(&runs).unwrap(), "", "{role}");
    }
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let writer = PostgresStore::connect_unchecked(PostgresOptions::new(database.url_as("tenure_publisher")));
    let mut tx = writer.await.unwrap().pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 2), keyed("l", 3)]).await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 4)]).await.unwrap();
    tx.commit().await.unwrap();
    let read = all(&store, 2).await;
    assert!(read.iter().all(|event| event.partition == partition_for_key(event.key.as_deref().unwrap(), 2)));
    let mut seen = payloads(&read);
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4]);
}

/// Regression test: the transaction id of published events is kept in a setting, which every client can set. With the id of
/// another transaction in it, that transaction's events got offsets a second time.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_setting_assigns_no_offsets() {
    let (database, store) = with_publisher(1).await;
    let other = store.publish(&topic("t"), &[keyed("k", 1), keyed("k", 2)]).await.unwrap()[0].id;
    let mut expected = vec![1, 2];
    let set = |transaction_id: String| {
        format!(
            "SELECT set_config('tenure.publish_transaction', pg_current_xact_id() || ':{transaction_id}', true);"
        )
    };
    let publish = |n: u64| format!("SELECT tenure.publish('t', '{n}', key => 'k');");
    let own = "SELECT set_config('tenure.publish_transaction', pg_current_xact_id() || ':' || (SELECT tenure.publish('t', '98', key => 'k')) || '+',
               true);";
    let scripts = [
        // Set the transaction id of another publisher, before and between own calls.
        format!("{}{}{}", set(format!("{other}+")), publish(3), publish(4)),
        format!("{}{}{}", publish(5), set(format!("{other}+")), publish(6)),
        format!("{}{}", publish(7), set(other.to_string())),
        format!("{}{}{}", set("+".into()), publish(8), set("9999999999999999999999+".into())),
        // The id that a later event of another publisher will have.
        format!("{}{}{}", set(format!("{}+", other.0 + 40)), publish(9), publish(10)),
        // The publisher's own id after its offsets were assigned; and a forged claim that offsets were assigned.
        format!("{own} SET CONSTRAINTS ALL IMMEDIATE; {own} {}", publish(11)),
        format!("{} SELECT set_config('tenure.publish_transaction', '', true);", publish(12)),
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
    assert_eq!(seen, expected, "each event once");
}

/// Regression test: the function used by the library did not validate its arguments; a payload that is not JSON blocked all
/// readers.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_arguments_are_refused() {
    let (database, store) = with_publisher(1).await;
    for (arguments, message) in [
        ("'{a}', '{k}', '{not json}', NULL, NULL, NULL, NULL", "invalid input syntax for type json"),
        ("'{a}', '{k}', NULL, NULL, NULL, NULL, NULL", "either a payload or a binary payload"),
        ("'{a}', '{k}', '{1}', '{x}', NULL, NULL, NULL", "either a payload or a binary payload"),
        ("'{a}', '{\"\"}', '{1}', NULL, NULL, NULL, NULL", "is empty"),
        ("'{NULL}', '{k}', '{1}', NULL, NULL, NULL, NULL", "is null"),
        ("'{a}', '{k}', '{1}', NULL, NULL, NULL, '{-1}'", "leader token '-1'"),
        ("'{a}', '{k}', '{1}', NULL, '{\"{\\\"a\\\": 1}\"}', NULL, NULL", "object of at most 64 strings"),
        ("'{a}', '{k}', '{1}', NULL, '{[]}', NULL, NULL", "cannot deconstruct an array"),
        ("'{a,b}', '{k}', '{1,2}', NULL, NULL, NULL, NULL", "the arrays differ in length"),
        ("'{a}', '{k}', ARRAY[to_json(repeat('x', 1048576))::text], NULL, NULL, NULL, NULL", "1048578 bytes"),
        ("array_fill('a'::text, ARRAY[10001]), NULL, NULL, NULL, NULL, NULL, NULL", "at most 10000"),
    ] {
        let sql = format!("SELECT * FROM tenure.publish_in_transaction('default', 't', {arguments})");
        let error = database.psql_as("tenure_publisher", &sql).expect_err(&sql).to_string();
        assert!(error.contains(message), "{sql}: {error}");
    }
    assert_eq!(all(&store, 1).await, []);
}

/// Regression test: a row with a payload that is not JSON, inserted directly, made every read of its partition fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_row_does_not_block_readers() {
    let (database, store) = with_topic(1).await;
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let malformed = "WITH e AS (
            INSERT INTO tenure.events (transaction_id, id, topic_id, partition, payload_bytes, assigns_offsets, leader_token, key, type, headers, payload)
            SELECT n, n, 1, 0, 1, false, -7, 'k', '', '[1]', '{not json' FROM nextval('tenure.event_sequence') n RETURNING id)
        INSERT INTO tenure.commit_batches (event_offset, transaction_id, first_event_id, last_event_id, published_at, topic_id, partition, event_count, payload_bytes)
        SELECT nextval('tenure.event_sequence'), id, id, id, now(), 1, 0, 1, 1 FROM e";
    database.psql(malformed).unwrap();
    store.publish(&topic("t"), &[keyed("k", 2)]).await.unwrap();
    let read = all(&store, 1).await;
    assert_eq!(read.len(), 3);
    assert_eq!(
        read[1].payload,
        Payload::Bytes(b"{not json".to_vec()),
        "handlers that expect JSON fail on it"
    );
    assert!(read[1].headers.is_empty() && read[1].leader_token.is_none());
    assert!(store.event(&topic("t"), read[1].id).await.unwrap().is_some());
}

/// Regression test: any role that may connect could hold the advisory locks of partitions, queues and submissions.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_cannot_block_others() {
    let (database, store) = with_publisher(2).await;
    opened(&store, "s").await;
    let task = crate::claims::submission("q", crate::claims::tasks(2));
    tenure_core::port::TaskStore::submit(&store, &task).await.unwrap();
    database
        .psql(
            "DO $$ BEGIN CREATE ROLE tenure_unprivileged LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        )
        .unwrap();
    let unprivileged = sqlx::PgPool::connect(&database.url_as("tenure_unprivileged")).await.unwrap();
    let mut attack = unprivileged.begin().await.unwrap();
    let locks = "SELECT count(pg_advisory_xact_lock(8369, n)), count(pg_advisory_xact_lock(8370, n)) FROM generate_series(0, 9) n;
                 SELECT count(pg_advisory_xact_lock(8372, n)) FROM generate_series(0, 4095) n;
                 SELECT pg_advisory_xact_lock(hashtextextended('default/key', 8371))";
    sqlx::raw_sql(locks).execute(&mut *attack).await.unwrap();
    for sql in [
        "BEGIN; LOCK TABLE tenure.claim_lock IN ACCESS SHARE MODE",
        "SELECT FROM tenure.topic_partitions FOR KEY SHARE",
    ] {
        let refused = database.psql_as("tenure_unprivileged", sql).expect_err(sql).to_string();
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
    tenure_core::port::TaskStore::submit(&store, &task).await.unwrap();
    let got = crate::claims::claimed(&store, "q", crate::claims::claim_request("s", 9)).await;
    assert_eq!(got.len(), 3);
    let done: Vec<_> = got.iter().map(crate::claims::completed).collect();
    tenure_core::port::TaskStore::settle(&store, &done).await.unwrap();
    assert_eq!(payloads(&all(&store, 2).await), [1, 2]);
    attack.rollback().await.unwrap();
}
