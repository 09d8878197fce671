//! The view `tenure_publish` for other languages.

use std::io::Write;
use std::process::{Command, Stdio};

use sqlx::{Connection, Executor, Row};
use tenure_core::port::*;
use tenure_core::rules::event::partition_for_key;

use super::events::{all_events, fresh, ids, keyed, plain, topic};

/// Keys of all lengths and from all planes of Unicode.
fn keys() -> Vec<String> {
    let mut keys: Vec<String> = (0..300).map(|n| format!("order-{n}")).collect();
    keys.extend(
        ["a", "ß", "ключ", "鍵", "🔑", "a'b\"c\\d", "%_[]*?", " ", "\u{10ffff}", "é", "e\u{301}"]
            .map(Into::into),
    );
    keys.extend((1..=KEY_MAX).step_by(37).map(|n| "x".repeat(n)));
    keys.push("ключ🔑".repeat(36));
    let mut seed = 7u64;
    keys.extend((0..300).map(|_| {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u32
        };
        let length = next() % 40 + 1;
        let planes = [0x7f, 0x7ff, 0xffff, 0x10_ffff];
        (0..length)
            .filter_map(|_| char::from_u32(next() % planes[next() as usize % 4]))
            .filter(|c| !c.is_control())
            .chain(['.'])
            .collect::<String>()
    }));
    keys.retain(|key| key.len() <= KEY_MAX);
    keys
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[tokio::test]
async fn a_key_has_the_same_partition_in_sql_and_rust() {
    for partitions in [64, 7, 1, 1_024] {
        let (store, _dir) = fresh(partitions).await;
        let (keys, mut conn) = (keys(), plain(store.path()).await);
        let mut transaction = conn.begin().await.unwrap();
        for key in &keys {
            let put = sqlx::query("INSERT INTO tenure_publish (topic, key) VALUES ('t', ?1)").bind(key);
            put.execute(&mut *transaction).await.unwrap();
        }
        transaction.commit().await.unwrap();
        let rows = conn
            .fetch_all("SELECT key, partition, id, event_offset FROM tenure_publish ORDER BY id")
            .await
            .unwrap();
        assert_eq!(rows.len(), keys.len());
        for (row, key) in rows.iter().zip(&keys) {
            let partition = partition_for_key(key, partitions);
            assert_eq!(
                (row.get::<String, _>("key"), row.get::<u32, _>("partition")),
                (key.clone(), partition)
            );
            assert_eq!(row.get::<i64, _>("id"), row.get::<i64, _>("event_offset"));
        }
        // The same through the Rust API.
        let events: Vec<_> = keys.iter().map(|key| keyed(key, 0)).collect();
        let published = store.publish(&topic(), &events).await.unwrap();
        assert!(
            published.iter().zip(&keys).all(|(it, key)| it.partition == partition_for_key(key, partitions))
        );
    }
}

/// The same with the SQLite of the machine, if it is installed. It is older than the one in Tenure.
#[tokio::test]
async fn an_older_sqlite_assigns_the_same_partitions_and_ids() {
    if Command::new("sqlite3").arg("--version").output().is_err() {
        return;
    }
    let (store, _dir) = fresh(64).await;
    store.publish(&topic(), &[keyed("first", 1)]).await.unwrap();
    let keys = keys();
    let mut script = String::from("BEGIN;\n");
    for key in &keys {
        let key = quoted(key);
        script += &format!(
            "INSERT INTO tenure_publish (topic, key, type, payload) VALUES ('t', {key}, 'k', '[1]');\n"
        );
    }
    script += "INSERT INTO tenure_publish (topic, payload) VALUES ('t', x'00ff'), ('t', NULL), ('t', '2');\nCOMMIT;\n";
    let mut shell =
        Command::new("sqlite3").arg("-bail").arg(store.path()).stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
    let mut read = all_events(&store, 64).await;
    read.sort_by_key(|event| event.id);
    assert_eq!(ids(&read), (1..=keys.len() as u64 + 4).collect::<Vec<_>>());
    for (event, key) in read[1..].iter().zip(&keys) {
        assert_eq!((event.key.as_ref(), event.partition), (Some(key), partition_for_key(key, 64)));
    }
    let rest = &read[keys.len() + 1..];
    assert!(rest.iter().all(|event| event.key.is_none() && u64::from(event.partition) == event.id.0 % 64));
    assert_eq!(rest[0].payload, Payload::Bytes(vec![0, 255]));
    assert_eq!(rest[1].payload, Payload::default());
    let view = store.topic(&topic()).await.unwrap().unwrap();
    assert_eq!(view.event_count, read.len() as u64);
    assert!(
        view.newest_published_at_ms.unwrap() - view.oldest_published_at_ms.unwrap() < 600_000,
        "both programs use the same clock"
    );
}

