//! Events from SQL, with roles, and through a connection pooler.

use tenure::store::postgres::{PostgresOptions, PostgresStore, commit_partition, publish};
use tenure_core::port::{
    CommitResult, ElectionStore, EventAdmin, EventStore, GroupSettings, MaintenanceRequest, Payload,
    ReadEventsRequest, StartOffset, TopicSettings, WebhookSettings, broker_election,
};
use tenure_core::rules::event::partition_for_key;
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::events::*;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn any_language_can_publish_in_sql() {
    let (database, store) = with_topic(64).await;
    let first = database
        .psql(
            "SELECT tenure.publish('t', '{\"order\": 7, \"amount\": 99.5}', key => 'order-1', type => 'order.paid', \
             headers => '{\"trace\": \"x\"}', leader_token => 41)",
        )
        .unwrap();
    let many = database
        .psql(
            "SELECT * FROM tenure.publish_many('t', '[{\"key\": \"order-1\", \"type\": \"a\", \"payload\": 2}, {}, \
             {\"key\": \"ключ\", \"headers\": null, \"payload\": null, \"leader_token\": 42}]')",
        )
        .unwrap();
    let partitions: Vec<&str> = many.lines().map(|line| line.split('|').nth(2).unwrap()).collect();
    assert_eq!((partitions[0], partitions[2]), ("18", "37"), "{many}");
    database
        .psql("SELECT tenure.publish_bytes('t', '\\x00ff', key => 'order-1', leader_token => 43)")
        .unwrap();
    let read = all(&store, 64).await;
    let of_order_1: Vec<_> = read.iter().filter(|it| it.key.as_deref() == Some("order-1")).collect();
    assert_eq!(of_order_1[0].id.to_string(), first.trim());
    assert_eq!(
        (of_order_1[0].event_type.as_str(), of_order_1[0].headers["trace"].as_str()),
        ("order.paid", "x")
    );
    assert_eq!(of_order_1[0].payload, Payload::Json(r#"{"order": 7, "amount": 99.5}"#.parse().unwrap()));
    assert_eq!(of_order_1[2].payload, Payload::Bytes(vec![0, 255]));
    let tokens: Vec<u64> = read.iter().filter_map(|event| Some(event.leader_token?.as_u64())).collect();
    assert_eq!(tokens.iter().sum::<u64>(), 41 + 42 + 43, "{tokens:?}");
    assert_eq!(read.len(), 5);
    let publish_once = "SELECT tenure.publish('t', idempotency_key => 'once')";
    assert_eq!(database.psql(publish_once).unwrap(), database.psql(publish_once).unwrap());
    let again = "SELECT event_id, created FROM tenure.publish_many('t', '[{\"idempotency_key\": \"once\"}, {\"idempotency_key\": \"2\"}, \
                 {\"idempotency_key\": \"2\"}]')";
    let again = database.psql(again).unwrap();
    let created: Vec<&str> = again.lines().map(|line| line.split('|').nth(1).unwrap()).collect();
    assert_eq!(created, ["f", "t", "f"]);
    assert_eq!(all(&store, 64).await.len(), 7);
}

/// Regression test: a value set for the session was used as the transaction id of every transaction, which assigned offsets to
/// the events of earlier transactions again.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_id_set_by_the_client_is_ignored() {
    let (database, store) = with_topic(4).await;
    for set in [
        "SET tenure.publish_transaction = '77'",
        "SET tenure.publish_transaction = '77+'",
        "SET tenure.publish_transaction = '1:77+'",
    ] {
        let publish = "SELECT tenure.publish('t', key => 'k')";
        let several = format!("BEGIN; {publish}; {publish}; COMMIT");
        database.psql(&format!("{set};\n{publish};\n{publish};\n{several};\n{several};")).unwrap();
    }
    let read = all(&store, 4).await;
    let mut ids: Vec<_> = read.iter().map(|event| event.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((read.len(), ids.len()), (18, 18));
    let mut offsets: Vec<_> = read.iter().map(|event| event.offset).collect();
    offsets.dedup();
    assert_eq!(offsets.len(), 12, "exactly the events of one transaction lease an offset");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_events_are_refused_with_a_clear_message() {
    let (database, store) = with_topic(1).await;
    let small = TopicSettings { partitions: 1, max_payload_bytes: 10, ..TopicSettings::default() };
    store.set_topic(&topic("small"), &small).await.unwrap();
    for (sql, message) in [
        ("SELECT tenure.publish('nowhere')", "`tenure events topics create nowhere`"),
        ("SELECT tenure.publish('x', namespace => 'shop')", "create x --namespace shop"),
        ("SELECT tenure.publish('t', key => '')", "the key '' is empty"),
        ("SELECT tenure.publish('t', key => repeat('x', 513))", "has 513 bytes; at most 512"),
        ("SELECT tenure.publish('t', type => E'a\\nb')", "has a control character"),
        ("SELECT tenure.publish('t', type => NULL)", "the type  is null"),
        ("SELECT tenure.publish('t', headers => '{\"a\": 1}')", "header 'a' is not a string"),
        ("SELECT tenure.publish('t', headers => '[]')", "headers"),
        ("SELECT tenure.publish('small', '\"0123456789\"')", "has 12 bytes; this topic allows at most 10"),
        ("SELECT tenure.publish_bytes('small', '0123456789a')", "has 11 bytes; this topic allows at most 10"),
        ("SELECT tenure.publish('t', to_jsonb(repeat('x', 2000000)))", "this topic allows at most 1048576"),
        ("SELECT tenure.publish('t', leader_token => -1)", "the leader token '-1' is not a token"),
        (
            "SELECT tenure.publish_many('t', '[{}, {\"leader_token\": 1.5}]')",
            "event 1: the leader token '1.5'",
        ),
        ("SELECT tenure.publish_many('t', '{}')", "not a JSON array"),
        ("SELECT tenure.publish_many('t', '[{}, 7]')", "event 1 is not an object"),
        ("SELECT tenure.publish_many('t', '[{\"kye\": \"a\"}]')", "event 0 has an unknown field 'kye'"),
        ("SELECT tenure.publish_many('t', '[{}, {\"key\": \"\"}]')", "event 1: the key '' is empty"),
        (
            "SELECT tenure.publish_many('small', '[{}, {\"payload\": \"0123456789\"}]')",
            "event 1: the payload has 12",
        ),
    ] {
        let error = database.psql(sql).unwrap_err().to_string();
        assert!(error.contains(message), "{sql}: {error}");
    }
    assert_eq!(all(&store, 1).await, []);
    assert_eq!(database.psql("SELECT count(*) FROM tenure.events").unwrap(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_and_rust_choose_the_same_partition_for_a_key() {
    let (database, _store) = with_topic(1).await;
    let keys = [
        "",
        "a",
        "ab",
        "abc",
        "abcd",
        "abcde",
        "order-1",
        "ada@example.org",
        "ключ",
        "kunde-ß",
        "🦀",
        "it's",
    ];
    for partitions in [1, 7, 64, 1024] {
        for key in keys {
            let sql = format!("SELECT tenure.partition_for_key('{}', {partitions})", key.replace('\'', "''"));
            assert_eq!(
                database.psql(&sql).unwrap().trim(),
                partition_for_key(key, partitions).to_string(),
                "{key:?}"
            );
        }
    }
}

/// A publisher may read neither events nor secrets, and may not change the event sequence.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_needs_no_other_rights() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    database.psql(&tenure::store::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store =
        PostgresStore::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
    store.set_topic(&topic("t"), &settings).await.unwrap();
    member(&store, "s", &[0, 1]).await;
    let publish = |sql: &str| database.psql_as("tenure_publisher", sql).unwrap();
    // A waiter is notified.
    store.register_topic_waiter(&id("s"), &topic("t")).await.unwrap();
    publish("SELECT tenure.publish('t', key => 'k')");
    assert_eq!(database.psql("SELECT bool_and(notified) FROM tenure.topic_waiters").unwrap(), "t");
    publish("BEGIN; SELECT tenure.publish('t', key => 'k'); SELECT tenure.publish('t', key => 'l'); COMMIT");
    publish("SELECT tenure.publish('t', '{}', idempotency_key => 'once')");
    publish("SELECT tenure.publish('t', '{}', idempotency_key => 'once')");
    // As after the promotion of a standby that may have missed events.
    let promoted =
        "CREATE OR REPLACE FUNCTION tenure.timeline() RETURNS bigint LANGUAGE sql AS 'SELECT 999::bigint'";
    database.psql(promoted).unwrap();
    publish("SELECT tenure.publish('t', key => 'k')");
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    assert_eq!(
        database
            .psql("SELECT count(*), count(*) FILTER (WHERE id > 1::bigint << 40) FROM tenure.events")
            .unwrap(),
        "6|2"
    );
    assert_eq!(all(&store, 2).await.len(), 6, "each of them has an offset");

    for sql in [
        "SELECT payload FROM tenure.events",
        "SELECT key FROM tenure.events",
        "SELECT secret FROM tenure.group_webhooks",
        "SELECT * FROM tenure.credentials",
        "SELECT * FROM tenure.sessions",
        "SELECT setval('tenure.event_sequence', 1)",
        "DELETE FROM tenure.events",
        "UPDATE tenure.events SET key = 'mine'",
        "DELETE FROM tenure.commit_batches",
        "INSERT INTO tenure.topics (namespace, name, partitions, retention_ms, max_payload_bytes) VALUES ('default', 'mine', 1, 1, 1)",
        "SELECT tenure.reset_offsets(1, 'earliest', 0, NULL, false)",
    ] {
        let refused = database.psql_as("tenure_publisher", sql).expect_err(sql).to_string();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_has_the_rights_it_needs() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    database.psql(&tenure::store::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store =
        PostgresStore::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    let settings = TopicSettings { partitions: 1, retention_ms: 0, ..TopicSettings::default() };
    store.set_topic(&topic("t"), &settings).await.unwrap();
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 2), keyed("l", 3)]).await.unwrap();
    tx.commit().await.unwrap();
    let lease = member(&store, "s", &[0]).await.remove(0);
    store.register_topic_waiter(&id("s"), &topic("t")).await.unwrap();
    let last = all(&store, 1).await.last().unwrap().offset;
    assert_eq!(
        store.commit_partitions(&[commit(0, lease.token, last)]).await.unwrap(),
        [CommitResult::Committed]
    );
    let webhook = WebhookSettings {
        url: "https://example.org/".into(),
        secret: "0123456789abcdef".into(),
        timeout_ms: 1000,
    };
    store.set_webhook(&group("t", "g"), Some(&webhook)).await.unwrap();
    assert!(store.webhooks().await.unwrap() == [(group("t", "g"), webhook)]);

    let reader =
        PostgresStore::connect(PostgresOptions::new(database.url_as("tenure_reader"))).await.unwrap();
    let view = reader.groups(None).await.unwrap().remove(0);
    assert!(view.webhook.is_some_and(|webhook| webhook.url == "https://example.org/"));
    assert_eq!(reader.topics(None).await.unwrap()[0].event_count, 3);
    let read = ReadEventsRequest { topic: topic("t"), after: vec![(0, 0)], limit: 10 };
    assert_eq!(reader.read_events(&read).await.unwrap().len(), 3);
    let denied = |sql: &str| {
        let refused = database.psql_as("tenure_reader", sql).unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
    };
    denied("SELECT secret FROM tenure.group_webhooks");
    denied("SELECT tenure.publish('t', key => 'k')");
    denied("SELECT tenure.reset_offsets(1, 'earliest', 0, NULL, false)");

    let token = leading(&store, "broker", &broker_election()).await;
    let maintenance =
        MaintenanceRequest { session: id("broker"), token, clock_ms: Some(i64::MAX), limit: 100 };
    let mut deleted = 0;
    while deleted < 3 {
        // The events are old enough once the clock has advanced.
        deleted += store.prune_events(&maintenance).await.unwrap().0;
    }
    store.end_session(&id("s")).await.unwrap();
    assert!(store.delete_topic(&topic("t")).await.unwrap());
    let rows = "SELECT (SELECT count(*) FROM tenure.events) + (SELECT count(*) FROM tenure.commit_batches) \
                + (SELECT count(*) FROM tenure.partition_leases) + (SELECT count(*) FROM tenure.group_webhooks)";
    assert_eq!(database.psql(rows).unwrap(), "0");
}

/// A transaction that publishes to a topic deleted before its commit leaves rows, which maintenance deletes.
#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_deleted_topic_are_deleted() {
    let (database, store) = with_topic(2).await;
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 1), keyed("l", 2)]).await.unwrap();
    assert!(store.delete_topic(&topic("t")).await.unwrap());
    tx.commit().await.unwrap();
    let rows = "SELECT (SELECT count(*) FROM tenure.events) + (SELECT count(*) FROM tenure.commit_batches)";
    assert_ne!(database.psql(rows).unwrap(), "0");
    store.set_topic(&topic("t"), &TopicSettings { partitions: 2, ..TopicSettings::default() }).await.unwrap();
    store.publish(&topic("t"), &[keyed("k", 3)]).await.unwrap();
    assert_eq!(payloads(&all(&store, 2).await), [3], "the new topic has no events of the deleted one");
    let token = leading(&store, "broker", &broker_election()).await;
    let maintenance =
        MaintenanceRequest { session: id("broker"), token, clock_ms: Some(i64::MAX), limit: 100 };
    store.prune_events(&maintenance).await.unwrap();
    assert_eq!(database.psql(rows).unwrap(), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_work_through_a_pooler() {
    let cluster = PgCluster::start().unwrap();
    migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let options = PostgresOptions::new(pooler.url("postgres"));
    let clients = (0..5).map(|n| {
        let options = options.clone();
        async move {
            let store = PostgresStore::connect(options).await.unwrap();
            let key =
                tenure_core::port::TopicKey::new("pooled".parse().unwrap(), format!("t{n}").parse().unwrap());
            let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
            store.set_topic(&key, &settings).await.unwrap();
            let group_key = tenure_core::port::GroupKey::new(key.clone(), "g".parse().unwrap());
            store.set_group(&group_key, &GroupSettings::default(), StartOffset::Earliest).await.unwrap();
            let session = format!("s{n}");
            opened(&store, &session).await;
            let join = tenure_core::port::JoinGroupRequest {
                group: group_key.clone(),
                session: id(&session),
                member: "m".into(),
                from: StartOffset::Earliest,
            };
            let assignment = store.join_group(&join).await.unwrap();
            let partitions =
                assignment.partition_leases.iter().map(|lease| (lease.partition, lease.token)).collect();
            let take = tenure_core::port::TakePartitionsRequest {
                group: group_key.clone(),
                session: id(&session),
                partitions,
            };
            let leases = store.take_partitions(&take).await.unwrap();
            let mut after = vec![(0, 0), (1, 0)];
            for round in 0..10 {
                store.publish(&key, &[keyed("a", round)]).await.unwrap();
                let mut tx = store.pool().begin().await.unwrap();
                // In two calls: the pooler must not mix up the transactions of its clients.
                publish(&mut tx, &key, &[keyed("b", round)]).await.unwrap();
                publish(&mut tx, &key, &[keyed("b", round), keyed("a", round)]).await.unwrap();
                tx.commit().await.unwrap();
                let read = ReadEventsRequest { topic: key.clone(), after: after.clone(), limit: 100 };
                let events = store.read_events(&read).await.unwrap();
                assert_eq!(events.len(), 4);
                let mut tx = store.pool().begin().await.unwrap();
                for event in &events {
                    let partition = event.partition as usize;
                    after[partition].1 = event.offset;
                    let mut request = commit(event.partition, leases[partition].token, event.offset);
                    request.group = group_key.clone();
                    assert_eq!(
                        commit_partition(&mut tx, &request, LEASE).await.unwrap(),
                        CommitResult::Committed
                    );
                }
                tx.commit().await.unwrap();
            }
            let view = store.group(&group_key).await.unwrap().unwrap();
            assert_eq!(view.lag(), (0, true));
        }
    });
    futures_util::future::join_all(clients).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_all_settings_in_a_transaction_loses_no_event() {
    let (database, store) = with_topic(4).await;
    for (before, after) in [(1, 0), (1, 1), (3, 2)] {
        let publish = |count: usize| "SELECT tenure.publish('t', key => 'a');".repeat(count);
        let script = format!("BEGIN; {} RESET ALL; {} COMMIT", publish(before), publish(after));
        let earlier = all(&store, 4).await.len();
        database.psql(&script).unwrap();
        let mut ids: Vec<_> = all(&store, 4).await.iter().map(|event| event.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(
            ids.len(),
            earlier + before + after,
            "{before} before and {after} after the reset: each event once"
        );
    }
}

/// Triggers do not fire with this setting, so that the events would never get an offset.
#[tokio::test(flavor = "multi_thread")]
async fn publishing_with_the_replication_role_replica_is_refused() {
    let (database, store) = with_topic(1).await;
    for publish in ["tenure.publish('t', key => 'a')", "tenure.publish_many('t', '[{}, {}]')"] {
        let sql = format!("SET session_replication_role = replica; SELECT {publish}");
        let error = database.psql(&sql).unwrap_err().to_string();
        assert!(error.contains("would never get an offset"), "{error}");
    }
    assert_eq!(database.psql("SELECT count(*) FROM tenure.events").unwrap(), "0");
    assert_eq!(all(&store, 1).await, []);
}
