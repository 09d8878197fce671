//! Events from SQL, under roles, and through a pooler.

use tenure::backend::postgres::{Postgres, PostgresOptions, commit_share, publish};
use tenure_core::event::slot_of;
use tenure_core::port::{
    Begin, Bureau, Committed, Events, GroupSettings, Payload, Push, ReadAsk, Store, Tend, TopicSettings,
    claims_election,
};
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
    let slots: Vec<&str> = many.lines().map(|line| line.split('|').nth(2).unwrap()).collect();
    assert_eq!((slots[0], slots[2]), ("18", "37"), "{many}");
    database
        .psql("SELECT tenure.publish_bytes('t', '\\x00ff', key => 'order-1', leader_token => 43)")
        .unwrap();
    let read = all(&store, 64).await;
    let of_the_order: Vec<_> = read.iter().filter(|it| it.key.as_deref() == Some("order-1")).collect();
    assert_eq!(of_the_order[0].id.to_string(), first.trim());
    assert_eq!(
        (of_the_order[0].kind.as_str(), of_the_order[0].headers["trace"].as_str()),
        ("order.paid", "x")
    );
    assert_eq!(of_the_order[0].payload, Payload::Json(r#"{"order": 7, "amount": 99.5}"#.parse().unwrap()));
    assert_eq!(of_the_order[2].payload, Payload::Bytes(vec![0, 255]));
    let tokens: Vec<u64> = read.iter().filter_map(|event| Some(event.leader_token?.as_u64())).collect();
    assert_eq!(tokens.iter().sum::<u64>(), 41 + 42 + 43, "{tokens:?}");
    assert_eq!(read.len(), 5);
    let twice = "SELECT tenure.publish('t', idempotency_key => 'once')";
    assert_eq!(database.psql(twice).unwrap(), database.psql(twice).unwrap());
    let again = "SELECT id, new FROM tenure.publish_many('t', '[{\"idempotency_key\": \"once\"}, {\"idempotency_key\": \"2\"}, \
                 {\"idempotency_key\": \"2\"}]')";
    let again = database.psql(again).unwrap();
    let new: Vec<&str> = again.lines().map(|line| line.split('|').nth(1).unwrap()).collect();
    assert_eq!(new, ["f", "t", "f"]);
    assert_eq!(all(&store, 64).await.len(), 7);
}

/// What is set for the session was taken for the batch of every transaction, which placed the events of those before it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_set_by_hand_is_nobodys() {
    let (database, store) = with_topic(4).await;
    for set in ["SET tenure.batch = '77'", "SET tenure.batch = '77+'", "SET tenure.batch = '1:77+'"] {
        let publish = "SELECT tenure.publish('t', key => 'k')";
        let several = format!("BEGIN; {publish}; {publish}; COMMIT");
        database.psql(&format!("{set};\n{publish};\n{publish};\n{several};\n{several};")).unwrap();
    }
    let read = all(&store, 4).await;
    let mut ids: Vec<_> = read.iter().map(|event| event.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((read.len(), ids.len()), (18, 18));
    let mut units: Vec<_> = read.iter().map(|event| event.position).collect();
    units.dedup();
    assert_eq!(units.len(), 12, "what one transaction published is together, and nothing else is");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_with_a_remedy() {
    let (database, store) = with_topic(1).await;
    let small = TopicSettings { slots: 1, max_bytes: 10, ..TopicSettings::default() };
    store.set_topic(&topic("small"), &small).await.unwrap();
    for (sql, said) in [
        ("SELECT tenure.publish('nowhere')", "`tenure events topics create nowhere`"),
        ("SELECT tenure.publish('x', namespace => 'shop')", "create x --namespace shop"),
        ("SELECT tenure.publish('t', key => '')", "its key '' is empty"),
        ("SELECT tenure.publish('t', key => repeat('x', 513))", "has 513 bytes; at most 512"),
        ("SELECT tenure.publish('t', type => E'a\\nb')", "has a control character"),
        ("SELECT tenure.publish('t', type => NULL)", "its type  is null"),
        ("SELECT tenure.publish('t', headers => '{\"a\": 1}')", "header 'a' is no text"),
        ("SELECT tenure.publish('t', headers => '[]')", "headers"),
        ("SELECT tenure.publish('small', '\"0123456789\"')", "has 12 bytes; this topic takes at most 10"),
        ("SELECT tenure.publish_bytes('small', '0123456789a')", "has 11 bytes; this topic takes at most 10"),
        ("SELECT tenure.publish('t', to_jsonb(repeat('x', 2000000)))", "this topic takes at most 1048576"),
        ("SELECT tenure.publish('t', leader_token => -1)", "its leader token '-1' is none"),
        (
            "SELECT tenure.publish_many('t', '[{}, {\"leader_token\": 1.5}]')",
            "event 1: its leader token '1.5'",
        ),
        ("SELECT tenure.publish_many('t', '{}')", "no list"),
        ("SELECT tenure.publish_many('t', '[{}, 7]')", "event 1 is no object"),
        ("SELECT tenure.publish_many('t', '[{\"kye\": \"a\"}]')", "event 0 has a field 'kye'"),
        ("SELECT tenure.publish_many('t', '[{}, {\"key\": \"\"}]')", "event 1: its key '' is empty"),
        (
            "SELECT tenure.publish_many('small', '[{}, {\"payload\": \"0123456789\"}]')",
            "event 1: its payload has 12",
        ),
    ] {
        let error = database.psql(sql).unwrap_err().to_string();
        assert!(error.contains(said), "{sql}: {error}");
    }
    assert_eq!(all(&store, 1).await, []);
    assert_eq!(database.psql("SELECT count(*) FROM tenure.events").unwrap(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_falls_into_the_same_slot_in_sql_and_here() {
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
    for slots in [1, 7, 64, 1024] {
        for key in keys {
            let sql = format!("SELECT tenure.slot_of('{}', {slots})", key.replace('\'', "''"));
            assert_eq!(database.psql(&sql).unwrap().trim(), slot_of(key, slots).to_string(), "{key:?}");
        }
    }
}

/// A program that only publishes is given no more than that: neither what others publish, nor secrets, nor the numbers themselves.
#[tokio::test(flavor = "multi_thread")]
async fn who_only_publishes_needs_no_other_rights() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    database.psql(&tenure::backend::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store = Postgres::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    let settings = TopicSettings { slots: 2, ..TopicSettings::default() };
    store.set_topic(&topic("t"), &settings).await.unwrap();
    member(&store, "s", &[0, 1]).await;
    let publish = |sql: &str| database.psql_as("tenure_publisher", sql).unwrap();
    // Somebody sleeps, and is rung for.
    store.doze_topic(&id("s"), &topic("t")).await.unwrap();
    publish("SELECT tenure.publish('t', key => 'k')");
    assert_eq!(database.psql("SELECT bool_and(woken) FROM tenure.event_waiters").unwrap(), "t");
    publish("BEGIN; SELECT tenure.publish('t', key => 'k'); SELECT tenure.publish('t', key => 'l'); COMMIT");
    publish("SELECT tenure.publish('t', '{}', idempotency_key => 'once')");
    publish("SELECT tenure.publish('t', '{}', idempotency_key => 'once')");
    // A standby was promoted, of which nobody knows what it has missed.
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
    assert_eq!(all(&store, 2).await.len(), 6, "each of them is placed");

    for sql in [
        "SELECT payload FROM tenure.events",
        "SELECT key FROM tenure.events",
        "SELECT secret FROM tenure.event_pushes",
        "SELECT * FROM tenure.credentials",
        "SELECT * FROM tenure.sessions",
        "SELECT setval('tenure.event_numbers', 1)",
        "DELETE FROM tenure.events",
        "UPDATE tenure.events SET key = 'mine'",
        "DELETE FROM tenure.event_units",
        "INSERT INTO tenure.topics (namespace, name, slots, keep_ms, max_bytes) VALUES ('default', 'mine', 1, 1, 1)",
        "SELECT tenure.reset_group(1, 'earliest', 0, NULL, false)",
    ] {
        let refused = database.psql_as("tenure_publisher", sql).expect_err(sql).to_string();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_do_what_it_must() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    database.psql(&tenure::backend::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store = Postgres::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    let settings = TopicSettings { slots: 1, keep_ms: 0, ..TopicSettings::default() };
    store.set_topic(&topic("t"), &settings).await.unwrap();
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 2), keyed("l", 3)]).await.unwrap();
    tx.commit().await.unwrap();
    let share = member(&store, "s", &[0]).await.remove(0);
    store.doze_topic(&id("s"), &topic("t")).await.unwrap();
    let last = all(&store, 1).await.last().unwrap().position;
    assert_eq!(store.commit_shares(&[commit(0, share.token, last)]).await.unwrap(), [Committed::Yes]);
    let push =
        Push { url: "https://example.org/".into(), secret: "0123456789abcdef".into(), timeout_ms: 1000 };
    store.set_push(&group("t", "g"), Some(&push)).await.unwrap();
    assert!(store.pushes().await.unwrap() == [(group("t", "g"), push)]);

    let reader = Postgres::connect(PostgresOptions::new(database.url_as("tenure_reader"))).await.unwrap();
    let view = reader.groups(None).await.unwrap().remove(0);
    assert!(view.push.is_some_and(|push| push.url == "https://example.org/"));
    assert_eq!(reader.topics(None).await.unwrap()[0].events, 3);
    let read = ReadAsk { topic: topic("t"), after: vec![(0, 0)], limit: 10 };
    assert_eq!(reader.read_events(&read).await.unwrap().len(), 3);
    let denied = |sql: &str| {
        let refused = database.psql_as("tenure_reader", sql).unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
    };
    denied("SELECT secret FROM tenure.event_pushes");
    denied("SELECT tenure.publish('t', key => 'k')");
    denied("SELECT tenure.reset_group(1, 'earliest', 0, NULL, false)");

    let token = leading(&store, "keeper", &claims_election()).await;
    let tend = Tend { session: id("keeper"), token, clock_ms: Some(i64::MAX), limit: 100 };
    let mut forgotten = 0;
    while forgotten < 3 {
        // It is over when the clock has moved on.
        forgotten += store.prune_events(&tend).await.unwrap().0;
    }
    store.end(&id("s")).await.unwrap();
    assert!(store.delete_topic(&topic("t")).await.unwrap());
    let rows = "SELECT (SELECT count(*) FROM tenure.events) + (SELECT count(*) FROM tenure.event_units) \
                + (SELECT count(*) FROM tenure.event_shares) + (SELECT count(*) FROM tenure.event_pushes)";
    assert_eq!(database.psql(rows).unwrap(), "0");
}

/// Whoever publishes to a topic that is deleted before it commits leaves something behind, which the keeper finds.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_deleted_topic_is_cleared_away() {
    let (database, store) = with_topic(2).await;
    let mut tx = store.pool().begin().await.unwrap();
    publish(&mut tx, &topic("t"), &[keyed("k", 1), keyed("l", 2)]).await.unwrap();
    assert!(store.delete_topic(&topic("t")).await.unwrap());
    tx.commit().await.unwrap();
    let rows = "SELECT (SELECT count(*) FROM tenure.events) + (SELECT count(*) FROM tenure.event_units)";
    assert_ne!(database.psql(rows).unwrap(), "0");
    store.set_topic(&topic("t"), &TopicSettings { slots: 2, ..TopicSettings::default() }).await.unwrap();
    store.publish(&topic("t"), &[keyed("k", 3)]).await.unwrap();
    assert_eq!(payloads(&all(&store, 2).await), [3], "nothing of the old one is in the new one");
    let token = leading(&store, "keeper", &claims_election()).await;
    let tend = Tend { session: id("keeper"), token, clock_ms: Some(i64::MAX), limit: 100 };
    store.prune_events(&tend).await.unwrap();
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
            let store = Postgres::connect(options).await.unwrap();
            let key =
                tenure_core::port::TopicKey::new("pooled".parse().unwrap(), format!("t{n}").parse().unwrap());
            let settings = TopicSettings { slots: 2, ..TopicSettings::default() };
            store.set_topic(&key, &settings).await.unwrap();
            let key_of_group = tenure_core::port::GroupKey::new(key.clone(), "g".parse().unwrap());
            store.set_group(&key_of_group, &GroupSettings::default(), Begin::Earliest).await.unwrap();
            let session = format!("s{n}");
            opened(&store, &session).await;
            let join = tenure_core::port::Join {
                group: key_of_group.clone(),
                session: id(&session),
                member: "m".into(),
                from: Begin::Earliest,
            };
            let look = store.join_group(&join).await.unwrap();
            let slots = look.shares.iter().map(|share| (share.slot, share.token)).collect();
            let take =
                tenure_core::port::TakeShares { group: key_of_group.clone(), session: id(&session), slots };
            let shares = store.take_shares(&take).await.unwrap();
            let mut after = vec![(0, 0), (1, 0)];
            for round in 0..10 {
                store.publish(&key, &[keyed("a", round)]).await.unwrap();
                let mut tx = store.pool().begin().await.unwrap();
                // In two calls, between which the pooler must not mix up whose batch it is.
                publish(&mut tx, &key, &[keyed("b", round)]).await.unwrap();
                publish(&mut tx, &key, &[keyed("b", round), keyed("a", round)]).await.unwrap();
                tx.commit().await.unwrap();
                let read = ReadAsk { topic: key.clone(), after: after.clone(), limit: 100 };
                let events = store.read_events(&read).await.unwrap();
                assert_eq!(events.len(), 4);
                let mut tx = store.pool().begin().await.unwrap();
                for event in &events {
                    let slot = event.slot as usize;
                    after[slot].1 = event.position;
                    let mut said = commit(event.slot, shares[slot].token, event.position);
                    said.group = key_of_group.clone();
                    assert_eq!(commit_share(&mut tx, &said, LEASE).await.unwrap(), Committed::Yes);
                }
                tx.commit().await.unwrap();
            }
            let view = store.group(&key_of_group).await.unwrap().unwrap();
            assert_eq!(view.lag(), (0, true));
        }
    });
    futures_util::future::join_all(clients).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_resets_all_settings_in_mid_transaction_loses_nothing() {
    let (database, store) = with_topic(4).await;
    for (before, after) in [(1, 0), (1, 1), (3, 2)] {
        let publish = |count: usize| "SELECT tenure.publish('t', key => 'a');".repeat(count);
        let script = format!("BEGIN; {} RESET ALL; {} COMMIT", publish(before), publish(after));
        let held = all(&store, 4).await.len();
        database.psql(&script).unwrap();
        let mut ids: Vec<_> = all(&store, 4).await.iter().map(|event| event.id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), held + before + after, "{before} before, {after} after: each once");
    }
}

/// Triggers do not fire there: silence would lose what was published.
#[tokio::test(flavor = "multi_thread")]
async fn who_replicates_is_told_that_it_can_not_publish() {
    let (database, store) = with_topic(1).await;
    for publish in ["tenure.publish('t', key => 'a')", "tenure.publish_many('t', '[{}, {}]')"] {
        let sql = format!("SET session_replication_role = replica; SELECT {publish}");
        let error = database.psql(&sql).unwrap_err().to_string();
        assert!(error.contains("would never be read"), "{error}");
    }
    assert_eq!(database.psql("SELECT count(*) FROM tenure.events").unwrap(), "0");
    assert_eq!(all(&store, 1).await, []);
}