#[tokio::test]
async fn the_publish_view_creates_events() {
    let (store, _dir) = fresh(4).await;
    let mut conn = plain(store.path()).await;
    let all = r#"INSERT INTO tenure_publish (namespace, topic, key, type, payload, headers, idempotency_key, leader_token)
        VALUES ('default', 't', 'k1', 'order.paid', '{"total" : 9}', '{"trace":"7f3a"}', 'once', 41)"#;
    conn.execute(all).await.unwrap();
    conn.execute(all).await.unwrap();
    let read = all_events(&store, 4).await;
    assert_eq!(read.len(), 1, "only once");
    let event = &read[0];
    assert_eq!((event.id.0, event.offset, event.partition), (1, 1, partition_for_key("k1", 4)));
    assert_eq!((event.key.as_deref(), event.event_type.as_str()), (Some("k1"), "order.paid"));
    assert_eq!(event.payload, Payload::Json(r#"{"total" : 9}"#.parse().unwrap()));
    assert_eq!((event.headers["trace"].as_str(), event.leader_token.unwrap().as_u64()), ("7f3a", 41));
    let again = NewEvent { idempotency_key: Some("once".into()), ..NewEvent::new("k") };
    let published = store.publish(&topic(), &[again]).await.unwrap();
    assert_eq!(published, [PublishReceipt { id: EventId(1), partition: event.partition, created: false }]);
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().event_count, 1);
    // Several rows of one statement are several events in order.
    conn.execute(
        "INSERT INTO tenure_publish (topic, key, payload) SELECT 't', 'k1', value FROM json_each('[1,2,3]')",
    )
    .await
    .unwrap_err();
    conn.execute("INSERT INTO tenure_publish (topic, key, payload) SELECT 't', 'k1', CAST(value AS TEXT) FROM json_each('[1,2,3]')")
        .await
        .unwrap();
    let read = all_events(&store, 4).await;
    assert_eq!(ids(&read), [1, 2, 3, 4]);
    assert_eq!(read[3].payload, Payload::Json("3".parse().unwrap()));
}

#[tokio::test]
async fn an_insert_into_the_publish_view_is_transactional() {
    let (store, _dir) = fresh(4).await;
    let mut conn = plain(store.path()).await;
    let insert = "INSERT INTO tenure_publish (topic, key) VALUES ('t', 'a')";
    let mut transaction = conn.begin().await.unwrap();
    transaction.execute(insert).await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(all_events(&store, 4).await.is_empty());
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().event_count, 0);
    let mut transaction = conn.begin().await.unwrap();
    transaction.execute(insert).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(all_events(&store, 4).await.len(), 1);
}

/// Each insert fails with a helpful message and creates nothing.
#[tokio::test]
async fn the_publish_view_rejects_invalid_values_with_a_remedy() {
    let (store, _dir) = fresh(4).await;
    let small = TopicSettings { max_payload_bytes: 10, partitions: 4, ..TopicSettings::default() };
    store.set_topic(&topic(), &small).await.unwrap();
    let mut conn = plain(store.path()).await;
    let long = format!("'{}'", "x".repeat(KEY_MAX + 1));
    let many: Vec<_> = (0..=HEADERS_MAX.0).map(|n| format!("\"h{n}\":\"\"")).collect();
    let cases = [
        ("(type)", "'k'", "the topic is missing"),
        ("(topic)", "'other'", "tenure events topics create"),
        ("(topic, namespace)", "'t', 'other'", "PUT /v1/topics"),
        ("(topic, payload)", "'t', '{to'", "not valid JSON"),
        ("(topic, payload)", "'t', 7", "not valid JSON"),
        ("(topic, payload)", "'t', '\"123456789\"'", "more bytes than the topic allows"),
        ("(topic, payload)", "'t', zeroblob(11)", "more bytes than the topic allows"),
        ("(topic, headers)", "'t', 'trace'", "JSON object of strings"),
        ("(topic, headers)", "'t', '[\"a\"]'", "JSON object of strings"),
        ("(topic, headers)", "'t', '{\"a\":1}'", "JSON object of strings"),
        ("(topic, headers)", "'t', '{\"\":\"a\"}'", "at most 64 headers"),
        ("(topic, headers)", "'t', '{\"a\":\"b\\n\"}'", "at most 64 headers"),
        ("(topic, headers)", &format!("'t', '{{{}}}'", many.join(",")), "at most 64 headers"),
        ("(topic, type)", &format!("'t', {long}"), "the type must"),
        ("(topic, type)", "'t', char(9)", "the type must"),
        ("(topic, key)", &format!("'t', {long}"), "the key must"),
        ("(topic, key)", "'t', ''", "the key must"),
        ("(topic, key)", "'t', 7", "the key must"),
        ("(topic, key)", "'t', char(133)", "the key must"),
        ("(topic, idempotency_key)", "'t', ''", "the idempotency_key must"),
        ("(topic, leader_token)", "'t', 'x'", "leader_token must"),
        ("(topic, leader_token)", "'t', -1", "leader_token must"),
    ];
    for (columns, values, words) in cases {
        let sql = format!("INSERT INTO tenure_publish {columns} VALUES ({values})");
        let error = sqlx::query(sqlx::AssertSqlSafe(sql.as_str())).execute(&mut conn).await.unwrap_err();
        let output = error.to_string();
        assert!(output.contains("tenure: ") && output.contains(words), "{columns} {values}: {output}");
    }
    assert!(all_events(&store, 4).await.is_empty());
}

/// Another program may write invalid rows. They are read nevertheless, because they would block all later events.
#[tokio::test]
async fn invalid_rows_do_not_block_later_events() {
    let (store, _dir) = fresh(1).await;
    let mut conn = plain(store.path()).await;
    for values in ["'a', '[1]'", "CAST(x'61ff' AS TEXT), '[2]'", "'a', '[3]'"] {
        let sql = format!("INSERT INTO tenure_publish (topic, key, payload) VALUES ('t', {values})");
        sqlx::query(sqlx::AssertSqlSafe(sql.as_str())).execute(&mut conn).await.unwrap();
    }
    conn.execute("UPDATE tenure_events SET payload = '{broken', headers = 'x', type = CAST(x'ff' AS TEXT) WHERE id = 3").await.unwrap();
    let read = all_events(&store, 1).await;
    assert_eq!(ids(&read), [1, 2, 3]);
    assert_eq!(read[1].key.as_deref(), Some("a\u{fffd}"));
    assert_eq!(read[2].payload, Payload::Bytes(b"{broken".into()));
    assert_eq!((read[2].event_type.as_str(), read[2].headers.len()), ("\u{fffd}", 0));
}
